#include "engine/outbox.h"

#include <assert.h>
#include <string.h>

#include "base/assert.h"
#include "engine/text_stream.h"

#define TEXT_MASK  (EK_OUTBOX_TEXT_BYTES - 1)
#define TOKEN_MASK (EK_OUTBOX_TOKENS - 1)

static_assert((EK_OUTBOX_TEXT_BYTES & TEXT_MASK) == 0 && (EK_OUTBOX_TOKENS & TOKEN_MASK) == 0,
              "ring positions are counters masked");
static_assert(EK_OUTBOX_TEXT_BYTES / 2 >= EK_TEXT_FEED_MAX + EK_TEXT_FLUSH_MAX,
              "half an outbox holds a token's text");
static_assert(EK_ENGINE_READ_BYTES >= EK_TEXT_FEED_MAX + EK_TEXT_FLUSH_MAX,
              "every read gets on, whatever a token says");

size_t ek_engine_outbox_bytes(int32_t n_top_max)
{
    size_t bytes = EK_OUTBOX_TEXT_BYTES;
    bytes += EK_OUTBOX_TOKENS * sizeof(ek_outbox_token) + _Alignof(ek_outbox_token);
    bytes += EK_OUTBOX_TOKENS * (size_t)n_top_max * sizeof(ek_token_logprob);
    return bytes + _Alignof(ek_token_logprob);
}

void ek_engine_outbox_init(ek_outbox *outbox, ek_arena *perm, int32_t n_top_max)
{
    outbox->text = ek_new(perm, char, EK_OUTBOX_TEXT_BYTES);
    outbox->token = ek_new(perm, ek_outbox_token, EK_OUTBOX_TOKENS);
    outbox->top = ek_new(perm, ek_token_logprob, EK_OUTBOX_TOKENS * n_top_max);
    outbox->n_top_max = n_top_max;
}

/* ---- step thread ---- */

typedef struct fill {
    uint64_t tokens, text;
} fill;

static fill fill_of(const ek_outbox *outbox)
{
    /*
     * Sequentially consistent against the reader's store, as the pause needs; also acquires the
     * emptied slots.
     */
    uint64_t n_taken = atomic_load_explicit(&outbox->n_taken, memory_order_seq_cst);
    uint64_t text_taken = atomic_load_explicit(&outbox->text_taken, memory_order_seq_cst);
    uint64_t n_put = atomic_load_explicit(&outbox->n_put, memory_order_relaxed);
    return (fill){.tokens = n_put - n_taken, .text = outbox->text_end - text_taken};
}

bool ek_engine_outbox_pauses(ek_outbox *outbox)
{
    if (!atomic_load_explicit(&outbox->paused, memory_order_relaxed)) {
        fill now = fill_of(outbox);
        uint64_t text_room = EK_OUTBOX_TEXT_BYTES - now.text;
        if (now.tokens < EK_OUTBOX_TOKENS && text_room >= EK_TEXT_FEED_MAX + EK_TEXT_FLUSH_MAX)
            return false;
        atomic_store_explicit(&outbox->paused, true, memory_order_seq_cst);
    }
    fill now = fill_of(outbox);
    bool is_roomy = now.tokens <= EK_OUTBOX_TOKENS / 2 && now.text <= EK_OUTBOX_TEXT_BYTES / 2;
    if (is_roomy) atomic_store_explicit(&outbox->paused, false, memory_order_seq_cst);
    return !is_roomy;
}

static void copy_in(ek_outbox *outbox, const char *text, int32_t n_text)
{
    uint64_t at = outbox->text_end & TEXT_MASK;
    size_t n = (size_t)n_text;
    size_t until_wrap = EK_OUTBOX_TEXT_BYTES - at;
    size_t first = n < until_wrap ? n : until_wrap;
    memcpy(outbox->text + at, text, first);
    memcpy(outbox->text, text + first, n - first);
    outbox->text_end += n;
}

