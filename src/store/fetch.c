#include "store/fetch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/check.h"
#include "store/fetch_internal.h"
#include "store/ledger.h"
#include "sys/clock.h"
#include "sys/file.h"
#include "sys/mem.h"

#define PULL_BYTES_MAX ((int64_t)16 << 20)
#define GAP_BYTES_MAX  ((int64_t)64 << 10)

bool ek_store_fetch_tell(ek_fetch *f, bool checking, int64_t checked_bytes)
{
    const ek_store_fetch_params *p = f->params;
    if (!p->on_progress) return true;
    const ek_store_progress progress = {
        .wanted_bytes = f->out->wanted_bytes,
        .done_bytes = checking ? checked_bytes : f->out->kept_bytes + f->out->came_bytes,
        .moved_bytes = f->moved_bytes,
        .checking = checking,
    };
    return p->on_progress(p->ctx, &progress);
}

/* ---- paths ---- */

static ek_status name_path(const ek_fetch *f, const char *name, const char *suffix, char *out_path,
                           ek_err *err)
{
    int n = snprintf(out_path, EK_FETCH_PATH_MAX, "%s/%s%s", f->params->dir, name, suffix);
    if (n < EK_FETCH_PATH_MAX) return EK_OK;
    return ek_err_set(err, EK_EINVAL, "%s: the path is too long", f->params->dir);
}

static ek_status name_paths(ek_fetch *f, ek_err *err)
{
    const char *first = f->m->files[0].name;
    ek_status status = name_path(f, first, ".fetch.json", f->ledger_path, err);
    if (status == EK_OK) status = name_path(f, first, ".manifest.json", f->manifest_path, err);
    for (int32_t i = 0; status == EK_OK && i < f->m->n_files; i++) {
        const char *name = f->m->files[i].name;
        status = name_path(f, name, "", f->files[i].final_path, err);
        if (status == EK_OK) status = name_path(f, name, ".part", f->files[i].part_path, err);
    }
    return status;
}

/* ---- what is there already ---- */

static bool on_hashed(void *ctx, int64_t done_bytes, int64_t all_bytes)
{
    (void)all_bytes;
    return ek_store_fetch_tell(ctx, true, done_bytes);
}

/* A file that we have no ledger of is somebody's own: it is taken as it is, or not touched. */
static ek_status take_checked(ek_fetch *f, const uint8_t *asked, char (*hex)[EK_SHA256_HEX_BYTES],
                              bool has_ledger, ek_err *err)
{
    for (int32_t i = 0; i < f->m->n_shards; i++) {
        const ek_store_shard *s = &f->m->shards[i];
        if (!asked[i]) continue;
        bool good = strcmp(hex[i], s->sha256) == 0;
        f->done[i] = good;
        f->missing[i] = !good;
        f->out->n_kept += good;
        f->out->kept_bytes += good ? s->bytes : 0;
        f->out->n_damaged += !good && has_ledger;
        if (!good && !has_ledger && f->files[s->file].in_place) {
            ek_store_differs(f->m, i, hex[i], err);
            ek_err_prefix(err, "%s is there, and is another model (move it away)",
                          f->files[s->file].final_path);
            return EK_EEXIST;
        }
    }
    return EK_OK;
}

static ek_status check_files(ek_fetch *f, uint8_t *asked, bool has_ledger, ek_err *err)
{
    const ek_store_manifest *m = f->m;
    ek_sys_map *maps = ek_sys_calloc((size_t)m->n_files, sizeof *maps);
    ek_span *spans = ek_sys_calloc((size_t)m->n_files, sizeof *spans);
    char(*hex)[EK_SHA256_HEX_BYTES] = ek_sys_calloc((size_t)m->n_shards, sizeof *hex);
    ek_status status = maps && spans && hex ? EK_OK : ek_err_set(err, EK_ENOMEM, "no memory");
    for (int32_t i = 0; status == EK_OK && i < m->n_files; i++) {
        const char *path = f->files[i].in_place ? f->files[i].final_path : f->files[i].part_path;
        if (ek_sys_file_bytes(path) != m->files[i].bytes) continue;
        status = ek_sys_map_open(path, &maps[i], err);
        if (status == EK_OK) spans[i] = maps[i].bytes;
    }
    for (int32_t i = 0; status == EK_OK && i < m->n_shards; i++)
        asked[i] = asked[i] && spans[m->shards[i].file].data;
    if (status == EK_OK) {
        const ek_store_hashing job = {.manifest = m,
                                      .files = spans,
                                      .wanted = asked,
                                      .pool = f->params->pool,
                                      .on_progress = on_hashed,
                                      .ctx = f};
        status = ek_store_hash(&job, hex);
        if (status != EK_OK) ek_err_set(err, status, "%s", ek_status_text(status));
    }
    if (status == EK_OK) status = take_checked(f, asked, hex, has_ledger, err);
    for (int32_t i = 0; maps && i < m->n_files; i++)
        ek_sys_map_close(&maps[i]);
    ek_sys_free(maps);
    ek_sys_free(spans);
    ek_sys_free(hex);
    return status;
}

