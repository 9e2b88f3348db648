#include "expert/local.h"

#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "expert/ffn.h"
#include "sys/clock.h"
#include "sys/mem.h"

/* Below this many multiply-adds one thread sums faster than others can be called. */
#define COMBINE_ALONE_MAX 65536

/**
 * What one thread knows of one expert or device in the current layer; added up by the owner
 * afterwards.
 */
typedef struct meter {
    int64_t busy_ns;
    int64_t done_ns; /* clock at the end of its last unit of work */
} meter;

/** One matrix of all of a device's shares, cut into units. */
typedef struct phase {
    ek_sys_ticket ticket;
    int32_t tile;  /* weight rows of a unit */
    int32_t tiles; /* of one share */
} phase;

typedef struct device {
    phase hidden;
    phase down;
    int32_t share_beg;
    int32_t n_shares;
    int32_t n_threads;
} device;

typedef struct local {
    ek_dispatcher base;
    ek_expert_local_params params;
    int32_t n_threads;
    bool hidden_int8; /* some layer's down matrices read int8 */
    bool is_timed;    /* somebody wants to know */
    float *scratch;   /* (n_threads, EK_EXPERT_FFN_SCRATCH_FLOATS) */
    meter *meter;     /* (n_threads, meter_stride): experts, then devices */
    size_t meter_stride;
    int32_t *active; /* (n_experts) ids of experts that have rows */
    device *devices; /* (n_devices) */

    /* The layer between dispatch and combine; read by all threads, written by the owner only. */
    const ek_expert_work *work;
    const ek_model_layer *layer;
    int32_t n_active;
    ek_act_buf h; /* (n_rows, expert_ff) */
    float *y;     /* (n_rows, d_model) */
    float *out;   /* combine's (n_tokens, d_model) */

    ek_sys_region region; /* owned; this struct lies in it */
} local;

static ek_ffn expert_ffn(const ek_model_layer *layer, int32_t expert)
{
    return (ek_ffn){
        .gate = ek_expert_mat(layer->expert_gate, expert),
        .up = ek_expert_mat(layer->expert_up, expert),
        .down = ek_expert_mat(layer->expert_down, expert),
    };
}

static ek_ffn_rows share_rows(const local *self, int32_t share)
{
    int32_t beg = self->work->share_row[2 * share];
    return (ek_ffn_rows){
        .x = self->work->x,
        .token_idx = self->work->row_token + beg,
        .n_rows = self->work->share_row[2 * share + 1] - beg,
        .h = &self->h,
        .row_beg = beg,
        .y = self->y,
    };
}

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t device_rows(const ek_expert_work *work, int32_t device_idx)
{
    int32_t n_rows = 0;
    for (int32_t s = work->device_beg[device_idx]; s < work->device_beg[device_idx + 1]; s++)
        n_rows += work->share_row[2 * s + 1] - work->share_row[2 * s];
    return n_rows;
}

/* ---- time ---- */

static int64_t clock_ns(const local *self)
{
    return self->is_timed ? ek_sys_now_ns() : 0;
}

static meter *meter_of(const local *self, int32_t thread_idx, int32_t i)
{
    return &self->meter[(size_t)thread_idx * self->meter_stride + (size_t)i];
}

static void meters_add(const local *self, int32_t thread_idx, int32_t device_idx, int32_t expert,
                       int64_t beg_ns)
{
    if (!self->is_timed) return;
    int64_t now_ns = ek_sys_now_ns();
    const int32_t cells[] = {expert, self->work->n_experts + device_idx};
    for (size_t i = 0; i < EK_COUNT_OF(cells); i++) {
        meter *m = meter_of(self, thread_idx, cells[i]);
        m->done_ns = now_ns;
        m->busy_ns += now_ns - beg_ns;
    }
}

static void meters_clear(local *self)
{
    for (int32_t t = 0; t < self->n_threads; t++) {
        for (int32_t i = 0; i < self->n_active; i++)
            *meter_of(self, t, self->active[i]) = (meter){0};
        memset(meter_of(self, t, self->work->n_experts), 0,
               (size_t)self->params.n_devices * sizeof(meter));
    }
}

