#include "cluster/rebalance.h"

#include <string.h>

#include "base/assert.h"
#include "cluster/moves.h"
#include "link/net.h"
#include "place/controller.h"
#include "sys/clock.h"
#include "sys/log.h"

#define LOOK_US          100000
#define LINK_BYTES_PER_S (64.0 * 1024 * 1024) /* worker.acquire_rate, unless it was changed */
#define HORIZON_US       60000000
#define MIN_GAIN         0.05
#define STEP_TIMEOUT_US  INT64_C(600000000)
#define STEP_REPLICAS    8
#define NS_PER_S         1e9
#define GUESS_S_PER_ROW  1e-5 /* until workers have said how long they compute */

struct ek_rebalance {
    ek_front *front;
    ek_sys_thread thread;
    ek_sys_mutex lock;            /* of stats and report: never held with the front's */
    const ek_expert_stats *stats; /* NULL: none */
    ek_rebalance_report report;
    bool has_report;

    /* The thread's. */
    ek_place_controller *controller;
    ek_sys_region region; /* of it and of what follows; none before the first window */
    int32_t n_devices, n_slots;
    int32_t *slot_beg;  /* (n_devices + 1) */
    int32_t *slots;     /* (n_slots) working space */
    bool *fixed;        /* (n_slots) likewise */
    bool *dead;         /* (n_devices) */
    int64_t *room;      /* (n_devices) experts that it may still acquire */
    ek_expert_set *own; /* (n_devices) what each was started with; of the last look */
    ek_expert_set *has; /* (n_devices) what it offers */
    void *scratch;
    size_t scratch_bytes;
    int64_t *total, *window; /* (n_layers, n_experts) counts: up to the last window, and in it */
    int64_t *busy_ns;        /* likewise, totals */
    int64_t window_us;       /* when the last one ended; 0: none yet */
    int32_t n_moved;         /* replicas, since then */

    /* The step that is out. */
    uint64_t step_id; /* 0: none */
    int32_t step_layer, step_replicas;
    uint64_t failed[EK_CLUSTER_WORKERS_MAX]; /* orders of each worker before it */
    bool concerned[EK_CLUSTER_WORKERS_MAX];
};

static bool stops(const ek_rebalance *r)
{
    return atomic_load_explicit(&r->front->stopping, memory_order_acquire);
}

/* ---- making it ---- */

/* Workers of one host are a node: what is between them does not cross the network. */
static int32_t number_nodes(const ek_front *front, int32_t *out_node)
{
    char host[EK_CLUSTER_WORKERS_MAX][EK_NET_HOST_MAX];
    int32_t n_nodes = 0;
    for (int32_t d = 0; d < front->n_members; d++) {
        uint16_t port;
        ek_err err;
        int32_t node = 0;
        if (ek_link_net_split(front->members[d].address, host[n_nodes], &port, &err) != EK_OK)
            host[n_nodes][0] = '\0'; /* it was split before */
        while (strcmp(host[node], host[n_nodes]) != 0)
            node++;
        out_node[d] = node;
        n_nodes += node == n_nodes;
    }
    return n_nodes;
}

static ek_place_controller_params params_of(const ek_rebalance *r, double seconds_per_row)
{
    const ek_cluster_params *config = &r->front->params;
    ek_place_controller_params p;
    ek_place_controller_params_default(&p);
    p.bytes_per_expert = r->front->expert_bytes;
    p.link_bytes_per_s = LINK_BYTES_PER_S;
    p.seconds_per_row = seconds_per_row;
    p.horizon_us = HORIZON_US > 6 * config->rebalance_interval_us
                       ? HORIZON_US
                       : 6 * config->rebalance_interval_us;
    p.min_gain = MIN_GAIN;
    p.half_life_us = 10 * config->rebalance_interval_us;
    p.stale_us = 30 * config->rebalance_interval_us;
    p.max_replicas = config->rebalance_moves;
    p.max_step_replicas = p.max_replicas < STEP_REPLICAS ? p.max_replicas : STEP_REPLICAS;
    if (p.max_step_bytes / 2 < p.bytes_per_expert) p.max_step_bytes = 2 * p.bytes_per_expert;
    p.pause_us = config->rebalance_interval_us;
    p.step_timeout_us = STEP_TIMEOUT_US;
    return p;
}

