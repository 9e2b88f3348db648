/*
 * The dispatcher's own state, for the files that implement dispatch.h. All of it is the engine
 * thread's, but for what its pool reads while a layer is summed.
 *
 * There is one *layer* for each micro-batch, and for each worker one *desk* in each layer: the
 * messages of that layer to that worker. What is under way on a worker's link is a short queue of
 * *flights*, since answers come in the order of the dispatches, whoever waits for them.
 */
#ifndef EK_CLUSTER_DISPATCH_INTERNAL_H
#define EK_CLUSTER_DISPATCH_INTERNAL_H

#include "cluster/dispatch.h"
#include "cluster/front_internal.h"

#define EK_DISPATCH_JOBS_PER_PEER 4 /* rounds that one worker can answer in a layer */

typedef struct ek_cluster_dispatcher ek_cluster_dispatcher;

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
    uint8_t *y;                  /* answer's body; in the desk's receive buffer */
    const int32_t *row;          /* (n_rows) rows of the layer, in the message's order */
    const int32_t *token;        /* (n_tokens) tokens of the batch */
    const int32_t *share_expert; /* (n_shares) in the message */
    const int32_t *share_beg;
} ek_dispatch_job;

/** What one worker has to do of one micro-batch's layer. */
typedef struct ek_dispatch_desk {
    ek_dispatch_job job[EK_DISPATCH_JOBS_PER_PEER];
    int32_t n_jobs;     /* of the layer */
    bool pending;       /* an answer is awaited: of the last job */
    int32_t n_assigned; /* rows of the layer */
    uint8_t *send;      /* (dispatch_bytes_max) */
    size_t send_bytes;
    uint8_t *receive; /* (receive_bytes) answers of the layer, one behind the other */
    size_t receive_bytes;
    size_t receive_used;
    int32_t *row;   /* (rows_max) of all jobs */
    int32_t *token; /* (jobs, tokens_max) */
    int32_t *local; /* (tokens_max) the message's number of a token; -1: not in it */
    int32_t n_rows; /* used of row */
} ek_dispatch_desk;

/** A dispatch from its being packed until its answer is complete. */
typedef struct ek_dispatch_flight {
    int32_t micro_batch; /* whose desk it came from */
    bool is_wanted;      /* else nobody waits for the answer, and it is thrown away */
    bool is_begun;       /* its first bytes may be out */
    bool is_out;         /* all are */
    ek_wire_header header;
    size_t answer_bytes;
    int64_t sent_us;
    int64_t sent_watch_us; /* the same on the watching clock */
} ek_dispatch_flight;

/** A worker, as the dispatcher has to do with it. */
typedef struct ek_dispatch_peer {
    ek_member *member;
    ek_dispatch_desk desk[EK_MICRO_BATCHES_MAX];
    ek_dispatch_flight flight[EK_MICRO_BATCHES_MAX]; /* first: whose answer comes next */
    int32_t n_flights;
    bool has_header;     /* of the first flight's answer */
    ek_wire_header in;   /* header of what arrives */
    int64_t answered_us; /* when its last answer was there */
    int64_t answered_watch_us;
    int32_t told;      /* how it stood when the engine last asked (peer_standing) */
    int64_t down_us;   /* since when it is not there; 0: it is, or never was */
    bool has_changed;  /* what it offers, since the engine last asked */
    int64_t *since_us; /* (n_layers, n_experts) when it got one while it served; 0: before */
    uint64_t busy_us;  /* of the worker, as far as it is counted */
    double us_per_row; /* that its answers took lately; 0: not known */
    int32_t strikes;   /* slow answers more than quick ones (dispatch_slow.c) */
    int64_t pass_us;   /* how long it is passed by next time, but for doubling; 0: it is quick */
    int64_t pass_until_us;
    size_t reserved_bytes; /* buffers of both desks */
} ek_dispatch_peer;

/** A micro-batch's layer between dispatch and combine. */
typedef struct ek_dispatch_layer {
    int32_t micro_batch;
    int32_t tokens_max;
    const ek_expert_work *work; /* NULL: none */
    int64_t dispatch_us;
    int64_t handed_us;     /* when dispatch returned */
    int64_t answered_us;   /* when its last answer was there */
    uint8_t *row_state;    /* (rows_max) ek_row_state */
    int32_t *row_owner;    /* (rows_max) peer, or EK_NOBODY */
    const uint8_t **row_y; /* (rows_max) where its output lies, once it is there */
    float *token_factor;   /* (tokens_max) what lost rows leave to the others to carry */
    bool has_losses;
    float *out; /* combine's */
} ek_dispatch_layer;

struct ek_cluster_dispatcher {
    ek_dispatcher base;
    ek_front *front;
    ek_dispatcher_setup setup;
    ek_wire_shape shape;
    uint8_t form;
    ek_dispatch_peer *peers; /* (n_peers) */
    int32_t n_peers;
    uint64_t next_seq;
    int32_t *home;          /* (n_layers, n_experts) who had it last */
    uint64_t n_layers_done; /* of all steps: what slow start draws lots with */
    float *widened;         /* (n_threads, d_model) a row that travelled as bf16 */
    ek_dispatch_layer layer[EK_MICRO_BATCHES_MAX];

