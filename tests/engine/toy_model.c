#include "toy_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/assert.h"
#include "base/rng.h"
#include "engine/forward.h"
#include "engine/kv.h"
#include "expert/local.h"
#include "expert/model_file.h"
#include "model/chat.h"
#include "model/tokenizer.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/mem.h"

#define HEAD_DIM 8

toy_knobs toy;

/* ---- the function that is the model ---- */

static uint64_t hash_step(uint64_t hash, int32_t id)
{
    return ek_mix64(hash ^ (uint64_t)(uint32_t)id);
}

static void logits_of(uint64_t hash, float *out_logits)
{
    for (int32_t id = 0; id < TOY_N_VOCAB; id++)
        out_logits[id] = (float)(ek_mix64(hash + (uint64_t)id) >> 40) * (8.0f / (1 << 24));
    /* It says the end once in 64 tokens, and then means it. */
    out_logits[TOY_END] = hash % 64 == 0 ? 50.0f : -50.0f;
}

void toy_logits(const int32_t *tokens, int32_t n_tokens, float *out_logits)
{
    uint64_t hash = 0;
    for (int32_t i = 0; i < n_tokens; i++)
        hash = hash_step(hash, tokens[i]);
    logits_of(hash, out_logits);
}

/* ---- in place of the model file ---- */

static const ek_model model = {
    .params =
        {
            .arch = "toy",
            .n_layers = TOY_N_LAYERS,
            .d_model = HEAD_DIM,
            .n_vocab = TOY_N_VOCAB,
            .context_tokens = TOY_CONTEXT,
            .n_heads = 1,
            .n_kv_heads = 1,
            .head_dim_k = HEAD_DIM,
            .head_dim_v = HEAD_DIM,
            .n_experts = TOY_N_EXPERTS,
            .top_k = 1,
            .n_params_total = 1000,
            .n_params_active = 500,
            .weight_bytes = 4000,
        },
};

ek_status ek_expert_model_open(const char *path, const char *chat_format, ek_model_file **out_file,
                               ek_err *err)
{
    (void)chat_format;
    if (strcmp(path, "toy") != 0)
        return ek_err_set(err, EK_ENOTFOUND, "%s: there is no such toy", path);
    ek_model_file *file = ek_sys_calloc(1, sizeof *file);
    assert_non_null(file);
    file->model = &model;
    file->file_bytes = model.params.weight_bytes;
    *out_file = file;
    return EK_OK;
}

ek_status ek_expert_model_overlay(ek_model_file *file, const char *overlay_path, ek_err *err)
{
    (void)file;
    return ek_err_set(err, EK_EUNSUPPORTED, "%s: the toy has no gates", overlay_path);
}

void ek_expert_model_close(ek_model_file *file)
{
    ek_sys_free(file);
}

const char *ek_model_chat_name(const ek_chat_format *format)
{
    (void)format;
    return "toy";
}

ek_status ek_expert_local_create(const ek_expert_local_params *params,
                                 ek_dispatcher **out_dispatcher, ek_err *err)
{
    (void)params, (void)err;
    *out_dispatcher = NULL;
    return EK_OK;
}

/* ---- in place of the tokenizer ---- */

/* Pieces that stop strings and characters are made of, whole and in halves. */
static const char *const pieces[] = {
    "",
    "",
    " ",
    "\n",
    "a",
    "b",
    "c",
    "END",
    "E",
    "EN",
    "ND",
    "D",
    "ab",
    "bc",
    "\xE4",
    "\xB8",
    "\xAD",
    "\xE4\xB8",
    "\xF0\x9F",
    "\x98\x80",
    "\xE4\xB8\xAD",
    "\xC3\xA9",
    "\xF0\x9F\x98\x80",
    "\xFF",
    "stop",
    "st",
    "op",
    ". ",
};

const char *toy_piece(int32_t id)
{
    static const char *const letters[] = {"d", "e", "f", "g", "h", "i", "j", "k",
                                          "l", "m", "n", "o", "p", "q", "r", "s"};
    size_t at = (size_t)id;
    return at < EK_COUNT_OF(pieces) ? pieces[at] : letters[at % EK_COUNT_OF(letters)];
}

size_t ek_model_tokenizer_piece(const ek_tokenizer *tokenizer, int32_t id, bool show_special,
                                char out_piece[EK_TOKENIZER_PIECE_MAX])
{
    (void)tokenizer, (void)show_special;
    size_t n = strlen(toy_piece(id));
    memcpy(out_piece, toy_piece(id), n);
    return n;
}

bool ek_model_tokenizer_strips_first_space(const ek_tokenizer *tokenizer)
{
    (void)tokenizer;
    return false;
}

bool ek_model_tokenizer_is_end(const ek_tokenizer *tokenizer, int32_t id)
{
    (void)tokenizer;
    return id == TOY_END;
}

/* ---- in place of the forward pass ---- */

struct ek_forward {
    ek_forward_params params;
};

ek_route_gate ek_engine_gate_of(const ek_model_params *params)
{
    return (ek_route_gate){
        .score = EK_ROUTE_SOFTMAX,
        .n_experts = params->n_experts,
        .top_k = params->top_k,
        .n_groups = 1,
        .n_groups_used = 1,
        .scale = 1.0f,
    };
}

