#include "engine/memory.h"

/* Of what is free, the KV cache takes at most this part when its size is left to us. */
#define KV_SHARE_OF_FREE 4

static double gib(int64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

/* Blocks that all running sequences need at full length. */
static int64_t blocks_wanted(const ek_engine_params *params, int32_t context_tokens)
{
    int64_t per_sequence = ((int64_t)context_tokens - 1) / params->kv_block_tokens + 1;
    return params->running_max * per_sequence;
}

static int64_t blocks_of_budget(const ek_engine_params *params, const ek_memory_facts *facts)
{
    if (params->kv_bytes > 0) return params->kv_bytes / facts->block_bytes;
    int64_t wanted = blocks_wanted(params, facts->context_tokens);
    int64_t affordable = facts->available_bytes / KV_SHARE_OF_FREE / facts->block_bytes;
    return wanted < affordable ? wanted : affordable;
}

ek_status ek_engine_memory_plan(const ek_engine_params *params, const ek_memory_facts *facts,
                                ek_memory_plan *out_plan, ek_err *err)
{
    int64_t blocks = blocks_of_budget(params, facts);
    if (blocks < 1)
        return ek_err_set(err, EK_ENOMEM,
                          "a KV cache of %lld bytes has no room for one block of %d tokens, which "
                          "takes %lld bytes; give it more with --kv-cache",
                          (long long)(params->kv_bytes > 0
                                          ? params->kv_bytes
                                          : facts->available_bytes / KV_SHARE_OF_FREE),
                          (int)params->kv_block_tokens, (long long)facts->block_bytes);
    if (blocks > INT32_MAX) blocks = INT32_MAX;
    int64_t kv_bytes = blocks * facts->block_bytes;
    /* In double: a budget of petabytes must not wrap into a small one. */
    double need =
        1.2 * ((double)facts->weight_bytes + (double)kv_bytes + (double)facts->buffer_bytes);
    if (need > (double)facts->available_bytes)
        return ek_err_set(
            err, EK_ENOMEM,
            "needs %.2f GiB of memory (weights %.2f, KV cache %.2f, buffers %.2f, and "
            "20 %% margin), but only %.2f GiB are available; choose a smaller "
            "--kv-cache, a shorter --context or a smaller model",
            need / (double)(1 << 30), gib(facts->weight_bytes), gib(kv_bytes),
            gib(facts->buffer_bytes), gib(facts->available_bytes));
    *out_plan = (ek_memory_plan){
        .kv_blocks = (int32_t)blocks,
        .kv_bytes = kv_bytes,
        .need_bytes = (int64_t)need,
    };
    return EK_OK;
}