void ek_engine_outbox_put(ek_outbox *outbox, const char *text, int32_t n_text,
                          const ek_sampled *sampled)
{
    uint64_t n_put = atomic_load_explicit(&outbox->n_put, memory_order_relaxed);
    uint64_t at = n_put & TOKEN_MASK;
    ek_dassert(fill_of(outbox).tokens < EK_OUTBOX_TOKENS);
    ek_dassert(fill_of(outbox).text + (uint64_t)n_text <= EK_OUTBOX_TEXT_BYTES);
    copy_in(outbox, text, n_text);
    ek_outbox_token *token = &outbox->token[at];
    token->text_end = outbox->text_end;
    token->id = sampled->id;
    token->logprob = sampled->logprob;
    token->n_top = sampled->n_top < outbox->n_top_max ? sampled->n_top : outbox->n_top_max;
    memcpy(outbox->top + at * (uint64_t)outbox->n_top_max, sampled->top,
           (size_t)token->n_top * sizeof *sampled->top);
    /* Release: whoever sees the count sees the token and its text. */
    atomic_store_explicit(&outbox->n_put, n_put + 1, memory_order_release);
}

void ek_engine_outbox_put_rest(ek_outbox *outbox, const char *text, int32_t n_text)
{
    copy_in(outbox, text, n_text);
}

void ek_engine_outbox_finish(ek_outbox *outbox, ek_finish finish)
{
    /* Release: whoever sees the finish sees all tokens, and text_end, which changes no more. */
    atomic_store_explicit(&outbox->finish, (int)finish, memory_order_release);
}

/* ---- reader ---- */

static void copy_out(const ek_outbox *outbox, uint64_t beg, uint64_t end, char *out)
{
    uint64_t at = beg & TEXT_MASK;
    size_t n = (size_t)(end - beg);
    size_t until_wrap = EK_OUTBOX_TEXT_BYTES - at;
    size_t first = n < until_wrap ? n : until_wrap;
    memcpy(out, outbox->text + at, first);
    memcpy(out + first, outbox->text, n - first);
}

static void take_token(const ek_outbox *outbox, uint64_t idx, uint64_t text_beg,
                       ek_output_token *out)
{
    uint64_t at = idx & TOKEN_MASK;
    const ek_outbox_token *token = &outbox->token[at];
    out->id = token->id;
    out->text_end = (int32_t)(token->text_end - text_beg);
    out->logprob = token->logprob;
    out->n_top = token->n_top;
    memcpy(out->top, outbox->top + at * (uint64_t)outbox->n_top_max,
           (size_t)token->n_top * sizeof *out->top);
}

bool ek_engine_outbox_take(ek_outbox *outbox, ek_output *out_output)
{
    /* The finish first: once it is seen, the count loaded after it is final. */
    ek_finish finish = (ek_finish)atomic_load_explicit(&outbox->finish, memory_order_acquire);
    uint64_t n_put = atomic_load_explicit(&outbox->n_put, memory_order_acquire);
    uint64_t idx = atomic_load_explicit(&outbox->n_taken, memory_order_relaxed);
    uint64_t beg = atomic_load_explicit(&outbox->text_taken, memory_order_relaxed);
    uint64_t end = beg;
    int32_t n_tokens = 0;
    for (; idx < n_put && n_tokens < EK_ENGINE_READ_TOKENS; idx++) {
        uint64_t text_end = outbox->token[idx & TOKEN_MASK].text_end;
        if (text_end - beg > EK_ENGINE_READ_BYTES) break;
        take_token(outbox, idx, beg, &out_output->token[n_tokens++]);
        end = text_end;
    }
    bool is_last = finish != EK_FINISH_NONE && idx == n_put;
    if (is_last && outbox->text_end - beg <= EK_ENGINE_READ_BYTES)
        end = outbox->text_end;
    else
        is_last = false;
    copy_out(outbox, beg, end, out_output->text);
    out_output->n_text = (int32_t)(end - beg);
    out_output->n_tokens = n_tokens;
    out_output->finish = is_last ? finish : EK_FINISH_NONE;
    out_output->more = !is_last && (idx < n_put || finish != EK_FINISH_NONE);
    /* These also release the slots to the step thread. */
    atomic_store_explicit(&outbox->text_taken, end, memory_order_seq_cst);
    atomic_store_explicit(&outbox->n_taken, idx, memory_order_seq_cst);
    return atomic_load_explicit(&outbox->paused, memory_order_seq_cst);
}
