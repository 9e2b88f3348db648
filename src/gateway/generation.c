#include "gateway/generation.h"

#include <inttypes.h>
#include <stdio.h>

#include "gateway/call.h"
#include "gateway/frames.h"
#include "gateway/state.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/mem.h"

static ek_frame_context context_of(const ek_call *call)
{
    return (ek_frame_context){
        .generation = call->generation,
        .engine = ek_gateway_engine(call->gateway),
        .model_id = call->gateway->params.model_id,
    };
}

void ek_gateway_generation_usage(const ek_generation *generation, ek_usage *out_usage)
{
    ek_usage sum = {0};
    for (int32_t i = 0; i < generation->n_choices; i++) {
        const ek_choice *choice = &generation->choice[i];
        bool first_of_prompt = i == 0 || choice->prompt_idx != choice[-1].prompt_idx;
        if (first_of_prompt) {
            sum.prompt_tokens += choice->usage.prompt_tokens;
            sum.cached_tokens += choice->usage.cached_tokens;
        }
        sum.completion_tokens += choice->usage.completion_tokens;
        if (choice->usage.queue_us > sum.queue_us) sum.queue_us = choice->usage.queue_us;
        if (choice->usage.total_us > sum.total_us) sum.total_us = choice->usage.total_us;
        /* The first token of any choice is the first that the client sees. */
        if (choice->usage.ttft_us && (!sum.ttft_us || choice->usage.ttft_us < sum.ttft_us))
            sum.ttft_us = choice->usage.ttft_us;
    }
    *out_usage = sum;
}

void ek_gateway_generation_destroy(ek_generation *generation)
{
    if (!generation) return;
    for (int32_t i = 0; i < generation->n_choices; i++) {
        ek_http_buf_fini(&generation->choice[i].text);
        ek_gateway_logprobs_fini(&generation->choice[i].logprobs);
    }
    for (int32_t i = 0; generation->echo && i < generation->n_prompts; i++)
        ek_sys_free((char *)generation->echo[i].data);
    ek_sys_free(generation->echo);
    ek_sys_free(generation);
}

/* ---- the end ---- */

void ek_gateway_generation_fail_locked(ek_call *call, const ek_fault *fault)
{
    ek_generation *generation = call->generation;
    if (generation->over || call->http.gone) return;
    generation->over = true;
    generation->failed = true;
    if (call->http.phase == EK_EXCHANGE_WAITING) {
        ek_gateway_call_fault(call, fault);
        ek_usage usage;
        ek_gateway_generation_usage(generation, &usage);
        /* Tokens were spent on it: trying again would only spend them twice. */
        call->http.reply.no_retry = usage.completion_tokens > 0;
        ek_http_exchange_ready_locked(&call->http);
        return;
    }
    ek_gateway_frame_fault(fault, &call->http.stream);
    ek_gateway_frame_done(&call->http.stream);
    call->http.stream_done = true;
    ek_http_exchange_flush_locked(&call->http, ek_sys_now_us());
}

static void finish_all_locked(ek_call *call)
{
    ek_generation *generation = call->generation;
    ek_frame_context context = context_of(call);
    generation->over = true;
    if (generation->stream) {
        if (generation->include_usage) ek_gateway_frame_usage(&context, &call->http.stream);
        ek_gateway_frame_done(&call->http.stream);
        call->http.stream_done = true;
        return;
    }
    ek_gateway_answer_json(&context, generation, &call->http.reply.body);
    ek_gateway_call_json(call);
    ek_http_exchange_ready_locked(&call->http);
}

/*
 * What an end that is not one of the model's own means to the client. @return false: it is the
 * model's own
 */
static bool finish_fault(ek_finish finish, ek_fault *fault)
{
    switch (finish) {
    case EK_FINISH_NONE:
    case EK_FINISH_STOP:
    case EK_FINISH_LENGTH: return false;
    case EK_FINISH_CANCELED:
        ek_http_fault_set(fault, &ek_gateway_fault_draining, NULL, "the server is shutting down");
        return true;
    case EK_FINISH_QUEUE_TIMEOUT:
        ek_http_fault_set(fault, &ek_gateway_fault_queue_timeout, NULL,
                          "the request waited too long for a free place");
        return true;
    case EK_FINISH_TIMEOUT:
        ek_http_fault_set(fault, &ek_gateway_fault_request_timeout, NULL,
                          "the request took longer than this server allows");
        return true;
    case EK_FINISH_UNAVAILABLE:
        ek_http_fault_set(fault, &ek_gateway_fault_no_backend, NULL,
                          "no worker that is there has an expert that this request needs");
        return true;
    case EK_FINISH_ERROR: break;
    }
    ek_http_fault_set(fault, &ek_http_fault_internal, NULL, "the engine failed on this request");
    return true;
}

/* ---- news from the engine ---- */

