#include "store/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool ek_store_wants(const ek_store_manifest *manifest, const ek_store_want *want, int32_t shard)
{
    const ek_store_shard *s = &manifest->shards[shard];
    if (want->all || s->part == EK_STORE_HEAD) return true;
    if (s->part != EK_STORE_EXPERT) return want->dense;
    if (!want->experts) return false;
    size_t words = ((size_t)manifest->n_experts + 63) / 64;
    uint64_t word = want->experts[(size_t)s->layer * words + (size_t)s->expert / 64];
    return word >> (s->expert % 64) & 1;
}

int32_t ek_store_plan(const ek_store_manifest *manifest, const uint8_t *missing, int64_t bytes_max,
                      int64_t gap_max, ek_store_pull *out_pulls)
{
    int32_t n = 0;
    for (int32_t i = 0; i < manifest->n_shards; i++) {
        if (!missing[i]) continue;
        const ek_store_shard *s = &manifest->shards[i];
        ek_store_pull *pull = n > 0 ? &out_pulls[n - 1] : NULL;
        if (pull && pull->file == s->file) {
            const ek_store_shard *first = &manifest->shards[pull->first];
            const ek_store_shard *last = &manifest->shards[pull->last];
            if (s->offset + s->bytes - first->offset <= bytes_max &&
                s->offset - (last->offset + last->bytes) <= gap_max) {
                pull->last = i;
                continue;
            }
        }
        out_pulls[n++] = (ek_store_pull){.file = s->file, .first = i, .last = i};
    }
    return n;
}

void ek_store_shard_say(const ek_store_manifest *manifest, int32_t shard, char *out_text,
                        size_t bytes)
{
    const ek_store_shard *s = &manifest->shards[shard];
    char expert[32] = "";
    if (s->part == EK_STORE_EXPERT) snprintf(expert, sizeof expert, ", expert %" PRId32, s->expert);
    const char *what = s->part == EK_STORE_HEAD  ? "head"
                       : s->part == EK_STORE_GAP ? "bytes between tensors"
                                                 : s->tensor;
    snprintf(out_text, bytes, "%s%s (%s, %" PRId64 " bytes at %" PRId64 ")", what, expert,
             manifest->files[s->file].name, s->bytes, s->offset);
}
