#include "rig.h"

#include "base/assert.h"
#include "expert/local.h"
#include "expert/pack.h"
#include "sys/clock.h"
#include "sys/cpu.h"

static ek_status open_parts(ek_bench_rig *rig, const ek_bench_rig_params *params, ek_arena *perm,
                            ek_err *err)
{
    const ek_model_params *p = &rig->file->model->params;
    const ek_kv_params kv = {.n_layers = p->n_layers,
                             .n_kv_heads = p->n_kv_heads,
                             .head_dim_k = p->head_dim_k,
                             .head_dim_v = p->head_dim_v,
                             .block_tokens = EK_BENCH_RIG_BLOCK_TOKENS,
                             .n_blocks = EK_BENCH_RIG_SEQS * EK_BENCH_RIG_SEQ_TOKENS /
                                             EK_BENCH_RIG_BLOCK_TOKENS +
                                         EK_BENCH_RIG_SEQ_BLOCKS};
    const ek_route_gate gate = ek_engine_gate_of(p);
    ek_route_params route;
    ek_route_params_default(&route);
    ek_status status = ek_kernels_select(params->choice, ek_sys_cpu_flags(), &rig->kernels);
    if (status != EK_OK) return ek_err_set(err, status, "this machine cannot run those kernels");
    status = ek_sys_pool_create(params->n_threads, false, &rig->pool);
    if (status != EK_OK) return ek_err_set(err, status, "no %d threads", params->n_threads);
    rig->model = rig->file->model;
    if (!params->plain) {
        status = ek_expert_pack_create(rig->file->model, NULL, &rig->kernels, &rig->packed, err);
        if (status != EK_OK) return status;
        ek_expert_pack_run(rig->packed, rig->pool);
        rig->model = ek_expert_pack_model(rig->packed);
    }
    const ek_expert_local_params local = {
        .model = rig->model, .kernels = &rig->kernels, .pool = rig->pool, .n_devices = 1};
    status = ek_engine_kv_create(&kv, &rig->kv, err);
    if (status == EK_OK)
        status = ek_route_create(&gate, p->n_layers, &route, perm, &rig->router, err);
    if (status == EK_OK) status = ek_expert_local_create(&local, &rig->dispatcher, err);
    return status;
}

static ek_status reserve(ek_bench_rig *rig, ek_err *err)
{
    for (int32_t s = 0; s <= EK_BENCH_RIG_SEQS; s++) {
        const int32_t n_tokens =
            s < EK_BENCH_RIG_SEQS ? EK_BENCH_RIG_SEQ_TOKENS : EK_BENCH_RIG_TOKENS;
        rig->seqs[s] =
            (ek_kv_seq){.block = rig->blocks[s], .n_blocks_max = EK_BENCH_RIG_SEQ_BLOCKS};
        const ek_status status = ek_engine_kv_reserve(rig->kv, &rig->seqs[s], n_tokens);
        if (status != EK_OK) return ek_err_set(err, status, "no KV blocks");
    }
    return EK_OK;
}

ek_status ek_bench_rig_open(ek_bench_rig *rig, const ek_bench_rig_params *params, ek_err *err)
{
    ek_status status = ek_expert_model_open(params->model_path, NULL, &rig->file, err);
    if (status != EK_OK) return status;
    const ek_model_params *p = &rig->file->model->params;
    if (p->context_tokens < EK_BENCH_RIG_TOKENS)
        return ek_err_set(err, EK_ECONTEXT, "%s: a context of %d tokens, %d are needed",
                          params->model_path, p->context_tokens, EK_BENCH_RIG_TOKENS);
    const ek_route_gate gate = ek_engine_gate_of(p);
    const size_t n_logits = (size_t)EK_BENCH_RIG_SEQS * (size_t)p->n_vocab;
    const size_t perm_bytes =
        ((size_t)1 << 20) + ek_route_bytes(&gate, p->n_layers) + n_logits * sizeof(float);
    status = ek_sys_region_open(perm_bytes, 0, &rig->perm_region);
    if (status != EK_OK) return ek_err_set(err, status, "no memory for logits");
    ek_arena perm = ek_sys_region_arena(&rig->perm_region);
    rig->logits = ek_new(&perm, float, n_logits);
    status = open_parts(rig, params, &perm, err);
    if (status != EK_OK) return status;
    const ek_forward_params forward = {.model = rig->model,
                                       .kernels = &rig->kernels,
                                       .pool = rig->pool,
                                       .kv = rig->kv,
                                       .router = rig->router,
                                       .dispatcher = rig->dispatcher,
                                       .batch_tokens_max = EK_BENCH_RIG_TOKENS,
                                       .context_tokens = EK_BENCH_RIG_TOKENS,
                                       .logits_rows_max = EK_BENCH_RIG_SEQS};
    status = ek_engine_forward_create(&forward, &rig->forward, err);
    if (status != EK_OK) return status;
    ek_rng_init(&rig->rng, 1);
    return reserve(rig, err);
}

void ek_bench_rig_close(ek_bench_rig *rig)
{
    ek_engine_forward_destroy(rig->forward);
    ek_expert_destroy(rig->dispatcher);
    ek_engine_kv_destroy(rig->kv);
    ek_sys_pool_destroy(rig->pool);
    ek_sys_region_close(&rig->perm_region);
    ek_expert_pack_destroy(rig->packed);
    ek_expert_model_close(rig->file);
    *rig = (ek_bench_rig){0};
}

ek_status ek_bench_rig_step(ek_bench_rig *rig, int32_t first, int32_t n_seqs, int32_t n_tokens,
                            int64_t *out_ns)
{
    int32_t tokens[EK_BENCH_RIG_TOKENS];
    ek_batch_seq parts[EK_BENCH_RIG_SEQS];
    ek_assert(n_seqs <= EK_BENCH_RIG_SEQS);
    ek_assert(n_seqs * n_tokens <= EK_BENCH_RIG_TOKENS);
    for (int32_t i = 0; i < n_seqs * n_tokens; i++)
        tokens[i] = (int32_t)ek_rng_below(&rig->rng, (uint64_t)rig->file->model->params.n_vocab);
    for (int32_t s = 0; s < n_seqs; s++)
        parts[s] = (ek_batch_seq){.kv = &rig->seqs[first + s],
                                  .tokens = tokens + (ptrdiff_t)s * n_tokens,
                                  .n_tokens = n_tokens,
                                  .wants_logits = true};
    const int64_t beg_ns = ek_sys_now_ns();
    const ek_status status =
        ek_engine_forward_run(rig->forward, &(ek_batch){parts, n_seqs}, rig->logits);
    if (status == EK_OK) *out_ns = ek_sys_now_ns() - beg_ns;
    return status;
}

ek_status ek_bench_rig_steps(ek_bench_rig *rig, int32_t n_seqs, int32_t n_tokens, int32_t n_steps)
{
    int64_t ns;
    ek_status status = EK_OK;
    for (int32_t i = 0; i < n_steps && status == EK_OK; i++) {
        rig->seqs[EK_BENCH_RIG_SEQS].n_tokens = 0;
        status = n_seqs > 0 ? ek_bench_rig_step(rig, 0, n_seqs, n_tokens, &ns)
                            : ek_bench_rig_step(rig, EK_BENCH_RIG_SEQS, 1, n_tokens, &ns);
    }
    return status;
}
