#include "engine/kv.h"

#include "base/assert.h"
#include "base/size.h"
#include "engine/kv_internal.h"

#define BLOCK_TOKENS_MAX 1024
#define DIM_MAX          65536
#define BLOCKS_MAX       (1 << 28)

static bool in_range(int32_t value, int32_t max)
{
    return value >= 1 && value <= max;
}

static ek_status check_params(const ek_kv_params *p, ek_err *err)
{
    if (!in_range(p->n_layers, DIM_MAX) || !in_range(p->n_kv_heads, DIM_MAX) ||
        !in_range(p->head_dim_k, DIM_MAX) || !in_range(p->head_dim_v, DIM_MAX))
        return ek_err_set(err, EK_EINVAL, "KV cache: %d layers, %d heads of %d + %d: out of range",
                          p->n_layers, p->n_kv_heads, p->head_dim_k, p->head_dim_v);
    if (!in_range(p->block_tokens, BLOCK_TOKENS_MAX))
        return ek_err_set(err, EK_EINVAL, "KV cache: blocks of %d tokens, allowed are 1..%d",
                          p->block_tokens, BLOCK_TOKENS_MAX);
    if (!in_range(p->n_blocks, BLOCKS_MAX))
        return ek_err_set(err, EK_EINVAL, "KV cache: %d blocks, allowed are 1..%d", p->n_blocks,
                          BLOCKS_MAX);
    return EK_OK;
}

static size_t head_bytes(const ek_kv_params *p)
{
    return (size_t)p->block_tokens * (size_t)(p->head_dim_k + p->head_dim_v) * sizeof(uint16_t);
}

/* Within check_params' bounds no product here exceeds 2^60. */
int64_t ek_engine_kv_block_bytes(const ek_kv_params *params)
{
    size_t bytes = head_bytes(params) * (size_t)params->n_kv_heads * (size_t)params->n_layers;
    return (int64_t)ek_size_align(bytes, EK_CACHE_LINE);
}

/** Buckets: a power of two, twice the blocks, so that chains stay short. */
static uint32_t bucket_count(int32_t n_blocks)
{
    uint32_t n = 2;
    while (n < (uint32_t)n_blocks * 2u)
        n *= 2;
    return n;
}

static ek_status open_regions(const ek_kv_params *p, ek_sys_region *out_data,
                              ek_sys_region *out_meta)
{
    size_t n = (size_t)p->n_blocks;
    size_t data_bytes;
    if (!ek_size_mul(n, (size_t)ek_engine_kv_block_bytes(p), &data_bytes)) return EK_ENOMEM;
    size_t meta_bytes =
        sizeof(ek_kv) +
        n * (sizeof(ek_kv_block) + sizeof(int32_t) * ((size_t)p->block_tokens + 1)) +
        bucket_count(p->n_blocks) * sizeof(int32_t) + 4 * (size_t)EK_CACHE_LINE;
    ek_sys_region data;
    ek_sys_region meta;
    ek_status status = ek_sys_region_open(data_bytes, 1, &data);
    if (status != EK_OK) return status;
    status = ek_sys_region_open(meta_bytes, 0, &meta);
    if (status != EK_OK) {
        ek_sys_region_close(&data);
        return status;
    }
    *out_data = data;
    *out_meta = meta;
    return EK_OK;
}

ek_status ek_engine_kv_create(const ek_kv_params *params, ek_kv **out_kv, ek_err *err)
{
    ek_status status = check_params(params, err);
    if (status != EK_OK) return status;
    ek_sys_region data;
    ek_sys_region meta;
    status = open_regions(params, &data, &meta);
    if (status != EK_OK)
        return ek_err_set(err, status, "KV cache: no memory for %d blocks of %lld bytes",
                          params->n_blocks, (long long)ek_engine_kv_block_bytes(params));

    ek_arena arena = ek_sys_region_arena(&meta);
    uint32_t n_buckets = bucket_count(params->n_blocks);
    ek_kv *kv = ek_new(&arena, ek_kv, 1);
    *kv = (ek_kv){
        .params = *params,
        .block_bytes = (size_t)ek_engine_kv_block_bytes(params),
        .layer_bytes = head_bytes(params) * (size_t)params->n_kv_heads,
        .head_bytes = head_bytes(params),
        .value_at = (size_t)params->block_tokens * (size_t)params->head_dim_k * sizeof(uint16_t),
        .data = data.base,
        .block = ek_new(&arena, ek_kv_block, params->n_blocks),
        .tokens = ek_new(&arena, int32_t, (size_t)params->n_blocks * (size_t)params->block_tokens),
        .free = ek_new(&arena, int32_t, params->n_blocks),
        .bucket = ek_new(&arena, int32_t, n_buckets),
        .bucket_mask = n_buckets - 1,
        .lru_oldest = EK_KV_NONE,
        .lru_youngest = EK_KV_NONE,
        .data_region = data,
        .meta_region = meta,
    };
    for (uint32_t i = 0; i < n_buckets; i++)
        kv->bucket[i] = EK_KV_NONE;
    /* The lowest id on top, so that a cache that is never full touches only its beginning. */
    for (int32_t id = params->n_blocks - 1; id >= 0; id--)
        kv->free[kv->n_free++] = id;
    *out_kv = kv;
    return EK_OK;
}