/* Slots of each worker: what it has in any layer, and may come to have. */
static int32_t count_slots(ek_front *front, int32_t *out_device_slots)
{
    int32_t n_slots = 0;
    ek_sys_mutex_lock(&front->lock);
    for (int32_t d = 0; d < front->n_members; d++) {
        out_device_slots[d] = 1;
        for (int32_t l = 0; l < front->shape.n_layers; l++) {
            int32_t n = ek_cluster_moves_slots_locked(&front->members[d], l);
            if (n > out_device_slots[d]) out_device_slots[d] = n;
        }
        n_slots += out_device_slots[d];
    }
    ek_sys_mutex_unlock(&front->lock);
    return n_slots;
}

static void take_set(const ek_front *front, ek_arena *perm, ek_expert_set *out_set)
{
    size_t words = ek_link_set_words(front->shape.n_experts);
    *out_set = (ek_expert_set){
        .n_layers = front->shape.n_layers,
        .n_experts = front->shape.n_experts,
        .bits = ek_new(perm, uint64_t, (size_t)front->shape.n_layers * words),
    };
}

static ek_status open_controller(ek_rebalance *r, double seconds_per_row, ek_err *err)
{
    const ek_front *front = r->front;
    int32_t device_slots[EK_CLUSTER_WORKERS_MAX], node[EK_CLUSTER_WORKERS_MAX];
    size_t layers = (size_t)front->shape.n_layers, n_devices = (size_t)front->n_members;
    int32_t n_slots = count_slots(r->front, device_slots);
    const ek_place_controller_params p = params_of(r, seconds_per_row);
    ek_place_controller_setup setup = {
        .topology = {.n_experts = front->shape.n_experts,
                     .n_slots = n_slots,
                     .n_devices = front->n_members,
                     .n_nodes = number_nodes(front, node),
                     .n_groups = 1,
                     .device_slots = device_slots,
                     .device_node = node},
        .n_layers = front->shape.n_layers,
    };
    r->scratch_bytes = ek_place_controller_scratch_bytes(&setup, &p);
    size_t set_bytes = ek_link_set_bytes(front->shape.n_layers, front->shape.n_experts);
    size_t bytes = ek_place_controller_bytes(&setup, &p) + r->scratch_bytes +
                   (layers + 1) * (size_t)n_slots * sizeof(int32_t) +
                   (size_t)n_slots * sizeof(bool) +
                   n_devices * (sizeof(bool) + sizeof(int64_t) + sizeof(int32_t) +
                                2 * (sizeof(ek_expert_set) + set_bytes + EK_CACHE_LINE)) +
                   64 * (size_t)EK_CACHE_LINE;
    ek_status status = ek_sys_region_open(bytes, 0, &r->region);
    if (status != EK_OK) return ek_err_set(err, status, "no memory to rebalance workers");
    ek_arena perm = ek_sys_region_arena(&r->region);
    r->n_slots = n_slots;
    r->n_devices = front->n_members;
    r->slot_beg = ek_new(&perm, int32_t, n_devices + 1);
    r->slots = ek_new(&perm, int32_t, n_slots);
    r->fixed = ek_new(&perm, bool, n_slots);
    r->dead = ek_new(&perm, bool, n_devices);
    r->room = ek_new(&perm, int64_t, n_devices);
    r->own = ek_new(&perm, ek_expert_set, n_devices);
    r->has = ek_new(&perm, ek_expert_set, n_devices);
    for (size_t d = 0; d < n_devices; d++) {
        r->slot_beg[d + 1] = r->slot_beg[d] + device_slots[d];
        take_set(front, &perm, &r->own[d]);
        take_set(front, &perm, &r->has[d]);
    }
    int32_t *empty = ek_new(&perm, int32_t, layers * (size_t)n_slots);
    memset(empty, 0xff, layers * (size_t)n_slots * sizeof *empty); /* EK_PLACE_EMPTY */
    r->scratch = ek_arena_alloc(&perm, r->scratch_bytes, 1, EK_CACHE_LINE);
    setup.slot_expert = empty;
    return ek_place_controller_create(&setup, &p, &perm, &r->controller, err);
}

