#include "engine/step.h"

#include <string.h>

#include "base/assert.h"
#include "engine/crew.h"
#include "sys/clock.h"
#include "sys/log.h"

#define CHUNK_MIN 16 /* prompt tokens that every step with room for prompts takes */

/* ---- who takes part ---- */

/*
 * What the scheduler may put together now: as many prompt tokens as the target for steps allows
 * while that many answers run, and that many more will.
 */
static ek_sched_params paced(ek_engine *engine)
{
    ek_sched_params params = engine->sched;
    const ek_crew *crew = &engine->crew;
    int32_t n_decode = 0, n_present = 0, most = params.prefill_chunk_tokens;
    for (int32_t i = 0; i < crew->n_running; i++) {
        const ek_sched_running *seq = &engine->step.view[i];
        n_present += !seq->paused;
        n_decode += !seq->paused && seq->n_tokens - seq->n_cached == 1;
    }
    int32_t n_waiting =
        atomic_load_explicit(&engine->n_inflight, memory_order_relaxed) - crew->n_running;
    int32_t n_places = params.running_max - crew->n_running;
    n_present += n_waiting < n_places ? n_waiting : n_places;
    int32_t least = most < CHUNK_MIN ? most : CHUNK_MIN;
    params.prefill_chunk_tokens = ek_sched_pace_chunk(&engine->pace, n_decode, n_present,
                                                      engine->params.step_target_us, least, most);
    return params;
}

/*
 * Compose until nobody has to give way any more: shared blocks come free only with their last
 * user.
 */
static int32_t compose(ek_engine *engine, int64_t now_us)
{
    ek_step *step = &engine->step;
    for (;;) {
        ek_sched_step plan = {.pick = step->pick, .preempt = step->preempt};
        ek_engine_crew_view(engine);
        const ek_sched_params params = paced(engine);
        ek_sched_compose(&params, step->view, engine->crew.n_running,
                         ek_engine_kv_available(engine->kv), &plan);
        if (plan.n_preempts == 0) return plan.n_picks;
        /* Giving one up moves those behind it: from the back, so that the other indices stay. */
        while (plan.n_preempts > 0) {
            int32_t last = 0;
            for (int32_t i = 1; i < plan.n_preempts; i++)
                if (plan.preempt[i] > plan.preempt[last]) last = i;
            ek_engine_crew_give_up(engine, plan.preempt[last], now_us);
            plan.preempt[last] = plan.preempt[--plan.n_preempts];
        }
    }
}

static void mark_started(const ek_engine *engine, ek_request *request, int64_t now_us)
{
    if (atomic_load_explicit(&request->started_us, memory_order_relaxed) != 0) return;
    atomic_store_explicit(&request->started_us, now_us, memory_order_relaxed);
    ek_hist_record(engine->meters.queue, (uint64_t)(now_us - request->submitted_us));
}

/* Turn the picks into a batch; those whose last known token is in it get a row of logits. */
static int32_t build_batch(ek_engine *engine, int32_t n_picks, int64_t now_us)
{
    ek_step *step = &engine->step;
    int32_t n_tokens = 0;
    step->n_rows = 0;
    step->n_decode = 0;
    for (int32_t i = 0; i < n_picks; i++) {
        ek_request *request = engine->crew.running[step->pick[i].idx];
        int32_t beg = request->kv.n_tokens, n = step->pick[i].n_tokens;
        /* What the scheduler picked fits: it counted the blocks. */
        ek_status status = ek_engine_kv_reserve(engine->kv, &request->kv, beg + n);
        ek_assert(status == EK_OK);
        bool is_whole = beg + n == request->n_tokens;
        if (is_whole) step->row[step->n_rows++] = request;
        step->n_decode += is_whole && n == 1;
        step->seq[i] = (ek_batch_seq){
            .kv = &request->kv,
            .tokens = request->tokens + beg,
            .n_tokens = n,
            .wants_logits = is_whole,
            .expert_seen = request->expert_seen,
            .replay_key = request->sampling.seed,
        };
        mark_started(engine, request, now_us);
        n_tokens += n;
    }
    return n_tokens;
}

/* ---- computing ---- */

