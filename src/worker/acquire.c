#include "worker/acquire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "sys/clock.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/mem.h"
#include "sys/sparse.h"

#define PIECE_BYTES ((size_t)256 << 10)
#define SLEEP_US    50000 /* at most between two looks whether to end */
#define STEP_MS     50
#define STORE_TRIES 3
#define RETRY_US    200000
#define PATH_BYTES  4096

/* ---- the rate ---- */

bool ek_worker_acquire_pace(const ek_acquire_shard *a, size_t bytes)
{
    const ek_acquire_setup *setup = a->setup;
    atomic_fetch_add_explicit(&a->progress->bytes, bytes, memory_order_relaxed);
    *a->spent += bytes;
    while (setup->goes_on(setup->ctx)) {
        if (setup->bytes_per_s == 0) return true;
        int64_t due_us =
            a->beg_us + (int64_t)((double)*a->spent * 1e6 / (double)setup->bytes_per_s);
        int64_t left_us = due_us - ek_sys_now_us();
        if (left_us <= 0) return true;
        ek_sys_sleep_us(left_us < SLEEP_US ? left_us : SLEEP_US);
    }
    return false;
}

/* ---- the file itself ---- */

/* Does the file have the shard's bytes? @return EK_OK; EK_EFORMAT; EK_ECANCELED; EK_ENOMEM */
static ek_status check_own(const ek_acquire_shard *a, ek_err *err)
{
    char hex[EK_SHA256_HEX_BYTES];
    ek_sys_sha256 hash;
    bool goes_on = true;
    if (ek_sys_sha256_open(&hash) != EK_OK) return ek_err_set(err, EK_ENOMEM, "no memory to hash");
    for (size_t at = 0; at < a->bytes && goes_on; at += PIECE_BYTES) {
        size_t n = a->bytes - at < PIECE_BYTES ? a->bytes - at : PIECE_BYTES;
        ek_sys_sha256_add(&hash, a->there + at, n);
        goes_on = ek_worker_acquire_pace(a, n);
    }
    ek_sys_sha256_close(&hash, hex);
    if (!goes_on) return ek_err_set(err, EK_ECANCELED, "ended meanwhile");
    if (strcmp(hex, a->setup->manifest->shards[a->shard].sha256) == 0) return EK_OK;
    return ek_err_set(err, EK_EFORMAT, "the worker's own file has it not");
}

/* Checked bytes into the file; the map sees them, since it was never written to. */
static ek_status keep(const ek_acquire_shard *a, ek_err *err)
{
    const ek_store_manifest *m = a->setup->manifest;
    const ek_store_shard *shard = &m->shards[a->shard];
    const ek_store_file *file = &m->files[shard->file];
    const char *slash = strrchr(a->setup->model_path, '/');
    int dir = slash ? (int)(slash - a->setup->model_path) + 1 : 0;
    char path[PATH_BYTES];
    ek_sys_sparse out;
    int n = m->n_files == 1
                ? snprintf(path, sizeof path, "%s", a->setup->model_path)
                : snprintf(path, sizeof path, "%.*s%s", dir, a->setup->model_path, file->name);
    if ((size_t)n >= sizeof path) return ek_err_set(err, EK_EINVAL, "the path is too long");
    if (ek_sys_file_bytes(path) != file->bytes)
        return ek_err_set(err, EK_EFORMAT, "%s: has another size than it had", path);
    ek_status status = ek_sys_sparse_open(path, file->bytes, &out, err);
    if (status != EK_OK) return status;
    status = ek_sys_sparse_write(&out, shard->offset, (ek_span){a->buffer, a->bytes}, err);
    ek_sys_sparse_close(&out);
    return status;
}

/* ---- from elsewhere ---- */

/* Hold what came against the manifest, and keep it if it is right. */
static ek_status accept(const ek_acquire_shard *a, const char *from, ek_err *err)
{
    char hex[EK_SHA256_HEX_BYTES];
    const char *wanted = a->setup->manifest->shards[a->shard].sha256;
    if (ek_sys_sha256_of(a->buffer, a->bytes, hex) != EK_OK)
        return ek_err_set(err, EK_ENOMEM, "no memory to hash");
    if (strcmp(hex, wanted) == 0) return keep(a, err);
    ek_log(EK_LOG_WARN, "cluster", "wrong_bytes",
           "from=\"%s\" layer=%d expert=%d expected=%s found=%s", from, (int)a->layer,
           (int)a->expert, wanted, hex);
    return ek_err_set(err, EK_EFORMAT, "%s has other bytes: SHA-256 %.16s... instead of %.16s...",
                      from, hex, wanted);
}

