/* The moving part of a fetch: requests to sources, bytes to files, shard by shard. */
#include <inttypes.h>
#include <string.h>

#include "store/check.h"
#include "store/fetch_internal.h"
#include "sys/clock.h"

#define SAVE_EVERY_US  2000000
#define TELL_EVERY_US  100000
#define PAUSE_FIRST_US 250000 /* before the first retry; doubles */
#define PAUSE_MAX_US   8000000
#define WAIT_MS        50

/* ---- sinks ---- */

static const ek_store_shard *shard_at(const ek_fetch_sink *sink)
{
    return &sink->fetch->m->shards[sink->at_shard];
}

static void drop_hash(ek_fetch_sink *sink)
{
    char hex[EK_SHA256_HEX_BYTES];
    if (sink->hashing) ek_sys_sha256_close(&sink->hash, hex);
    sink->hashing = false;
}

/* The next shard that is missing and does not end before `at`. False: there is none. */
static bool find_shard(ek_fetch_sink *sink, int64_t at)
{
    const ek_fetch *f = sink->fetch;
    while (sink->at_shard <= sink->last) {
        const ek_store_shard *s = shard_at(sink);
        if (f->missing[sink->at_shard] && s->offset + s->bytes > at) return true;
        drop_hash(sink);
        sink->at_shard++;
    }
    sink->complete = true;
    return false;
}

static bool end_shard(ek_fetch_sink *sink)
{
    ek_fetch *f = sink->fetch;
    const ek_store_shard *s = shard_at(sink);
    char hex[EK_SHA256_HEX_BYTES];
    ek_sys_sha256_close(&sink->hash, hex);
    sink->hashing = false;
    if (strcmp(hex, s->sha256) != 0) {
        sink->status = ek_store_differs(f->m, sink->at_shard, hex, &sink->err);
        return false;
    }
    f->missing[sink->at_shard] = 0;
    f->done[sink->at_shard] = 1;
    f->unsaved = true;
    sink->brought = true;
    f->out->n_came++;
    f->out->came_bytes += s->bytes;
    f->out->sources[sink->task->source].bytes += s->bytes;
    sink->at_shard++;
    return true;
}

/* Bytes of the shard that the sink is at. */
static bool take_piece(ek_fetch_sink *sink, int64_t at, ek_span piece)
{
    ek_fetch *f = sink->fetch;
    const ek_store_shard *s = shard_at(sink);
    if (at == s->offset) {
        drop_hash(sink);
        sink->hashing = ek_sys_sha256_open(&sink->hash) == EK_OK;
    }
    if (!sink->hashing) {
        sink->status = ek_err_set(&sink->err, EK_ENOMEM, "no memory for a hash");
        return false;
    }
    ek_sys_sha256_add(&sink->hash, piece.data, piece.len);
    sink->status = ek_sys_sparse_write(&f->files[s->file].file, at, piece, &sink->err);
    if (sink->status != EK_OK) return false;
    return at + (int64_t)piece.len < s->offset + s->bytes || end_shard(sink);
}

static bool take(void *ctx, int64_t at, ek_span bytes)
{
    ek_fetch_sink *sink = ctx;
    sink->fetch->moved_bytes += (int64_t)bytes.len;
    while (bytes.len > 0) {
        if (!find_shard(sink, at)) return false;
        const ek_store_shard *s = shard_at(sink);
        int64_t to = at < s->offset ? s->offset : s->offset + s->bytes;
        size_t n = to - at < (int64_t)bytes.len ? (size_t)(to - at) : bytes.len;
        if (at >= s->offset && !take_piece(sink, at, (ek_span){bytes.data, n})) return false;
        bytes.data += n;
        bytes.len -= n;
        at += (int64_t)n;
    }
    return find_shard(sink, at);
}

/* ---- tasks ---- */

static uint8_t *flag_of(const ek_fetch *f, uint8_t *flags, int32_t source, int32_t file)
{
    return &flags[(size_t)source * (size_t)f->m->n_files + (size_t)file];
}