static meter meter_sum(const local *self, int32_t i)
{
    meter sum = {0};
    for (int32_t t = 0; t < self->n_threads; t++) {
        const meter *m = meter_of(self, t, i);
        sum.busy_ns += m->busy_ns;
        if (m->done_ns > sum.done_ns) sum.done_ns = m->done_ns;
    }
    return sum;
}

static void meters_report(const local *self, int64_t dispatch_ns)
{
    const ek_expert_work *work = self->work;
    for (int32_t i = 0; self->params.stats && i < self->n_active; i++) {
        meter sum = meter_sum(self, self->active[i]);
        ek_telemetry_experts_add_busy(self->params.stats, work->layer, self->active[i], sum.busy_ns,
                                      (sum.done_ns - dispatch_ns) / 1000);
    }
    for (int32_t d = 0; self->params.device_stats && d < work->n_devices; d++) {
        int32_t n_rows = device_rows(work, d);
        if (n_rows == 0) continue;
        meter sum = meter_sum(self, work->n_experts + d);
        ek_telemetry_experts_add_tokens(self->params.device_stats, work->layer, d, n_rows);
        ek_telemetry_experts_add_busy(self->params.device_stats, work->layer, d, sum.busy_ns,
                                      (sum.done_ns - dispatch_ns) / 1000);
    }
}

/* ---- queues ---- */

/* What each device has to do of this layer: a row is done when its tiles of both phases are. */
static void queues_hand(const local *self)
{
    const ek_expert_work *work = self->work;
    for (int32_t i = 0; self->params.queues && i < work->n_devices; i++) {
        const device *d = &self->devices[i];
        ek_telemetry_queues_hand(self->params.queues, work->layer, i, device_rows(work, i),
                                 d->hidden.tiles + d->down.tiles);
    }
}

static void unit_done(const local *self, int32_t device_idx, const ek_ffn_rows *rows)
{
    if (self->params.queues)
        ek_telemetry_queues_part_done(self->params.queues, device_idx, rows->n_rows);
}

/* ---- computing ---- */

static int32_t device_of(const local *self, int32_t thread_idx)
{
    return ek_expert_local_device(thread_idx, self->n_threads, self->params.n_devices);
}

static void compute_hidden(local *self, int32_t thread_idx, int32_t device_idx)
{
    device *d = &self->devices[device_idx];
    const phase *cut = &d->hidden;
    float *scratch = self->scratch + (size_t)thread_idx * EK_EXPERT_FFN_SCRATCH_FLOATS;
    int32_t n_units = d->n_shares * cut->tiles;
    for (int32_t i; (i = ek_sys_ticket_take(&d->hidden.ticket)) < n_units;) {
        int64_t beg_ns = clock_ns(self);
        int32_t share = d->share_beg + i / cut->tiles;
        int32_t expert = self->work->share_expert[share];
        ek_ffn ffn = expert_ffn(self->layer, expert);
        ek_ffn_rows rows = share_rows(self, share);
        int32_t beg = i % cut->tiles * cut->tile;
        ek_expert_ffn_hidden(self->params.kernels, &ffn, &rows, beg,
                             min_i32(beg + cut->tile, ffn.gate.n_rows), scratch);
        unit_done(self, device_idx, &rows);
        meters_add(self, thread_idx, device_idx, expert, beg_ns);
    }
}

static void compute_down(local *self, int32_t thread_idx, int32_t device_idx)
{
    device *d = &self->devices[device_idx];
    const phase *cut = &d->down;
    int32_t n_units = d->n_shares * cut->tiles;
    for (int32_t i; (i = ek_sys_ticket_take(&d->down.ticket)) < n_units;) {
        int64_t beg_ns = clock_ns(self);
        int32_t share = d->share_beg + i / cut->tiles;
        int32_t expert = self->work->share_expert[share];
        ek_ffn ffn = expert_ffn(self->layer, expert);
        ek_ffn_rows rows = share_rows(self, share);
        int32_t beg = i % cut->tiles * cut->tile;
        ek_expert_ffn_down(self->params.kernels, &ffn, &rows, beg,
                           min_i32(beg + cut->tile, ffn.down.n_rows));
        unit_done(self, device_idx, &rows);
        meters_add(self, thread_idx, device_idx, expert, beg_ns);
    }
}

