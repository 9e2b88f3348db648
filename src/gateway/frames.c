#include "gateway/frames.h"

#include "http/json_out.h"

static const char *finish_reason(ek_finish finish)
{
    return finish == EK_FINISH_LENGTH ? "length" : "stop";
}

static void add_head(const ek_frame_context *context, const char *object, ek_buf *out)
{
    const ek_generation *generation = context->generation;
    ek_http_buf_addz(out, "{\"id\":\"");
    ek_http_buf_addz(out, generation->id);
    ek_http_buf_addz(out, "\",\"object\":\"");
    ek_http_buf_addz(out, object);
    ek_http_buf_addz(out, "\",\"created\":");
    ek_http_json_int(out, generation->created_s);
    ek_http_buf_addz(out, ",\"model\":");
    ek_http_json_string(out, ek_str_from(context->model_id));
    ek_http_buf_addz(out, ",\"system_fingerprint\":null");
}

static void add_usage(const ek_generation *generation, ek_buf *out)
{
    ek_usage usage;
    ek_gateway_generation_usage(generation, &usage);
    ek_http_buf_addf(out, "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d",
                     usage.prompt_tokens, usage.completion_tokens,
                     usage.prompt_tokens + usage.completion_tokens);
    ek_http_buf_addf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%d}", usage.cached_tokens);
    ek_http_buf_addz(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":0}}");
}

static void add_timings(const ek_generation *generation, ek_buf *out)
{
    ek_usage usage;
    ek_gateway_generation_usage(generation, &usage);
    double decode_s = (double)(usage.total_us - usage.ttft_us) * 1e-6;
    bool timed = usage.ttft_us > 0 && decode_s > 0 && usage.completion_tokens > 1;
    ek_http_buf_addz(out, ",\"timings\":{\"queue_ms\":");
    ek_http_json_number(out, (double)usage.queue_us * 1e-3);
    ek_http_buf_addz(out, ",\"ttft_ms\":");
    ek_http_json_number(out, (double)usage.ttft_us * 1e-3);
    ek_http_buf_addz(out, ",\"total_ms\":");
    ek_http_json_number(out, (double)usage.total_us * 1e-3);
    ek_http_buf_addz(out, ",\"tokens_per_second\":");
    ek_http_json_number(out, timed ? (usage.completion_tokens - 1) / decode_s : 0);
    ek_http_buf_addz(out, "}");
}

/* An answer that is less than it could be says so. */
static void add_finish(const ek_choice *choice, ek_buf *out)
{
    ek_http_buf_addf(out, "\"finish_reason\":\"%s\"%s}", finish_reason(choice->finish),
                     choice->usage.degraded ? ",\"x_moe\":{\"degraded\":true}" : "");
}

/* ---- chunks ---- */

static void chunk_begin(const ek_frame_context *context, ek_buf *out)
{
    ek_http_buf_addz(out, "data: ");
    add_head(context, context->generation->chat ? "chat.completion.chunk" : "text_completion", out);
}

/* With include_usage every chunk but the last has the key, as null. */
static void chunk_end(const ek_frame_context *context, ek_buf *out)
{
    if (context->generation->include_usage) ek_http_buf_addz(out, ",\"usage\":null");
    ek_http_buf_addz(out, "}\n\n");
}

