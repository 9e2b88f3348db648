/*
 * What a configuration may say about a front whose experts are on other machines. Defaults and
 * ranges stand in config/schema.
 */
#ifndef EK_CLUSTER_PARAMS_H
#define EK_CLUSTER_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "link/params.h"

#define EK_CLUSTER_WORKERS_MAX 64 /* of one front: as many as there can be devices */

typedef enum ek_cluster_wire { EK_CLUSTER_WIRE_F32, EK_CLUSTER_WIRE_BF16 } ek_cluster_wire;

typedef enum ek_cluster_combine {
    EK_CLUSTER_COMBINE_EXACT,  /* rows come back, and are summed as one process would */
    EK_CLUSTER_COMBINE_SUMMED, /* workers sum their rows of each token: fewer bytes */
} ek_cluster_combine;

/** In how many micro-batches a step goes through its layers. */
typedef enum ek_cluster_microbatches {
    EK_CLUSTER_MICROBATCHES_AUTO, /* as many as are quicker for steps of that size */
    EK_CLUSTER_MICROBATCHES_ONE,
    EK_CLUSTER_MICROBATCHES_TWO,
} ek_cluster_microbatches;

/** What becomes of tokens whose expert nobody has any more. */
typedef enum ek_cluster_loss {
    EK_CLUSTER_LOSS_FAIL,    /* the requests of the step fail */
    EK_CLUSTER_LOSS_DEGRADE, /* the expert's part is left out, counted, and the others grow */
} ek_cluster_loss;

/** What becomes of a worker whose data link is worse than asked for. */
typedef enum ek_cluster_link_check {
    EK_CLUSTER_LINK_WARN,   /* it serves, and a log line says so */
    EK_CLUSTER_LINK_REFUSE, /* it stays absent, and is tried again */
} ek_cluster_link_check;

/** Who decides which experts workers have beyond what they were started with. */
typedef enum ek_cluster_rebalance {
    EK_CLUSTER_REBALANCE_OFF,  /* whoever gives commands, or another front */
    EK_CLUSTER_REBALANCE_AUTO, /* this front, by what its traffic asks for */
} ek_cluster_rebalance;

/** A front's. */
typedef struct ek_cluster_params {
    const char *workers; /* "host:port,host:port"; NULL: experts are in this process */
    const char *certs;   /* directory of its certificate; NULL: not set */
    ek_link_fabric_choice fabric;
    ek_cluster_wire wire;
    ek_cluster_combine combine;
    ek_cluster_loss on_loss;
    ek_cluster_microbatches microbatches;
    int64_t join_timeout_us;  /* how long start-up waits for workers */
    int64_t hung_us;          /* a worker that says nothing for so long is given up */
    int64_t hedge_us;         /* rows that are not back by then are given to somebody else, too */
    int64_t slow_start_us;    /* in which a worker that came back gets its full part again */
    int64_t layer_timeout_us; /* and given up by then */
    int64_t loss_wait_us;     /* for a worker's return, before on_loss */
    ek_cluster_link_check link_check;
    int64_t link_latency_max_us; /* of a data link's self-test; 0: any will do */
    int64_t link_bandwidth_min;  /* bytes a second; 0: any will do */
    ek_cluster_rebalance rebalance;
    int64_t rebalance_interval_us; /* counts of so long are looked at together */
    int32_t rebalance_moves;       /* replicas that move in one interval, at most; from 2 on */
} ek_cluster_params;

#endif
