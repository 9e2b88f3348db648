#include "gateway/fields.h"

#include <stdio.h>
#include <string.h>

#include "base/span.h"
#include "gateway/faults.h"
#include "gateway/request_json.h"

bool ek_gateway_fields_wrong_type(ek_fault *fault, const char *param, const json_t *value,
                                  const char *expected)
{
    return ek_http_fault_set(fault, &ek_gateway_fault_invalid_type, param,
                             "%s is %s; %s is expected", param, ek_gateway_json_type_name(value),
                             expected);
}

static bool out_of_range(ek_fault *fault, const char *param, const ek_field *field)
{
    return ek_http_fault_set(
        fault, &ek_gateway_fault_invalid_value, param, "%s must be %s %g and %s %g", param,
        field->open == EK_FIELD_OPEN_MIN ? "greater than" : "at least", field->min,
        field->open == EK_FIELD_OPEN_MAX ? "less than" : "at most", field->max);
}

static bool in_range(const ek_field *field, double value)
{
    if (value < field->min || value > field->max) return false;
    if (field->open == EK_FIELD_OPEN_MIN) return value > field->min;
    if (field->open == EK_FIELD_OPEN_MAX) return value < field->max;
    return true;
}

static bool is_neutral_word(const json_t *value, ek_str word)
{
    if (ek_str_eqz(word, "[]")) return json_is_array(value) && json_array_size(value) == 0;
    if (ek_str_eqz(word, "{}")) return json_is_object(value) && json_object_size(value) == 0;
    if (ek_str_eqz(word, "''")) return json_is_string(value) && json_string_length(value) == 0;
    if (ek_str_eqz(word, "false")) return json_is_false(value);
    if (ek_str_eqz(word, "0")) return json_is_integer(value) && json_integer_value(value) == 0;
    return json_is_string(value) && ek_str_eq(ek_gateway_json_text(value), word);
}

static bool is_neutral(const json_t *value, const char *words)
{
    while (words && *words) {
        size_t n = strcspn(words, " ");
        if (is_neutral_word(value, (ek_str){words, n})) return true;
        words += n;
        words += strspn(words, " ");
    }
    return false;
}

static bool read_number(const ek_field *field, const json_t *value, const char *param, void *place,
                        ek_fault *fault)
{
    if (field->kind == EK_FIELD_INT) {
        if (!json_is_integer(value))
            return ek_gateway_fields_wrong_type(fault, param, value, "an integer");
        json_int_t integer = json_integer_value(value);
        if (!in_range(field, (double)integer)) return out_of_range(fault, param, field);
        int64_t kept = integer;
        memcpy(place, &kept, sizeof kept);
        return true;
    }
    if (!json_is_number(value))
        return ek_gateway_fields_wrong_type(fault, param, value, "a number");
    double number = json_number_value(value);
    if (!in_range(field, number)) return out_of_range(fault, param, field);
    memcpy(place, &number, sizeof number);
    return true;
}

static bool read_field(const ek_field *field, const json_t *value, const char *param, void *target,
                       ek_fault *fault)
{
    void *place = (char *)target + field->offset;
    switch (field->kind) {
    case EK_FIELD_BOOL: {
        bool on = json_is_true(value);
        if (!json_is_boolean(value))
            return ek_gateway_fields_wrong_type(fault, param, value, "a boolean");
        memcpy(place, &on, sizeof on);
        return true;
    }
    case EK_FIELD_INT:
    case EK_FIELD_NUMBER: return read_number(field, value, param, place, fault);
    case EK_FIELD_TEXT: {
        ek_str text = ek_gateway_json_text(value);
        if (!json_is_string(value))
            return ek_gateway_fields_wrong_type(fault, param, value, "a string");
        memcpy(place, &text, sizeof text);
        return true;
    }
    case EK_FIELD_CUSTOM: return field->parse(value, target, fault);
    case EK_FIELD_ACCEPTED: return true;
    case EK_FIELD_REFUSED:
        if (is_neutral(value, field->neutral)) return true;
        return ek_http_fault_set(fault, &ek_gateway_fault_unsupported_value, param,
                                 "%s is not supported by this server", param);
    }
    return true;
}

static const ek_field *find_field(const ek_field_set *sets, size_t n_sets, const char *name)
{
    for (size_t s = 0; s < n_sets; s++)
        for (size_t i = 0; i < sets[s].n_fields; i++)
            if (strcmp(sets[s].field[i].name, name) == 0) return &sets[s].field[i];
    return NULL;
}

bool ek_gateway_fields_read(const ek_field_set *sets, size_t n_sets, const json_t *object,
                            const char *where, bool strict, void *target, int32_t *n_unknown,
                            ek_fault *fault)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        char param[EK_FAULT_PARAM_MAX];
        snprintf(param, sizeof param, "%s%s", where, name);
        const ek_field *field = find_field(sets, n_sets, name);
        if (!field && strict)
            return ek_http_fault_set(fault, &ek_gateway_fault_unknown_parameter, param,
                                     "this server does not know the field %.80s", param);
        if (!field) {
            (*n_unknown)++;
        } else if (!json_is_null(value) && !read_field(field, value, param, target, fault)) {
            return false;
        }
    }
    return true;
}