/* Moves the task on to a source that still counts for its file. False: there is none. */
static bool find_source(ek_fetch *f, ek_fetch_task *task)
{
    int32_t before = task->source;
    while (task->source < f->params->n_sources &&
           *flag_of(f, f->given_up, task->source, task->pull.file))
        task->source++;
    if (task->source != before) {
        task->n_tries = 0;
        task->due_us = 0;
    }
    return task->source < f->params->n_sources;
}

static bool is_missing(const ek_fetch *f, const ek_store_pull *pull)
{
    return memchr(f->missing + pull->first, 1, (size_t)(pull->last - pull->first) + 1) != NULL;
}

static void end_task(ek_fetch *f, ek_fetch_task *task)
{
    task->ended = true;
    f->n_ended++;
}

/* A stream of the whole file brings everything, so that there is one at most. */
static bool has_stream(const ek_fetch *f, int32_t source, int32_t file)
{
    for (int32_t i = 0; i < f->params->n_parallel; i++) {
        const ek_fetch_sink *sink = &f->sinks[source][i];
        if (sink->task && sink->whole_file && sink->task->pull.file == file) return true;
    }
    return false;
}

static ek_status start_task(ek_fetch *f, ek_fetch_task *task, ek_err *err)
{
    const ek_store_file *file = &f->m->files[task->pull.file];
    bool whole = *flag_of(f, f->whole_only, task->source, task->pull.file);
    int32_t slot = 0;
    while (f->sinks[task->source][slot].task)
        slot++;
    ek_fetch_sink *sink = &f->sinks[task->source][slot];
    *sink = (ek_fetch_sink){.fetch = f, .task = task, .whole_file = whole};
    sink->at_shard = whole ? file->first : task->pull.first;
    sink->last = whole ? file->first + file->n_shards - 1 : task->pull.last;
    /* Begin where something is missing: a retry need not bring what has come. */
    (void)find_shard(sink, 0);
    const ek_store_shard *last = &f->m->shards[sink->last];
    int64_t offset = whole ? 0 : shard_at(sink)->offset;
    const ek_store_request request = {
        .name = file->name,
        .offset = offset,
        .bytes = whole ? file->bytes : last->offset + last->bytes - offset,
        .file_bytes = file->bytes,
        .take = take,
        .ctx = sink,
    };
    ek_status status = ek_store_carrier_start(f->carriers[task->source], slot, &request, err);
    if (status != EK_OK) {
        sink->task = NULL;
        return status;
    }
    task->active = true;
    f->n_active++;
    f->n_active_at[task->source]++;
    return EK_OK;
}

static ek_status start_some(ek_fetch *f, int64_t now_us, ek_err *err)
{
    for (int32_t i = 0; i < f->n_tasks && f->n_active < f->params->n_parallel; i++) {
        ek_fetch_task *task = &f->tasks[i];
        if (task->active || task->ended) continue;
        if (!is_missing(f, &task->pull)) {
            end_task(f, task);
            continue;
        }
        if (!find_source(f, task)) {
            const char *why = f->out->sources[f->params->n_sources - 1].trouble;
            char text[EK_ERR_TEXT_MAX];
            if (err && err->text[0]) why = err->text; /* the newest reason of all */
            memcpy(text, why, strnlen(why, sizeof text - 1) + 1);
            return ek_err_set(err, err && err->status != EK_OK ? err->status : EK_EPEER, "%s",
                              text);
        }
        if (task->due_us > now_us || has_stream(f, task->source, task->pull.file)) continue;
        ek_err own = {0};
        ek_status status = start_task(f, task, &own);
        if (status != EK_OK) {
            if (err) *err = own;
            return status;
        }
    }
    return EK_OK;
}

/* A reason against a source: remembered for the report, and for the error if it was the last. */
static void blame(ek_fetch *f, int32_t source, const ek_err *why, ek_err *err)
{
    memcpy(f->out->sources[source].trouble, why->text, sizeof why->text);
    if (err) *err = *why;
}

static void retry(ek_fetch *f, ek_fetch_task *task, int64_t now_us)
{
    int64_t pause_us = PAUSE_FIRST_US;
    for (int32_t i = 0; i < task->n_tries && pause_us < PAUSE_MAX_US; i++)
        pause_us *= 2;
    task->due_us = now_us + (pause_us < PAUSE_MAX_US ? pause_us : PAUSE_MAX_US);
    task->n_tries++;
    f->out->n_retries++;
}