/*
 * Offer finished blocks for reuse, as soon as they are finished: requests with one beginning
 * often come together.
 */
static void publish_prefixes(ek_engine *engine, int32_t n_picks, int64_t now_us)
{
    for (int32_t i = 0; i < n_picks; i++) {
        ek_request *request = engine->crew.running[engine->step.pick[i].idx];
        if (atomic_load_explicit(&request->lost_rows, memory_order_relaxed)) continue;
        ek_engine_kv_publish(engine->kv, &request->kv, request->tokens, request->kv.n_tokens,
                             now_us);
    }
}

static int64_t rows_lost(const ek_engine *engine)
{
    return engine->params.source ? engine->dispatcher->n_rows_lost : 0;
}

/* Whose rows they were is not known: what this step computed is not given to others. */
static void mark_lost(ek_engine *engine, int32_t n_picks)
{
    for (int32_t i = 0; i < n_picks; i++)
        atomic_store_explicit(&engine->crew.running[engine->step.pick[i].idx]->lost_rows, true,
                              memory_order_relaxed);
}

/* A failed step fails those that were in it; the others go on. */
static void fail_picks(ek_engine *engine, int32_t n_picks, ek_status status, int64_t now_us)
{
    ek_log(EK_LOG_ERROR, "engine", "step_failed", "status=%s requests=%d", ek_status_name(status),
           (int)n_picks);
    ek_finish finish = status == EK_EPEER ? EK_FINISH_UNAVAILABLE : EK_FINISH_ERROR;
    for (int32_t i = 0; i < n_picks; i++) {
        /* Removal shifts the list, so the one to remove is found by the sequence it owns. */
        ek_kv_seq *kv = engine->step.seq[i].kv;
        int32_t at = 0;
        while (&engine->crew.running[at]->kv != kv)
            at++;
        ek_engine_crew_finish(engine, engine->crew.running[at], finish, now_us);
    }
}

/*
 * The watchdog's clock runs while a step does. Relaxed: nothing hangs on it but a comparison of
 * times.
 */
static int64_t begin_step(ek_engine *engine)
{
    int64_t start_us = ek_sys_now_us();
    atomic_store_explicit(&engine->step_start_us, start_us, memory_order_relaxed);
    return start_us;
}

static int64_t end_step(ek_engine *engine, int64_t start_us, int32_t n_tokens)
{
    int64_t end_us = ek_sys_now_us(), took_us = end_us - start_us;
    atomic_store_explicit(&engine->step_start_us, 0, memory_order_relaxed);
    ek_hist_record(engine->meters.step, (uint64_t)took_us);
    ek_hist_record(engine->meters.step_tokens, (uint64_t)n_tokens);
    int64_t limit_us = engine->params.step_watchdog_us;
    if (limit_us > 0 && took_us > limit_us) {
        ek_counter_add(engine->meters.slow_steps, 1);
        ek_log(EK_LOG_WARN, "engine", "slow_step", "took_ms=%lld limit_ms=%lld tokens=%d",
               (long long)(took_us / 1000), (long long)(limit_us / 1000), (int)n_tokens);
    }
    return end_us;
}

/* ---- sampling ---- */

static void sample_rows(void *ctx, int32_t thread_idx)
{
    ek_engine *engine = ctx;
    ek_step *step = &engine->step;
    int32_t n_vocab = engine->shape.n_vocab;
    for (;;) {
        int32_t row = ek_sys_ticket_take(&step->ticket);
        if (row >= step->n_rows) return;
        ek_request *request = step->row[row];
        float *logits = step->logits + (int64_t)row * n_vocab;
        if (request->logits_call)
            memcpy(request->logits_call->logits, logits, (size_t)n_vocab * sizeof *logits);
        else
            ek_engine_sampler_draw(request->sampler, logits, step->sampler_scratch[thread_idx],
                                   &step->sampled[row]);
    }
}

/* Rows are independent, each with its own generator, so who samples which changes nothing. */
static void sample(ek_engine *engine)
{
    ek_sys_ticket_reset(&engine->step.ticket);
    if (engine->step.n_rows > 1)
        ek_sys_pool_run(engine->pool, sample_rows, engine);
    else
        sample_rows(engine, 0);
}

