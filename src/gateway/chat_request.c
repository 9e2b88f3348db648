/*
 * The chat half of gen_request.h: messages, and the fields that only chats have.
 */
#include <stdio.h>

#include "gateway/faults.h"
#include "gateway/gen_request.h"
#include "gateway/request_json.h"

#define WHERE_MAX 64 /* "messages[2147483647].content[...]" */
#define PARAM_MAX (WHERE_MAX + 8)

typedef struct parsed_message {
    ek_gen_request *request;
    int32_t idx;
    ek_str role;
    ek_str content;
    bool has_content;
} parsed_message;

static bool no_memory(ek_fault *fault)
{
    return ek_http_fault_set(fault, &ek_http_fault_overloaded, NULL, "no memory for the request");
}

/* One part of a content array: {"type": "text", "text": "..."}. */
static bool read_part(const json_t *part, const char where[WHERE_MAX], ek_str *out_text,
                      ek_fault *fault)
{
    char param[PARAM_MAX];
    if (!json_is_object(part)) return ek_gateway_fields_wrong_type(fault, where, part, "an object");
    const json_t *type = json_object_get(part, "type");
    const json_t *text = json_object_get(part, "text");
    snprintf(param, sizeof param, "%s.type", where);
    if (!type)
        return ek_http_fault_set(fault, &ek_gateway_fault_missing_parameter, param, "%s is missing",
                                 param);
    if (!json_is_string(type)) return ek_gateway_fields_wrong_type(fault, param, type, "a string");
    if (!ek_str_eqz(ek_gateway_json_text(type), "text"))
        return ek_http_fault_set(fault, &ek_gateway_fault_unsupported_value, param,
                                 "%s: this model takes parts of type \"text\" only", param);
    snprintf(param, sizeof param, "%s.text", where);
    if (!text)
        return ek_http_fault_set(fault, &ek_gateway_fault_missing_parameter, param, "%s is missing",
                                 param);
    if (!json_is_string(text)) return ek_gateway_fields_wrong_type(fault, param, text, "a string");
    *out_text = ek_gateway_json_text(text);
    return true;
}

/* Parts are joined as they are: whoever wants a break between them writes it. */
static bool join_parts(parsed_message *message, const json_t *parts, ek_fault *fault)
{
    char where[WHERE_MAX];
    ek_str text = {0};
    size_t n_bytes = 0;
    size_t n_parts = json_array_size(parts);
    for (size_t i = 0; i < n_parts; i++) {
        snprintf(where, sizeof where, "messages[%d].content[%zu]", message->idx, i);
        if (!read_part(json_array_get(parts, i), where, &text, fault)) return false;
        n_bytes += text.len; /* all of them together are part of the body */
    }
    char *joined = ek_try_new(&message->request->arena, char, n_bytes);
    if (!joined) return no_memory(fault);
    message->content = (ek_str){joined, 0};
    for (size_t i = 0; i < n_parts; i++) {
        text = ek_gateway_json_text(json_object_get(json_array_get(parts, i), "text"));
        if (text.len) memcpy(joined + message->content.len, text.data, text.len);
        message->content.len += text.len;
    }
    return true;
}

static bool parse_content(const json_t *value, void *target, ek_fault *fault)
{
    parsed_message *message = target;
    message->has_content = true;
    if (json_is_array(value)) return join_parts(message, value, fault);
    if (json_is_string(value)) {
        message->content = ek_gateway_json_text(value);
        return true;
    }
    char param[PARAM_MAX];
    snprintf(param, sizeof param, "messages[%d].content", message->idx);
    return ek_gateway_fields_wrong_type(fault, param, value, "a string or an array of parts");
}