    /*
     * The watching clock: time in which this was called. A worker is not late because the engine
     * was computing something else and did not look.
     */
    int64_t away_us; /* time in which it stood still */
    int64_t left_us; /* since when it has; 0: it runs */
    int64_t looked_us;

    ek_sys_region region; /* owned; this struct lies in it */
};

/** Rows of a layer's work. */
static inline int32_t ek_cluster_rows_of(const ek_expert_work *work)
{
    return work->expert_beg[work->n_experts];
}

static inline int64_t ek_cluster_watch_us(const ek_cluster_dispatcher *self, int64_t now_us)
{
    return (self->left_us > 0 ? self->left_us : now_us) - self->away_us;
}

/* ---- dispatch_peers.c ---- */

/** Take over sessions that have come, and what late answers are still under way. */
void ek_cluster_peers_refresh(ek_cluster_dispatcher *self);
/** Is an answer still to come that nobody waits for? */
bool ek_cluster_peer_owes(const ek_dispatch_peer *peer);
/**
 * Between layers: take over what workers have got or are about to give up, where nothing is under
 * way to them; what nobody else could compute is not given up.
 */
void ek_cluster_peers_take_changes(ek_cluster_dispatcher *self);
/** Can this worker be sent rows? */
bool ek_cluster_peer_is_usable(const ek_dispatch_peer *peer);
bool ek_cluster_peer_has(const ek_dispatch_peer *peer, int32_t layer, int32_t expert);
/**
 * Who computes rows of an expert: of those who have it, one who is not drained and does not pass
 * if there is any, and of these who has least to do. @return peer; EK_NOBODY
 */
int32_t ek_cluster_peers_choose(const ek_cluster_dispatcher *self, const ek_dispatch_layer *layer,
                                int32_t expert);
/**
 * Should others have these rows, if they can? For a while after a worker has come back (slow start:
 * it gets a growing part of them), and while the way to it is slow.
 */
bool ek_cluster_peer_passes(const ek_cluster_dispatcher *self, const ek_dispatch_layer *layer,
                            const ek_dispatch_peer *peer, int32_t expert);
/** Has a worker that had this expert been gone for so short a time that it may be back soon? */
bool ek_cluster_peers_may_return(const ek_cluster_dispatcher *self, int32_t layer, int32_t expert,
                                 int64_t now_us);
/** Dispatcher ops. */
bool ek_cluster_peers_changed(ek_dispatcher *base, bool *out_loads_known);
void ek_cluster_peers_slots(const ek_dispatcher *base, int32_t layer, const int32_t *slot_beg,
                            int32_t *out_slot_expert);

/* ---- dispatch_slow.c ---- */

/**
 * The least that answers of usable peers take per row.
 * @param but left out; NULL: nobody is
 * @return us; 0: not known
 */
double ek_cluster_peers_us_per_row(const ek_cluster_dispatcher *self, const ek_dispatch_peer *but);
/**
 * An awaited answer is here: is the way to its worker too slow?
 * @param took_us     on the watching clock, since the job was sent or the answer before it was here
 * @param computed_us how long the worker computed, of that
 */
void ek_cluster_peer_answered(ek_cluster_dispatcher *self, const ek_dispatch_layer *layer,
                              ek_dispatch_peer *peer, int64_t took_us, int64_t computed_us);
/** Its answer did not come in time: others have its rows for a while, longer each time. */
void ek_cluster_peer_pass_by(ek_cluster_dispatcher *self, const ek_dispatch_layer *layer,
                             ek_dispatch_peer *peer, int64_t waited_us);

/* ---- dispatch_jobs.c ---- */

/** Make a message for each peer that has rows of the layer to do, and begin to send it. */
void ek_cluster_jobs_send(ek_cluster_dispatcher *self, ek_dispatch_layer *layer);

/* ---- dispatch_flights.c ---- */

/** A packed job goes onto the peer's link, behind what is there. */
void ek_cluster_flights_add(ek_cluster_dispatcher *self, ek_dispatch_peer *peer,
                            int32_t micro_batch);
/** Move what can be moved on the peer's link without waiting; a broken one is given up. */
void ek_cluster_flights_move(ek_cluster_dispatcher *self, ek_dispatch_peer *peer);
/** Nobody waits for the answer any more; its rows are to do again. */
void ek_cluster_flights_abandon(ek_cluster_dispatcher *self, ek_dispatch_peer *peer,
                                int32_t micro_batch);
/** The peer's session has ended: nothing of it is under way any more. */
void ek_cluster_flights_drop(ek_cluster_dispatcher *self, ek_dispatch_peer *peer);
/**
 * Give up on whoever has not answered the layer in time: later than it ever takes, or than it
 * usually takes when somebody else could do the rows.
 */
void ek_cluster_flights_give_up_late(ek_cluster_dispatcher *self, ek_dispatch_layer *layer);
/** Do bytes of the layer's messages still wait for room in a socket? */
bool ek_cluster_flights_is_sending(const ek_cluster_dispatcher *self,
                                   const ek_dispatch_layer *layer);
/** How many answers the layer waits for. */
int32_t ek_cluster_flights_pending(const ek_cluster_dispatcher *self,
                                   const ek_dispatch_layer *layer);
/** Until a link of the layer's can go on. @return false: the time is over */
bool ek_cluster_flights_wait(ek_cluster_dispatcher *self, const ek_dispatch_layer *layer,
                             bool only_senders, int64_t timeout_us);

#endif
