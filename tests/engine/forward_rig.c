#include "forward_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include "expert/local.h"
#include "sys/cpu.h"

static void must(ek_status status, const ek_err *err)
{
    if (status != EK_OK) fail_msg("%s: %s", ek_status_name(status), err->text);
}

ek_rig_params ek_rig_defaults(const char *path)
{
    ek_rig_params params = {
        .path = path,
        .kernels = EK_KERNELS_AUTO,
        .n_threads = 1,
        .batch_tokens_max = 256,
        .block_tokens = 16,
        .n_blocks = 256,
    };
    ek_route_params_default(&params.route);
    ek_keel_params_default(&params.keel);
    return params;
}

bool ek_rig_has_kernels(ek_kernels_choice kernels)
{
    ek_kernels table;
    if (ek_kernels_select(kernels, ek_sys_cpu_flags(), &table) == EK_OK) return true;
    print_message("skipping: this machine cannot run kernels of choice %d\n", (int)kernels);
    return false;
}

static void open_model(const char *path, ek_rig *rig, ek_arena *perm)
{
    ek_err err = {0};
    ek_gguf *gguf;
    must(ek_sys_map_open(path, &rig->map, &err), &err);
    /* Address space only: the model, the router and the counters take a part of it. */
    size_t bytes = ek_model_gguf_perm_bytes_max(rig->map.bytes.len) + ((size_t)256 << 20);
    must(ek_sys_region_open(bytes, 0, &rig->region), &err);
    *perm = ek_sys_region_arena(&rig->region);
    must(ek_model_gguf_parse(&rig->map.bytes, 1, perm, &gguf, &err), &err);
    must(ek_model_load(gguf, perm, &rig->model, &err), &err);
}

static void open_parts(const ek_rig_params *params, ek_rig *rig, ek_arena *perm)
{
    ek_err err = {0};
    const ek_model_params *p = &rig->model->params;
    const ek_kv_params kv = {
        .n_layers = p->n_layers,
        .n_kv_heads = p->n_kv_heads,
        .head_dim_k = p->head_dim_k,
        .head_dim_v = p->head_dim_v,
        .block_tokens = params->block_tokens,
        .n_blocks = params->n_blocks,
        .prefix_cache = params->prefix_cache,
        .prefix_ttl_us = 1000000,
    };
    const ek_route_gate gate = ek_engine_gate_of(p);
    must(ek_kernels_select(params->kernels, ek_sys_cpu_flags(), &rig->kernels), &err);
    must(ek_sys_pool_create(params->n_threads, false, &rig->pool), &err);
    must(ek_engine_kv_create(&kv, &rig->kv, &err), &err);
    must(ek_route_create(&gate, p->n_layers, &params->route, perm, &rig->router, &err), &err);
    must(ek_telemetry_experts_create(p->n_layers, p->n_experts, perm, &rig->stats), &err);
    must(ek_telemetry_experts_create(p->n_layers, params->keel.n_devices, perm, &rig->devices),
         &err);
    const ek_keel_setup keel = {
        .n_layers = p->n_layers,
        .n_experts = p->n_experts,
        .top_k = p->top_k,
        .n_threads = params->n_threads,
        .knee = 1,
        .bytes_per_expert = 1000,
        .seconds_per_row = 1e-3, /* moves are cheap, rows dear: whatever gains is done */
        .link_bytes_per_s = 1e9,
        .sample_us = params->route.sample_us,
        .experts = rig->stats,
        .devices = rig->devices,
    };
    must(ek_keel_create(&params->keel, &keel, perm, &rig->keel, &err), &err);
    const ek_expert_local_params local = {
        .model = rig->model,
        .kernels = &rig->kernels,
        .pool = rig->pool,
        .n_devices = params->keel.n_devices,
        .stats = rig->stats,
        .device_stats = rig->devices,
    };
    must(ek_expert_local_create(&local, &rig->dispatcher, &err), &err);
    if (params->wrap) rig->dispatcher = params->wrap(rig->dispatcher);
}

void ek_rig_open(const ek_rig_params *params, ek_rig *rig)
{
    ek_err err = {0};
    ek_arena perm;
    *rig = (ek_rig){0};
    open_model(params->path, rig, &perm);
    open_parts(params, rig, &perm);
    const ek_forward_params forward = {
        .model = rig->model,
        .kernels = &rig->kernels,
        .pool = rig->pool,
        .kv = rig->kv,
        .router = rig->router,
        .dispatcher = rig->dispatcher,
        .keel = rig->keel,
        .stats = rig->stats,
        .batch_tokens_max = params->batch_tokens_max,
        .context_tokens = rig->model->params.context_tokens,
        .logits_rows_max = params->batch_tokens_max,
    };
    must(ek_engine_forward_create(&forward, &rig->forward, &err), &err);
}

void ek_rig_close(ek_rig *rig)
{
    ek_engine_forward_destroy(rig->forward);
    ek_expert_destroy(rig->dispatcher);
    ek_engine_kv_destroy(rig->kv);
    ek_sys_pool_destroy(rig->pool);
    ek_sys_region_close(&rig->region);
    ek_sys_map_close(&rig->map);
}

void ek_rig_seq_init(ek_rig_seq *seq)
{
    seq->kv = (ek_kv_seq){.block = seq->block, .n_blocks_max = EK_RIG_BLOCKS_PER_SEQ};
}

void ek_rig_feed(ek_rig *rig, ek_rig_seq *seq, const int32_t *tokens, int32_t n, int32_t chunk,
                 float *out_logits)
{
    for (int32_t beg = 0; beg < n; beg += chunk) {
        int32_t end = beg + chunk < n ? beg + chunk : n;
        const ek_batch_seq part = {
            .kv = &seq->kv,
            .tokens = tokens + beg,
            .n_tokens = end - beg,
            .wants_logits = end == n,
        };
        assert_int_equal(ek_engine_kv_reserve(rig->kv, &seq->kv, seq->kv.n_tokens + part.n_tokens),
                         EK_OK);
        assert_int_equal(ek_engine_forward_run(rig->forward, &(ek_batch){&part, 1}, out_logits),
                         EK_OK);
    }
}

void ek_rig_logits(ek_rig *rig, const int32_t *tokens, int32_t n, int32_t chunk, float *out_logits)
{
    ek_rig_seq seq;
    ek_rig_seq_init(&seq);
    ek_rig_feed(rig, &seq, tokens, n, chunk, out_logits);
    ek_engine_kv_free(rig->kv, &seq.kv, 0);
}

int32_t ek_rig_argmax(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}
