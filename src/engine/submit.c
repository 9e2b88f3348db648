/*
 * The users' side of requests: checking and handing over, cancelling, releasing, waiting,
 * reading. Every function here may be called from any thread while the step thread works.
 */
#include <stdatomic.h>

#include "base/assert.h"
#include "base/utf8.h"
#include "engine/engine_internal.h"
#include "sys/clock.h"

void ek_engine_nudge(ek_engine *engine)
{
    /*
     * One nudge in the inbox is enough. Releases what was set before to the step thread's exchange,
     * whether this call adds the nudge or finds it there.
     */
    if (atomic_exchange_explicit(&engine->nudged, true, memory_order_acq_rel)) return;
    /*
     * It cannot be full: it has room for every request inside and one nudge. Closed: it looks
     * anyway.
     */
    (void)!ek_sys_queue_push(engine->inbox, engine);
}

/* ---- checking ---- */

static ek_status check_ids(const ek_engine *engine, const int32_t *ids, int32_t n_ids,
                           const char *name, ek_err *err)
{
    for (int32_t i = 0; i < n_ids; i++)
        if (ids[i] < 0 || ids[i] >= engine->shape.n_vocab)
            return ek_err_set(err, EK_EINVAL, "%s[%d] is %d; ids go from 0 to %d", name, (int)i,
                              (int)ids[i], (int)(engine->shape.n_vocab - 1));
    return EK_OK;
}

/*
 * A prompt that can be computed at all: its length, its ids, and room for it in the context and
 * the cache.
 */
static ek_status check_prompt(const ek_engine *engine, const ek_request_params *params, ek_err *err)
{
    int32_t context = engine->info.context_tokens;
    if (params->n_prompt < 1) return ek_err_set(err, EK_EINVAL, "the prompt has no tokens");
    if (params->n_prompt > context || params->max_tokens > context - params->n_prompt)
        return ek_err_set(err, EK_ECONTEXT,
                          "prompt has %d tokens and max_tokens is %d: together more than the "
                          "context of %d tokens",
                          (int)params->n_prompt, (int)params->max_tokens, (int)context);
    /* The last token is never fed back, so it needs no position. */
    int32_t n_positions = params->n_prompt + params->max_tokens - (params->max_tokens > 0);
    int32_t n_blocks = ek_sched_blocks(&engine->sched, n_positions);
    if (n_blocks > engine->kv_blocks)
        return ek_err_set(err, EK_ENOMEM,
                          "prompt has %d tokens and max_tokens is %d: together they need %d blocks "
                          "of KV cache, and all of it has %d; ask for fewer tokens, or give the "
                          "server more with --kv-cache",
                          (int)params->n_prompt, (int)params->max_tokens, (int)n_blocks,
                          (int)engine->kv_blocks);
    return check_ids(engine, params->prompt, params->n_prompt, "prompt", err);
}

static ek_status check_stops(const ek_engine *engine, const ek_request_params *params, ek_err *err)
{
    if (params->n_stops < 0 || params->n_stops > EK_ENGINE_STOPS_MAX)
        return ek_err_set(err, EK_EINVAL, "stop has %d strings; at most %d are allowed",
                          (int)params->n_stops, EK_ENGINE_STOPS_MAX);
    for (int32_t i = 0; i < params->n_stops; i++) {
        size_t len = params->stops[i].len;
        if (len < 1 || len > EK_ENGINE_STOP_BYTES_MAX)
            return ek_err_set(err, EK_EINVAL, "stop[%d] has %zu bytes; it must have 1 to %d",
                              (int)i, len, EK_ENGINE_STOP_BYTES_MAX);
        if (!ek_utf8_valid(params->stops[i]))
            return ek_err_set(err, EK_EINVAL, "stop[%d] is not valid UTF-8", (int)i);
    }
    if (params->n_stop_ids < 0 || params->n_stop_ids > EK_REQUEST_STOP_IDS_MAX)
        return ek_err_set(err, EK_EINVAL, "stop_token_ids has %d ids; at most %d are allowed",
                          (int)params->n_stop_ids, EK_REQUEST_STOP_IDS_MAX);
    return check_ids(engine, params->stop_ids, params->n_stop_ids, "stop_token_ids", err);
}

static ek_status check_params(const ek_engine *engine, const ek_request_params *params, ek_err *err)
{
    if (params->max_tokens < 1)
        return ek_err_set(err, EK_EINVAL, "max_tokens is %d; it must be 1 or more",
                          (int)params->max_tokens);
    ek_status status = check_prompt(engine, params, err);
    if (status != EK_OK) return status;
    status = ek_engine_sampling_check(&params->sampling, engine->shape.n_vocab, err);
    if (status != EK_OK) return status;
    return check_stops(engine, params, err);
}

/* ---- handing over ---- */

/* Take one of the places inside, running or waiting. */
static bool take_place(ek_engine *engine)
{
    int32_t places = engine->params.running_max + engine->params.queue_max;
    int32_t n = atomic_load_explicit(&engine->n_inflight, memory_order_relaxed);
    do {
        if (n >= places) return false;
    } while (!atomic_compare_exchange_weak_explicit(&engine->n_inflight, &n, n + 1,
                                                    memory_order_acq_rel, memory_order_relaxed));
    return true;
}