/* ---- taking tokens in ---- */

static bool ends_answer(const ek_engine *engine, const ek_request *request, int32_t id)
{
    for (int32_t i = 0; i < request->n_stop_ids; i++)
        if (request->stop_ids[i] == id) return true;
    return !request->ignore_eos && ek_model_tokenizer_is_end(engine->file->tokenizer, id);
}

static void time_token(const ek_engine *engine, ek_request *request, int64_t now_us)
{
    if (request->last_token_us == 0) {
        atomic_store_explicit(&request->first_seen_us, now_us, memory_order_relaxed);
        ek_hist_record(engine->meters.ttft, (uint64_t)(now_us - request->submitted_us));
    } else {
        ek_hist_record(engine->meters.inter_token, (uint64_t)(now_us - request->last_token_us));
    }
    request->last_token_us = now_us;
}

/* The token's text, and the rest of the text when it is the last: one record holds both. */
static ek_finish put_token(const ek_engine *engine, ek_request *request, const ek_sampled *sampled)
{
    char piece[EK_TOKENIZER_PIECE_MAX], text[EK_TEXT_FEED_MAX];
    size_t n_piece = ek_model_tokenizer_piece(engine->file->tokenizer, sampled->id, false, piece);
    int32_t n_text = ek_engine_text_feed(request->text, piece, n_piece, text);
    int32_t n_completion = request->n_tokens - request->n_prompt;
    ek_finish finish = EK_FINISH_NONE;
    if (ek_engine_text_stopped(request->text)) {
        finish = EK_FINISH_STOP;
    } else if (n_completion == request->max_tokens) {
        finish = EK_FINISH_LENGTH;
        n_text += ek_engine_text_flush(request->text, text + n_text);
    }
    atomic_store_explicit(&request->n_completion, n_completion, memory_order_relaxed);
    ek_engine_outbox_put(&request->outbox, text, n_text, sampled);
    return finish;
}

static void take_in(ek_engine *engine, ek_request *request, const ek_sampled *sampled,
                    int64_t now_us)
{
    time_token(engine, request, now_us);
    if (ends_answer(engine, request, sampled->id)) {
        ek_engine_crew_finish(engine, request, EK_FINISH_STOP, now_us);
        return;
    }
    request->tokens[request->n_tokens++] = sampled->id;
    ek_counter_add(engine->meters.completion_tokens, 1);
    ek_finish finish = put_token(engine, request, sampled);
    if (finish != EK_FINISH_NONE)
        ek_engine_crew_finish(engine, request, finish, now_us);
    else
        engine->crew.news[engine->crew.n_news++] = &request->news;
}

static void take_in_rows(ek_engine *engine, int64_t now_us)
{
    for (int32_t row = 0; row < engine->step.n_rows; row++) {
        ek_request *request = engine->step.row[row];
        if (request->logits_call)
            ek_engine_crew_finish(engine, request, EK_FINISH_LENGTH, now_us);
        else
            take_in(engine, request, &engine->step.sampled[row], now_us);
    }
}

bool ek_engine_step_run(ek_engine *engine, int64_t now_us)
{
    int32_t n_picks = compose(engine, now_us);
    if (n_picks == 0) return false;
    int32_t n_tokens = build_batch(engine, n_picks, now_us);
    const ek_batch batch = {.seqs = engine->step.seq, .n_seqs = n_picks};
    int64_t start_us = begin_step(engine);
    int64_t n_lost = rows_lost(engine);
    ek_status status = ek_engine_forward_run(engine->forward, &batch, engine->step.logits);
    if (status == EK_OK && rows_lost(engine) > n_lost) mark_lost(engine, n_picks);
    if (status == EK_OK) {
        publish_prefixes(engine, n_picks, start_us);
        sample(engine);
    }
    int64_t end_us = end_step(engine, start_us, n_tokens);
    if (status == EK_OK)
        ek_sched_pace_learn(&engine->pace, engine->step.n_decode, n_tokens - engine->step.n_decode,
                            end_us - start_us);
    if (status == EK_OK)
        take_in_rows(engine, end_us);
    else
        fail_picks(engine, n_picks, status, end_us);
    return true;
}
