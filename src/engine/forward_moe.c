/*
 * The expert half of a layer: plan, hand over, compute the shared expert meanwhile, sum up, count.
 */
#include <math.h>

#include "engine/forward_internal.h"
#include "sys/clock.h"

#define NS_PER_US 1000

enum { PHASE_HIDDEN, PHASE_DOWN };

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/** As a pool function: x += gate * shared expert. */
static void shared_expert(void *ctx, int32_t thread_idx)
{
    ek_forward *f = ctx;
    const ek_kernels *kernels = f->params.kernels;
    const ek_forward_layer *layer = &f->layers[f->layer_idx];
    const ek_ffn *ffn = &layer->shared;
    int32_t d = f->model->d_model;
    int32_t first = f->rows.token_beg, n_rows = f->rows.token_end - first;
    ek_act x = ek_expert_act_rows(&f->normed, first);
    const ek_ffn_rows rows = {
        .x = &x, .n_rows = n_rows, .h = &f->shared_hidden, .row_beg = first, .y = f->delta};

    int32_t tile = ek_expert_tile_rows(&ffn->gate, 1, f->n_threads);
    int32_t n_units = ek_expert_tile_count(ffn->gate.n_rows, tile);
    for (int32_t i; (i = ek_sys_ticket_take(&f->tickets[PHASE_HIDDEN])) < n_units;)
        ek_expert_ffn_hidden(kernels, ffn, &rows, i * tile,
                             min_i32((i + 1) * tile, ffn->gate.n_rows),
                             f->threads[thread_idx].ffn_scratch);

    ek_engine_forward_look(f, thread_idx);
    ek_sys_pool_barrier(f->params.pool);

    tile = ek_expert_tile_rows(&ffn->down, 1, f->n_threads);
    n_units = ek_expert_tile_count(d, tile);
    for (int32_t i; (i = ek_sys_ticket_take(&f->tickets[PHASE_DOWN])) < n_units;) {
        int32_t beg = i * tile;
        int32_t end = min_i32(beg + tile, d);
        ek_expert_ffn_down(kernels, ffn, &rows, beg, end);
        for (int32_t t = first; t < f->rows.token_end; t++) {
            float gate = layer->shared_gate.data ? 1.0f / (1.0f + expf(-f->shared_logit[t])) : 1.0f;
            int64_t at = (int64_t)t * d + beg;
            kernels->axpy(gate, f->delta + at, end - beg, f->x + at);
        }
    }
}

/** Tokens per expert of one round. */
static void count_tokens(const ek_forward *f, const ek_route_plan *plan)
{
    for (int32_t e = 0; f->params.stats && e < plan->n_experts; e++) {
        int32_t n = plan->expert_beg[e + 1] - plan->expert_beg[e];
        if (n > 0) ek_telemetry_experts_add_tokens(f->params.stats, f->layer_idx, e, n);
    }
}

/** For each request the experts that it meets for the first time, in whatever round. */
static void count_requests(const ek_forward *f, const ek_route_plan *plan)
{
    ek_expert_stats *stats = f->params.stats;
    int32_t layer = f->layer_idx;
    for (int32_t t = 0; t < plan->n_tokens; t++) {
        uint64_t *seen = f->batch->seqs[f->token_seq[f->rows.token_beg + t]].expert_seen;
        for (int32_t k = 0; seen && k < plan->top_k; k++) {
            int32_t e = plan->expert_id[(int64_t)t * plan->top_k + k];
            if (e < 0) continue;
            int64_t bit = (int64_t)layer * plan->n_experts + e;
            uint64_t mask = (uint64_t)1 << (bit % 64);
            if (seen[bit / 64] & mask) continue;
            seen[bit / 64] |= mask;
            if (stats) ek_telemetry_experts_add_request(stats, layer, e);
        }
    }
}

/** A plan as a dispatcher takes it: cut into the devices' shares. */
static ek_status work_of(const ek_forward *f, const ek_forward_micro *micro,
                         const ek_route_plan *plan, ek_arena *step, ek_expert_work *out_work)
{
    const ek_keel *keel = f->params.keel;
    ek_keel_shares shares;
    ek_status status = keel
                           ? ek_keel_share(keel, f->layer_idx, plan->expert_beg, step, &shares)
                           : ek_keel_shares_whole(plan->expert_beg, plan->n_experts, step, &shares);
    if (status != EK_OK) return status;
    *out_work = (ek_expert_work){
        .layer = f->layer_idx,
        .micro_batch = (int32_t)(micro - f->micro),
        .n_tokens = plan->n_tokens,
        .top_k = plan->top_k,
        .n_experts = plan->n_experts,
        .expert_beg = plan->expert_beg,
        .row_token = plan->row_token,
        .row_of = plan->row_of,
        .weight = plan->weight,
        .n_devices = shares.n_devices,
        .device_beg = shares.device_beg,
        .share_expert = shares.share_expert,
        .share_row = shares.share_row,
        .x = &micro->x,
    };
    return EK_OK;
}

