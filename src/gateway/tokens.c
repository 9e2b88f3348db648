/*
 * /tokenize and /detokenize, in the words of both ecosystems: vLLM's {"prompt"} or {"messages"}
 * with "add_special_tokens", and llama.cpp's {"content"} with "add_special". On workers.
 */
#include "gateway/gen_request.h"
#include "gateway/handlers.h"
#include "gateway/request_json.h"
#include "gateway/state.h"
#include "http/json_out.h"
#include "sys/mem.h"

typedef struct tokenize_request {
    ek_str content;
    ek_str prompt;
    ek_str model;
    bool add_special;        /* llama.cpp's word, off unless asked for */
    bool add_special_tokens; /* vLLM's word, on unless switched off */
    bool parse_special;
    bool remove_special;
    bool has_tokens;
    const json_t *tokens; /* borrowed from the body's object */
} tokenize_request;

static bool keep_tokens(const json_t *value, void *target, ek_fault *fault)
{
    tokenize_request *request = target;
    if (!json_is_array(value))
        return ek_gateway_fields_wrong_type(fault, "tokens", value, "an array of token ids");
    request->tokens = value;
    return true;
}

#define AT(member) offsetof(tokenize_request, member)

static const ek_field tokenize_fields[] = {
    {"model", EK_FIELD_TEXT, AT(model), 0, 0, 0, NULL, NULL},
    {"content", EK_FIELD_TEXT, AT(content), 0, 0, 0, NULL, NULL},
    {"prompt", EK_FIELD_TEXT, AT(prompt), 0, 0, 0, NULL, NULL},
    {"add_special", EK_FIELD_BOOL, AT(add_special), 0, 0, 0, NULL, NULL},
    {"add_special_tokens", EK_FIELD_BOOL, AT(add_special_tokens), 0, 0, 0, NULL, NULL},
    {"parse_special", EK_FIELD_BOOL, AT(parse_special), 0, 0, 0, NULL, NULL},
    {"with_pieces", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, "false"},
    {"return_token_strs", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, "false"},
};

static const ek_field detokenize_fields[] = {
    {"model", EK_FIELD_TEXT, AT(model), 0, 0, 0, NULL, NULL},
    {"tokens", EK_FIELD_CUSTOM, 0, 0, 0, 0, keep_tokens, NULL},
};

static bool read_fields(ek_call *call, const ek_field *fields, size_t n_fields, json_t **out_root,
                        tokenize_request *request, ek_fault *fault)
{
    const ek_gateway_params *params = &call->gateway->params;
    const ek_field_set set = {fields, n_fields};
    int32_t n_unknown = 0;
    if (!ek_gateway_json_load(ek_http_buf_str(&call->http.body), params->json_depth_max, out_root,
                              fault))
        return false;
    bool ok =
        ek_gateway_fields_read(&set, 1, *out_root, "", params->strict, request, &n_unknown, fault);
    ek_counter_add(call->gateway->counters.ignored_params, (uint64_t)n_unknown);
    if (ok && request->model.len && !ek_str_eqz(request->model, params->model_id))
        ok = ek_http_fault_set(fault, &ek_gateway_fault_model_not_found, "model",
                               "this model is not served here; GET /v1/models lists what is");
    if (!ok) json_decref(*out_root);
    return ok;
}

static void reply_ids(ek_call *call, const int32_t *ids, int64_t n_ids)
{
    ek_buf *json = &call->http.reply.body;
    ek_http_buf_addz(json, "{\"count\":");
    ek_http_json_int(json, n_ids);
    ek_http_buf_addf(json, ",\"max_model_len\":%d,\"tokens\":[",
                     call->gateway->info.context_tokens);
    for (int64_t i = 0; i < n_ids; i++) {
        if (i) ek_http_buf_addz(json, ",");
        ek_http_json_int(json, ids[i]);
    }
    ek_http_buf_addz(json, "]}");
    ek_gateway_call_json(call);
}

