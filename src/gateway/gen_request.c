#include "gateway/gen_request.h"

#include <stdio.h>
#include <stdlib.h>

#include "gateway/faults.h"
#include "gateway/request_json.h"

/*
 * Arrays take at most some 11 bytes per byte of the body (the shortest message, "{},", has three
 * there and 32 here), so this much address space always suffices; pages are used as they are
 * touched.
 */
#define REGION_FACTOR 12
#define REGION_EXTRA  65536

bool ek_gateway_gen_ids(ek_gen_request *request, const json_t *array, const char *param,
                        const int32_t **out_ids, int32_t *out_n, ek_fault *fault)
{
    size_t n = json_array_size(array);
    int32_t *ids = ek_try_new(&request->arena, int32_t, n);
    if (!ids || n > INT32_MAX)
        return ek_http_fault_set(fault, &ek_http_fault_overloaded, NULL,
                                 "no memory for the request");
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item))
            return ek_http_fault_set(fault, &ek_gateway_fault_invalid_type, param,
                                     "item %zu of %s is %s; a token id is expected", i, param,
                                     ek_gateway_json_type_name(item));
        if (id < 0 || id > INT32_MAX)
            return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, param,
                                     "item %zu of %s is no token id", i, param);
        ids[i] = (int32_t)id;
    }
    *out_ids = ids;
    *out_n = (int32_t)n;
    return true;
}

static bool parse_seed(const json_t *value, void *target, ek_fault *fault)
{
    ek_gen_request *request = target;
    if (!json_is_integer(value))
        return ek_gateway_fields_wrong_type(fault, "seed", value, "an integer");
    request->has_seed = true;
    request->seed = (uint64_t)json_integer_value(value);
    return true;
}

static bool add_stop(ek_gen_request *request, const json_t *value, const char *param,
                     ek_fault *fault)
{
    if (!json_is_string(value))
        return ek_gateway_fields_wrong_type(fault, param, value, "a string");
    ek_str stop = ek_gateway_json_text(value);
    if (stop.len == 0 || stop.len > EK_ENGINE_STOP_BYTES_MAX)
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, param,
                                 "%s must have 1 to %d bytes", param, EK_ENGINE_STOP_BYTES_MAX);
    request->stops[request->n_stops++] = stop;
    return true;
}

static bool parse_stop(const json_t *value, void *target, ek_fault *fault)
{
    ek_gen_request *request = target;
    if (json_is_string(value)) return add_stop(request, value, "stop", fault);
    if (!json_is_array(value))
        return ek_gateway_fields_wrong_type(fault, "stop", value,
                                            "a string or an array of strings");
    if (json_array_size(value) > EK_ENGINE_STOPS_MAX)
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "stop",
                                 "stop has more than %d entries", EK_ENGINE_STOPS_MAX);
    for (size_t i = 0; i < json_array_size(value); i++) {
        char param[32];
        snprintf(param, sizeof param, "stop[%zu]", i);
        if (!add_stop(request, json_array_get(value, i), param, fault)) return false;
    }
    return true;
}

static bool parse_stop_ids(const json_t *value, void *target, ek_fault *fault)
{
    ek_gen_request *request = target;
    const int32_t *ids;
    if (!json_is_array(value))
        return ek_gateway_fields_wrong_type(fault, "stop_token_ids", value, "an array");
    if (json_array_size(value) > EK_GEN_STOP_IDS_MAX)
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "stop_token_ids",
                                 "stop_token_ids has more than %d entries", EK_GEN_STOP_IDS_MAX);
    if (!ek_gateway_gen_ids(request, value, "stop_token_ids", &ids, &request->n_stop_ids, fault))
        return false;
    for (int32_t i = 0; i < request->n_stop_ids; i++)
        request->stop_ids[i] = ids[i];
    return true;
}