/* ---- what there is ---- */

/* @return whether somebody else is there than at the last look */
static bool look(ek_rebalance *r, int64_t now_us)
{
    ek_front *front = r->front;
    bool changed = false;
    ek_sys_mutex_lock(&front->lock);
    for (int32_t d = 0; d < r->n_devices; d++) {
        ek_member *member = &front->members[d];
        const ek_member_moves *m = &member->moves;
        bool dead = !atomic_load_explicit(&member->joined, memory_order_acquire) ||
                    atomic_load_explicit(&member->drained, memory_order_acquire) ||
                    atomic_load_explicit(&member->draining, memory_order_acquire);
        changed |= dead != r->dead[d];
        r->dead[d] = dead;
        size_t words =
            ek_link_set_bytes(front->shape.n_layers, front->shape.n_experts) / sizeof(uint64_t);
        for (size_t i = 0; i < words; i++) {
            r->has[d].bits[i] = dead ? 0 : member->offered.bits[i];
            r->own[d].bits[i] = dead ? 0 : member->offered.bits[i] & ~m->acquired.bits[i];
        }
        /* One that failed at something is not asked for more before its next try is due. */
        bool is_free = m->is_able && now_us >= m->retry_us;
        r->room[d] = is_free && !dead
                         ? m->room_bytes / front->expert_bytes - ek_link_set_count(&m->acquired)
                         : 0;
    }
    ek_sys_mutex_unlock(&front->lock);
    return changed;
}

/* Are a layer's slots what workers have? */
static bool is_true(const ek_rebalance *r, int32_t layer)
{
    const int32_t *slots = ek_place_controller_slots(r->controller, layer);
    for (int32_t d = 0; d < r->n_devices; d++) {
        int32_t n = 0;
        for (int32_t s = r->slot_beg[d]; s < r->slot_beg[d + 1]; s++) {
            if (slots[s] >= 0 && !ek_link_set_has(&r->has[d], layer, slots[s])) return false;
            n += slots[s] >= 0;
        }
        int32_t offered = ek_link_set_count_layer(&r->has[d], layer);
        int32_t most = r->slot_beg[d + 1] - r->slot_beg[d];
        if (n != (offered < most ? offered : most)) return false;
    }
    return true;
}

/* What workers have in a layer, into its slots: what stays first. */
static void fill_slots(ek_rebalance *r, int32_t layer)
{
    for (int32_t d = 0; d < r->n_devices; d++) {
        int32_t s = r->slot_beg[d], end = r->slot_beg[d + 1];
        for (int pass = 0; pass < 2; pass++)
            for (int32_t e = 0; e < r->front->shape.n_experts && s < end; e++)
                if (ek_link_set_has(&r->has[d], layer, e) &&
                    ek_link_set_has(&r->own[d], layer, e) == (pass == 0))
                    r->slots[s++] = e;
        while (s < end)
            r->slots[s++] = EK_PLACE_EMPTY;
    }
}

/* Own experts stay where they are, and nothing comes where there is no room. */
static void fix_slots(ek_rebalance *r, int32_t layer)
{
    const int32_t *slots = ek_place_controller_slots(r->controller, layer);
    for (int32_t d = 0; d < r->n_devices; d++) {
        int64_t room = r->room[d];
        for (int32_t s = r->slot_beg[d]; s < r->slot_beg[d + 1]; s++)
            r->fixed[s] = slots[s] >= 0 ? ek_link_set_has(&r->own[d], layer, slots[s]) : --room < 0;
    }
    ek_place_controller_fix(r->controller, layer, r->fixed);
}

