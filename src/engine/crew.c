#include "engine/crew.h"

#include <string.h>

#include "base/assert.h"

/* ---- the lists ---- */

/*
 * Keep the waiting list in order of arrival: who gave way stands before all who never had a
 * place.
 */
static void wait_in_order(ek_crew *crew, ek_request *request)
{
    ek_request *next = crew->first_waiting;
    if (!crew->last_waiting || crew->last_waiting->order < request->order) next = NULL;
    while (next && next->order < request->order)
        next = next->next;
    request->next = next;
    request->prev = next ? next->prev : crew->last_waiting;
    if (request->prev)
        request->prev->next = request;
    else
        crew->first_waiting = request;
    if (next)
        next->prev = request;
    else
        crew->last_waiting = request;
    request->runs = false;
}

static void leave_waiting(ek_crew *crew, ek_request *request)
{
    if (request->prev)
        request->prev->next = request->next;
    else
        crew->first_waiting = request->next;
    if (request->next)
        request->next->prev = request->prev;
    else
        crew->last_waiting = request->prev;
    request->prev = request->next = NULL;
}

static void leave_running(ek_crew *crew, ek_request *request)
{
    int32_t at = 0;
    while (crew->running[at] != request)
        at++;
    crew->n_running--;
    memmove(crew->running + at, crew->running + at + 1,
            (size_t)(crew->n_running - at) * sizeof *crew->running);
    request->runs = false;
}

static void add_finished(ek_crew *crew, ek_request *request)
{
    request->next = NULL;
    if (crew->last_finished)
        crew->last_finished->next = request;
    else
        crew->first_finished = request;
    crew->last_finished = request;
}

/* ---- joining and giving way ---- */

void ek_engine_crew_queue(ek_engine *engine, ek_request *request)
{
    ek_crew *crew = &engine->crew;
    request->order = crew->next_order++;
    wait_in_order(crew, request);
    int64_t due = ek_engine_request_due(request, engine->params.queue_timeout_us);
    if (due < crew->due_us) crew->due_us = due;
}

/* A slow reader pauses its request; a logits call has none. */
static bool is_paused(ek_request *request)
{
    return !request->logits_call && ek_engine_outbox_pauses(&request->outbox);
}

void ek_engine_crew_view(ek_engine *engine)
{
    for (int32_t i = 0; i < engine->crew.n_running; i++) {
        ek_request *request = engine->crew.running[i];
        engine->step.view[i] = (ek_sched_running){
            .n_cached = request->kv.n_tokens,
            .n_tokens = request->n_tokens,
            .n_blocks = request->kv.n_blocks,
            .paused = is_paused(request),
            .order = request->order,
        };
    }
}

void ek_engine_crew_give_up(ek_engine *engine, int32_t idx, int64_t now_us)
{
    ek_request *request = engine->crew.running[idx];
    leave_running(&engine->crew, request);
    ek_engine_kv_free(engine->kv, &request->kv, now_us);
    wait_in_order(&engine->crew, request);
    ek_counter_add(engine->meters.preemptions, 1);
}

static void count_admission(const ek_engine *engine, ek_request *request, int32_t n_hit)
{
    if (request->admitted) return;
    request->admitted = true;
    atomic_store_explicit(&request->n_cached, n_hit, memory_order_relaxed);
    ek_counter_add(engine->meters.prompt_tokens, (uint64_t)request->n_prompt);
    if (!engine->params.prefix_cache) return;
    ek_counter_add(engine->meters.prefix_lookup_tokens, (uint64_t)request->n_prompt);
    ek_counter_add(engine->meters.prefix_hit_tokens, (uint64_t)n_hit);
}

/*
 * Blocks of the whole prompt are taken at once, those shared with the prefix cache first, so that
 * what is left is what other requests can count on.
 */
static bool try_join(ek_engine *engine, ek_request *request, int64_t now_us)
{
    ek_crew *crew = &engine->crew;
    ek_kv *kv = engine->kv;
    int32_t n_hit =
        ek_engine_kv_match(kv, &request->kv, request->tokens, request->n_tokens, now_us);
    int32_t free_blocks = ek_engine_kv_available(kv);
    if (!ek_sched_admits(&engine->sched, crew->n_running, free_blocks, request->n_tokens, n_hit) ||
        ek_engine_kv_reserve(kv, &request->kv, request->n_tokens) != EK_OK) {
        ek_engine_kv_free(kv, &request->kv, now_us);
        return false;
    }
    leave_waiting(crew, request);
    crew->running[crew->n_running++] = request;
    request->runs = true;
    count_admission(engine, request, n_hit);
    return true;
}

/* Join at once, or in the place of paused requests if their leaving lets it in. */
static bool join(ek_engine *engine, ek_request *request, int64_t now_us)
{
    while (!try_join(engine, request, now_us)) {
        /* What it shares may lie in what is free: counted there, so not counted as shared. */
        ek_engine_crew_view(engine);
        int32_t idx = ek_sched_yields(&engine->sched, engine->step.view, engine->crew.n_running,
                                      ek_engine_kv_available(engine->kv), request->n_tokens, 0);
        if (idx < 0) return false;
        ek_engine_crew_give_up(engine, idx, now_us);
    }
    return true;
}

void ek_engine_crew_admit(ek_engine *engine, int64_t now_us)
{
    ek_request *next;
    for (ek_request *request = engine->crew.first_waiting; request; request = next) {
        next = request->next;
        if (is_paused(request)) continue; /* it gave way, and its reader is still slow */
        if (!join(engine, request, now_us)) return;
    }
}

/* ---- leaving ---- */

