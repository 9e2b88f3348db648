/*
 * Any bytes as a manifest, and as the body of one whose hash is right, since nothing else gets past
 * the hash. That what parses keeps its promises (shards in order, inside their files, experts that
 * exist) is checked here, that it can be printed and read again too, the rest by the sanitizers.
 * Seeds: bodies.
 */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "store/manifest.h"
#include "sys/mem.h"
#include "sys/sha256.h"

#define MEMORY_BYTES ((size_t)4 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const ek_store_manifest *m)
{
    int32_t n = 0;
    for (int32_t f = 0; f < m->n_files; f++) {
        int64_t end = 0;
        ek_assert(!strchr(m->files[f].name, '/') && m->files[f].name[0] != '.');
        ek_assert(m->files[f].first == n && m->files[f].n_shards > 0);
        for (int32_t i = 0; i < m->files[f].n_shards; i++) {
            const ek_store_shard *s = &m->shards[n++];
            ek_assert(s->file == f && s->offset >= end && s->bytes > 0);
            end = s->offset + s->bytes;
            ek_assert(end <= m->files[f].bytes);
            if (s->part != EK_STORE_EXPERT) continue;
            ek_assert(s->layer >= 0 && s->layer < m->n_layers);
            ek_assert(s->expert >= 0 && s->expert < m->n_experts);
        }
    }
    ek_assert(n == m->n_shards);
}

static void parse(ek_str text, bool again)
{
    ek_store_manifest m;
    ek_err err;
    void *memory = malloc(MEMORY_BYTES);
    ek_assert(memory != NULL);
    ek_arena perm = ek_arena_over(memory, MEMORY_BYTES);
    if (ek_store_manifest_parse(text, &perm, &m, &err) == EK_OK) {
        ek_str printed;
        walk(&m);
        if (again && ek_store_manifest_print(&m, &printed, &err) == EK_OK) {
            parse(printed, false);
            ek_sys_free((void *)(uintptr_t)printed.data);
        }
    }
    free(memory);
}

static void parse_body(const uint8_t *data, size_t size)
{
    char hex[EK_SHA256_HEX_BYTES];
    json_t *body = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
    if (!body) return;
    char *canonical = json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS);
    ek_assert(canonical != NULL);
    ek_assert(ek_sys_sha256_of(canonical, strlen(canonical), hex) == EK_OK);
    size_t bytes = strlen(canonical) + 256;
    char *text = malloc(bytes);
    ek_assert(text != NULL);
    int n = snprintf(text, bytes,
                     "{\"format\":\"evenkeel-manifest\",\"version\":1,\"body_sha256\":\"%s\","
                     "\"body\":%s}",
                     hex, canonical);
    parse((ek_str){text, (size_t)n}, true);
    free(text);
    free(canonical);
    json_decref(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse((ek_str){(const char *)data, size}, true);
    parse_body(data, size);
    return 0;
}
