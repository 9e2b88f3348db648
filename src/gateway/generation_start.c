/*
 * The worker's half of generation.h: from a checked request to engine requests.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/rng.h"
#include "base/size.h"
#include "gateway/call.h"
#include "gateway/generation.h"
#include "gateway/state.h"
#include "sys/clock.h"
#include "sys/mem.h"

/* One prompt as the engine takes it. */
typedef struct prompt_ids {
    int32_t *owned;     /* ek_sys_free */
    const int32_t *ids; /* owned, or the request's own */
    int64_t n_ids;
} prompt_ids;

/* What the engine says about a request, in the client's words. */
static void engine_fault(ek_status status, const ek_err *err, const char *param, ek_fault *fault)
{
    switch ((int)status) {
    case EK_EFULL:
        ek_http_fault_set(fault, &ek_gateway_fault_queue_full, NULL,
                          "all places of this server are taken, and its queue is full");
        return;
    case EK_EDRAINING:
        ek_http_fault_set(fault, &ek_gateway_fault_draining, NULL, "the server is shutting down");
        return;
    case EK_ECONTEXT:
        ek_http_fault_set(fault, &ek_gateway_fault_context_length, param, "%s", err->text);
        return;
    case EK_EINVAL:
        ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, param, "%s", err->text);
        return;
    case EK_EUNSUPPORTED:
        ek_http_fault_set(fault, &ek_gateway_fault_unsupported_value, param, "%s", err->text);
        return;
    case EK_ENOMEM:
        ek_http_fault_set(fault, &ek_http_fault_overloaded, NULL, "%s", err->text);
        return;
    default:
        ek_http_fault_set(fault, &ek_http_fault_internal, NULL,
                          "the engine did not take the request");
        return;
    }
}

static bool check_model(const ek_call *call, const ek_gen_request *request, ek_fault *fault)
{
    const char *served = call->gateway->params.model_id;
    if (request->model.len == 0 || ek_str_eqz(request->model, served)) return true;
    return ek_http_fault_set(fault, &ek_gateway_fault_model_not_found, "model",
                             "the model \"%.*s\" is not served here; GET /v1/models lists what is",
                             (int)(request->model.len > 100 ? 100 : request->model.len),
                             request->model.data);
}

/* The engine names the message ("messages[2]: ..."): that is the client's param. */
static void message_param(const ek_err *err, char out_param[EK_FAULT_PARAM_MAX])
{
    ek_str text = ek_str_from(err->text);
    ptrdiff_t end = ek_str_find(text, EK_STR("]"));
    bool named = ek_str_starts(text, EK_STR("messages[")) && end > 0 && end < 32;
    if (named) {
        snprintf(out_param, EK_FAULT_PARAM_MAX, "%.*s.role", (int)end + 1, err->text);
    } else {
        snprintf(out_param, EK_FAULT_PARAM_MAX, "messages");
    }
}

static bool chat_ids(const ek_call *call, const ek_gen_request *request, prompt_ids *out_ids,
                     ek_fault *fault)
{
    ek_err err = {0};
    char param[EK_FAULT_PARAM_MAX];
    ek_status status =
        ek_engine_chat_ids(ek_gateway_engine(call->gateway), request->messages, request->n_messages,
                           &out_ids->owned, &out_ids->n_ids, &err);
    if (status != EK_OK) {
        message_param(&err, param);
        engine_fault(status, &err, param, fault);
        return false;
    }
    out_ids->ids = out_ids->owned;
    return true;
}

static bool check_ids(const ek_call *call, const int32_t *ids, int64_t n_ids, const char *param,
                      ek_fault *fault)
{
    for (int64_t i = 0; i < n_ids; i++)
        if (ids[i] >= call->gateway->info.n_vocab)
            return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, param,
                                     "token id %d is outside of the vocabulary (%d)", ids[i],
                                     call->gateway->info.n_vocab);
    return true;
}

static bool completion_ids(const ek_call *call, const ek_gen_prompt *prompt, prompt_ids *out_ids,
                           ek_fault *fault)
{
    ek_err err = {0};
    if (prompt->ids) {
        out_ids->ids = prompt->ids;
        out_ids->n_ids = prompt->n_ids;
        return check_ids(call, prompt->ids, prompt->n_ids, "prompt", fault);
    }
    ek_status status = ek_engine_tokenize(ek_gateway_engine(call->gateway), prompt->text, true,
                                          true, &out_ids->owned, &out_ids->n_ids, &err);
    if (status != EK_OK) {
        engine_fault(status, &err, "prompt", fault);
        return false;
    }
    out_ids->ids = out_ids->owned;
    if (out_ids->n_ids > 0) return true;
    return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "prompt",
                             "prompt has no tokens");
}