static const ek_field message_fields[] = {
    {"role", EK_FIELD_TEXT, offsetof(parsed_message, role), 0, 0, 0, NULL, NULL},
    {"content", EK_FIELD_CUSTOM, 0, 0, 0, 0, parse_content, NULL},
    {"name", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
    {"refusal", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
    {"annotations", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
    {"tool_call_id", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
    {"reasoning_content", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
    {"tool_calls", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, "[]"},
    {"function_call", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, ""},
    {"audio", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, ""},
};

static bool read_message(ek_gen_request *request, const json_t *value, int32_t idx,
                         ek_engine_message *out_message, ek_fault *fault)
{
    const ek_field_set set = {message_fields, EK_COUNT_OF(message_fields)};
    parsed_message message = {.request = request, .idx = idx};
    char where[WHERE_MAX];
    snprintf(where, sizeof where, "messages[%d]", idx);
    if (!json_is_object(value))
        return ek_gateway_fields_wrong_type(fault, where, value, "an object");
    snprintf(where, sizeof where, "messages[%d].", idx);
    if (!ek_gateway_fields_read(&set, 1, value, where, request->limits.strict, &message,
                                &request->n_ignored, fault))
        return false;
    char param[PARAM_MAX];
    snprintf(param, sizeof param, "messages[%d].role", idx);
    if (!message.role.data)
        return ek_http_fault_set(fault, &ek_gateway_fault_missing_parameter, param, "%s is missing",
                                 param);
    /* An assistant turn that only called tools has no content. */
    bool may_be_empty = ek_str_eqz(message.role, "assistant");
    snprintf(param, sizeof param, "messages[%d].content", idx);
    if (!message.has_content && !may_be_empty)
        return ek_http_fault_set(fault, &ek_gateway_fault_missing_parameter, param, "%s is missing",
                                 param);
    *out_message = (ek_engine_message){message.role, message.content};
    return true;
}

static bool parse_messages(const json_t *value, void *target, ek_fault *fault)
{
    ek_gen_request *request = target;
    if (!json_is_array(value))
        return ek_gateway_fields_wrong_type(fault, "messages", value, "an array");
    size_t n = json_array_size(value);
    if (n == 0)
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "messages",
                                 "messages must not be empty");
    if (n > (size_t)request->limits.messages_max)
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "messages",
                                 "messages has %zu entries, at most %d are taken", n,
                                 request->limits.messages_max);
    ek_engine_message *messages = ek_try_new(&request->arena, ek_engine_message, n);
    if (!messages) return no_memory(fault);
    for (size_t i = 0; i < n; i++)
        if (!read_message(request, json_array_get(value, i), (int32_t)i, &messages[i], fault))
            return false;
    request->messages = messages;
    request->n_messages = (int32_t)n;
    return true;
}

static bool parse_response_format(const json_t *value, void *target, ek_fault *fault)
{
    (void)target;
    if (!json_is_object(value))
        return ek_gateway_fields_wrong_type(fault, "response_format", value, "an object");
    const json_t *type = json_object_get(value, "type");
    if (json_is_string(type) && ek_str_eqz(ek_gateway_json_text(type), "text")) return true;
    return ek_http_fault_set(fault, &ek_gateway_fault_unsupported_value, "response_format.type",
                             "this server answers with response_format.type \"text\" only");
}

static bool parse_modalities(const json_t *value, void *target, ek_fault *fault)
{
    (void)target;
    if (!json_is_array(value))
        return ek_gateway_fields_wrong_type(fault, "modalities", value, "an array");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_string(item) || !ek_str_eqz(ek_gateway_json_text(item), "text"))
            return ek_http_fault_set(fault, &ek_gateway_fault_unsupported_value, "modalities",
                                     "the only supported modality is \"text\"");
    }
    return true;
}

static const ek_field chat_fields[] = {
    {"messages", EK_FIELD_CUSTOM, 0, 0, 0, 0, parse_messages, NULL},
    {"max_completion_tokens", EK_FIELD_INT, offsetof(ek_gen_request, max_completion_tokens), 1,
     2147483647.0, 0, NULL, NULL},
    {"logprobs", EK_FIELD_BOOL, offsetof(ek_gen_request, logprobs), 0, 0, 0, NULL, NULL},
    {"top_logprobs", EK_FIELD_INT, offsetof(ek_gen_request, top_logprobs), 0,
     EK_SAMPLER_TOP_LOGPROBS_MAX, 0, NULL, NULL},
    {"response_format", EK_FIELD_CUSTOM, 0, 0, 0, 0, parse_response_format, NULL},
    {"modalities", EK_FIELD_CUSTOM, 0, 0, 0, 0, parse_modalities, NULL},
    {"prediction", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
    {"parallel_tool_calls", EK_FIELD_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
    {"tools", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, "[]"},
    {"tool_choice", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, "none auto"},
    {"functions", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, "[]"},
    {"function_call", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, "none auto"},
    {"audio", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, ""},
    {"web_search_options", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, ""},
    {"reasoning_effort", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, "none"},
    {"verbosity", EK_FIELD_REFUSED, 0, 0, 0, 0, NULL, "medium"},
};

bool ek_gateway_chat_parse(ek_str body, const ek_gen_limits *limits, ek_gen_request *out_request,
                           ek_fault *fault)
{
    const ek_field_set own = {chat_fields, EK_COUNT_OF(chat_fields)};
    if (!ek_gateway_gen_read(body, limits, true, &own, out_request, fault)) return false;
    if (out_request->n_messages > 0) return true;
    ek_gateway_gen_fini(out_request);
    return ek_http_fault_set(fault, &ek_gateway_fault_missing_parameter, "messages",
                             "messages is missing");
}
