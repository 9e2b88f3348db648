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
 * What one thread knows about one expert of the current layer; added up by the owner afterwards.
 */
typedef struct meter {
    int64_t busy_ns;
    int64_t done_ns; /* clock at the end of its last unit of work */
} meter;

typedef struct local {
    ek_dispatcher base;
    const ek_model *model;     /* borrowed */
    const ek_kernels *kernels; /* borrowed */
    ek_sys_pool *pool;         /* borrowed */
    ek_expert_stats *stats;    /* borrowed; may be NULL */
    int32_t n_threads;
    bool hidden_int8; /* some layer's down matrices read int8 */
    float *scratch;   /* (n_threads, EK_EXPERT_FFN_SCRATCH_FLOATS) */
    meter *meter;     /* (n_threads, meter_stride) */
    size_t meter_stride;
    int32_t *active; /* (n_experts) ids of experts that have rows */

    /* The layer between dispatch and combine; read by all threads, written by the owner only. */
    const ek_expert_work *work;
    const ek_model_layer *layer;
    int32_t n_active;
    int32_t hidden_tile;
    int32_t hidden_tiles; /* of one expert */
    int32_t down_tile;
    int32_t down_tiles;
    ek_act_buf h; /* (n_rows, expert_ff) */
    float *y;     /* (n_rows, d_model) */
    float *out;   /* combine's (n_tokens, d_model) */
    ek_sys_ticket hidden_ticket;
    ek_sys_ticket down_ticket;

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

static ek_ffn_rows expert_rows(const local *self, int32_t expert)
{
    int32_t beg = self->work->expert_beg[expert];
    return (ek_ffn_rows){
        .x = self->work->x,
        .token_idx = self->work->row_token + beg,
        .n_rows = self->work->expert_beg[expert + 1] - beg,
        .h = &self->h,
        .row_beg = beg,
        .y = self->y,
    };
}

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int64_t clock_ns(const local *self)
{
    return self->stats ? ek_sys_now_ns() : 0;
}

static void meter_add(local *self, int32_t thread_idx, int32_t expert, int64_t beg_ns)
{
    if (!self->stats) return;
    meter *m = &self->meter[(size_t)thread_idx * self->meter_stride + (size_t)expert];
    m->done_ns = ek_sys_now_ns();
    m->busy_ns += m->done_ns - beg_ns;
}

static void compute(void *ctx, int32_t thread_idx)
{
    local *self = ctx;
    float *scratch = self->scratch + (size_t)thread_idx * EK_EXPERT_FFN_SCRATCH_FLOATS;

    int32_t n_units = self->n_active * self->hidden_tiles;
    for (int32_t i; (i = ek_sys_ticket_take(&self->hidden_ticket)) < n_units;) {
        int64_t beg_ns = clock_ns(self);
        int32_t expert = self->active[i / self->hidden_tiles];
        ek_ffn ffn = expert_ffn(self->layer, expert);
        ek_ffn_rows rows = expert_rows(self, expert);
        int32_t beg = i % self->hidden_tiles * self->hidden_tile;
        ek_expert_ffn_hidden(self->kernels, &ffn, &rows, beg,
                             min_i32(beg + self->hidden_tile, ffn.gate.n_rows), scratch);
        meter_add(self, thread_idx, expert, beg_ns);
    }

    ek_sys_pool_barrier(self->pool); /* a row of h is complete only when all its tiles are */

    n_units = self->n_active * self->down_tiles;
    for (int32_t i; (i = ek_sys_ticket_take(&self->down_ticket)) < n_units;) {
        int64_t beg_ns = clock_ns(self);
        int32_t expert = self->active[i / self->down_tiles];
        ek_ffn ffn = expert_ffn(self->layer, expert);
        ek_ffn_rows rows = expert_rows(self, expert);
        int32_t beg = i % self->down_tiles * self->down_tile;
        ek_expert_ffn_down(self->kernels, &ffn, &rows, beg,
                           min_i32(beg + self->down_tile, ffn.down.n_rows));
        meter_add(self, thread_idx, expert, beg_ns);
    }
}

/** List the experts with work and cut them into units. */
static void plan_units(local *self)
{
    const ek_expert_work *work = self->work;
    self->n_active = 0;
    for (int32_t e = 0; e < work->n_experts; e++)
        if (work->expert_beg[e] < work->expert_beg[e + 1]) self->active[self->n_active++] = e;

    ek_ffn ffn = expert_ffn(self->layer, 0); /* all have the same shape */
    self->hidden_tile = ek_expert_tile_rows(&ffn.gate, self->n_active, self->n_threads);
    self->hidden_tiles = ek_expert_tile_count(ffn.gate.n_rows, self->hidden_tile);
    self->down_tile = ek_expert_tile_rows(&ffn.down, self->n_active, self->n_threads);
    self->down_tiles = ek_expert_tile_count(ffn.down.n_rows, self->down_tile);
    ek_sys_ticket_reset(&self->hidden_ticket);
    ek_sys_ticket_reset(&self->down_ticket);
}

static void meters_clear(local *self)
{
    for (int32_t t = 0; t < self->n_threads; t++)
        for (int32_t i = 0; i < self->n_active; i++)
            self->meter[(size_t)t * self->meter_stride + (size_t)self->active[i]] = (meter){0};
}

static void meters_report(local *self, int64_t dispatch_ns)
{
    for (int32_t i = 0; i < self->n_active; i++) {
        meter sum = {0};
        for (int32_t t = 0; t < self->n_threads; t++) {
            const meter *m = &self->meter[(size_t)t * self->meter_stride + (size_t)self->active[i]];
            sum.busy_ns += m->busy_ns;
            if (m->done_ns > sum.done_ns) sum.done_ns = m->done_ns;
        }
        ek_telemetry_experts_add_busy(self->stats, self->work->layer, self->active[i], sum.busy_ns,
                                      (sum.done_ns - dispatch_ns) / 1000);
    }
}

static ek_status local_dispatch(ek_dispatcher *base, const ek_expert_work *work, ek_arena *step)
{
    local *self = (local *)base;
    const ek_model_params *p = &self->model->params;
    ek_assert(work->layer >= 0 && work->layer < p->n_layers);
    ek_assert(work->n_experts == p->n_experts && work->x->n_cols == p->d_model);
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
    self->layer = &self->model->layers[work->layer];
    plan_units(self);
    if (self->n_active == 0) return EK_OK;
    if (self->stats) meters_clear(self);
    ek_sys_pool_run(self->pool, compute, self);
    if (self->stats) meters_report(self, dispatch_ns);
    return EK_OK;
}

/** Sum tokens [beg, end): in order of k, whoever does it. */
static void sum_tokens(const local *self, int32_t beg, int32_t end)
{
    const ek_expert_work *work = self->work;
    int32_t d = self->model->params.d_model;
    for (int32_t t = beg; t < end; t++) {
        for (int32_t k = 0; k < work->top_k; k++) {
            int64_t pair = (int64_t)t * work->top_k + k;
            if (work->row_of[pair] < 0) continue;
            self->kernels->axpy(work->weight[pair], self->y + (int64_t)work->row_of[pair] * d, d,
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
    if (n_rows * self->model->params.d_model <= COMBINE_ALONE_MAX)
        sum_tokens(self, 0, work->n_tokens);
    else
        ek_sys_pool_run(self->pool, combine_share, self);
    self->work = NULL;
    return EK_OK;
}

static size_t local_step_bytes(const ek_dispatcher *base, int32_t n_tokens)
{
    const local *self = (const local *)base;
    const ek_model_params *p = &self->model->params;
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

ek_status ek_expert_local_create(const ek_model *model, const ek_kernels *kernels,
                                 ek_sys_pool *pool, ek_expert_stats *stats,
                                 ek_dispatcher **out_dispatcher, ek_err *err)
{
    size_t n_threads = (size_t)ek_sys_pool_threads(pool);
    size_t n_experts = (size_t)model->params.n_experts;
    /* Whole cache lines per thread, so that no two of them write to the same one. */
    size_t meter_stride = ek_size_align(n_experts, EK_CACHE_LINE / sizeof(meter));
    size_t scratch_floats = n_threads * EK_EXPERT_FFN_SCRATCH_FLOATS;
    size_t bytes = sizeof(local) + scratch_floats * sizeof(float) +
                   n_threads * meter_stride * sizeof(meter) + n_experts * sizeof(int32_t) +
                   4 * (size_t)EK_CACHE_LINE;
    ek_sys_region region;
    ek_status status = ek_sys_region_open(bytes, 0, &region);
    if (status != EK_OK)
        return ek_err_set(err, status, "no memory for the experts' scratch (%zu bytes)", bytes);

    ek_arena arena = ek_sys_region_arena(&region);
    local *self = ek_new(&arena, local, 1);
    self->base.ops = &local_ops;
    self->model = model;
    self->kernels = kernels;
    self->pool = pool;
    self->stats = stats;
    self->n_threads = (int32_t)n_threads;
    self->scratch = ek_arena_try_raw(&arena, scratch_floats, sizeof(float), EK_CACHE_LINE);
    self->meter = ek_new_aligned(&arena, meter, n_threads * meter_stride);
    self->meter_stride = meter_stride;
    self->active = ek_new(&arena, int32_t, n_experts);
    self->region = region;
    for (int32_t l = 0; l < model->params.n_layers; l++)
        self->hidden_int8 |= kernels->act_int8[model->layers[l].expert_down->type];
    ek_assert(self->scratch != NULL);
    *out_dispatcher = &self->base;
    return EK_OK;
}