static void follow(ek_rebalance *r, int64_t now_us)
{
    if (look(r, now_us)) ek_place_controller_devices(r->controller, now_us, r->dead);
    for (int32_t l = 0; l < r->front->shape.n_layers; l++) {
        bool is_moving = r->step_id != 0 && r->step_layer == l;
        if (!is_moving && !is_true(r, l)) {
            fill_slots(r, l);
            ek_status status = ek_place_controller_adopt(r->controller, now_us, l, r->slots);
            ek_assert(status == EK_OK); /* ids are in range, and the dead have nothing */
        }
        fix_slots(r, l);
    }
}

/* ---- counts ---- */

static double sum_of(const int64_t *values, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)values[i];
    return sum;
}

/* Read the counts. @return false: there are none */
static bool read_counts(ek_rebalance *r)
{
    ek_sys_mutex_lock(&r->lock);
    bool there = r->stats != NULL;
    if (there) ek_telemetry_experts_read(r->stats, 0, r->window, NULL, r->busy_ns);
    ek_sys_mutex_unlock(&r->lock);
    int64_t n = (int64_t)r->front->shape.n_layers * r->front->shape.n_experts;
    for (int64_t i = 0; i < n && there; i++) {
        int64_t total = r->window[i];
        r->window[i] -= r->total[i];
        r->total[i] = total;
    }
    return there;
}

/* A window has ended: feed it, and make the controller once there is something to go by. */
static ek_status close_window(ek_rebalance *r, int64_t now_us, ek_err *err)
{
    int64_t length_us = now_us - r->window_us;
    int64_t n = (int64_t)r->front->shape.n_layers * r->front->shape.n_experts;
    bool is_first = r->window_us == 0;
    if (!read_counts(r)) return EK_OK;
    r->window_us = now_us;
    r->n_moved = 0;
    if (is_first) return EK_OK;
    double rows = sum_of(r->total, n), busy_ns = sum_of(r->busy_ns, n);
    if (rows <= 0) return EK_OK;
    if (!r->controller) {
        double per_row = busy_ns > 0 ? busy_ns / rows / NS_PER_S : GUESS_S_PER_ROW;
        ek_status status = open_controller(r, per_row, err);
        if (status != EK_OK) return status;
        follow(r, now_us);
    }
    ek_place_controller_feed(r->controller, now_us, length_us, r->window);
    return EK_OK;
}

/* ---- steps ---- */

/* What a step makes of a layer is what is wanted of each worker that it concerns. */
static void begin_step(ek_rebalance *r, const ek_place_step *step)
{
    ek_front *front = r->front;
    const ek_place_topology topology = {
        .n_experts = front->shape.n_experts,
        .n_slots = r->n_slots,
        .n_devices = r->n_devices,
        .n_nodes = 1,
        .n_groups = 1,
    };
    int64_t n_from[EK_PLACE_N_DISTANCES] = {0};
    const int32_t *before = ek_place_controller_slots(r->controller, step->layer);
    memcpy(r->slots, before, (size_t)r->n_slots * sizeof *r->slots);
    ek_place_moves_apply(&topology, step->moves, step->n_moves, r->slots, n_from);
    r->step_id = step->id;
    r->step_layer = step->layer;
    r->step_replicas = step->n_replicas;
    ek_sys_mutex_lock(&front->lock);
    /* A placement that has come meanwhile has a say alone: go_on takes the step back. */
    bool may = !ek_cluster_placing_is_moving_locked(front);
    for (int32_t d = 0; d < r->n_devices && may; d++) {
        ek_member_moves *m = &front->members[d].moves;
        int32_t beg = r->slot_beg[d], end = r->slot_beg[d + 1];
        r->failed[d] = m->n_failed;
        r->concerned[d] =
            memcmp(r->slots + beg, before + beg, (size_t)(end - beg) * sizeof *r->slots) != 0;
        if (!r->concerned[d]) continue;
        for (int32_t e = 0; e < front->shape.n_experts; e++)
            ek_link_set_remove(&m->wanted, step->layer, e);
        for (int32_t s = beg; s < end; s++)
            if (r->slots[s] >= 0 && !ek_link_set_has(&r->own[d], step->layer, r->slots[s]))
                ek_link_set_add(&m->wanted, step->layer, r->slots[s]);
        m->is_ours = true;
    }
    ek_sys_mutex_unlock(&front->lock);
    if (!may) return;
    ek_log(EK_LOG_INFO, "cluster", "rebalance_step", "layer=%d replicas=%d bytes=%lld",
           (int)step->layer, (int)step->n_replicas, (long long)step->bytes);
}