/* Keys are token ids in decimal. */
static bool parse_bias_id(const char *key, int32_t *out_id)
{
    char *end;
    if (key[0] < '0' || key[0] > '9') return false;
    unsigned long id = strtoul(key, &end, 10); /* an overflow gives ULONG_MAX, which is refused */
    if (*end || id > INT32_MAX) return false;
    *out_id = (int32_t)id;
    return true;
}

static bool parse_bias(const json_t *value, void *target, ek_fault *fault)
{
    ek_gen_request *request = target;
    const char *key;
    json_t *item;
    if (!json_is_object(value))
        return ek_gateway_fields_wrong_type(fault, "logit_bias", value, "an object");
    size_t n = json_object_size(value);
    if (n > EK_SAMPLER_BIAS_MAX)
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "logit_bias",
                                 "logit_bias has more than %d entries", EK_SAMPLER_BIAS_MAX);
    ek_logit_bias *bias = ek_try_new(&request->arena, ek_logit_bias, n);
    if (!bias)
        return ek_http_fault_set(fault, &ek_http_fault_overloaded, NULL,
                                 "no memory for the request");
    json_object_foreach((json_t *)value, key, item)
    {
        ek_logit_bias *entry = &bias[request->n_bias];
        if (!parse_bias_id(key, &entry->id))
            return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "logit_bias",
                                     "a key of logit_bias is no token id");
        double number = json_number_value(item);
        if (!json_is_number(item))
            return ek_gateway_fields_wrong_type(fault, "logit_bias", item, "a number per token");
        if (number < -100.0 || number > 100.0)
            return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "logit_bias",
                                     "values of logit_bias must be at least -100 and at most 100");
        entry->bias = (float)number;
        request->n_bias++;
    }
    request->bias = bias;
    return true;
}