static void engine_refusal(ek_call *call, ek_status status, const ek_err *err)
{
    ek_fault fault;
    if (status == EK_ENOMEM) {
        ek_http_fault_set(&fault, &ek_http_fault_overloaded, NULL, "no memory for the request");
    } else {
        ek_http_fault_set(&fault, &ek_gateway_fault_invalid_value, NULL, "%s", err->text);
    }
    ek_gateway_call_fault(call, &fault);
}

void ek_gateway_run_tokenize(ek_call *call)
{
    tokenize_request request = {.add_special_tokens = true, .parse_special = true};
    json_t *root;
    ek_fault fault;
    if (!read_fields(call, tokenize_fields, EK_COUNT_OF(tokenize_fields), &root, &request,
                     &fault)) {
        ek_gateway_call_fault(call, &fault);
        return;
    }
    bool has_prompt = request.prompt.data != NULL;
    if (has_prompt == (request.content.data != NULL)) {
        ek_http_fault_set(&fault, &ek_gateway_fault_missing_parameter, "prompt",
                          "exactly one of prompt and content is expected");
        ek_gateway_call_fault(call, &fault);
    } else {
        int32_t *ids = NULL;
        int64_t n_ids = 0;
        ek_err err = {0};
        ek_status status = ek_engine_tokenize(
            ek_gateway_engine(call->gateway), has_prompt ? request.prompt : request.content,
            request.parse_special, has_prompt ? request.add_special_tokens : request.add_special,
            &ids, &n_ids, &err);
        if (status == EK_OK) {
            reply_ids(call, ids, n_ids);
        } else {
            engine_refusal(call, status, &err);
        }
        ek_sys_free(ids);
    }
    json_decref(root);
}

/* The ids of a JSON array in heap memory. */
static int32_t *copy_ids(const json_t *array, size_t *out_n, ek_fault *fault)
{
    size_t n = json_array_size(array);
    int32_t *ids = ek_sys_calloc(n + 1, sizeof *ids);
    if (!ids)
        ek_http_fault_set(fault, &ek_http_fault_overloaded, NULL, "no memory for the request");
    for (size_t i = 0; ids && i < n; i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t id = json_integer_value(item);
        if (json_is_integer(item) && id >= 0 && id <= INT32_MAX) {
            ids[i] = (int32_t)id;
            continue;
        }
        ek_http_fault_set(fault,
                          json_is_integer(item) ? &ek_gateway_fault_invalid_value
                                                : &ek_gateway_fault_invalid_type,
                          "tokens", "item %zu of tokens is no token id", i);
        ek_sys_free(ids);
        return NULL;
    }
    *out_n = n;
    return ids;
}

static void reply_text(ek_call *call, const int32_t *ids, size_t n_ids)
{
    ek_str text = {0};
    ek_err err = {0};
    ek_status status = ek_engine_detokenize(ek_gateway_engine(call->gateway), ids, (int64_t)n_ids,
                                            true, &text, &err);
    if (status != EK_OK) {
        engine_refusal(call, status, &err);
        return;
    }
    ek_buf *json = &call->http.reply.body;
    ek_http_buf_addz(json, "{\"content\":");
    ek_http_json_string(json, text);
    ek_http_buf_addz(json, ",\"prompt\":");
    ek_http_json_string(json, text);
    ek_http_buf_addz(json, "}");
    ek_sys_free((char *)text.data);
    ek_gateway_call_json(call);
}

void ek_gateway_run_detokenize(ek_call *call)
{
    tokenize_request request = {0};
    json_t *root;
    ek_fault fault;
    if (!read_fields(call, detokenize_fields, EK_COUNT_OF(detokenize_fields), &root, &request,
                     &fault)) {
        ek_gateway_call_fault(call, &fault);
        return;
    }
    size_t n_ids = 0;
    int32_t *ids = NULL;
    if (!request.tokens) {
        ek_http_fault_set(&fault, &ek_gateway_fault_missing_parameter, "tokens",
                          "tokens is missing");
    } else {
        ids = copy_ids(request.tokens, &n_ids, &fault);
    }
    if (ids) {
        reply_text(call, ids, n_ids);
    } else {
        ek_gateway_call_fault(call, &fault);
    }
    ek_sys_free(ids);
    json_decref(root);
}