/*
 * How many tokens may come: what was asked for, or what is left, up to the configured default. The
 * cache can be smaller than the context, and then is what counts; the last token is never computed
 * on, so it needs no room.
 */
static bool fit_context(const ek_call *call, const ek_gen_request *request, int64_t n_prompt,
                        int32_t *out_max_tokens, ek_fault *fault)
{
    const ek_engine_info *info = &call->gateway->info;
    bool cache_counts = info->kv_tokens + 1 < info->context_tokens;
    int64_t room = cache_counts ? info->kv_tokens + 1 : info->context_tokens;
    const char *limit = cache_counts ? "the server's cache" : "the model's context";
    const char *param = request->chat ? "messages" : "prompt";
    int64_t left = room - n_prompt;
    if (left < 1)
        return ek_http_fault_set(fault, &ek_gateway_fault_context_length, param,
                                 "the prompt has %" PRId64 " tokens, and %s of %" PRId64
                                 " tokens has to hold the answer too",
                                 n_prompt, limit, room);
    if (request->max_tokens > left)
        return ek_http_fault_set(fault, &ek_gateway_fault_context_length, param,
                                 "the prompt has %" PRId64 " tokens and max_tokens is %" PRId64
                                 ", which together exceed %s of %" PRId64 " tokens",
                                 n_prompt, request->max_tokens, limit, room);
    int64_t by_default = call->gateway->params.max_tokens_default;
    int64_t max_tokens = request->max_tokens > 0 ? request->max_tokens : by_default;
    *out_max_tokens = (int32_t)(max_tokens < left ? max_tokens : left);
    return true;
}

static ek_request_params engine_params(const ek_call *call, const ek_gen_request *request)
{
    int64_t timeout_us = call->gateway->params.request_timeout_us;
    int64_t n_top = request->top_logprobs > 0 ? request->top_logprobs : 0;
    return (ek_request_params){
        .sampling =
            {
                .temperature = (float)request->temperature,
                .top_k = (int32_t)request->top_k,
                .top_p = (float)request->top_p,
                .min_p = (float)request->min_p,
                .repetition_penalty = (float)request->repetition_penalty,
                .frequency_penalty = (float)request->frequency_penalty,
                .presence_penalty = (float)request->presence_penalty,
                .bias = request->bias,
                .n_bias = request->n_bias,
                .n_logprobs = request->logprobs ? (int32_t)n_top : -1,
            },
        .stops = request->stops,
        .n_stops = request->n_stops,
        .stop_ids = request->stop_ids,
        .n_stop_ids = request->n_stop_ids,
        .ignore_eos = request->ignore_eos,
        .fresh_text = request->chat,
        .deadline_us = timeout_us > 0 ? call->http.start_us + timeout_us : 0,
    };
}

/* ---- echo ---- */

static bool copy_echo(const ek_call *call, const ek_gen_prompt *prompt, ek_str *out_text,
                      ek_fault *fault)
{
    ek_err err = {0};
    ek_status status = EK_OK;
    if (prompt->ids) {
        status = ek_engine_detokenize(ek_gateway_engine(call->gateway), prompt->ids, prompt->n_ids,
                                      true, out_text, &err);
    } else {
        char *copy = ek_sys_calloc(prompt->text.len + 1, 1);
        if (copy && prompt->text.len) memcpy(copy, prompt->text.data, prompt->text.len);
        *out_text = (ek_str){copy, prompt->text.len};
        if (!copy) status = EK_ENOMEM;
    }
    if (status == EK_OK) return true;
    ek_http_fault_set(fault, &ek_http_fault_overloaded, NULL, "no memory for the echo");
    return false;
}

static bool prepare_echo(const ek_call *call, const ek_gen_request *request,
                         ek_generation *generation, ek_fault *fault)
{
    if (!request->echo) return true;
    generation->echo = ek_sys_calloc((size_t)request->n_prompts, sizeof *generation->echo);
    if (!generation->echo)
        return ek_http_fault_set(fault, &ek_http_fault_overloaded, NULL, "no memory for the echo");
    for (int32_t i = 0; i < request->n_prompts; i++)
        if (!copy_echo(call, &request->prompts[i], &generation->echo[i], fault)) return false;
    return true;
}

/* ---- handing over ---- */