static ek_status hand_over(ek_engine *engine, const ek_request_params *params, ek_logits_call *call,
                           ek_request **out_request, ek_err *err)
{
    if (atomic_load_explicit(&engine->draining, memory_order_relaxed))
        return ek_err_set(err, EK_EDRAINING, "the engine is draining and takes no new requests");
    if (!take_place(engine))
        return ek_err_set(err, EK_EFULL, "all %d places (%d running, %d waiting) are taken",
                          (int)(engine->params.running_max + engine->params.queue_max),
                          (int)engine->params.running_max, (int)engine->params.queue_max);
    ek_request *request = ek_engine_request_create(&engine->shape, params, call, ek_sys_now_us());
    if (!request) {
        atomic_fetch_sub_explicit(&engine->n_inflight, 1, memory_order_acq_rel);
        return ek_err_set(err, EK_ENOMEM, "no memory for a request of %d tokens",
                          (int)(params->n_prompt + params->max_tokens));
    }
    atomic_fetch_add_explicit(&engine->n_handles, 1, memory_order_relaxed);
    /* Room for all places: the push fails only if the engine is destroyed under its user. */
    ek_status status = ek_sys_queue_push(engine->inbox, request);
    ek_assert(status == EK_OK);
    *out_request = request;
    return EK_OK;
}

ek_status ek_engine_submit(ek_engine *engine, const ek_request_params *params,
                           ek_request **out_request, ek_err *err)
{
    ek_status status = check_params(engine, params, err);
    if (status != EK_OK) return status;
    return hand_over(engine, params, NULL, out_request, err);
}

void ek_engine_drain(ek_engine *engine)
{
    atomic_store_explicit(&engine->draining, true, memory_order_relaxed);
}

/* ---- handles ---- */

void ek_engine_cancel(ek_engine *engine, ek_request *request)
{
    if (atomic_exchange_explicit(&request->canceled, true, memory_order_relaxed)) return;
    /* Release: whoever sees the count sees the flag. */
    atomic_fetch_add_explicit(&engine->n_cancels, 1, memory_order_release);
    ek_engine_nudge(engine);
}

static bool has_finished(const ek_request *request)
{
    return atomic_load_explicit(&request->finished_us, memory_order_relaxed) != 0;
}

void ek_engine_release(ek_engine *engine, ek_request *request)
{
    if (!has_finished(request)) ek_engine_cancel(engine, request);
    ek_engine_news_close(&engine->news, &request->news);
    ek_engine_request_unref(request);
    atomic_fetch_sub_explicit(&engine->n_handles, 1, memory_order_relaxed);
}

int32_t ek_engine_wait(ek_engine *engine, void **out_tags, int32_t max, int64_t timeout_us)
{
    return ek_engine_news_take(&engine->news, out_tags, max, timeout_us);
}

void ek_engine_wake(ek_engine *engine)
{
    ek_engine_news_wake(&engine->news);
}

void ek_engine_read(ek_engine *engine, ek_request *request, ek_output *out_output)
{
    ek_engine_news_read(&engine->news, &request->news);
    if (ek_engine_outbox_take(&request->outbox, out_output)) ek_engine_nudge(engine);
    ek_engine_request_usage(request, ek_sys_now_us(), &out_output->usage);
}

/* ---- logits ---- */

static ek_status status_of(ek_finish finish, ek_err *err)
{
    switch (finish) {
    case EK_FINISH_NONE:
    case EK_FINISH_STOP:
    case EK_FINISH_LENGTH: return EK_OK;
    case EK_FINISH_CANCELED: return ek_err_set(err, EK_ECANCELED, "the engine was stopped");
    case EK_FINISH_QUEUE_TIMEOUT:
    case EK_FINISH_TIMEOUT:
        return ek_err_set(err, EK_ETIMEOUT, "the prompt waited too long for a place");
    case EK_FINISH_ERROR:
    case EK_FINISH_UNAVAILABLE: return ek_err_set(err, EK_EPEER, "the step failed");
    }
    return EK_OK;
}

ek_status ek_engine_logits(ek_engine *engine, const int32_t *prompt, int32_t n_prompt,
                           float *out_logits, ek_err *err)
{
    const ek_request_params params = {.prompt = prompt, .n_prompt = n_prompt};
    ek_status status = check_prompt(engine, &params, err);
    if (status != EK_OK) return status;
    ek_logits_call call = {.logits = out_logits};
    ek_request *request;
    ek_sys_mutex_init(&call.mutex);
    ek_sys_cond_init(&call.cond);
    status = hand_over(engine, &params, &call, &request, err);
    if (status == EK_OK) {
        ek_sys_mutex_lock(&call.mutex);
        while (!call.done)
            ek_sys_cond_wait(&call.cond, &call.mutex);
        ek_sys_mutex_unlock(&call.mutex);
        status = status_of(call.finish, err);
        ek_engine_release(engine, request);
    }
    ek_sys_cond_fini(&call.cond);
    ek_sys_mutex_fini(&call.mutex);
    return status;
}
