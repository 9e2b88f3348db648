#include "engine/scan.h"

#include <math.h>

#include "engine/forward_internal.h"
#include "engine/kv.h"
#include "expert/local.h"
#include "sys/cpu.h"
#include "sys/mem.h"
#include "sys/pool.h"

#define STEP_TOKENS  128 /* of one run: what bounds the rows of logits */
#define BLOCK_TOKENS 32

struct ek_scan {
    ek_scan_params params;
    const ek_model *model;
    ek_kernels kernels;
    ek_sys_pool *pool; /* owned, like all below */
    ek_router *router;
    ek_kv *kv;
    ek_dispatcher *dispatcher;
    ek_forward *forward;
    int32_t *block; /* (n_blocks) of the text */
    int32_t n_blocks;
    float *logits;            /* (STEP_TOKENS, n_vocab) */
    const ek_scan_sink *sink; /* of the run */
    ek_route_view view;       /* version 0: no loads were set yet */
    int32_t first_token;      /* of the step */
    ek_sys_region region;     /* this struct lies in it */
};

static ek_status check(const ek_scan_params *params, ek_err *err)
{
    int32_t context = params->file->model->params.context_tokens;
    if (params->n_threads < 1 || params->n_threads > 1024)
        return ek_err_set(err, EK_EINVAL, "%d threads, allowed are 1..1024", params->n_threads);
    if (params->text_tokens < 2 || params->text_tokens > context)
        return ek_err_set(err, EK_EINVAL,
                          "texts of %d tokens, allowed are 2..%d (the model's context)",
                          params->text_tokens, context);
    return EK_OK;
}

static void on_plan(void *ctx, int32_t layer, const ek_route_plan *plan)
{
    ek_scan *s = ctx;
    const ek_forward *f = s->forward;
    if (!s->sink) return;
    const ek_scan_layer seen = {
        .layer = layer,
        .first_token = s->first_token,
        .n_tokens = f->n_tokens,
        .hidden = f->normed.f32,
        .gate_logits = f->gate_logits,
        .plan = plan,
    };
    s->sink->on_layer(s->sink->ctx, &seen);
}

static ek_status open_parts(ek_scan *s, ek_arena *perm, ek_err *err)
{
    const ek_model_params *p = &s->model->params;
    const ek_kv_params kv = {
        .n_layers = p->n_layers,
        .n_kv_heads = p->n_kv_heads,
        .head_dim_k = p->head_dim_k,
        .head_dim_v = p->head_dim_v,
        .block_tokens = BLOCK_TOKENS,
        .n_blocks = s->n_blocks,
        .prefix_ttl_us = 1000000,
    };
    const ek_route_gate gate = ek_engine_gate_of(p);
    ek_route_params route;
    if (s->params.routing)
        route = *s->params.routing;
    else
        ek_route_params_default(&route);
    ek_status status = ek_kernels_select(s->params.kernels, ek_sys_cpu_flags(), &s->kernels);
    if (status != EK_OK)
        return ek_err_set(err, status, "the kernels asked for do not run on this processor");
    status = ek_sys_pool_create(s->params.n_threads, false, &s->pool);
    if (status != EK_OK) return ek_err_set(err, status, "cannot start the compute threads");
    status = ek_engine_kv_create(&kv, &s->kv, err);
    if (status == EK_OK)
        status = ek_route_create(&gate, p->n_layers, &route, perm, &s->router, err);
    if (status != EK_OK) return status;
    const ek_expert_local_params local = {
        .model = s->model, .kernels = &s->kernels, .pool = s->pool, .n_devices = 1};
    status = ek_expert_local_create(&local, &s->dispatcher, err);
    if (status != EK_OK) return status;
    const ek_forward_params forward = {
        .model = s->model,
        .kernels = &s->kernels,
        .pool = s->pool,
        .kv = s->kv,
        .router = s->router,
        .dispatcher = s->dispatcher,
        .view = &s->view,
        .batch_tokens_max = STEP_TOKENS,
        .context_tokens = s->params.text_tokens,
        .logits_rows_max = STEP_TOKENS,
    };
    status = ek_engine_forward_create(&forward, &s->forward, err);
    if (status != EK_OK) return status;
    const ek_forward_probe probe = {.ctx = s, .on_plan = on_plan};
    ek_engine_forward_set_probe(s->forward, &probe);
    return EK_OK;
}