static void compute(void *ctx, int32_t thread_idx)
{
    local *self = ctx;
    int32_t first = device_of(self, thread_idx);
    int32_t end = device_of(self, thread_idx + 1);
    if (end == first) end++; /* several threads have this device */
    for (int32_t d = first; d < end; d++)
        compute_hidden(self, thread_idx, d);
    ek_sys_pool_barrier(self->params.pool); /* a row of h is complete only when all tiles are */
    for (int32_t d = first; d < end; d++)
        compute_down(self, thread_idx, d);
}

/* ---- cutting ---- */

static void cut_phase(phase *cut, const ek_mat *mat, const device *d)
{
    cut->tile = ek_expert_tile_rows(mat, d->n_shares, d->n_threads);
    cut->tiles = ek_expert_tile_count(mat->n_rows, cut->tile);
    ek_sys_ticket_reset(&cut->ticket);
}

/** List the experts with work and cut each device's shares into units. */
static void plan_units(local *self)
{
    const ek_expert_work *work = self->work;
    self->n_active = 0;
    for (int32_t e = 0; e < work->n_experts; e++)
        if (work->expert_beg[e] < work->expert_beg[e + 1]) self->active[self->n_active++] = e;

    ek_ffn ffn = expert_ffn(self->layer, 0); /* all have the same shape */
    for (int32_t i = 0; i < work->n_devices; i++) {
        device *d = &self->devices[i];
        d->share_beg = work->device_beg[i];
        d->n_shares = work->device_beg[i + 1] - d->share_beg;
        cut_phase(&d->hidden, &ffn.gate, d);
        cut_phase(&d->down, &ffn.down, d);
    }
}

/* ---- the table ---- */

static ek_status local_dispatch(ek_dispatcher *base, const ek_expert_work *work, ek_arena *step)
{
    local *self = (local *)base;
    const ek_model_params *p = &self->params.model->params;
    ek_assert(work->layer >= 0 && work->layer < p->n_layers);
    ek_assert(work->n_experts == p->n_experts && work->x->n_cols == p->d_model);
    ek_assert(work->n_devices == self->params.n_devices);
    int64_t dispatch_ns = clock_ns(self);
    int32_t n_rows = work->expert_beg[work->n_experts];
    ek_arena rest = *step;
    if (!ek_expert_act_take(&rest, n_rows, p->expert_ff, self->hidden_int8, &self->h))
        return EK_ENOMEM;
    self->y =
        ek_arena_try_raw(&rest, (size_t)n_rows * (size_t)p->d_model, sizeof(float), EK_CACHE_LINE);
    if (!self->y) return EK_ENOMEM;
    *step = rest;

    self->work = work;
    self->layer = &self->params.model->layers[work->layer];
    plan_units(self);
    if (self->n_active == 0) return EK_OK;
    if (self->is_timed) meters_clear(self);
    queues_hand(self);
    ek_sys_pool_run(self->params.pool, compute, self);
    if (self->is_timed) meters_report(self, dispatch_ns);
    return EK_OK;
}

/** Sum tokens [beg, end): in order of k, whoever does it. */
static void sum_tokens(const local *self, int32_t beg, int32_t end)
{
    const ek_expert_work *work = self->work;
    int32_t d = self->params.model->params.d_model;
    for (int32_t t = beg; t < end; t++) {
        for (int32_t k = 0; k < work->top_k; k++) {
            int64_t pair = (int64_t)t * work->top_k + k;
            if (work->row_of[pair] < 0) continue;
            self->params.kernels->axpy(work->weight[pair],
                                       self->y + (int64_t)work->row_of[pair] * d, d,
                                       self->out + (int64_t)t * d);
        }
    }
}

static void combine_share(void *ctx, int32_t thread_idx)
{
    const local *self = ctx;
    int64_t n = self->work->n_tokens;
    sum_tokens(self, (int32_t)(n * thread_idx / self->n_threads),
               (int32_t)(n * (thread_idx + 1) / self->n_threads));
}