static ek_generation *make_generation(ek_call *call, const ek_gen_request *request,
                                      int32_t n_prompts)
{
    int32_t n_choices = n_prompts * (int32_t)request->n;
    size_t bytes = sizeof(ek_generation) + (size_t)n_choices * sizeof(ek_choice);
    ek_generation *generation = ek_sys_calloc(1, bytes);
    if (!generation) return NULL;
    uint64_t bits = ek_http_fresh_bits();
    snprintf(generation->id, sizeof generation->id, "%s-%016" PRIx64 "%08" PRIx32,
             request->chat ? "chatcmpl" : "cmpl", bits, (uint32_t)ek_mix64(bits));
    generation->created_s = ek_sys_wall_s();
    generation->chat = request->chat;
    generation->stream = request->stream;
    generation->include_usage = request->include_usage;
    generation->logprobs = request->logprobs;
    generation->timings = request->timings;
    generation->n_prompts = n_prompts;
    generation->n_choices = n_choices;
    for (int32_t i = 0; i < n_choices; i++) {
        generation->choice[i].call = call;
        generation->choice[i].index = i;
        generation->choice[i].prompt_idx = i / (int32_t)request->n;
    }
    return generation;
}

/* All choices or none: what was taken before a refusal is given back by the pump. */
static bool submit_locked(ek_call *call, const ek_gen_request *request, const prompt_ids *prompts,
                          ek_fault *fault)
{
    ek_generation *generation = call->generation;
    ek_request_params params = engine_params(call, request);
    uint64_t seed = request->has_seed ? request->seed : ek_http_fresh_bits();
    for (int32_t i = 0; i < generation->n_choices; i++) {
        ek_choice *choice = &generation->choice[i];
        const prompt_ids *prompt = &prompts[choice->prompt_idx];
        ek_err err = {0};
        if (!fit_context(call, request, prompt->n_ids, &params.max_tokens, fault)) return false;
        params.prompt = prompt->ids;
        params.n_prompt = (int32_t)prompt->n_ids;
        params.sampling.seed = seed + (uint64_t)i;
        params.tag = choice;
        ek_status status =
            ek_engine_submit(ek_gateway_engine(call->gateway), &params, &choice->request, &err);
        if (status != EK_OK) {
            engine_fault(status, &err, NULL, fault);
            return false;
        }
    }
    return true;
}

static bool start(ek_call *call, const ek_gen_request *request, const prompt_ids *prompts,
                  int32_t n_prompts, ek_fault *fault)
{
    ek_generation *generation = make_generation(call, request, n_prompts);
    if (!generation)
        return ek_http_fault_set(fault, &ek_http_fault_overloaded, NULL,
                                 "no memory for the request");
    if (!prepare_echo(call, request, generation, fault)) {
        ek_gateway_generation_destroy(generation);
        return false;
    }
    ek_sys_mutex_lock(&call->http.lock);
    call->generation = generation;
    call->http.stream_us = ek_sys_now_us();
    bool ok = true;
    if (call->http.gone) {
        generation->over = true; /* the client left while we tokenized */
    } else {
        ok = submit_locked(call, request, prompts, fault);
        if (ok) call->http.phase = EK_EXCHANGE_WAITING;
        generation->over = !ok;
    }
    ek_gauge_add(call->gateway->counters.generations_open, 1);
    ek_gateway_pump_kick(call->gateway->pump, call);
    ek_sys_mutex_unlock(&call->http.lock);
    return ok;
}

void ek_gateway_generation_start(ek_call *call, const ek_gen_request *request)
{
    ek_fault fault;
    int32_t n_prompts = request->chat ? 1 : request->n_prompts;
    prompt_ids *prompts = ek_sys_calloc((size_t)n_prompts, sizeof *prompts);
    bool ok = prompts != NULL && check_model(call, request, &fault);
    if (!prompts)
        ek_http_fault_set(&fault, &ek_http_fault_overloaded, NULL, "no memory for the request");
    if (ok) ok = check_ids(call, request->stop_ids, request->n_stop_ids, "stop_token_ids", &fault);
    for (int32_t i = 0; ok && i < request->n_bias; i++)
        ok = check_ids(call, &request->bias[i].id, 1, "logit_bias", &fault);
    if (ok && request->chat) ok = chat_ids(call, request, &prompts[0], &fault);
    for (int32_t i = 0; ok && !request->chat && i < n_prompts; i++)
        ok = completion_ids(call, &request->prompts[i], &prompts[i], &fault);
    if (ok) ok = start(call, request, prompts, n_prompts, &fault);
    if (!ok) ek_gateway_call_fault(call, &fault);
    for (int32_t i = 0; prompts && i < n_prompts; i++)
        ek_sys_free(prompts[i].owned);
    ek_sys_free(prompts);
}