ek_status ek_engine_scan_open(const ek_scan_params *params, ek_scan **out_scan, ek_err *err)
{
    ek_status status = check(params, err);
    if (status != EK_OK) return status;
    const ek_model_params *p = &params->file->model->params;
    const ek_route_gate gate = ek_engine_gate_of(p);
    size_t n_blocks = (size_t)(params->text_tokens - 1) / BLOCK_TOKENS + 1;
    size_t logits_bytes = (size_t)STEP_TOKENS * (size_t)p->n_vocab * sizeof(float);
    ek_sys_region region;
    status = ek_sys_region_open(sizeof(ek_scan) + n_blocks * sizeof(int32_t) + logits_bytes +
                                    ek_route_bytes(&gate, p->n_layers) + 8 * (size_t)EK_CACHE_LINE,
                                0, &region);
    if (status != EK_OK) return ek_err_set(err, status, "no memory for the logits");
    ek_arena perm = ek_sys_region_arena(&region);
    ek_scan *s = ek_new(&perm, ek_scan, 1);
    s->params = *params;
    s->model = params->file->model;
    s->region = region;
    s->n_blocks = (int32_t)n_blocks;
    s->block = ek_new(&perm, int32_t, n_blocks);
    s->logits = ek_arena_try_raw(&perm, logits_bytes, 1, EK_CACHE_LINE);
    status = open_parts(s, &perm, err);
    if (status != EK_OK) {
        ek_engine_scan_close(s);
        return status;
    }
    *out_scan = s;
    return EK_OK;
}

void ek_engine_scan_close(ek_scan *scan)
{
    if (!scan) return;
    ek_engine_forward_destroy(scan->forward);
    ek_expert_destroy(scan->dispatcher);
    ek_engine_kv_destroy(scan->kv);
    ek_sys_pool_destroy(scan->pool);
    ek_sys_region region = scan->region; /* a copy, since scan lies in it */
    ek_sys_region_close(&region);
}

const ek_kernels *ek_engine_scan_kernels(const ek_scan *scan)
{
    return &scan->kernels;
}

void ek_engine_scan_set_loads(ek_scan *scan, const float *utilisation, int64_t sampled_us)
{
    scan->view = (ek_route_view){
        .version = scan->view.version + 1, .utilisation = utilisation, .sampled_us = sampled_us};
}

double ek_engine_scan_score_loss(const ek_scan *scan)
{
    const ek_route_stats *stats = ek_route_stats_of(scan->router);
    return stats->n_tokens > 0 ? stats->loss_sum / (double)stats->n_tokens : 0;
}

/* -ln softmax(logits)[id] */
static double loss_of(const float *logits, int32_t n, int32_t id)
{
    float max = logits[0];
    double sum = 0;
    for (int32_t i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int32_t i = 0; i < n; i++)
        sum += (double)expf(logits[i] - max);
    return log(sum) - (double)(logits[id] - max);
}

static ek_status run_step(ek_scan *s, ek_kv_seq *seq, const int32_t *tokens, int32_t n_tokens,
                          int32_t n_left, double *loss)
{
    ek_status status = ek_engine_kv_reserve(s->kv, seq, seq->n_tokens + n_tokens);
    if (status != EK_OK) return status;
    s->first_token = seq->n_tokens;
    const ek_batch_seq part = {
        .kv = seq, .tokens = tokens, .n_tokens = n_tokens, .wants_every_logit = loss != NULL};
    status = ek_engine_forward_run(s->forward, &(ek_batch){&part, 1}, s->logits);
    if (status != EK_OK || !loss) return status;
    int32_t n_vocab = s->model->params.n_vocab;
    for (int32_t i = 0; i < n_tokens && i + 1 < n_left; i++)
        *loss += loss_of(s->logits + (int64_t)i * n_vocab, n_vocab, tokens[i + 1]);
    return EK_OK;
}

ek_status ek_engine_scan_run(ek_scan *scan, const int32_t *tokens, int32_t n_tokens,
                             const ek_scan_sink *sink, double *out_loss)
{
    if (n_tokens < 1 || n_tokens > scan->params.text_tokens) return EK_EINVAL;
    /*
     * All ids are looked at before anything is computed: the last is nobody's input but a target.
     */
    for (int32_t i = 0; i < n_tokens; i++)
        if (tokens[i] < 0 || tokens[i] >= scan->model->params.n_vocab) return EK_EINVAL;
    ek_kv_seq seq = {.block = scan->block, .n_blocks_max = scan->n_blocks};
    ek_status status = EK_OK;
    double loss = 0;
    scan->sink = sink;
    for (int32_t beg = 0; beg < n_tokens && status == EK_OK; beg += STEP_TOKENS) {
        int32_t left = n_tokens - beg;
        status = run_step(scan, &seq, tokens + beg, left < STEP_TOKENS ? left : STEP_TOKENS, left,
                          out_loss ? &loss : NULL);
    }
    ek_engine_kv_free(scan->kv, &seq, 0);
    scan->sink = NULL;
    if (status == EK_OK && out_loss) *out_loss = loss;
    return status;
}