static ek_status local_combine(ek_dispatcher *base, const ek_expert_work *work, float *out)
{
    local *self = (local *)base;
    ek_assert(self->work == work);
    self->out = out;
    int64_t n_rows = work->expert_beg[work->n_experts];
    if (n_rows * self->params.model->params.d_model <= COMBINE_ALONE_MAX)
        sum_tokens(self, 0, work->n_tokens);
    else
        ek_sys_pool_run(self->params.pool, combine_share, self);
    self->work = NULL;
    return EK_OK;
}

const float *ek_expert_local_take_rows(ek_dispatcher *base, const ek_expert_work *work)
{
    local *self = (local *)base;
    ek_assert(self->work == work);
    self->work = NULL;
    return self->y;
}

int64_t ek_expert_local_busy_ns(const ek_dispatcher *base, int32_t expert)
{
    return meter_sum((const local *)base, expert).busy_ns;
}

static size_t local_step_bytes(const ek_dispatcher *base, int32_t n_tokens)
{
    const local *self = (const local *)base;
    const ek_model_params *p = &self->params.model->params;
    int32_t n_rows = n_tokens * p->top_k;
    return ek_expert_act_bytes(n_rows, p->expert_ff, self->hidden_int8) +
           (size_t)n_rows * (size_t)p->d_model * sizeof(float) + EK_CACHE_LINE;
}

static void local_destroy(ek_dispatcher *base)
{
    local *self = (local *)base;
    ek_sys_region region = self->region; /* a copy, since self lies in it */
    ek_sys_region_close(&region);
}

static const ek_dispatcher_ops local_ops = {
    .dispatch = local_dispatch,
    .combine = local_combine,
    .step_bytes = local_step_bytes,
    .destroy = local_destroy,
};

/* ---- life ---- */

/** The threads of each device; at least one, which it may share with others. */
static void assign_threads(local *self)
{
    for (int32_t t = 0; t < self->n_threads; t++) {
        int32_t first = device_of(self, t);
        int32_t end = device_of(self, t + 1);
        if (end == first) end++;
        for (int32_t d = first; d < end; d++)
            self->devices[d].n_threads++;
    }
}

ek_status ek_expert_local_create(const ek_expert_local_params *params,
                                 ek_dispatcher **out_dispatcher, ek_err *err)
{
    const ek_model *model = params->model;
    ek_assert(params->n_devices >= 1 && params->n_devices <= EK_EXPERT_LOCAL_DEVICES_MAX);
    size_t n_threads = (size_t)ek_sys_pool_threads(params->pool);
    size_t n_experts = (size_t)model->params.n_experts;
    size_t n_devices = (size_t)params->n_devices;
    /* Whole cache lines per thread, so that no two of them write to the same one. */
    size_t meter_stride = ek_size_align(n_experts + n_devices, EK_CACHE_LINE / sizeof(meter));
    size_t scratch_floats = n_threads * EK_EXPERT_FFN_SCRATCH_FLOATS;
    size_t bytes = sizeof(local) + scratch_floats * sizeof(float) +
                   n_threads * meter_stride * sizeof(meter) + n_experts * sizeof(int32_t) +
                   n_devices * sizeof(device) + 5 * (size_t)EK_CACHE_LINE;
    ek_sys_region region;
    ek_status status = ek_sys_region_open(bytes, 0, &region);
    if (status != EK_OK)
        return ek_err_set(err, status, "no memory for the experts' scratch (%zu bytes)", bytes);

    ek_arena arena = ek_sys_region_arena(&region);
    local *self = ek_new(&arena, local, 1);
    self->base.ops = &local_ops;
    self->params = *params;
    self->n_threads = (int32_t)n_threads;
    self->is_timed = params->stats || params->device_stats;
    self->scratch = ek_arena_try_raw(&arena, scratch_floats, sizeof(float), EK_CACHE_LINE);
    self->meter = ek_new_aligned(&arena, meter, n_threads * meter_stride);
    self->meter_stride = meter_stride;
    self->active = ek_new(&arena, int32_t, n_experts);
    self->devices = ek_new_aligned(&arena, device, n_devices);
    self->region = region;
    for (int32_t l = 0; l < model->params.n_layers; l++)
        self->hidden_int8 |= params->kernels->act_int8[model->layers[l].expert_down->type];
    ek_assert(self->scratch != NULL);
    assign_threads(self);
    *out_dispatcher = &self->base;
    return EK_OK;
}