ek_status ek_engine_forward_create(const ek_forward_params *params, ek_forward **out_forward,
                                   ek_err *err)
{
    (void)err;
    ek_forward *forward = ek_sys_calloc(1, sizeof *forward);
    assert_non_null(forward);
    forward->params = *params;
    *out_forward = forward;
    return EK_OK;
}

void ek_engine_forward_destroy(ek_forward *forward)
{
    ek_sys_free(forward);
}

int64_t ek_engine_forward_bytes(const ek_forward_params *params)
{
    return 100 * (int64_t)params->batch_tokens_max;
}

void ek_engine_forward_refresh(ek_forward *forward)
{
    (void)forward; /* reads no tensor */
}

void ek_engine_forward_times(const ek_forward *forward, int64_t *out_plan_ns, int64_t *out_total_ns)
{
    (void)forward;
    *out_plan_ns = *out_total_ns = 0;
}

/* A position's cell in the cache holds its token and its number. */
static uint16_t *cell(const ek_forward *forward, const ek_kv_seq *seq, int32_t position)
{
    int32_t block_tokens = ek_engine_kv_params(forward->params.kv)->block_tokens;
    int32_t block = position / block_tokens;
    ek_assert(block < seq->n_blocks); /* the engine reserved what it runs */
    uint16_t *keys = ek_engine_kv_keys(forward->params.kv, seq->block[block], 0, 0);
    return keys + (ptrdiff_t)(position % block_tokens) * HEAD_DIM;
}

static void run_seq(const ek_forward *forward, const ek_batch_seq *seq, float *out_logits)
{
    int32_t beg = seq->kv->n_tokens, end = beg + seq->n_tokens;
    ek_assert(seq->n_tokens >= 1 && end <= forward->params.context_tokens);
    for (int32_t i = beg; i < end; i++) {
        uint16_t *at = cell(forward, seq->kv, i);
        at[0] = (uint16_t)seq->tokens[i - beg];
        at[1] = (uint16_t)i;
    }
    seq->kv->n_tokens = end;
    if (!seq->wants_logits) return;
    uint64_t hash = 0;
    for (int32_t i = 0; i < end; i++) {
        const uint16_t *at = cell(forward, seq->kv, i);
        hash = hash_step(hash, at[1] == (uint16_t)i ? at[0] : -1);
    }
    logits_of(hash, out_logits);
}

static void raise_to(_Atomic int32_t *most, int32_t value)
{
    if (value > atomic_load(most)) atomic_store(most, value);
}

static void note_batch(const ek_batch *batch)
{
    int32_t n_tokens = 0, n_prompt = 0;
    for (int32_t i = 0; i < batch->n_seqs; i++) {
        n_tokens += batch->seqs[i].n_tokens;
        if (batch->seqs[i].n_tokens > 1) n_prompt += batch->seqs[i].n_tokens;
    }
    atomic_fetch_add(&toy.n_steps, 1);
    atomic_fetch_add(&toy.n_positions, n_tokens);
    raise_to(&toy.n_tokens_max, n_tokens);
    raise_to(&toy.n_prompt_max, n_prompt);
}

ek_status ek_engine_forward_run(ek_forward *forward, const ek_batch *batch, float *out_logits)
{
    note_batch(batch);
    ek_sys_sleep_us(atomic_load(&toy.step_us));
    if (atomic_load(&toy.fail_steps) > 0) {
        atomic_fetch_sub(&toy.fail_steps, 1);
        return EK_EPEER;
    }
    int32_t row = 0;
    for (int32_t i = 0; i < batch->n_seqs; i++) {
        ek_assert(row < forward->params.logits_rows_max);
        run_seq(forward, &batch->seqs[i], out_logits + (ptrdiff_t)row * TOY_N_VOCAB);
        row += batch->seqs[i].wants_logits;
    }
    return EK_OK;
}

/* ---- engines on it ---- */

ek_engine_params toy_params(void)
{
    ek_engine_params params = {
        .n_threads = 2,
        .kernels = EK_KERNELS_REFERENCE,
        .kv_bytes = (int64_t)4 << 20,
        .running_max = 4,
        .queue_max = 8,
        .kv_block_tokens = 16,
        .prefill_chunk_tokens = 64,
        .prefix_cache = true,
        .prefix_ttl_us = 60000000,
        .step_watchdog_us = 10000000,
    };
    ek_route_params_default(&params.route);
    ek_keel_params_default(&params.keel);
    return params;
}

int64_t toy_block_bytes(const ek_engine_params *params)
{
    const ek_kv_params kv = {
        .n_layers = TOY_N_LAYERS,
        .n_kv_heads = 1,
        .head_dim_k = HEAD_DIM,
        .head_dim_v = HEAD_DIM,
        .block_tokens = params->kv_block_tokens,
        .n_blocks = 1,
    };
    return ek_engine_kv_block_bytes(&kv);
}

ek_engine *toy_engine(const ek_engine_params *params, ek_metrics *metrics)
{
    ek_engine *engine = NULL;
    ek_err err = {0};
    memset(&toy, 0, sizeof toy);
    ek_sys_log_set_level(EK_LOG_ERROR); /* starts and stops are not news here */
    if (ek_engine_create(params, "toy", NULL, metrics, &engine, &err) != EK_OK)
        fail_msg("create: %s", err.text);
    return engine;
}
