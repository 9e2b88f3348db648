#include "worker/resident.h"

#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "expert/act.h"
#include "expert/local.h"
#include "sys/clock.h"
#include "sys/cpu.h"

#define PAGE_BYTES       4096
#define PREPARE_TOGETHER 16 /* tokens from which on threads share bringing them into int8 form */

/* ---- loading ---- */

static size_t mat_bytes(const ek_tensor *t)
{
    return t->bytes / (size_t)(t->dim[2] * t->dim[3]);
}

/* Read what stays in the file's map, page by page, so that the first dispatch finds it there. */
static void touch(const ek_tensor *t, int32_t expert)
{
    const volatile uint8_t *data = (const uint8_t *)t->data + (size_t)expert * mat_bytes(t);
    for (size_t at = 0; at < mat_bytes(t); at += PAGE_BYTES)
        (void)data[at];
}

static void read_experts(ek_resident *r)
{
    for (int32_t l = 0; l < r->model->params.n_layers; l++) {
        const ek_model_layer *layer = &r->model->layers[l];
        const ek_tensor *mats[] = {layer->expert_gate, layer->expert_up, layer->expert_down};
        for (int32_t e = 0; e < r->model->params.n_experts; e++) {
            if (!ek_link_set_has(&r->setup.set, l, e)) continue;
            for (size_t i = 0; i < EK_COUNT_OF(mats); i++) {
                r->expert_bytes += (int64_t)mat_bytes(mats[i]);
                if (!mats[i]->packed) touch(mats[i], e);
            }
        }
        r->x_int8 |= r->kernels.act_int8[layer->expert_gate->type] ||
                     r->kernels.act_int8[layer->expert_up->type];
    }
}

static ek_status open_stats(ek_resident *r, ek_err *err)
{
    const ek_model_params *p = &r->model->params;
    size_t bytes = ek_telemetry_experts_bytes(p->n_layers, p->n_experts);
    ek_status status = ek_sys_region_open(bytes, 0, &r->region);
    if (status != EK_OK) return ek_err_set(err, status, "no memory for counters");
    ek_arena arena = ek_sys_region_arena(&r->region);
    status = ek_telemetry_experts_create(p->n_layers, p->n_experts, &arena, &r->stats);
    return status == EK_OK ? EK_OK : ek_err_set(err, status, "too many experts to count");
}

static ek_status open_all(ek_resident *r, ek_err *err)
{
    const ek_resident_setup *setup = &r->setup;
    size_t set_bytes = ek_link_set_bytes(setup->set.n_layers, setup->set.n_experts);
    r->held = setup->set;
    r->held.bits = ek_sys_calloc(1, set_bytes);
    if (!r->held.bits) return ek_err_set(err, EK_ENOMEM, "no memory for a set of experts");
    memcpy(r->held.bits, setup->set.bits, set_bytes);
    ek_status status = ek_kernels_select(setup->kernels, ek_sys_cpu_flags(), &r->kernels);
    if (status != EK_OK)
        return ek_err_set(err, status,
                          "the kernels asked for do not run on this processor; choose --kernels "
                          "auto");
    status = ek_sys_pool_create(setup->n_threads, setup->pin_threads, &r->pool);
    if (status != EK_OK)
        return ek_err_set(err, status, "cannot start %d compute threads", (int)setup->n_threads);
    r->model = setup->file->model;
    if (setup->pack_weights) {
        const ek_model_part part = {.experts = setup->set.bits};
        status = ek_expert_pack_create(r->model, &part, &r->kernels, &r->packed, err);
        if (status != EK_OK) return status;
        ek_expert_pack_run(r->packed, r->pool);
        r->model = ek_expert_pack_model(r->packed);
    }
    read_experts(r);
    status = open_stats(r, err);
    if (status != EK_OK) return status;
    const ek_expert_local_params local = {
        .model = r->model,
        .kernels = &r->kernels,
        .pool = r->pool,
        .n_devices = 1,
        .stats = r->stats,
    };
    return ek_expert_local_create(&local, &r->dispatcher, err);
}

ek_status ek_worker_resident_open(const ek_resident_setup *setup, ek_resident *out_resident,
                                  ek_err *err)
{
    int64_t beg_us = ek_sys_now_us();
    *out_resident = (ek_resident){.setup = *setup, .pace = {.params = setup->pace}};
    ek_sys_mutex_init(&out_resident->lock);
    ek_sys_cond_init(&out_resident->turn);
    ek_status status = open_all(out_resident, err);
    out_resident->load_us = ek_sys_now_us() - beg_us;
    if (status != EK_OK) ek_worker_resident_close(out_resident);
    return status;
}