static void put_last_words(ek_request *request)
{
    char rest[EK_TEXT_FLUSH_MAX];
    int32_t n = ek_engine_text_flush(request->text, rest);
    ek_engine_outbox_put_rest(&request->outbox, rest, n);
}

void ek_engine_crew_finish(ek_engine *engine, ek_request *request, ek_finish finish, int64_t now_us)
{
    ek_assert(request->outcome == EK_FINISH_NONE);
    if (request->runs)
        leave_running(&engine->crew, request);
    else
        leave_waiting(&engine->crew, request);
    ek_engine_kv_free(engine->kv, &request->kv, now_us);
    if (!request->logits_call) put_last_words(request);
    request->outcome = finish;
    atomic_store_explicit(&request->finished_us, now_us, memory_order_relaxed);
    ek_counter_add(engine->meters.finished[finish], 1);
    ek_hist_record(engine->meters.request, (uint64_t)(now_us - request->submitted_us));
    add_finished(&engine->crew, request);
}

/* Why a request has to go now; EK_FINISH_NONE: it may stay. */
static ek_finish reason_to_go(const ek_engine *engine, const ek_request *request, int64_t now_us)
{
    if (ek_engine_request_canceled(request)) return EK_FINISH_CANCELED;
    if (request->deadline_us && now_us >= request->deadline_us) return EK_FINISH_TIMEOUT;
    bool is_due = now_us >= ek_engine_request_due(request, engine->params.queue_timeout_us);
    return is_due ? EK_FINISH_QUEUE_TIMEOUT : EK_FINISH_NONE;
}

/*
 * The queue may be long: it is looked through only when somebody canceled or somebody's time is
 * up.
 */
static void drop_waiting(ek_engine *engine, int64_t now_us)
{
    ek_crew *crew = &engine->crew;
    uint32_t n_cancels = atomic_load_explicit(&engine->n_cancels, memory_order_acquire);
    if (n_cancels == crew->cancels_seen && now_us < crew->due_us) return;
    crew->cancels_seen = n_cancels;
    crew->due_us = INT64_MAX;
    ek_request *next;
    for (ek_request *request = crew->first_waiting; request; request = next) {
        next = request->next;
        ek_finish reason = reason_to_go(engine, request, now_us);
        if (reason != EK_FINISH_NONE) {
            ek_engine_crew_finish(engine, request, reason, now_us);
            continue;
        }
        int64_t due = ek_engine_request_due(request, engine->params.queue_timeout_us);
        if (due < crew->due_us) crew->due_us = due;
    }
}

void ek_engine_crew_drop(ek_engine *engine, int64_t now_us)
{
    for (int32_t i = engine->crew.n_running - 1; i >= 0; i--) {
        ek_request *request = engine->crew.running[i];
        ek_finish reason = reason_to_go(engine, request, now_us);
        if (reason != EK_FINISH_NONE) ek_engine_crew_finish(engine, request, reason, now_us);
    }
    drop_waiting(engine, now_us);
}

void ek_engine_crew_dismiss(ek_engine *engine, int64_t now_us)
{
    ek_crew *crew = &engine->crew;
    while (crew->n_running > 0)
        ek_engine_crew_finish(engine, crew->running[crew->n_running - 1], EK_FINISH_CANCELED,
                              now_us);
    while (crew->first_waiting)
        ek_engine_crew_finish(engine, crew->first_waiting, EK_FINISH_CANCELED, now_us);
}

int64_t ek_engine_crew_due(const ek_engine *engine)
{
    int64_t due = engine->crew.due_us;
    for (int32_t i = 0; i < engine->crew.n_running; i++) {
        int64_t one = ek_engine_request_due(engine->crew.running[i], 0);
        if (one < due) due = one;
    }
    return due;
}

/* ---- telling ---- */

static void answer_logits_call(const ek_request *request)
{
    ek_logits_call *call = request->logits_call;
    ek_sys_mutex_lock(&call->mutex);
    call->finish = request->outcome;
    call->done = true;
    ek_sys_cond_signal(&call->cond);
    ek_sys_mutex_unlock(&call->mutex); /* the call is its thread's again */
}

/* Gauges, then the count of those inside, then finishes: who sees one sees what came before it. */
static void publish_state(ek_engine *engine)
{
    ek_crew *crew = &engine->crew;
    int32_t n_finished = 0;
    for (const ek_request *request = crew->first_finished; request; request = request->next)
        n_finished++;
    int32_t n_inside = atomic_load_explicit(&engine->n_inflight, memory_order_acquire) - n_finished;
    ek_kv_stats kv;
    ek_engine_kv_stats_get(engine->kv, &kv);
    ek_engine_meters_state(&engine->meters, crew->n_running, n_inside - crew->n_running, &kv);
    atomic_fetch_sub_explicit(&engine->n_inflight, n_finished, memory_order_acq_rel);
}

void ek_engine_crew_deliver(ek_engine *engine)
{
    ek_crew *crew = &engine->crew;
    publish_state(engine);
    if (crew->n_news > 0) ek_engine_news_add(&engine->news, crew->news, crew->n_news);
    crew->n_news = 0;
    ek_request *next;
    for (ek_request *request = crew->first_finished; request; request = next) {
        next = request->next;
        if (request->logits_call) {
            answer_logits_call(request);
        } else {
            ek_news_item *item = &request->news;
            ek_engine_outbox_finish(&request->outbox, request->outcome);
            ek_engine_news_add(&engine->news, &item, 1);
        }
        ek_engine_request_unref(request);
    }
    crew->first_finished = crew->last_finished = NULL;
}
