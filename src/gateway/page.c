/*
 * The page for a browser: files of web/, compiled in (page_files.h is made by the build).
 */
#include "gateway/page_files.h"

#include "gateway/handlers.h"
#include "gateway/state.h"

void ek_gateway_run_page(ek_call *call)
{
    ek_str name = call->tail.len ? call->tail : EK_STR("index.html");
    for (int32_t i = 0; call->gateway->params.web_page && i < ek_gateway_page_n_files; i++) {
        if (!ek_str_eqz(name, ek_gateway_page_file[i].name)) continue;
        call->reply.fixed =
            (ek_str){(const char *)ek_gateway_page_file[i].data, ek_gateway_page_file[i].bytes};
        call->reply.content_type = ek_gateway_page_file[i].type;
        call->reply.status = 200;
        return;
    }
    ek_fault fault;
    ek_gateway_fault_set(&fault, EK_FAULT_NOT_FOUND, NULL, "there is no such path here");
    ek_gateway_call_fault(call, &fault);
}