static ek_status find_files(ek_fetch *f, ek_err *err)
{
    for (int32_t i = 0; i < f->m->n_files; i++) {
        ek_fetch_file *file = &f->files[i];
        int64_t bytes = ek_sys_file_bytes(file->final_path);
        file->in_place = bytes >= 0;
        if (bytes >= 0 && bytes != f->m->files[i].bytes)
            return ek_err_set(err, EK_EEXIST,
                              "%s is there, and is another file: %" PRId64 " bytes, not %" PRId64
                              "; move it away",
                              file->final_path, bytes, f->m->files[i].bytes);
    }
    return EK_OK;
}

/* What is wanted, and what of it is there and right. */
static ek_status take_stock(ek_fetch *f, ek_err *err)
{
    const ek_store_manifest *m = f->m;
    ek_status status = find_files(f, err);
    if (status != EK_OK) return status;
    uint8_t *asked = ek_sys_calloc((size_t)m->n_shards, 1);
    if (!asked) return ek_err_set(err, EK_ENOMEM, "no memory");
    ek_err why = {0};
    bool has_ledger = ek_store_ledger_read(f->ledger_path, m, f->done, &why) == EK_OK;
    for (int32_t i = 0; i < m->n_shards; i++) {
        f->missing[i] = ek_store_wants(m, &f->params->want, i);
        f->out->n_wanted += f->missing[i];
        f->out->wanted_bytes += f->missing[i] ? m->shards[i].bytes : 0;
        f->files[m->shards[i].file].wanted |= f->missing[i] != 0;
        asked[i] = f->missing[i] && (!has_ledger || f->done[i]);
    }
    status = check_files(f, asked, has_ledger, err);
    /* A claim that could not even be looked at: its file is gone. */
    for (int32_t i = 0; i < m->n_shards; i++)
        if (f->missing[i]) f->done[i] = 0;
    ek_sys_free(asked);
    return status;
}

/* ---- beginning and end ---- */

/* Whatever is wrong with writing, permission too, is of the disk here, not of a source. */
static ek_status of_disk(ek_status status, ek_err *err)
{
    if (status == EK_OK || status == EK_ENOMEM) return status;
    if (err) err->status = EK_EIO;
    return EK_EIO;
}

static ek_status open_files(ek_fetch *f, ek_err *err)
{
    ek_status status = EK_OK;
    for (int32_t i = 0; status == EK_OK && i < f->m->n_shards; i++) {
        ek_fetch_file *file = &f->files[f->m->shards[i].file];
        if (!f->missing[i] || file->file.path) continue;
        status = ek_sys_sparse_open(file->in_place ? file->final_path : file->part_path,
                                    f->m->files[f->m->shards[i].file].bytes, &file->file, err);
    }
    return of_disk(status, err);
}

static ek_status open_sources(ek_fetch *f, ek_err *err)
{
    const ek_store_fetch_params *p = f->params;
    ek_status status = EK_OK;
    for (int32_t i = 0; status == EK_OK && i < p->n_sources; i++)
        status =
            ek_store_carrier_open(p->sources[i], p->n_parallel, &p->access, &f->carriers[i], err);
    return status;
}

static ek_status make_tasks(ek_fetch *f, ek_err *err)
{
    int32_t n = ek_store_plan(f->m, f->missing, PULL_BYTES_MAX, GAP_BYTES_MAX, f->pulls);
    f->tasks = ek_sys_calloc((size_t)n + 1, sizeof *f->tasks);
    if (!f->tasks) return ek_err_set(err, EK_ENOMEM, "no memory");
    for (int32_t i = 0; i < n; i++)
        f->tasks[i].pull = f->pulls[i];
    f->n_tasks = n;
    return EK_OK;
}

ek_status ek_store_fetch_save(ek_fetch *f, ek_err *err)
{
    ek_status status = EK_OK;
    for (int32_t i = 0; status == EK_OK && i < f->m->n_files; i++)
        if (f->files[i].file.path) status = ek_sys_sparse_sync(&f->files[i].file, err);
    if (status == EK_OK) status = ek_store_ledger_write(f->ledger_path, f->m, f->done, err);
    f->unsaved = status != EK_OK;
    return status;
}

