#include "http/fault.h"

#include <stdarg.h>
#include <stdio.h>

#include "http/json_out.h"

#define FAULT_KIND(name, status, type, code, retry) \
    const ek_fault_kind ek_http_fault_##name = {status, type, code, retry};
EK_HTTP_FAULT_TABLE(FAULT_KIND)
#undef FAULT_KIND

bool ek_http_fault_set(ek_fault *fault, const ek_fault_kind *kind, const char *param,
                       const char *fmt, ...)
{
    fault->kind = kind;
    snprintf(fault->param, sizeof fault->param, "%s", param ? param : "");
    va_list args;
    va_start(args, fmt);
    vsnprintf(fault->message, sizeof fault->message, fmt, args);
    va_end(args);
    return false;
}

void ek_http_fault_json(const ek_fault *fault, ek_buf *out_json)
{
    ek_http_buf_addz(out_json, "{\"error\":{\"message\":");
    ek_http_json_string(out_json, ek_str_from(fault->message));
    ek_http_buf_addz(out_json, ",\"type\":");
    ek_http_json_string(out_json, ek_str_from(fault->kind->type));
    ek_http_buf_addz(out_json, ",\"param\":");
    if (fault->param[0]) {
        ek_http_json_string(out_json, ek_str_from(fault->param));
    } else {
        ek_http_buf_addz(out_json, "null");
    }
    ek_http_buf_addz(out_json, ",\"code\":");
    ek_http_json_string(out_json, ek_str_from(fault->kind->code));
    ek_http_buf_addz(out_json, "}}");
}

const char *ek_http_reason(int32_t status)
{
    switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
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
