/*
 * Bytes -> chat and completion requests, lenient and strict. Whatever comes in, the parser either
 * gives a request whose parts can be read, or a fault with a message; and strict never takes what
 * lenient refuses.
 */
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "gateway/gen_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef bool (*parse_fn)(ek_str body, const ek_gen_limits *limits, ek_gen_request *out_request,
                         ek_fault *fault);

/* Touch every byte that a request hands on, so that a span that leads astray is found here. */
static uint64_t sum_of(const ek_gen_request *request)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < request->n_messages; i++) {
        for (size_t k = 0; k < request->messages[i].role.len; k++)
            sum += (unsigned char)request->messages[i].role.data[k];
        for (size_t k = 0; k < request->messages[i].content.len; k++)
            sum += (unsigned char)request->messages[i].content.data[k];
    }
    for (int32_t i = 0; i < request->n_prompts; i++) {
        for (size_t k = 0; k < request->prompts[i].text.len; k++)
            sum += (unsigned char)request->prompts[i].text.data[k];
        for (int32_t k = 0; k < request->prompts[i].n_ids; k++)
            sum += (uint64_t)request->prompts[i].ids[k];
    }
    for (int32_t i = 0; i < request->n_stops; i++)
        sum += request->stops[i].len;
    for (int32_t i = 0; i < request->n_bias; i++)
        sum += (uint64_t)request->bias[i].id;
    return sum;
}

static bool try_parse(parse_fn parse, ek_str body, bool strict, int32_t *out_ignored)
{
    const ek_gen_limits limits = {
        .strict = strict, .json_depth_max = 16, .messages_max = 32, .choices_max = 4};
    ek_gen_request request;
    ek_fault fault = {0};
    if (!parse(body, &limits, &request, &fault)) {
        ek_assert(fault.kind != NULL);
        ek_assert(fault.message[0] != '\0');
        ek_assert(memchr(fault.param, '\0', sizeof fault.param) != NULL);
        return false;
    }
    ek_assert(request.n >= 1 && request.n <= limits.choices_max);
    ek_assert(request.chat ? request.n_messages > 0 : request.n_prompts > 0);
    volatile uint64_t sum = sum_of(&request);
    (void)sum;
    *out_ignored = request.n_ignored;
    ek_gateway_gen_fini(&request);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const parse_fn parsers[] = {ek_gateway_chat_parse, ek_gateway_completion_parse};
    ek_str body = {(const char *)data, size};
    for (int i = 0; i < 2; i++) {
        int32_t n_ignored = 0, n_strict = 0;
        bool lenient = try_parse(parsers[i], body, false, &n_ignored);
        bool strict = try_parse(parsers[i], body, true, &n_strict);
        ek_assert(!strict || lenient);
        ek_assert(!lenient || strict == (n_ignored == 0));
    }
    return 0;
}
