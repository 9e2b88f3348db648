/*
 * The two routes that make text: body in, generation started (or a fault). On workers.
 */
#include "gateway/handlers.h"
#include "gateway/state.h"

typedef bool (*parse_fn)(ek_str body, const ek_gen_limits *limits, ek_gen_request *out_request,
                         ek_fault *fault);

static void run(ek_call *call, parse_fn parse)
{
    ek_gateway *gateway = call->gateway;
    const ek_gen_limits limits = ek_gateway_limits(gateway);
    ek_gen_request request;
    ek_fault fault;
    if (!parse(ek_http_buf_str(&call->http.body), &limits, &request, &fault)) {
        ek_gateway_call_fault(call, &fault);
        return;
    }
    ek_counter_add(gateway->counters.ignored_params, (uint64_t)request.n_ignored);
    ek_gateway_generation_start(call, &request);
    ek_gateway_gen_fini(&request);
}

void ek_gateway_run_chat(ek_call *call)
{
    run(call, ek_gateway_chat_parse);
}

void ek_gateway_run_completion(ek_call *call)
{
    run(call, ek_gateway_completion_parse);
}
