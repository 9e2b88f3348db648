#include "engine/request.h"

#include <assert.h>
#include <string.h>

#include "sys/mem.h"

static_assert(EK_ENGINE_STOPS_MAX == EK_TEXT_STOPS_MAX &&
                  EK_ENGINE_STOP_BYTES_MAX == EK_TEXT_STOP_BYTES_MAX,
              "what the API takes the text stream can match");

/* Bytes that alignment may cost per object in the arena. */
#define PAD EK_CACHE_LINE

static int32_t total_tokens(const ek_request_params *params)
{
    return params->n_prompt + params->max_tokens;
}

static int32_t blocks_max(const ek_request_shape *shape, const ek_request_params *params)
{
    return (total_tokens(params) - 1) / shape->kv_block_tokens + 1;
}

static size_t bitmap_words(const ek_request_shape *shape)
{
    return ((size_t)shape->n_layers * (size_t)shape->n_experts + 63) / 64;
}

static int32_t n_top_max(const ek_sampling *sampling)
{
    return sampling->n_logprobs > 0 ? sampling->n_logprobs : 0;
}

/* All factors are int32_t that were checked, so nothing here can overflow a 64-bit size. */
static size_t base_bytes(const ek_request_shape *shape, const ek_request_params *params)
{
    size_t bytes = sizeof(ek_request) + PAD;
    bytes += (size_t)total_tokens(params) * sizeof(int32_t) + PAD;
    bytes += (size_t)blocks_max(shape, params) * sizeof(int32_t) + PAD;
    return bytes + bitmap_words(shape) * sizeof(uint64_t) + PAD;
}

/* What only an ordinary request has: the copies of its parameters, sampler, text and outbox. */
static size_t output_bytes(const ek_request_shape *shape, const ek_request_params *params)
{
    size_t bytes = (size_t)params->n_stop_ids * sizeof(int32_t) + PAD;
    bytes += (size_t)params->sampling.n_bias * sizeof(ek_logit_bias) + PAD;
    bytes += (size_t)params->n_stops * sizeof(ek_str) + PAD;
    for (int32_t i = 0; i < params->n_stops; i++)
        bytes += params->stops[i].len + PAD;
    bytes += ek_engine_text_bytes(params->stops, params->n_stops) + PAD;
    bytes += ek_engine_sampler_bytes(shape->n_vocab, total_tokens(params), &params->sampling);
    return bytes + PAD + ek_engine_outbox_bytes(n_top_max(&params->sampling)) + PAD;
}

static const void *copy(ek_arena *arena, const void *data, size_t n, size_t size)
{
    void *mem = ek_arena_alloc(arena, n, size, PAD);
    if (n > 0) memcpy(mem, data, n * size);
    return mem;
}

static const ek_str *copy_stops(ek_arena *arena, const ek_request_params *params)
{
    ek_str *stops = ek_new(arena, ek_str, params->n_stops);
    for (int32_t i = 0; i < params->n_stops; i++) {
        stops[i].len = params->stops[i].len;
        stops[i].data = copy(arena, params->stops[i].data, stops[i].len, 1);
    }
    return stops;
}

static void init_output(ek_request *request, ek_arena *arena, const ek_request_shape *shape,
                        const ek_request_params *params)
{
    request->sampling = params->sampling;
    request->sampling.bias = copy(arena, params->sampling.bias, (size_t)params->sampling.n_bias,
                                  sizeof *params->sampling.bias);
    request->stop_ids =
        copy(arena, params->stop_ids, (size_t)params->n_stop_ids, sizeof *params->stop_ids);
    request->n_stop_ids = params->n_stop_ids;
    request->ignore_eos = params->ignore_eos;
    const ek_str *stops = copy_stops(arena, params);
    bool drops_space = params->fresh_text && shape->texts_begin_with_space;
    request->text = ek_engine_text_init(arena, stops, params->n_stops, drops_space);
    request->sampler =
        ek_engine_sampler_init(arena, shape->n_vocab, total_tokens(params), &request->sampling);
    ek_engine_sampler_prompt(request->sampler, request->tokens, request->n_prompt);
    ek_engine_outbox_init(&request->outbox, arena, n_top_max(&request->sampling));
}

ek_request *ek_engine_request_create(const ek_request_shape *shape, const ek_request_params *params,
                                     ek_logits_call *call, int64_t now_us)
{
    size_t bytes = base_bytes(shape, params) + (call ? 0 : output_bytes(shape, params));
    void *memory = ek_sys_calloc(1, bytes);
    if (!memory) return NULL;
    ek_arena arena = ek_arena_over(memory, bytes);
    ek_request *request = ek_new(&arena, ek_request, 1);
    request->memory = memory;
    request->news.tag = params->tag;
    request->submitted_us = now_us;
    request->deadline_us = params->deadline_us;
    request->n_prompt = params->n_prompt;
    request->max_tokens = params->max_tokens;
    request->logits_call = call;
    request->tokens = ek_new(&arena, int32_t, total_tokens(params));
    memcpy(request->tokens, params->prompt, (size_t)params->n_prompt * sizeof *params->prompt);
    request->n_tokens = params->n_prompt;
    request->kv.n_blocks_max = blocks_max(shape, params);
    request->kv.block = ek_new(&arena, int32_t, request->kv.n_blocks_max);
    request->expert_seen = ek_new(&arena, uint64_t, bitmap_words(shape));
    if (!call) init_output(request, &arena, shape, params);
    /* Relaxed: the request reaches the step thread through a queue, which orders it. */
    atomic_store_explicit(&request->n_refs, 2, memory_order_relaxed);
    return request;
}

void ek_engine_request_unref(ek_request *request)
{
    /* Release what this side did; acquire what the other did before the block goes. */
    if (atomic_fetch_sub_explicit(&request->n_refs, 1, memory_order_acq_rel) == 1)
        ek_sys_free(request->memory);
}

void ek_engine_request_usage(const ek_request *request, int64_t now_us, ek_usage *out_usage)
{
    int64_t start = request->submitted_us;
    int64_t finished = atomic_load_explicit(&request->finished_us, memory_order_relaxed);
    int64_t end = finished ? finished : now_us;
    int64_t started = atomic_load_explicit(&request->started_us, memory_order_relaxed);
    int64_t first = atomic_load_explicit(&request->first_seen_us, memory_order_relaxed);
    out_usage->prompt_tokens = request->n_prompt;
    out_usage->cached_tokens = atomic_load_explicit(&request->n_cached, memory_order_relaxed);
    out_usage->completion_tokens =
        atomic_load_explicit(&request->n_completion, memory_order_relaxed);
    out_usage->degraded = atomic_load_explicit(&request->lost_rows, memory_order_relaxed);
    out_usage->queue_us = (started ? started : end) - start;
    out_usage->ttft_us = first ? first - start : 0;
    out_usage->total_us = end - start;
}

bool ek_engine_request_canceled(const ek_request *request)
{
    return atomic_load_explicit(&request->canceled, memory_order_relaxed);
}

int64_t ek_engine_request_due(const ek_request *request, int64_t queue_timeout_us)
{
    int64_t due = request->deadline_us ? request->deadline_us : INT64_MAX;
    if (request->admitted || queue_timeout_us <= 0) return due;
    int64_t queue_due = request->submitted_us + queue_timeout_us;
    return queue_due < due ? queue_due : due;
}