/** Where the experts' outputs are added to. */
static float *out_of(const ek_forward *f, const ek_forward_micro *micro)
{
    return f->x + (int64_t)micro->rows.token_beg * f->model->d_model;
}

/** What an expert could not take at once: a round of its own after the other. */
static ek_status run_deferred(ek_forward *f, const ek_forward_micro *micro)
{
    ek_status status = EK_OK;
    for (int32_t round = 1; round <= micro->plan.n_rounds && status == EK_OK; round++) {
        ek_arena step = micro->scratch;
        ek_route_plan later;
        ek_expert_work work;
        status = ek_route_plan_deferred(&micro->plan, round, &step, &later);
        if (status == EK_OK) status = work_of(f, micro, &later, &step, &work);
        if (status == EK_OK) status = ek_expert_dispatch(f->params.dispatcher, &work, &step);
        if (status == EK_OK)
            status = ek_expert_combine(f->params.dispatcher, &work, out_of(f, micro));
        if (status == EK_OK) count_tokens(f, &later);
    }
    return status;
}

/* @return the gate's bias for selection: recorded choices were made with it already */
static const float *replay_gate(ek_forward *f, const ek_forward_layer *layer)
{
    const ek_trace_replay *replay = f->params.replay;
    if (!replay) return layer->gate_bias;
    for (int32_t t = f->rows.token_beg; t < f->rows.token_end; t++)
        ek_trace_replay_logits(replay, f->batch->seqs[f->token_seq[t]].replay_key, f->token_pos[t],
                               f->layer_idx, f->gate_logits + (int64_t)t * replay->n_experts);
    return NULL;
}

ek_status ek_engine_forward_moe_begin(ek_forward *f, ek_forward_micro *micro)
{
    const ek_forward_layer *layer = &f->layers[f->layer_idx];
    ek_arena step = ek_arena_over(micro->step, f->step_bytes);
    int32_t first = f->rows.token_beg, n_tokens = f->rows.token_end - first;
    const float *gate_bias = replay_gate(f, layer);
    if (f->probe.on_gate)
        f->probe.on_gate(f->probe.ctx, f->layer_idx,
                         f->gate_logits + (int64_t)first * f->model->n_experts, n_tokens);
    int64_t beg_ns = ek_sys_now_ns();
    ek_status status = ek_route_plan_layer(f->params.router, f->layer_idx,
                                           f->gate_logits + (int64_t)first * f->model->n_experts,
                                           gate_bias, n_tokens, f->view, &step, &micro->plan);
    micro->x = ek_expert_act_rows(&f->normed, first);
    if (status == EK_OK) status = work_of(f, micro, &micro->plan, &step, &micro->work);
    if (status != EK_OK) return status;
    int64_t planned_ns = ek_sys_now_ns();
    f->plan_ns += planned_ns - beg_ns;
    if (f->probe.on_plan) f->probe.on_plan(f->probe.ctx, f->layer_idx, &micro->plan);

    micro->scratch = step;
    status = ek_expert_dispatch(f->params.dispatcher, &micro->work, &step);
    micro->is_out = status == EK_OK;
    micro->handing_ns = ek_sys_now_ns() - planned_ns;
    return status;
}

/**
 * A layer's service time is one figure for its step: what handing over, waiting and summing up took
 * of it, of both micro-batches.
 */
static void tell_service(ek_forward *f, const ek_forward_micro *micro, int64_t beg_ns)
{
    int64_t own_ns = micro->handing_ns + ek_sys_now_ns() - beg_ns;
    bool is_first = micro == &f->micro[0], is_last = micro == &f->micro[f->n_micro - 1];
    f->service_ns = is_first ? own_ns : f->service_ns + own_ns;
    if (is_last && f->params.keel) ek_keel_served(f->params.keel, f->service_ns / NS_PER_US);
}

ek_status ek_engine_forward_moe_end(ek_forward *f, ek_forward_micro *micro)
{
    int64_t beg_ns = ek_sys_now_ns();
    if (f->model->shared_ff > 0) ek_engine_forward_phases(f, shared_expert);
    micro->is_out = false;
    ek_status status = ek_expert_combine(f->params.dispatcher, &micro->work, out_of(f, micro));
    if (status == EK_OK) status = run_deferred(f, micro);
    if (status != EK_OK) return status;
    tell_service(f, micro, beg_ns);
    count_tokens(f, &micro->plan);
    count_requests(f, &micro->plan);
    return EK_OK;
}
