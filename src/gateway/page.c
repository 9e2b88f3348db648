/*
 * The page for a browser: files of web/, compiled in (page_files.h is made by the build).
 */
#include "gateway/page_files.h"

#include "gateway/handlers.h"
#include "gateway/state.h"

/* The page brings all it needs: nothing is loaded from, or sent to, anywhere else. */
static const ek_reply_field page_fields[] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
     "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
    {"Referrer-Policy", "no-referrer"},
};

void ek_gateway_run_page(ek_call *call)
{
    ek_str name = call->tail.len ? call->tail : EK_STR("index.html");
    for (int32_t i = 0; call->gateway->params.web_page && i < ek_gateway_page_n_files; i++) {
        if (!ek_str_eqz(name, ek_gateway_page_file[i].name)) continue;
        call->http.reply.fixed =
            (ek_str){(const char *)ek_gateway_page_file[i].data, ek_gateway_page_file[i].bytes};
        call->http.reply.cache_control = "no-cache";
        call->http.reply.field = page_fields;
        call->http.reply.n_fields = EK_COUNT_OF(page_fields);
        call->http.reply.content_type = ek_gateway_page_file[i].type;
        call->http.reply.status = 200;
        return;
    }
    ek_fault fault;
    ek_http_fault_set(&fault, &ek_gateway_fault_not_found, NULL, "there is no such path here");
    ek_gateway_call_fault(call, &fault);
}
