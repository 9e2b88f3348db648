/*
 * The completion half of gen_request.h: prompts, and the fields that only completions have.
 */
#include <stdio.h>

#include "gateway/faults.h"
#include "gateway/gen_request.h"
#include "gateway/request_json.h"

/* A prompt is a text or an array of ids; in an array of prompts each entry is one of the two. */
static bool read_prompt(ek_gen_request *request, const json_t *value, const char *param,
                        ek_gen_prompt *out_prompt, ek_fault *fault)
{
    if (json_is_string(value)) {
        out_prompt->text = ek_gateway_json_text(value);
        return true;
    }
    if (!json_is_array(value))
        return ek_gateway_fields_wrong_type(fault, param, value,
                                            "a string or an array of token ids");
    if (json_array_size(value) == 0)
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, param,
                                 "%s must not be empty", param);
    return ek_gateway_gen_ids(request, value, param, &out_prompt->ids, &out_prompt->n_ids, fault);
}

static bool parse_prompt(const json_t *value, void *target, ek_fault *fault)
{
    ek_gen_request *request = target;
    bool is_list = json_is_array(value) && json_array_size(value) > 0 &&
                   !json_is_integer(json_array_get(value, 0));
    size_t n = is_list ? json_array_size(value) : 1;
    if (n > (size_t)request->limits.choices_max)
        return ek_http_fault_set(fault, &ek_gateway_fault_unsupported_value, "prompt",
                                 "prompt has %zu entries, at most %d are taken", n,
                                 request->limits.choices_max);
    ek_gen_prompt *prompts = ek_try_new(&request->arena, ek_gen_prompt, n);
    if (!prompts)
        return ek_http_fault_set(fault, &ek_http_fault_overloaded, NULL,
                                 "no memory for the request");
    request->prompts = prompts;
    request->n_prompts = (int32_t)n;
    if (!is_list) return read_prompt(request, value, "prompt", prompts, fault);
    for (size_t i = 0; i < n; i++) {
        char param[32];
        snprintf(param, sizeof param, "prompt[%zu]", i);
        if (!read_prompt(request, json_array_get(value, i), param, &prompts[i], fault))
            return false;
    }
    return true;
}

/* Here logprobs is a number: how many alternatives per token. */
static bool parse_logprobs(const json_t *value, void *target, ek_fault *fault)
{
    ek_gen_request *request = target;
    if (json_is_false(value)) return true;
    if (!json_is_integer(value))
        return ek_gateway_fields_wrong_type(fault, "logprobs", value, "an integer");
    json_int_t n = json_integer_value(value);
    if (n < 0 || n > EK_SAMPLER_TOP_LOGPROBS_MAX)
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "logprobs",
                                 "logprobs must be at least 0 and at most %d",
                                 EK_SAMPLER_TOP_LOGPROBS_MAX);
    request->logprobs = true;
    request->top_logprobs = n;
    return true;
}

/* best_of samples more than it returns; with as many as it returns it asks for nothing. */
static bool parse_best_of(const json_t *value, void *target, ek_fault *fault)
{
    ek_gen_request *request = target;
    if (!json_is_integer(value))
        return ek_gateway_fields_wrong_type(fault, "best_of", value, "an integer");
    const json_t *n = json_object_get(request->root, "n");
    json_int_t wanted = json_is_integer(n) ? json_integer_value(n) : 1;
    if (json_integer_value(value) == wanted) return true;
    return ek_http_fault_set(fault, &ek_gateway_fault_unsupported_value, "best_of",
                             "best_of is not supported beyond n");
}

static const ek_field completion_fields[] = {
    {"prompt", EK_FIELD_CUSTOM, 0, 0, 0, 0, parse_prompt, NULL},
    {"logprobs", EK_FIELD_CUSTOM, 0, 0, 0, 0, parse_logprobs, NULL},
    {"echo", EK_FIELD_BOOL, offsetof(ek_gen_request, echo), 0, 0, 0, NULL, NULL},
    {"best_of", EK_FIELD_CUSTOM, 0, 0, 0, 0, parse_best_of, NULL},
    {"suffix", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, "''"},
};

static bool check(const ek_gen_request *request, ek_fault *fault)
{
    if (request->n_prompts == 0)
        return ek_http_fault_set(fault, &ek_gateway_fault_missing_parameter, "prompt",
                                 "prompt is missing");
    if (request->n * request->n_prompts > request->limits.choices_max)
        return ek_http_fault_set(fault, &ek_gateway_fault_unsupported_value, "n",
                                 "n times the number of prompts is larger than this server "
                                 "allows (%d)",
                                 request->limits.choices_max);
    if (request->echo && request->logprobs)
        return ek_http_fault_set(fault, &ek_gateway_fault_unsupported_value, "echo",
                                 "echo together with logprobs is not supported by this server");
    return true;
}

bool ek_gateway_completion_parse(ek_str body, const ek_gen_limits *limits,
                                 ek_gen_request *out_request, ek_fault *fault)
{
    const ek_field_set own = {completion_fields, EK_COUNT_OF(completion_fields)};
    if (!ek_gateway_gen_read(body, limits, false, &own, out_request, fault)) return false;
    if (check(out_request, fault)) return true;
    ek_gateway_gen_fini(out_request);
    return false;
}