/* What becomes of a task whose request has ended. An error ends the fetch. */
static ek_status judge(ek_fetch *f, ek_fetch_sink *sink, ek_store_outcome *o, int64_t now_us,
                       ek_err *err)
{
    ek_fetch_task *task = sink->task;
    int32_t source = task->source;
    if (sink->status != EK_OK && sink->status != EK_EFORMAT) {
        if (err) *err = sink->err;
        return sink->status;
    }
    if (sink->status == EK_EFORMAT) { /* wrong bytes: this source is not asked for them again */
        ek_err_prefix(&sink->err, "%s", f->params->sources[source]);
        blame(f, source, &sink->err, err);
        if (sink->whole_file) *flag_of(f, f->given_up, source, task->pull.file) = 1;
        task->source++;
        task->n_tries = 0;
        return EK_OK;
    }
    if (o->verdict == EK_STORE_WHOLE) {
        *flag_of(f, f->whole_only, source, task->pull.file) = 1;
        return EK_OK;
    }
    if (!is_missing(f, &task->pull)) {
        end_task(f, task);
        return EK_OK;
    }
    if (o->verdict == EK_STORE_CAME || o->verdict == EK_STORE_REFUSED) {
        /* It ended well, and too early: a file that is cut short, or a connection. */
        o->verdict = EK_STORE_TRANSIENT;
        ek_err_set(&o->err, EK_ETRUNCATED, "%s: %s ends too early", f->params->sources[source],
                   f->m->files[task->pull.file].name);
    }
    blame(f, source, &o->err, err);
    if (sink->brought) task->n_tries = 0; /* it does get on, if in pieces */
    if (o->verdict == EK_STORE_TRANSIENT && task->n_tries < f->params->n_retries)
        retry(f, task, now_us);
    else
        *flag_of(f, f->given_up, source, task->pull.file) = 1;
    return EK_OK;
}

static ek_status step_source(ek_fetch *f, int32_t source, ek_err *err)
{
    ek_store_outcome outcome;
    int32_t wait_ms = f->n_active == f->n_active_at[source] ? WAIT_MS : 1;
    if (!ek_store_carrier_step(f->carriers[source], wait_ms, &outcome)) return EK_OK;
    ek_fetch_sink *sink = &f->sinks[source][outcome.slot];
    drop_hash(sink);
    sink->task->active = false;
    f->n_active--;
    f->n_active_at[source]--;
    ek_status status = judge(f, sink, &outcome, ek_sys_now_us(), err);
    sink->task = NULL;
    return status;
}

static ek_status look_after(ek_fetch *f, int64_t now_us, ek_err *err)
{
    if (now_us - f->told_us >= TELL_EVERY_US) {
        f->told_us = now_us;
        if (!ek_store_fetch_tell(f, false, 0)) return ek_err_set(err, EK_ECANCELED, "interrupted");
    }
    if (!f->unsaved || now_us - f->saved_us < SAVE_EVERY_US) return EK_OK;
    ek_status status = ek_store_fetch_save(f, err);
    f->saved_us = ek_sys_now_us();
    return status;
}

ek_status ek_store_fetch_move(ek_fetch *f, ek_err *err)
{
    ek_err last = {0}; /* the newest reason against a source */
    ek_status status = EK_OK;
    while (status == EK_OK && f->n_ended < f->n_tasks) {
        status = start_some(f, ek_sys_now_us(), &last);
        if (status == EK_OK && f->n_active == 0 && f->n_ended < f->n_tasks)
            ek_sys_sleep_us(WAIT_MS * 1000); /* all that is left waits for its retry */
        for (int32_t i = 0; status == EK_OK && i < f->params->n_sources; i++)
            if (f->n_active_at[i] > 0) status = step_source(f, i, &last);
        if (status == EK_OK) status = look_after(f, ek_sys_now_us(), &last);
    }
    for (int32_t i = 0; i < f->params->n_sources; i++)
        for (int32_t s = 0; s < f->params->n_parallel; s++)
            drop_hash(&f->sinks[i][s]);
    if (status != EK_OK && err) *err = last;
    return status;
}
