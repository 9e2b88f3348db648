#include "gateway/fault.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/assert.h"
#include "gateway/json_out.h"

static const struct fault_row {
    int32_t status;
    const char *type;
    const char *code;
    int32_t retry_s;
} fault_rows[EK_FAULT_COUNT] = {
#define FAULT_ROW(name, status, type, code, retry) {status, type, code, retry},
    EK_FAULT_TABLE(FAULT_ROW)
#undef FAULT_ROW
};

bool ek_gateway_fault_set(ek_fault *fault, ek_fault_kind kind, const char *param, const char *fmt,
                          ...)
{
    fault->kind = kind;
    snprintf(fault->param, sizeof fault->param, "%s", param ? param : "");
    va_list args;
    va_start(args, fmt);
    vsnprintf(fault->message, sizeof fault->message, fmt, args);
    va_end(args);
    return false;
}

static const struct fault_row *row_of(ek_fault_kind kind)
{
    ek_assert((unsigned)kind < EK_FAULT_COUNT);
    return &fault_rows[kind];
}

int32_t ek_gateway_fault_status(ek_fault_kind kind)
{
    return row_of(kind)->status;
}

const char *ek_gateway_fault_code(ek_fault_kind kind)
{
    return row_of(kind)->code;
}

int32_t ek_gateway_fault_retry_s(ek_fault_kind kind)
{
    return row_of(kind)->retry_s;
}

void ek_gateway_fault_json(const ek_fault *fault, ek_buf *out_json)
{
    const struct fault_row *row = row_of(fault->kind);
    ek_gateway_buf_addz(out_json, "{\"error\":{\"message\":");
    ek_gateway_json_string(out_json, ek_str_from(fault->message));
    ek_gateway_buf_addz(out_json, ",\"type\":");
    ek_gateway_json_string(out_json, ek_str_from(row->type));
    ek_gateway_buf_addz(out_json, ",\"param\":");
    if (fault->param[0]) {
        ek_gateway_json_string(out_json, ek_str_from(fault->param));
    } else {
        ek_gateway_buf_addz(out_json, "null");
    }
    ek_gateway_buf_addz(out_json, ",\"code\":");
    ek_gateway_json_string(out_json, ek_str_from(row->code));
    ek_gateway_buf_addz(out_json, "}}");
}

const char *ek_gateway_http_reason(int32_t status)
{
    switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    default: return "Error";
    }
}