static void take_text_locked(ek_call *call, ek_choice *choice, const ek_output *output)
{
    ek_generation *generation = call->generation;
    ek_str text = {output->text, (size_t)output->n_text};
    bool swallowed = output->finish == EK_FINISH_STOP;
    choice->usage = output->usage;
    if (generation->logprobs) {
        if (ek_gateway_logprobs_take(&choice->logprobs, output) != EK_OK)
            choice->text.failed = true;
        if (output->finish != EK_FINISH_NONE) ek_gateway_logprobs_end(&choice->logprobs, swallowed);
    }
    if (!generation->stream) {
        ek_http_buf_add(&choice->text, text);
        return;
    }
    ek_frame_context context = context_of(call);
    ek_http_exchange_stream_locked(&call->http);
    if (!choice->begun) ek_gateway_frame_begin(&context, choice, &call->http.stream);
    choice->begun = true;
    if (text.len || choice->logprobs.n_shown)
        ek_gateway_frame_text(&context, choice, text, &call->http.stream);
}

static void take_finish_locked(ek_call *call, ek_choice *choice, ek_finish finish)
{
    ek_generation *generation = call->generation;
    choice->finish = finish;
    generation->n_finished++;
    bool last = generation->n_finished == generation->n_choices;
    if (generation->stream) {
        ek_frame_context context = context_of(call);
        ek_gateway_frame_finish(&context, choice, last, &call->http.stream);
    }
    if (last) finish_all_locked(call);
}

static void take_output_locked(ek_call *call, ek_choice *choice, const ek_output *output)
{
    ek_fault fault;
    if (finish_fault(output->finish, &fault)) {
        choice->usage = output->usage;
        if (output->finish == EK_FINISH_ERROR)
            ek_log(EK_LOG_ERROR, "gateway", "engine_failed", "id=%s", call->http.request_id);
        ek_gateway_generation_fail_locked(call, &fault);
        return;
    }
    bool empty = output->n_text == 0 && output->n_tokens == 0 && output->finish == EK_FINISH_NONE;
    if (empty) return; /* as long as nothing came, a failure can still have a status of its own */
    take_text_locked(call, choice, output);
    if (output->finish != EK_FINISH_NONE) take_finish_locked(call, choice, output->finish);
    if (!call->http.stream.failed && !choice->text.failed) return;
    call->http.stream.failed = false; /* the error frame is small: it may still fit */
    ek_http_fault_set(&fault, &ek_http_fault_overloaded, NULL, "no memory for the answer");
    ek_gateway_generation_fail_locked(call, &fault);
}

void ek_gateway_generation_pull_locked(ek_choice *choice)
{
    ek_call *call = choice->call;
    ek_generation *generation = call->generation;
    ek_engine *engine = ek_gateway_engine(call->gateway);
    ek_output output;
    bool more = true;
    while (more && choice->request && !generation->over) {
        if (call->http.stream.len > EK_STREAM_HIGH_BYTES) {
            choice->stalled = true; /* the engine pauses it when its own buffer is full */
            ek_counter_add(call->gateway->counters.stream_stalls, 1);
            break;
        }
        ek_engine_read(engine, choice->request, &output);
        more = output.more;
        take_output_locked(call, choice, &output);
        if (output.finish != EK_FINISH_NONE) {
            ek_engine_release(engine, choice->request);
            choice->request = NULL;
        }
    }
    if (call->http.stream.len > 0) ek_http_exchange_flush_locked(&call->http, ek_sys_now_us());
}

bool ek_gateway_generation_is_stalled_locked(const ek_generation *generation)
{
    for (int32_t i = 0; i < generation->n_choices; i++)
        if (generation->choice[i].stalled) return true;
    return false;
}

void ek_gateway_generation_unstall_locked(ek_call *call)
{
    ek_generation *generation = call->generation;
    for (int32_t i = 0; i < generation->n_choices; i++) {
        ek_choice *choice = &generation->choice[i];
        if (!choice->stalled || call->http.stream.len > EK_STREAM_LOW_BYTES) continue;
        choice->stalled = false;
        ek_gateway_generation_pull_locked(choice);
    }
}

void ek_gateway_generation_release_locked(ek_call *call)
{
    ek_generation *generation = call->generation;
    ek_engine *engine = ek_gateway_engine(call->gateway);
    if (generation->released) return;
    generation->released = true;
    for (int32_t i = 0; i < generation->n_choices; i++) {
        if (generation->choice[i].request) ek_engine_release(engine, generation->choice[i].request);
        generation->choice[i].request = NULL;
    }
    ek_gauge_add(call->gateway->counters.generations_open, -1);
}

void ek_gateway_generation_tick_locked(ek_call *call, int64_t now_us)
{
    ek_generation *generation = call->generation;
    int64_t ping_us = call->gateway->params.ping_us;
    if (!generation->stream || generation->over || call->http.gone || ping_us <= 0) return;
    /* A client that does not read gets no pings either. */
    if (now_us - call->http.stream_us < ping_us || call->http.stream.len > 0) return;
    ek_http_exchange_stream_locked(&call->http);
    ek_gateway_frame_ping(&call->http.stream);
    ek_http_exchange_flush_locked(&call->http, now_us);
}