typedef struct intake {
    const ek_acquire_shard *a;
    size_t n;
    bool ended;
} intake;

static bool take(void *ctx, int64_t at, ek_span bytes)
{
    intake *in = ctx;
    int64_t beg = in->a->setup->manifest->shards[in->a->shard].offset;
    if (at != beg + (int64_t)in->n || bytes.len > in->a->bytes - in->n) return false;
    memcpy(in->a->buffer + in->n, bytes.data, bytes.len);
    in->n += bytes.len;
    atomic_fetch_add_explicit(&in->a->progress->store_bytes, bytes.len, memory_order_relaxed);
    in->ended = !ek_worker_acquire_pace(in->a, bytes.len);
    return !in->ended;
}

static ek_status read_store(const ek_acquire_shard *a, ek_store_carrier *carrier,
                            ek_store_verdict *out_verdict, ek_err *err)
{
    const ek_store_manifest *m = a->setup->manifest;
    const ek_store_shard *shard = &m->shards[a->shard];
    intake in = {.a = a};
    const ek_store_request request = {.name = m->files[shard->file].name,
                                      .offset = shard->offset,
                                      .bytes = shard->bytes,
                                      .file_bytes = m->files[shard->file].bytes,
                                      .take = take,
                                      .ctx = &in};
    ek_store_outcome outcome = {.verdict = EK_STORE_ABSENT};
    *out_verdict = EK_STORE_ABSENT;
    ek_status status = ek_store_carrier_start(carrier, 0, &request, err);
    if (status != EK_OK) return status;
    while (!ek_store_carrier_step(carrier, STEP_MS, &outcome))
        if (!a->setup->goes_on(a->setup->ctx))
            return ek_err_set(err, EK_ECANCELED, "ended meanwhile");
    *out_verdict = outcome.verdict;
    if (in.ended) return ek_err_set(err, EK_ECANCELED, "ended meanwhile");
    if (outcome.verdict == EK_STORE_CAME && in.n == a->bytes) return EK_OK;
    if (outcome.verdict == EK_STORE_WHOLE)
        return ek_err_set(err, EK_EPEER, "%s only gives whole files", carrier->place);
    if (outcome.verdict == EK_STORE_CAME || outcome.verdict == EK_STORE_REFUSED)
        return ek_err_set(err, EK_EPEER, "%s gave %zu bytes instead of %zu", carrier->place, in.n,
                          a->bytes);
    return ek_err_set(err, outcome.err.status, "%s", outcome.err.text);
}

static ek_status from_source(const ek_acquire_shard *a, const char *place, ek_err *err)
{
    ek_store_carrier *carrier;
    ek_store_verdict verdict = EK_STORE_TRANSIENT;
    ek_status status = ek_store_carrier_open(place, 1, &a->setup->access, &carrier, err);
    if (status != EK_OK) return status;
    for (int i = 0; i < STORE_TRIES && verdict == EK_STORE_TRANSIENT; i++) {
        if (i > 0) ek_sys_sleep_us(RETRY_US << i);
        status = read_store(a, carrier, &verdict, err);
        if (status == EK_ECANCELED) break;
    }
    ek_store_carrier_close(carrier);
    return status == EK_OK ? accept(a, place, err) : status;
}

/* The next place of the list, which commas separate; false: there is none. */
static bool next_source(const char **at, char out_place[EK_STORE_URL_MAX])
{
    *at += strspn(*at, ", ");
    size_t n = strcspn(*at, ",");
    snprintf(out_place, EK_STORE_URL_MAX, "%.*s", (int)n, *at);
    *at += n;
    return n > 0;
}

/* What ends the search: it is there, or no other source would change anything. */
static bool is_final(ek_status status)
{
    return status == EK_OK || status == EK_ECANCELED || status == EK_ENOMEM || status == EK_EIO ||
           status == EK_EACCESS;
}

static ek_status from_elsewhere(const ek_acquire_shard *a, const ek_wire_order *order, ek_err *err)
{
    char place[EK_STORE_URL_MAX];
    const char *at = a->setup->sources ? a->setup->sources : "";
    ek_status status = ek_err_set(err, EK_ENOTFOUND,
                                  "the worker's file has not got it, and it knows no source that "
                                  "has (worker.sources)");
    while (next_source(&at, place)) {
        status = from_source(a, place, err);
        if (is_final(status)) return status;
        ek_log(EK_LOG_INFO, "cluster", "source_failed", "from=\"%s\" layer=%d expert=%d why=\"%s\"",
               place, (int)a->layer, (int)a->expert, err->text);
    }
    for (int32_t i = 0; i < order->n_peers; i++) {
        status = ek_worker_acquire_from_peer(a, order->peer[i], err);
        if (status == EK_OK) status = accept(a, order->peer[i], err);
        if (is_final(status)) return status;
        ek_log(EK_LOG_INFO, "cluster", "source_failed", "from=\"%s\" layer=%d expert=%d why=\"%s\"",
               order->peer[i], (int)a->layer, (int)a->expert, err->text);
    }
    return status;
}

