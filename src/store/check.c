#include "store/check.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "sys/file.h"
#include "sys/mem.h"

#define PATH_BYTES 4096

/* ---- hashing ---- */

typedef struct hash_run {
    const ek_store_hashing *job;
    char (*hex)[EK_SHA256_HEX_BYTES];
    ek_sys_ticket ticket;
    int64_t all_bytes;
    _Atomic int64_t done_bytes;
    _Atomic bool stopped, failed;
} hash_run;

static bool is_asked(const ek_store_hashing *job, int32_t shard)
{
    return (!job->wanted || job->wanted[shard]) &&
           job->files[job->manifest->shards[shard].file].data;
}

static void hash_some(void *ctx, int32_t thread_idx)
{
    hash_run *h = ctx;
    const ek_store_hashing *job = h->job;
    const ek_store_manifest *m = job->manifest;
    int32_t i;
    while ((i = ek_sys_ticket_take(&h->ticket)) < m->n_shards) {
        if (atomic_load_explicit(&h->stopped, memory_order_relaxed)) return;
        if (!is_asked(job, i)) continue;
        const ek_store_shard *s = &m->shards[i];
        const uint8_t *data = job->files[s->file].data + s->offset;
        if (ek_sys_sha256_of(data, (size_t)s->bytes, h->hex[i]) != EK_OK)
            atomic_store_explicit(&h->failed, true, memory_order_relaxed);
        int64_t done =
            atomic_fetch_add_explicit(&h->done_bytes, s->bytes, memory_order_relaxed) + s->bytes;
        if (thread_idx == 0 && job->on_progress && !job->on_progress(job->ctx, done, h->all_bytes))
            atomic_store_explicit(&h->stopped, true, memory_order_relaxed);
    }
}

ek_status ek_store_hash(const ek_store_hashing *job, char (*out_hex)[EK_SHA256_HEX_BYTES])
{
    hash_run h = {.job = job, .hex = out_hex};
    for (int32_t i = 0; i < job->manifest->n_shards; i++)
        if (is_asked(job, i)) h.all_bytes += job->manifest->shards[i].bytes;
    ek_sys_pool_run(job->pool, hash_some, &h);
    if (atomic_load_explicit(&h.stopped, memory_order_relaxed)) return EK_ECANCELED;
    return atomic_load_explicit(&h.failed, memory_order_relaxed) ? EK_ENOMEM : EK_OK;
}

ek_status ek_store_differs(const ek_store_manifest *manifest, int32_t shard, const char *found_hex,
                           ek_err *err)
{
    char said[EK_ERR_TEXT_MAX / 2];
    ek_store_shard_say(manifest, shard, said, sizeof said);
    return ek_err_set(err, EK_EFORMAT, "%s: expected SHA-256 %s, found %s", said,
                      manifest->shards[shard].sha256, found_hex);
}

/* ---- a model against its manifest ---- */

/* A model that is called otherwise than in the manifest is found when it is one file. */
static ek_status map_files(const ek_store_checking *job, ek_sys_map *maps, ek_span *spans,
                           ek_err *err)
{
    const ek_store_manifest *m = job->manifest;
    const char *slash = strrchr(job->model_path, '/');
    int dir = slash ? (int)(slash - job->model_path) + 1 : 0;
    for (int32_t i = 0; i < m->n_files; i++) {
        char path[PATH_BYTES];
        int n = m->n_files == 1
                    ? snprintf(path, sizeof path, "%s", job->model_path)
                    : snprintf(path, sizeof path, "%.*s%s", dir, job->model_path, m->files[i].name);
        if ((size_t)n >= sizeof path) return ek_err_set(err, EK_EINVAL, "the path is too long");
        ek_status status = ek_sys_map_open(path, &maps[i], err);
        if (status != EK_OK) return status;
        spans[i] = maps[i].bytes;
        if ((int64_t)spans[i].len != m->files[i].bytes)
            return ek_err_set(err, EK_EFORMAT,
                              "%s: has %zu bytes, not the manifest's %" PRId64
                              ": another model, or cut short",
                              path, spans[i].len, m->files[i].bytes);
    }
    return EK_OK;
}

static ek_status compare(const ek_store_checking *job, const uint8_t *wanted,
                         char (*hex)[EK_SHA256_HEX_BYTES], int32_t *out_n, int64_t *out_bytes,
                         ek_err *err)
{
    const ek_store_manifest *m = job->manifest;
    int32_t n = 0, n_differ = 0, first = -1;
    int64_t bytes = 0;
    for (int32_t i = 0; i < m->n_shards; i++) {
        if (!wanted[i]) continue;
        n++;
        bytes += m->shards[i].bytes;
        if (strcmp(hex[i], m->shards[i].sha256) == 0) continue;
        if (first < 0) first = i;
        n_differ++;
    }
    if (n_differ == 0) {
        *out_n = n;
        *out_bytes = bytes;
        return EK_OK;
    }
    ek_status status = ek_store_differs(m, first, hex[first], err);
    if (n_differ > 1)
        ek_err_prefix(err, "%" PRId32 " of %" PRId32 " shards differ, the first", n_differ, n);
    ek_err_prefix(err, "%s", job->model_path);
    return status;
}

ek_status ek_store_check(const ek_store_checking *job, int32_t *out_n, int64_t *out_bytes,
                         ek_err *err)
{
    const ek_store_manifest *m = job->manifest;
    size_t n_files = (size_t)m->n_files, n_shards = (size_t)m->n_shards;
    ek_sys_map *maps = ek_sys_calloc(n_files, sizeof *maps);
    ek_span *spans = ek_sys_calloc(n_files, sizeof *spans);
    uint8_t *wanted = ek_sys_calloc(n_shards, 1);
    char(*hex)[EK_SHA256_HEX_BYTES] = ek_sys_calloc(n_shards, sizeof *hex);
    ek_status status = EK_OK;
    if (!maps || !spans || !wanted || !hex) status = ek_err_set(err, EK_ENOMEM, "no memory");
    if (status == EK_OK) status = map_files(job, maps, spans, err);
    for (int32_t i = 0; status == EK_OK && i < m->n_shards; i++)
        wanted[i] = ek_store_wants(m, &job->want, i);
    if (status == EK_OK) {
        const ek_store_hashing hashing = {.manifest = m,
                                          .files = spans,
                                          .wanted = wanted,
                                          .pool = job->pool,
                                          .on_progress = job->on_progress,
                                          .ctx = job->ctx};
        status = ek_store_hash(&hashing, hex);
        if (status != EK_OK) ek_err_set(err, status, "%s", ek_status_text(status));
    }
    if (status == EK_OK) status = compare(job, wanted, hex, out_n, out_bytes, err);
    for (size_t i = 0; maps && i < n_files; i++)
        ek_sys_map_close(&maps[i]);
    ek_sys_free(maps);
    ek_sys_free(spans);
    ek_sys_free(wanted);
    ek_sys_free(hex);
    return status;
}