void ek_worker_resident_close(ek_resident *resident)
{
    if (!resident->setup.file) return;
    ek_expert_destroy(resident->dispatcher);
    ek_sys_region_close(&resident->region);
    ek_expert_pack_destroy(resident->packed);
    ek_sys_pool_destroy(resident->pool);
    ek_sys_free(resident->held.bits);
    ek_sys_cond_fini(&resident->turn);
    ek_sys_mutex_fini(&resident->lock);
    resident->setup.file = NULL;
}

/* ---- desks ---- */

ek_status ek_worker_resident_desk_open(const ek_resident *resident, const ek_wire_shape *shape,
                                       ek_resident_desk *out_desk)
{
    size_t n_tokens = (size_t)shape->tokens_max, n_experts = (size_t)shape->n_experts;
    size_t n_pairs = n_tokens * (size_t)shape->top_k;
    ek_resident_desk desk = {
        .shape = *shape,
        .body_bytes = ek_link_wire_dispatch_bytes_max(shape),
        .act_bytes = ek_expert_act_bytes(shape->tokens_max, shape->d_model, resident->x_int8),
        .step_bytes = ek_expert_step_bytes(resident->dispatcher, shape->tokens_max),
    };
    size_t out_bytes = ek_link_wire_combine_bytes_max(shape);
    size_t n_lists = (n_experts + 1) + 2 * n_experts + n_pairs;
    size_t bytes = desk.body_bytes + out_bytes + n_experts * sizeof(uint32_t) +
                   n_lists * sizeof(int32_t) + n_pairs * sizeof(float) + desk.act_bytes +
                   desk.step_bytes + 8 * (size_t)EK_CACHE_LINE;
    ek_status status = ek_sys_region_open(bytes, 0, &desk.region);
    if (status != EK_OK) return status;
    ek_arena arena = ek_sys_region_arena(&desk.region);
    desk.body = ek_arena_try_raw(&arena, desk.body_bytes, 1, EK_CACHE_LINE);
    desk.out = ek_arena_try_raw(&arena, out_bytes, 1, EK_CACHE_LINE);
    desk.share_us = ek_arena_try_raw(&arena, n_experts, sizeof(uint32_t), EK_CACHE_LINE);
    desk.lists = ek_arena_try_raw(&arena, n_lists, sizeof(int32_t), EK_CACHE_LINE);
    desk.weight = ek_arena_try_raw(&arena, n_pairs, sizeof(float), EK_CACHE_LINE);
    desk.act = ek_arena_try_raw(&arena, desk.act_bytes, 1, EK_CACHE_LINE);
    desk.step = ek_arena_try_raw(&arena, desk.step_bytes, 1, EK_CACHE_LINE);
    ek_assert(desk.step != NULL); /* bytes counted all of them */
    *out_desk = desk;
    return EK_OK;
}

void ek_worker_resident_desk_close(ek_resident_desk *desk)
{
    ek_sys_region_close(&desk->region);
}

/* ---- a dispatch ---- */

/* The dispatch as the local dispatcher takes it. */
typedef struct assignment {
    ek_wire_dispatch wire;
    ek_expert_work work;
    int32_t device_beg[2];
    ek_act_buf x_buf;
    ek_act x;
    const ek_kernels *kernels;
} assignment;

/* Under the lock: what is there when a dispatch takes its ticket stays until it is done. */
static ek_status check_experts_locked(const ek_resident *r, const ek_wire_header *h,
                                      const ek_wire_dispatch *wire, ek_err *err)
{
    for (int32_t s = 0; s < h->n_shares; s++)
        if (!ek_link_set_has(&r->held, h->layer, wire->share_expert[s]))
            return ek_err_set(err, EK_EFORMAT,
                              "a dispatch is for expert %d of layer %d, which is "
                              "not here",
                              (int)wire->share_expert[s], (int)h->layer);
    return EK_OK;
}