static const ek_field stream_option_fields[] = {
    {"include_usage", EK_FIELD_BOOL, offsetof(ek_gen_request, include_usage), 0, 0, 0, NULL, NULL},
    {"include_obfuscation", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
};

static bool parse_stream_options(const json_t *value, void *target, ek_fault *fault)
{
    ek_gen_request *request = target;
    const ek_field_set set = {stream_option_fields, EK_COUNT_OF(stream_option_fields)};
    if (!json_is_object(value))
        return ek_gateway_fields_wrong_type(fault, "stream_options", value, "an object");
    request->has_stream_options = true;
    return ek_gateway_fields_read(&set, 1, value, "stream_options.", request->limits.strict,
                                  request, &request->n_ignored, fault);
}

#define AT(member) offsetof(ek_gen_request, member)
#define TOKENS_MAX 2147483647.0

static const ek_field common_fields[] = {
    {"model", EK_FIELD_TEXT, AT(model), 0, 0, 0, NULL, NULL},
    {"n", EK_FIELD_INT, AT(n), 1, 1024, 0, NULL, NULL},
    {"stream", EK_FIELD_BOOL, AT(stream), 0, 0, 0, NULL, NULL},
    {"stream_options", EK_FIELD_CUSTOM, 0, 0, 0, 0, parse_stream_options, NULL},
    {"max_tokens", EK_FIELD_INT, AT(max_tokens), 1, TOKENS_MAX, 0, NULL, NULL},
    {"temperature", EK_FIELD_NUMBER, AT(temperature), 0, 2, 0, NULL, NULL},
    {"top_k", EK_FIELD_INT, AT(top_k), -1, TOKENS_MAX, 0, NULL, NULL},
    {"top_p", EK_FIELD_NUMBER, AT(top_p), 0, 1, EK_FIELD_OPEN_MIN, NULL, NULL},
    {"min_p", EK_FIELD_NUMBER, AT(min_p), 0, 1, EK_FIELD_OPEN_MAX, NULL, NULL},
    {"repetition_penalty", EK_FIELD_NUMBER, AT(repetition_penalty), 0, 10, EK_FIELD_OPEN_MIN, NULL,
     NULL},
    {"repeat_penalty", EK_FIELD_NUMBER, AT(repetition_penalty), 0, 10, EK_FIELD_OPEN_MIN, NULL,
     NULL},
    {"frequency_penalty", EK_FIELD_NUMBER, AT(frequency_penalty), -2, 2, 0, NULL, NULL},
    {"presence_penalty", EK_FIELD_NUMBER, AT(presence_penalty), -2, 2, 0, NULL, NULL},
    {"seed", EK_FIELD_CUSTOM, 0, 0, 0, 0, parse_seed, NULL},
    {"logit_bias", EK_FIELD_CUSTOM, 0, 0, 0, 0, parse_bias, NULL},
    {"stop", EK_FIELD_CUSTOM, 0, 0, 0, 0, parse_stop, NULL},
    {"stop_token_ids", EK_FIELD_CUSTOM, 0, 0, 0, 0, parse_stop_ids, NULL},
    {"ignore_eos", EK_FIELD_BOOL, AT(ignore_eos), 0, 0, 0, NULL, NULL},
    {"timings", EK_FIELD_BOOL, AT(timings), 0, 0, 0, NULL, NULL},
    {"min_tokens", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, "0"},
    {"user", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
    {"metadata", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
    {"store", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
    {"service_tier", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
    {"safety_identifier", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
    {"prompt_cache_key", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
    {"prompt_cache_retention", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
};

static bool init(ek_str body, const ek_gen_limits *limits, bool chat, ek_gen_request *request,
                 ek_fault *fault)
{
    *request = (ek_gen_request){
        .limits = *limits,
        .chat = chat,
        .n = 1,
        .max_tokens = -1,
        .max_completion_tokens = -1,
        .temperature = 1.0,
        .top_p = 1.0,
        .repetition_penalty = 1.0,
        .top_logprobs = -1,
    };
    if (!ek_gateway_json_load(body, limits->json_depth_max, &request->root, fault)) return false;
    /* A body is at most a few MiB (its limit), far from where this could overflow. */
    size_t bytes = body.len * REGION_FACTOR + REGION_EXTRA;
    if (ek_sys_region_open(bytes, 0, &request->region) != EK_OK)
        return ek_http_fault_set(fault, &ek_http_fault_overloaded, NULL,
                                 "no memory for the request");
    request->arena = ek_sys_region_arena(&request->region);
    return true;
}

/* What only shows when all fields are known. */
static bool check_together(ek_gen_request *request, ek_fault *fault)
{
    if (request->has_stream_options && !request->stream)
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "stream_options",
                                 "stream_options is only allowed together with stream: true");
    if (request->n > request->limits.choices_max)
        return ek_http_fault_set(fault, &ek_gateway_fault_unsupported_value, "n",
                                 "n is larger than this server allows (%d)",
                                 request->limits.choices_max);
    if (request->chat && request->top_logprobs >= 0 && !request->logprobs)
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "top_logprobs",
                                 "top_logprobs is only allowed together with logprobs: true");
    if (request->max_completion_tokens > 0) request->max_tokens = request->max_completion_tokens;
    if (request->top_k < 0) request->top_k = 0;
    return true;
}

bool ek_gateway_gen_read(ek_str body, const ek_gen_limits *limits, bool chat,
                         const ek_field_set *own, ek_gen_request *out_request, ek_fault *fault)
{
    const ek_field_set sets[] = {*own, {common_fields, EK_COUNT_OF(common_fields)}};
    if (init(body, limits, chat, out_request, fault) &&
        ek_gateway_fields_read(sets, EK_COUNT_OF(sets), out_request->root, "", limits->strict,
                               out_request, &out_request->n_ignored, fault) &&
        check_together(out_request, fault))
        return true;
    ek_gateway_gen_fini(out_request);
    return false;
}

void ek_gateway_gen_fini(ek_gen_request *request)
{
    json_decref(request->root); /* accepts NULL */
    ek_sys_region_close(&request->region);
    *request = (ek_gen_request){0};
}
