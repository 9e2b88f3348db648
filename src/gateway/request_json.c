#include "gateway/request_json.h"

#include "gateway/faults.h"

ek_str ek_gateway_json_text(const json_t *value)
{
    return (ek_str){json_string_value(value), json_string_length(value)};
}

const char *ek_gateway_json_type_name(const json_t *value)
{
    if (!value) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    default: return "an unknown type";
    }
}

/* Jansson recurses per level, so the depth is measured first: brackets outside of strings. */
static bool too_deep(ek_str body, int32_t depth_max)
{
    int32_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < body.len; i++) {
        char c = body.data[i];
        if (in_string) {
            if (c == '\\') i++;
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > depth_max) return true;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return false;
}

static const char *reason_of(const json_error_t *error)
{
    switch (json_error_code(error)) {
    case json_error_duplicate_key: return "an object has the same key twice";
    case json_error_invalid_utf8: return "a string is not valid UTF-8";
    case json_error_premature_end_of_input: return "the text ends too early";
    case json_error_end_of_input_expected: return "text follows after the object";
    case json_error_numeric_overflow: return "a number is too large";
    case json_error_null_character:
    case json_error_null_byte_in_key: return "a string holds the character NUL";
    case json_error_unknown:
    case json_error_out_of_memory:
    case json_error_stack_overflow:
    case json_error_cannot_open_file:
    case json_error_invalid_argument:
    case json_error_invalid_syntax:
    case json_error_invalid_format:
    case json_error_wrong_type:
    case json_error_null_value:
    case json_error_item_not_found:
    case json_error_index_out_of_range:
    default: return "syntax error";
    }
}

bool ek_gateway_json_load(ek_str body, int32_t depth_max, json_t **out_root, ek_fault *fault)
{
    if (body.len == 0)
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_json, NULL,
                                 "the request has no body; a JSON object is expected");
    if (too_deep(body, depth_max))
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_json, NULL,
                                 "the body nests deeper than %d levels", depth_max);
    json_error_t error;
    json_t *root = json_loadb(body.data, body.len, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_json, NULL,
                                 "the body is not valid JSON: %s (line %d, column %d)",
                                 reason_of(&error), error.line, error.column);
    if (!json_is_object(root)) {
        ek_http_fault_set(fault, &ek_gateway_fault_invalid_json, NULL,
                          "the body is %s; a JSON object is expected",
                          ek_gateway_json_type_name(root));
        json_decref(root);
        return false;
    }
    *out_root = root;
    return true;
}