void ek_engine_kv_destroy(ek_kv *kv)
{
    if (!kv) return;
    ek_sys_region meta = kv->meta_region; /* a copy, since kv lies in it */
    ek_sys_region_close(&kv->data_region);
    ek_sys_region_close(&meta);
}

int32_t ek_engine_kv_available(const ek_kv *kv)
{
    return kv->n_free + kv->n_cached;
}

ek_status ek_engine_kv_reserve(ek_kv *kv, ek_kv_seq *seq, int32_t n_tokens)
{
    int32_t bt = kv->params.block_tokens;
    int32_t n_needed = n_tokens / bt + (n_tokens % bt != 0);
    if (n_needed <= seq->n_blocks) return EK_OK;
    if (n_needed > seq->n_blocks_max) return EK_ENOMEM;
    if (n_needed - seq->n_blocks > ek_engine_kv_available(kv)) return EK_ENOMEM;
    while (seq->n_blocks < n_needed) {
        int32_t id = kv->n_free > 0 ? kv->free[--kv->n_free] : ek_engine_kv_evict(kv);
        kv->block[id].n_refs = 1;
        seq->block[seq->n_blocks++] = id;
    }
    return EK_OK;
}

void ek_engine_kv_unref(ek_kv *kv, int32_t id, int64_t now_us)
{
    ek_kv_block *block = &kv->block[id];
    ek_assert(block->n_refs > 0);
    if (--block->n_refs > 0) return;
    if (block->published)
        ek_engine_kv_cache(kv, id, now_us);
    else
        kv->free[kv->n_free++] = id;
}

void ek_engine_kv_free(ek_kv *kv, ek_kv_seq *seq, int64_t now_us)
{
    while (seq->n_blocks > 0) /* deepest first: kv_internal.h says why */
        ek_engine_kv_unref(kv, seq->block[--seq->n_blocks], now_us);
    seq->n_tokens = 0;
    seq->n_published = 0;
}

void ek_engine_kv_stats_get(const ek_kv *kv, ek_kv_stats *out_stats)
{
    *out_stats = (ek_kv_stats){
        .n_blocks = kv->params.n_blocks,
        .n_used = kv->params.n_blocks - kv->n_free - kv->n_cached,
        .n_cached = kv->n_cached,
        .lookup_tokens = kv->lookup_tokens,
        .hit_tokens = kv->hit_tokens,
        .evicted_blocks = kv->evicted_blocks,
        .expired_blocks = kv->expired_blocks,
    };
}

const ek_kv_params *ek_engine_kv_params(const ek_kv *kv)
{
    return &kv->params;
}

uint16_t *ek_engine_kv_keys(ek_kv *kv, int32_t block, int32_t layer, int32_t kv_head)
{
    ek_dassert(block >= 0 && block < kv->params.n_blocks);
    ek_dassert(layer >= 0 && layer < kv->params.n_layers);
    ek_dassert(kv_head >= 0 && kv_head < kv->params.n_kv_heads);
    size_t at = (size_t)block * kv->block_bytes + (size_t)layer * kv->layer_bytes +
                (size_t)kv_head * kv->head_bytes;
    return (uint16_t *)(void *)(kv->data + at);
}

uint16_t *ek_engine_kv_values(ek_kv *kv, int32_t block, int32_t layer, int32_t kv_head)
{
    uint16_t *keys = ek_engine_kv_keys(kv, block, layer, kv_head);
    return keys + kv->value_at / sizeof *keys;
}