/* @return EK_OK workers have what was wanted; EK_AGAIN not yet; EK_EPEER one has failed */
static ek_status step_state_locked(const ek_rebalance *r)
{
    const ek_front *front = r->front;
    size_t words = ek_link_set_words(front->shape.n_experts);
    ek_status status = EK_OK;
    for (int32_t d = 0; d < r->n_devices; d++) {
        const ek_member_moves *m = &front->members[d].moves;
        if (!r->concerned[d]) continue;
        if (m->n_failed != r->failed[d] || !m->is_able) return EK_EPEER;
        size_t at = (size_t)r->step_layer * words;
        if (m->order.id != 0 ||
            memcmp(m->wanted.bits + at, m->acquired.bits + at, words * sizeof *m->wanted.bits) != 0)
            status = EK_AGAIN;
    }
    return status;
}

/* What they could not get is wanted no more, here at least. */
static void give_up_locked(ek_rebalance *r)
{
    ek_front *front = r->front;
    size_t words = ek_link_set_words(front->shape.n_experts);
    for (int32_t d = 0; d < r->n_devices; d++) {
        ek_member_moves *m = &front->members[d].moves;
        size_t at = (size_t)r->step_layer * words;
        if (r->concerned[d])
            memcpy(m->wanted.bits + at, m->acquired.bits + at, words * sizeof *m->wanted.bits);
    }
}

static void watch_step(ek_rebalance *r, int64_t now_us)
{
    bool is_late = ek_place_controller_watch(r->controller, now_us);
    ek_sys_mutex_lock(&r->front->lock);
    ek_status status = is_late ? EK_ETIMEOUT : step_state_locked(r);
    if (status != EK_OK && status != EK_AGAIN) give_up_locked(r);
    ek_sys_mutex_unlock(&r->front->lock);
    if (status == EK_AGAIN) return;
    uint64_t id = r->step_id;
    r->step_id = 0;
    if (status == EK_OK)
        status = ek_place_controller_confirm(r->controller, now_us, id);
    else
        status = ek_place_controller_fail(r->controller, now_us, id);
    /* Taken back meanwhile, since workers came or went: what there is is adopted. */
    if (status == EK_OK) r->n_moved += r->step_replicas;
}

/* A placement that was given says what workers have, until that is so: the step is over. */
static bool makes_way(ek_rebalance *r, int64_t now_us)
{
    ek_sys_mutex_lock(&r->front->lock);
    bool is_placing = ek_cluster_placing_is_moving_locked(r->front);
    ek_sys_mutex_unlock(&r->front->lock);
    if (is_placing && r->step_id != 0) {
        /* It may have been taken back already. */
        (void)!ek_place_controller_fail(r->controller, now_us, r->step_id);
        r->step_id = 0;
    }
    return is_placing;
}

static void log_outlook(const ek_place_outlook *o)
{
    bool begins = o->verdict <= EK_PLACE_REQUIRED;
    ek_log(begins ? EK_LOG_INFO : EK_LOG_DEBUG, "cluster", begins ? "rebalance" : "rebalance_not",
           "layer=%d why=%s now=%.3f then=%.3f replicas=%d saves_s=%.3f costs_s=%.3f",
           (int)o->layer, ek_place_verdict_name(o->verdict), o->now, o->then, (int)o->n_replicas,
           o->saved_s, o->cost_s);
}

static void tell(ek_rebalance *r, const ek_place_outlook *outlook)
{
    ek_place_controller_stats stats;
    ek_place_controller_stats_get(r->controller, &stats);
    ek_sys_mutex_lock(&r->lock);
    if (outlook) {
        r->report.verdict = ek_place_verdict_name(outlook->verdict);
        r->report.verdict_layer = outlook->layer;
        r->report.now = outlook->now;
        r->report.then = outlook->then;
        r->has_report = true;
    }
    r->report.layer = stats.layer;
    r->report.n_rebalances = stats.n_rebalances;
    r->report.n_finished = stats.n_finished;
    r->report.n_failed = stats.n_failed + stats.n_timeouts;
    r->report.n_replicas = stats.n_replicas;
    ek_sys_mutex_unlock(&r->lock);
}