/* The token's rows, in the order of experts, with their weights. */
static ek_status list_tokens(const ek_wire_header *h, ek_resident_desk *desk, int32_t *row_of,
                             assignment *a, ek_err *err)
{
    int32_t top_k = desk->shape.top_k;
    memset(row_of, 0xff, (size_t)h->n_tokens * (size_t)top_k * sizeof *row_of);
    memset(desk->weight, 0, (size_t)h->n_tokens * (size_t)top_k * sizeof *desk->weight);
    for (int32_t r = 0; r < h->n_rows; r++) {
        int64_t at = (int64_t)a->wire.row_token[r] * top_k;
        int64_t end = at + top_k;
        while (at < end && row_of[at] >= 0)
            at++;
        if (at == end)
            return ek_err_set(err, EK_EFORMAT, "token %d of a dispatch visits more than %d experts",
                              (int)a->wire.row_token[r], (int)top_k);
        row_of[at] = r;
        desk->weight[at] = a->wire.weight[r];
    }
    a->work.row_of = row_of;
    a->work.weight = desk->weight;
    return EK_OK;
}

static ek_status assign(ek_resident_desk *desk, const ek_wire_header *h, assignment *a, ek_err *err)
{
    int32_t n_experts = desk->shape.n_experts;
    int32_t *expert_beg = desk->lists;
    int32_t *share_row = expert_beg + n_experts + 1;
    int32_t *row_of = share_row + 2 * (ptrdiff_t)n_experts;
    ek_status status = ek_link_wire_dispatch_read(&desk->shape, h, desk->body, &a->wire, err);
    if (status != EK_OK) return status;
    int32_t s = 0;
    for (int32_t e = 0; e < n_experts; e++) {
        expert_beg[e] = a->wire.share_beg[s];
        if (s == h->n_shares || a->wire.share_expert[s] != e) continue;
        share_row[2 * s] = a->wire.share_beg[s];
        share_row[2 * s + 1] = a->wire.share_beg[s + 1];
        s++;
    }
    expert_beg[n_experts] = h->n_rows;
    a->device_beg[1] = h->n_shares;
    a->work = (ek_expert_work){
        .layer = h->layer,
        .n_tokens = h->n_tokens,
        .top_k = desk->shape.top_k,
        .n_experts = n_experts,
        .expert_beg = expert_beg,
        .row_token = a->wire.row_token,
        .n_devices = 1,
        .device_beg = a->device_beg,
        .share_expert = a->wire.share_expert,
        .share_row = share_row,
        .x = &a->x,
    };
    return a->wire.weight ? list_tokens(h, desk, row_of, a, err) : EK_OK;
}

/* Numbers straight from the message where they can be read there. */
static void take_x(const ek_resident *r, ek_resident_desk *desk, const ek_wire_header *h,
                   assignment *a)
{
    ek_arena arena = ek_arena_over(desk->act, desk->act_bytes);
    int32_t d = desk->shape.d_model;
    bool fits = ek_expert_act_take(&arena, h->n_tokens, d, r->x_int8, &a->x_buf);
    ek_assert(fits); /* for tokens_max there is room */
    if (h->form & EK_WIRE_FORM_BF16)
        ek_link_wire_from_bf16(a->wire.x, (int64_t)h->n_tokens * d, a->x_buf.f32);
    else
        a->x_buf.f32 = (float *)(uintptr_t)a->wire.x;
    a->x = ek_expert_act_rows(&a->x_buf, 0);
    a->kernels = &r->kernels;
}

static void prepare(const assignment *a, int32_t beg, int32_t end)
{
    for (int32_t t = beg; t < end; t++)
        ek_expert_act_prepare(a->kernels, &a->x_buf, t, 0, a->x_buf.n_cols);
}

typedef struct prepare_job {
    const assignment *a;
    int32_t n_threads;
} prepare_job;

static void prepare_share(void *ctx, int32_t thread_idx)
{
    const prepare_job *job = ctx;
    int64_t n = job->a->work.n_tokens;
    prepare(job->a, (int32_t)(n * thread_idx / job->n_threads),
            (int32_t)(n * (thread_idx + 1) / job->n_threads));
}

/* What a bigger device would take for these rows passes in all: the rest of it asleep. */
static void keep_pace(ek_resident *r, const ek_wire_header *h, int64_t beg_us)
{
    const ek_model_params *p = &r->model->params;
    int64_t n_experts = ek_link_set_count(&r->setup.set);
    double bytes = (double)r->expert_bytes / (double)n_experts * h->n_shares;
    double operations = 6.0 * p->d_model * p->expert_ff * h->n_rows; /* three matrices, twice */
    int64_t end_us = ek_worker_pace_end_us(&r->pace, beg_us, bytes, operations);
    ek_sys_sleep_us(end_us - ek_sys_now_us());
    ek_worker_pace_done(&r->pace, beg_us, ek_sys_now_us());
}