/* ---- all of it ---- */

static ek_status have_shard(ek_acquire_shard *a, const ek_wire_order *order, ek_err *err)
{
    ek_status status = check_own(a, err);
    if (status != EK_EFORMAT) return status;
    if (a->bytes > (size_t)EK_STORE_SHARD_BYTES_MAX)
        return ek_err_set(err, EK_EUNSUPPORTED, "a shard of %zu bytes is more than is held at once",
                          a->bytes);
    a->buffer = ek_sys_calloc(1, a->bytes);
    if (!a->buffer) return ek_err_set(err, EK_ENOMEM, "no memory for a shard");
    status = from_elsewhere(a, order, err);
    ek_sys_free(a->buffer);
    a->buffer = NULL;
    return status;
}

/* Which of an expert's matrices a shard is part of; -1: none of this model's. */
static int32_t mat_of(const ek_tensor *const mat[3], const char *tensor)
{
    for (int32_t i = 0; i < 3; i++)
        if (ek_str_eqz(mat[i]->name, tensor)) return i;
    return -1;
}

static ek_status have_all(ek_acquire_shard *a, const ek_wire_order *order, ek_err *err)
{
    const ek_store_manifest *m = a->setup->manifest;
    const ek_model_layer *layer = &a->setup->model->layers[a->layer];
    const ek_tensor *const mat[] = {layer->expert_gate, layer->expert_up, layer->expert_down};
    size_t done[3] = {0};
    for (int32_t i = 0; i < m->n_shards; i++) {
        const ek_store_shard *s = &m->shards[i];
        if (s->part != EK_STORE_EXPERT || s->layer != a->layer || s->expert != a->expert) continue;
        int32_t which = mat_of(mat, s->tensor);
        size_t all =
            which < 0 ? 0 : mat[which]->bytes / (size_t)(mat[which]->dim[2] * mat[which]->dim[3]);
        if (which < 0 || (size_t)s->bytes > all - done[which])
            return ek_err_set(err, EK_EFORMAT, "the manifest's %s is not the model's", s->tensor);
        a->shard = i;
        a->mat = (uint32_t)which;
        a->offset = done[which];
        a->bytes = (size_t)s->bytes;
        a->there = (const uint8_t *)mat[which]->data + (size_t)a->expert * all + done[which];
        done[which] += a->bytes;
        ek_status status = have_shard(a, order, err);
        if (status != EK_OK)
            return ek_err_prefix(err, "layer %d, expert %d", (int)a->layer, (int)a->expert);
    }
    if (done[0] && done[1] && done[2]) return EK_OK;
    return ek_err_set(err, EK_EFORMAT, "the manifest has no expert %d of layer %d", (int)a->expert,
                      (int)a->layer);
}

ek_status ek_worker_acquire(const ek_acquire_setup *setup, const ek_wire_order *order,
                            int32_t expert, ek_acquire_progress *progress, ek_err *err)
{
    uint64_t spent = 0;
    ek_acquire_shard a = {.setup = setup,
                          .layer = order->layer,
                          .expert = expert,
                          .beg_us = ek_sys_now_us(),
                          .spent = &spent,
                          .progress = progress};
    if (setup->manifest) return have_all(&a, order, err);
    const ek_model_layer *layer = &setup->model->layers[order->layer];
    const ek_tensor *const mat[] = {layer->expert_gate, layer->expert_up, layer->expert_down};
    for (int i = 0; i < 3; i++) {
        size_t all = mat[i]->bytes / (size_t)(mat[i]->dim[2] * mat[i]->dim[3]);
        const volatile uint8_t *data = (const uint8_t *)mat[i]->data + (size_t)expert * all;
        for (size_t at = 0; at < all; at += PIECE_BYTES) {
            size_t n = all - at < PIECE_BYTES ? all - at : PIECE_BYTES;
            for (size_t k = 0; k < n; k += PATH_BYTES)
                (void)data[at + k];
            if (!ek_worker_acquire_pace(&a, n))
                return ek_err_set(err, EK_ECANCELED, "ended meanwhile");
        }
    }
    return EK_OK;
}