static void go_on(ek_rebalance *r, int64_t now_us)
{
    ek_place_step step;
    ek_place_outlook outlook;
    bool is_new = false;
    bool is_placing = makes_way(r, now_us);
    if (r->step_id != 0) watch_step(r, now_us);
    follow(r, now_us);
    if (!is_placing && r->step_id == 0 && r->n_moved < r->front->params.rebalance_moves) {
        ek_arena scratch = ek_arena_over(r->scratch, r->scratch_bytes);
        is_new = ek_place_controller_decide(r->controller, now_us, scratch, &outlook) == EK_OK;
        if (is_new) log_outlook(&outlook);
        if (ek_place_controller_next(r->controller, now_us, &step) == EK_OK) begin_step(r, &step);
    }
    tell(r, is_new ? &outlook : NULL);
}

static void rebalance_main(void *ctx)
{
    ek_rebalance *r = ctx;
    ek_err err = {0};
    ek_status status = EK_OK;
    while (!stops(r) && status == EK_OK) {
        int64_t now_us = ek_sys_now_us();
        if (now_us - r->window_us >= r->front->params.rebalance_interval_us)
            status = close_window(r, now_us, &err);
        if (status == EK_OK && r->controller) go_on(r, now_us);
        ek_sys_sleep_us(LOOK_US);
    }
    if (status != EK_OK) ek_log(EK_LOG_ERROR, "cluster", "no_rebalance", "why=\"%s\"", err.text);
}

/* ---- life ---- */

ek_status ek_cluster_rebalance_start(ek_front *front, ek_rebalance **out_rebalance, ek_err *err)
{
    size_t cells = (size_t)front->shape.n_layers * (size_t)front->shape.n_experts;
    *out_rebalance = NULL;
    if (front->params.rebalance != EK_CLUSTER_REBALANCE_AUTO || front->n_members < 2) return EK_OK;
    ek_rebalance *r = ek_sys_calloc(1, sizeof *r);
    if (!r) return ek_err_set(err, EK_ENOMEM, "no memory to rebalance workers");
    ek_sys_mutex_init(&r->lock);
    r->front = front;
    r->total = ek_sys_calloc(cells, sizeof *r->total);
    r->window = ek_sys_calloc(cells, sizeof *r->window);
    r->busy_ns = ek_sys_calloc(cells, sizeof *r->busy_ns);
    ek_status status = r->total && r->window && r->busy_ns ? EK_OK : EK_ENOMEM;
    if (status == EK_OK)
        status = ek_sys_thread_start(&r->thread, "ek-rebalance", rebalance_main, r);
    if (status != EK_OK) {
        ek_cluster_rebalance_stop(r);
        return ek_err_set(err, status, "no memory to rebalance workers");
    }
    *out_rebalance = r;
    return EK_OK;
}

void ek_cluster_rebalance_watch(ek_rebalance *r, const ek_expert_stats *stats)
{
    if (!r) return;
    ek_sys_mutex_lock(&r->lock);
    r->stats = stats;
    ek_sys_mutex_unlock(&r->lock);
}

bool ek_cluster_rebalance_report(ek_rebalance *r, ek_rebalance_report *out_report)
{
    if (!r) return false;
    ek_sys_mutex_lock(&r->lock);
    *out_report = r->report;
    bool there = r->has_report;
    ek_sys_mutex_unlock(&r->lock);
    return there;
}

void ek_cluster_rebalance_stop(ek_rebalance *r)
{
    if (!r) return;
    ek_sys_thread_join(&r->thread); /* the front stops already */
    ek_sys_region_close(&r->region);
    ek_sys_free(r->total);
    ek_sys_free(r->window);
    ek_sys_free(r->busy_ns);
    ek_sys_mutex_fini(&r->lock);
    ek_sys_free(r);
}