void ek_gateway_frame_begin(const ek_frame_context *context, const ek_choice *choice, ek_buf *out)
{
    const ek_generation *generation = context->generation;
    if (!generation->chat && !generation->echo) return;
    chunk_begin(context, out);
    ek_http_buf_addf(out, ",\"choices\":[{\"index\":%d,", choice->index);
    if (generation->chat) {
        ek_http_buf_addz(out, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
    } else {
        ek_http_buf_addz(out, "\"text\":");
        ek_http_json_string(out, generation->echo[choice->prompt_idx]);
    }
    ek_http_buf_addz(out, ",\"logprobs\":null,\"finish_reason\":null}]");
    chunk_end(context, out);
}

static void add_logprobs(const ek_frame_context *context, ek_choice *choice, ek_buf *out)
{
    ek_http_buf_addz(out, ",\"logprobs\":");
    if (context->generation->logprobs && choice->logprobs.n_shown > 0) {
        ek_gateway_logprobs_json(&choice->logprobs, context->engine, context->generation->chat,
                                 out);
    } else {
        ek_http_buf_addz(out, "null");
    }
}

void ek_gateway_frame_text(const ek_frame_context *context, ek_choice *choice, ek_str text,
                           ek_buf *out)
{
    chunk_begin(context, out);
    ek_http_buf_addf(out, ",\"choices\":[{\"index\":%d,", choice->index);
    ek_http_buf_addz(out, context->generation->chat ? "\"delta\":{\"content\":" : "\"text\":");
    ek_http_json_string(out, text);
    if (context->generation->chat) ek_http_buf_addz(out, "}");
    add_logprobs(context, choice, out);
    ek_http_buf_addz(out, ",\"finish_reason\":null}]");
    chunk_end(context, out);
}

void ek_gateway_frame_finish(const ek_frame_context *context, const ek_choice *choice, bool last,
                             ek_buf *out)
{
    chunk_begin(context, out);
    ek_http_buf_addf(out, ",\"choices\":[{\"index\":%d,%s,\"logprobs\":null,", choice->index,
                     context->generation->chat ? "\"delta\":{}" : "\"text\":\"\"");
    add_finish(choice, out);
    ek_http_buf_addz(out, "]");
    if (last && context->generation->timings) add_timings(context->generation, out);
    chunk_end(context, out);
}

void ek_gateway_frame_usage(const ek_frame_context *context, ek_buf *out)
{
    chunk_begin(context, out);
    ek_http_buf_addz(out, ",\"choices\":[],\"usage\":");
    add_usage(context->generation, out);
    ek_http_buf_addz(out, "}\n\n");
}

void ek_gateway_frame_fault(const ek_fault *fault, ek_buf *out)
{
    ek_http_buf_addz(out, "data: ");
    ek_http_fault_json(fault, out);
    ek_http_buf_addz(out, "\n\n");
}

void ek_gateway_frame_done(ek_buf *out)
{
    ek_http_buf_addz(out, "data: [DONE]\n\n");
}

void ek_gateway_frame_ping(ek_buf *out)
{
    ek_http_buf_addz(out, ": ping\n\n");
}

/* ---- plain answers ---- */

static void add_choice(const ek_frame_context *context, ek_choice *choice, ek_buf *out)
{
    const ek_generation *generation = context->generation;
    ek_http_buf_addf(out, "{\"index\":%d,", choice->index);
    if (generation->chat) {
        ek_http_buf_addz(out, "\"message\":{\"role\":\"assistant\",\"content\":");
        ek_http_json_string(out, ek_http_buf_str(&choice->text));
        ek_http_buf_addz(out, ",\"refusal\":null}");
    } else {
        ek_http_buf_addz(out, "\"text\":\"");
        if (generation->echo) ek_http_json_escape(out, generation->echo[choice->prompt_idx]);
        ek_http_json_escape(out, ek_http_buf_str(&choice->text));
        ek_http_buf_addz(out, "\"");
    }
    add_logprobs(context, choice, out);
    ek_http_buf_addz(out, ",");
    add_finish(choice, out);
}

void ek_gateway_answer_json(const ek_frame_context *context, ek_generation *generation, ek_buf *out)
{
    add_head(context, generation->chat ? "chat.completion" : "text_completion", out);
    ek_http_buf_addz(out, ",\"choices\":[");
    for (int32_t i = 0; i < generation->n_choices; i++) {
        if (i) ek_http_buf_addz(out, ",");
        add_choice(context, &generation->choice[i], out);
    }
    ek_http_buf_addz(out, "],\"usage\":");
    add_usage(generation, out);
    if (generation->timings) add_timings(generation, out);
    ek_http_buf_addz(out, "}");
}