/* Under the lock: everything that the pool and the dispatcher do. */
static ek_status compute_locked(ek_resident *r, ek_resident_desk *desk, const ek_wire_header *h,
                                assignment *a, const float **out_y)
{
    int64_t beg_us = ek_sys_now_us();
    const prepare_job job = {.a = a, .n_threads = ek_sys_pool_threads(r->pool)};
    if (h->n_tokens >= PREPARE_TOGETHER && r->x_int8)
        ek_sys_pool_run(r->pool, prepare_share, (void *)(uintptr_t)&job);
    else
        prepare(a, 0, h->n_tokens);
    ek_arena step = ek_arena_over(desk->step, desk->step_bytes);
    ek_status status = ek_expert_dispatch(r->dispatcher, &a->work, &step);
    if (status != EK_OK) return status;
    for (int32_t s = 0; s < h->n_shares; s++)
        desk->share_us[s] =
            (uint32_t)(ek_expert_local_busy_ns(r->dispatcher, a->wire.share_expert[s]) / 1000);
    if (a->wire.weight) {
        float *sums = (float *)(void *)desk->out;
        memset(sums, 0, (size_t)h->n_tokens * (size_t)desk->shape.d_model * sizeof *sums);
        status = ek_expert_combine(r->dispatcher, &a->work, sums);
        *out_y = sums;
    } else {
        *out_y = ek_expert_local_take_rows(r->dispatcher, &a->work);
    }
    if (ek_worker_pace_is_on(&r->setup.pace)) keep_pace(r, h, beg_us);
    atomic_fetch_add_explicit(&r->busy_us, (uint64_t)(ek_sys_now_us() - beg_us),
                              memory_order_relaxed);
    return status;
}

static ek_status compute_in_turn(ek_resident *r, ek_resident_desk *desk, const ek_wire_header *h,
                                 assignment *a, const float **out_y, ek_err *err)
{
    ek_sys_mutex_lock(&r->lock);
    ek_status status = check_experts_locked(r, h, &a->wire, err);
    if (status != EK_OK) {
        ek_sys_mutex_unlock(&r->lock);
        return status;
    }
    uint64_t ticket = r->next_ticket++;
    atomic_fetch_add_explicit(&r->n_waiting, 1, memory_order_relaxed);
    while (r->serving != ticket)
        ek_sys_cond_wait(&r->turn, &r->lock);
    ek_sys_mutex_unlock(&r->lock);
    atomic_fetch_sub_explicit(&r->n_waiting, 1, memory_order_relaxed);
    atomic_store_explicit(&r->computing_since_us, ek_sys_now_us(), memory_order_relaxed);
    status = compute_locked(r, desk, h, a, out_y);
    atomic_store_explicit(&r->computing_since_us, 0, memory_order_relaxed);
    ek_sys_mutex_lock(&r->lock);
    r->serving++;
    ek_sys_cond_broadcast(&r->turn);
    ek_sys_mutex_unlock(&r->lock);
    return status;
}

ek_status ek_worker_resident_compute(ek_resident *resident, ek_resident_desk *desk,
                                     const ek_wire_header *header, ek_wire_header *out_header,
                                     ek_span out_parts[2], ek_err *err)
{
    assignment a = {0};
    const float *y = NULL;
    ek_wire_combine_layout lay;
    ek_status status = assign(desk, header, &a, err);
    if (status == EK_OK) status = ek_link_wire_combine_lay(&desk->shape, header, &lay);
    if (status != EK_OK) return status;
    take_x(resident, desk, header, &a);
    status = compute_in_turn(resident, desk, header, &a, &y, err);
    if (status == EK_EFORMAT) return status;
    if (status != EK_OK) return ek_err_set(err, status, "a dispatch cannot be computed");
    const uint8_t *rows = (const uint8_t *)y;
    if (header->form & EK_WIRE_FORM_BF16) {
        int64_t n = a.wire.weight ? header->n_tokens : header->n_rows;
        /* Sums lie in `out` themselves; each number is read before its place is written. */
        ek_link_wire_to_bf16(y, n * desk->shape.d_model, (uint16_t *)(void *)desk->out);
        rows = desk->out;
    }
    *out_header = *header;
    out_header->kind = EK_WIRE_COMBINE;
    out_header->body_bytes = (uint32_t)lay.bytes;
    out_parts[0] = (ek_span){rows, lay.busy_us};
    out_parts[1] = (ek_span){(const uint8_t *)desk->share_us, lay.bytes - lay.busy_us};
    return EK_OK;
}
