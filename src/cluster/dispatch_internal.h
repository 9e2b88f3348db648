/*
 * The dispatcher's own state, for the files that implement dispatch.h. All of it is the engine
 * thread's, but for what its pool reads while a layer is summed.
 */
#ifndef EK_CLUSTER_DISPATCH_INTERNAL_H
#define EK_CLUSTER_DISPATCH_INTERNAL_H

#include "cluster/dispatch.h"
#include "cluster/front_internal.h"

#define EK_DISPATCH_JOBS_PER_PEER 4 /* rounds that one worker can answer in a layer */

/** What has become of a row of the layer. */
typedef enum ek_row_state {
    EK_ROW_TODO, /* owner says who is to have it; EK_NOBODY: undecided */
    EK_ROW_SENT,
    EK_ROW_DONE,
    EK_ROW_LOST, /* nobody has its expert */
} ek_row_state;

#define EK_NOBODY (-1)

/** One message to a worker, and its answer. */
typedef struct ek_dispatch_job {
    ek_wire_header header; /* as it was sent */
    bool is_answered;
    ek_wire_combine_layout lay;
    uint8_t *y;                  /* answer's body; in the peer's receive buffer */
    const int32_t *row;          /* (n_rows) rows of the layer, in the message's order */
    const int32_t *token;        /* (n_tokens) tokens of the batch */
    const int32_t *share_expert; /* (n_shares) in the message */
    const int32_t *share_beg;
} ek_dispatch_job;

/** A worker, as the dispatcher has to do with it. */
typedef struct ek_dispatch_peer {
    ek_member *member;
    bool pending;    /* an answer of this layer is awaited: of the last job */
    bool has_header; /* of it */
    bool sending;
    bool owes; /* an answer of an earlier layer or round is still to come, and nobody wants it */
    ek_wire_header in; /* header of what arrives */
    int64_t sent_us;
    int32_t n_assigned; /* rows of the layer */
    int32_t told;       /* how it stood when the engine last asked (peer_standing) */
    int64_t down_us;    /* since when it is not there; 0: it is, or never was */
    uint64_t busy_us;   /* of the worker, as far as it is counted */
    double us_per_row;  /* that its answers took lately; 0: not known */

    ek_dispatch_job job[EK_DISPATCH_JOBS_PER_PEER];
    int32_t n_jobs;   /* of the layer */
    uint8_t *send;    /* (dispatch_bytes_max) */
    uint8_t *receive; /* (receive_bytes) answers of the layer, one behind the other */
    size_t receive_used;
    int32_t *row;   /* (rows_max) of all jobs */
    int32_t *token; /* (jobs, tokens_max) */
    int32_t *local; /* (tokens_max) the message's number of a token; -1: not in it */
    int32_t n_rows; /* used of row */
} ek_dispatch_peer;

typedef struct ek_cluster_dispatcher {
    ek_dispatcher base;
    ek_front *front;
    ek_dispatcher_setup setup;
    ek_wire_shape shape;
    uint8_t form;
    ek_dispatch_peer *peers; /* (n_peers) */
    int32_t n_peers;
    size_t receive_bytes;
    uint64_t next_seq;
    int32_t *home; /* (n_layers, n_experts) who had it last */

    /* The layer between dispatch and combine. */
    const ek_expert_work *work;
    int64_t dispatch_us;
    uint64_t n_layers_done; /* of all steps: what slow start draws lots with */
    uint8_t *row_state;     /* (rows_max) ek_row_state */
    int32_t *row_owner;     /* (rows_max) peer, or EK_NOBODY */
    const uint8_t **row_y;  /* (rows_max) where its output lies, once it is there */
    float *token_factor;    /* (tokens_max) what lost rows leave to the others to carry */
    bool has_losses;
    float *out;     /* combine's */
    float *widened; /* (n_threads, d_model) a row that travelled as bf16 */

    ek_sys_region region; /* owned; this struct lies in it */
} ek_cluster_dispatcher;

/* ---- dispatch_peers.c ---- */

/** Take over sessions that have come, and what late answers are still under way. */
void ek_cluster_peers_refresh(ek_cluster_dispatcher *self);
/** Can this worker be sent rows? */
bool ek_cluster_peer_is_usable(const ek_dispatch_peer *peer);
bool ek_cluster_peer_has(const ek_dispatch_peer *peer, int32_t layer, int32_t expert);
/**
 * Who computes rows of an expert: of those who have it, one who is not drained and does not pass
 * if there is any, and of these who has least to do. @return peer; EK_NOBODY
 */
int32_t ek_cluster_peers_choose(const ek_cluster_dispatcher *self, int32_t layer, int32_t expert);
/**
 * Slow start: for a while after a worker has come back, only a growing part of what others could do
 * as well. Should it pass these rows by?
 */
bool ek_cluster_peer_passes(const ek_cluster_dispatcher *self, const ek_dispatch_peer *peer,
                            int32_t layer, int32_t expert);
/** Has a worker that had this expert been gone for so short a time that it may be back soon? */
bool ek_cluster_peers_may_return(const ek_cluster_dispatcher *self, int32_t layer, int32_t expert,
                                 int64_t now_us);
/** The link is of no use any more: its member joins the worker anew. */
void ek_cluster_peer_break(ek_dispatch_peer *peer);
/** Dispatcher ops. */
bool ek_cluster_peers_changed(ek_dispatcher *base, bool *out_loads_known);
void ek_cluster_peers_slots(const ek_dispatcher *base, int32_t layer, const int32_t *slot_beg,
                            int32_t *out_slot_expert);

/* ---- dispatch_jobs.c ---- */

/** Make a message for each peer that has rows to do, and begin to send it. */
void ek_cluster_jobs_send(ek_cluster_dispatcher *self);
/** Move bytes without waiting. @return how many answers are still awaited */
int32_t ek_cluster_jobs_progress(ek_cluster_dispatcher *self);
/** Nobody waits for the peer's answer any more; its rows are to do again. */
void ek_cluster_job_abandon(ek_cluster_dispatcher *self, ek_dispatch_peer *peer);

#endif