/* Everything is there: give files their names. */
static ek_status settle(ek_fetch *f, ek_err *err)
{
    const ek_span text = {(const uint8_t *)f->params->manifest_text.data,
                          f->params->manifest_text.len};
    ek_status status = ek_store_fetch_save(f, err);
    if (status == EK_OK) status = ek_sys_file_write(f->manifest_path, text, err);
    for (int32_t i = 0; status == EK_OK && i < f->m->n_files; i++) {
        ek_fetch_file *file = &f->files[i];
        if (file->wanted && !file->in_place)
            status = ek_sys_file_rename(file->part_path, file->final_path, err);
    }
    return of_disk(status, err);
}

static ek_status open_all(ek_fetch *f, ek_err *err)
{
    size_t n_shards = (size_t)f->m->n_shards, n_files = (size_t)f->m->n_files;
    size_t n_pairs = n_files * (size_t)f->params->n_sources;
    f->files = ek_sys_calloc(n_files, sizeof *f->files);
    f->missing = ek_sys_calloc(n_shards, 1);
    f->done = ek_sys_calloc(n_shards, 1);
    f->pulls = ek_sys_calloc(n_shards, sizeof *f->pulls);
    f->given_up = ek_sys_calloc(n_pairs, 1);
    f->whole_only = ek_sys_calloc(n_pairs, 1);
    if (!f->files || !f->missing || !f->done || !f->pulls || !f->given_up || !f->whole_only)
        return ek_err_set(err, EK_ENOMEM, "no memory");
    ek_status status = open_sources(f, err); /* a place that is none is said before anything */
    if (status == EK_OK) status = name_paths(f, err);
    return status == EK_OK ? of_disk(ek_sys_directory_make(f->params->dir, err), err) : status;
}

static void close_all(ek_fetch *f)
{
    for (int32_t i = 0; i < f->params->n_sources; i++)
        ek_store_carrier_close(f->carriers[i]);
    for (int32_t i = 0; f->files && i < f->m->n_files; i++)
        ek_sys_sparse_close(&f->files[i].file);
    ek_sys_free(f->files);
    ek_sys_free(f->missing);
    ek_sys_free(f->done);
    ek_sys_free(f->pulls);
    ek_sys_free(f->tasks);
    ek_sys_free(f->given_up);
    ek_sys_free(f->whole_only);
}

/* Nothing is begun that the disk has no room for. Quotas are noticed when they strike. */
static ek_status check_room(const ek_fetch *f, ek_err *err)
{
    int64_t needed = f->out->wanted_bytes - f->out->kept_bytes;
    int64_t free_bytes = ek_sys_disk_free(f->params->dir);
    if (needed <= free_bytes) return EK_OK;
    return ek_err_set(err, EK_EIO,
                      "%s: the disk has room for %" PRId64 " bytes, but %" PRId64
                      " are still to come; make room, or want fewer experts",
                      f->params->dir, free_bytes, needed);
}

/*
 * A ledger that could not be written (the disk is full) knows less than is there. Without any, all
 * of the .part files is looked at. Files in place need theirs: it says that they are ours.
 */
static void forget_ledger(ek_fetch *f)
{
    for (int32_t i = 0; i < f->m->n_files; i++)
        if (f->files[i].in_place) return;
    ek_sys_file_remove(f->ledger_path);
}

ek_status ek_store_fetch(const ek_store_fetch_params *params, ek_store_fetched *out_fetched,
                         ek_err *err)
{
    int64_t beg_us = ek_sys_now_us();
    *out_fetched = (ek_store_fetched){0};
    ek_fetch *f = ek_sys_calloc(1, sizeof *f);
    if (!f) return ek_err_set(err, EK_ENOMEM, "no memory");
    f->params = params;
    f->m = params->manifest;
    f->out = out_fetched;
    ek_status status = open_all(f, err);
    if (status == EK_OK) status = take_stock(f, err);
    out_fetched->check_us = ek_sys_now_us() - beg_us;
    if (status == EK_OK) status = check_room(f, err);
    if (status == EK_OK) status = open_files(f, err);
    if (status == EK_OK) status = make_tasks(f, err);
    if (status == EK_OK) {
        f->saved_us = ek_sys_now_us();
        status = ek_store_fetch_move(f, err);
        if (status == EK_OK)
            status = settle(f, err);
        else if (f->unsaved && ek_store_fetch_save(f, NULL) != EK_OK)
            forget_ledger(f);
    }
    close_all(f);
    ek_sys_free(f);
    out_fetched->load_us = ek_sys_now_us() - beg_us;
    return status;
}
