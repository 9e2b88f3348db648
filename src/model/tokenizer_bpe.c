#include "model/tokenizer_bpe.h"

#include <string.h>

#include "base/utf8.h"
#include "model/desc.h"
#include "model/merge.h"
#include "model/tokenizer.h"

static const char PRE_KEY[] = "tokenizer.ggml.pre";

static uint32_t pair_hash(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

/* The pair's slot, or the free one where it would go. */
static ek_bpe_pair *pair_slot(const ek_bpe *bpe, int32_t left, int32_t right)
{
    for (uint32_t i = pair_hash(left, right) & bpe->mask;; i = (i + 1) & bpe->mask) {
        ek_bpe_pair *pair = &bpe->pairs[i];
        if (pair->left < 0 || (pair->left == left && pair->right == right)) return pair;
    }
}

static ek_join pair_join(const void *ctx, const ek_merge *merge, int32_t left, int32_t right)
{
    const ek_bpe_pair *pair = pair_slot(ctx, merge->id[left], merge->id[right]);
    if (pair->left < 0) return (ek_join){.rank = EK_JOIN_NONE, .id = -1};
    return (ek_join){.rank = pair->rank, .id = pair->id};
}

static ek_status init_bytes(const ek_vocab *vocab, ek_err *err)
{
    for (int byte = 0; byte < 256; byte++)
        if (vocab->byte_ids[byte] < 0)
            return ek_err_set(err, EK_EFORMAT,
                              "tokenizer.ggml.tokens has no token for the byte 0x%02X alone", byte);
    return EK_OK;
}

/* Enter merge number `rank`, which is "left right". */
static ek_status add_merge(ek_bpe *bpe, ek_str text, uint32_t rank, ek_err *err)
{
    const ek_str_index *names = &bpe->vocab->by_name;
    char joined[2 * EK_TOKENIZER_PIECE_MAX];
    const char *space = text.len > 2 ? memchr(text.data + 1, ' ', text.len - 2) : NULL;
    if (!space)
        return ek_err_set(err, EK_EFORMAT, "%s[%u] is \"%.*s\", not two tokens and a space",
                          EK_BPE_MERGES_KEY, rank, EK_STR_ARG(text));
    ek_str side[2] = {{text.data, (size_t)(space - text.data)}};
    side[1] = (ek_str){space + 1, text.len - side[0].len - 1};
    int32_t id[2];
    for (int i = 0; i < 2; i++) {
        id[i] = ek_model_str_index_find(names, side[i]);
        if (id[i] < 0)
            return ek_err_set(err, EK_EFORMAT, "%s[%u] is \"%.*s\", but there is no token \"%.*s\"",
                              EK_BPE_MERGES_KEY, rank, EK_STR_ARG(text), EK_STR_ARG(side[i]));
    }
    memcpy(joined, side[0].data, side[0].len); /* tokens, so each fits */
    memcpy(joined + side[0].len, side[1].data, side[1].len);
    ek_str both = {joined, side[0].len + side[1].len};
    int32_t result = ek_model_str_index_find(names, both);
    if (result < 0)
        return ek_err_set(err, EK_EFORMAT, "%s[%u] is \"%.*s\", but there is no token \"%.*s\"",
                          EK_BPE_MERGES_KEY, rank, EK_STR_ARG(text), EK_STR_ARG(both));
    if (!ek_model_vocab_is_text(bpe->vocab, result))
        return ek_err_set(err, EK_EFORMAT, "%s[%u] makes \"%.*s\", which is not a token of text",
                          EK_BPE_MERGES_KEY, rank, EK_STR_ARG(both));
    ek_bpe_pair *pair = pair_slot(bpe, id[0], id[1]);
    if (pair->left < 0) *pair = (ek_bpe_pair){id[0], id[1], rank, result};
    return EK_OK;
}

static ek_status init_pairs(ek_bpe *bpe, const ek_gguf *gguf, ek_arena *perm, ek_err *err)
{
    ek_gguf_array merges;
    ek_status status = ek_model_gguf_array(gguf, EK_BPE_MERGES_KEY, EK_GGUF_STRING, &merges, err);
    if (status == EK_ENOTFOUND)
        return ek_err_set(err, EK_EFORMAT, "%s is missing", EK_BPE_MERGES_KEY);
    if (status != EK_OK) return status;
    if (merges.len > 2 * (int64_t)EK_MODEL_VOCAB_MAX)
        return ek_err_set(err, EK_EFORMAT, "%s has %lld entries; %d are supported",
                          EK_BPE_MERGES_KEY, (long long)merges.len, 2 * EK_MODEL_VOCAB_MAX);
    uint32_t n_slots = 16;
    while (n_slots / 2 < (uint64_t)merges.len)
        n_slots *= 2;
    bpe->pairs = ek_try_new(perm, ek_bpe_pair, n_slots);
    if (!bpe->pairs)
        return ek_err_set(err, EK_ENOMEM, "no memory for %lld merges", (long long)merges.len);
    bpe->mask = n_slots - 1;
    for (uint32_t i = 0; i < n_slots; i++)
        bpe->pairs[i].left = -1;
    for (int64_t i = 0; i < merges.len && status == EK_OK; i++)
        status = add_merge(bpe, merges.strings[i], (uint32_t)i, err);
    return status;
}

/* True where encoding the token's own bytes gives the token back. */
static ek_status is_word(const ek_bpe *bpe, int32_t id, ek_arena scratch, bool *out_is_word)
{
    int32_t first[1];
    ek_ids ids = {.data = first, .max = 1};
    ek_status status = ek_model_bpe_merge(bpe, bpe->vocab->pieces[id], scratch, &ids, NULL);
    *out_is_word = status == EK_OK && first[0] == id;
    return status == EK_ERANGE ? EK_OK : status; /* more than one id */
}

/*
 * Which pieces are one token is worked out once, from the merges themselves, so that the look-up
 * never changes a result; models that ignore merges have all pieces here by definition.
 */
static ek_status init_words(ek_bpe *bpe, ek_arena *perm, ek_err *err)
{
    const ek_vocab *vocab = bpe->vocab;
    ek_str_index words;
    if (!ek_model_str_index_init(&words, vocab->pieces, vocab->n_tokens, perm))
        return ek_err_set(err, EK_ENOMEM, "no memory for an index of pieces");
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        if (!ek_model_vocab_is_text(vocab, id) || vocab->pieces[id].len == 0) continue;
        bool word = bpe->pre.rule->ignore_merges && ek_model_vocab_is_byte_spelled(vocab, id);
        if (!word && is_word(bpe, id, *perm, &word) != EK_OK)
            return ek_err_set(err, EK_ENOMEM, "no memory to check the merges");
        if (word) ek_model_str_index_put(&words, id);
    }
    bpe->words = words;
    return EK_OK;
}

ek_status ek_model_bpe_init(ek_bpe *bpe, const ek_gguf *gguf, const ek_vocab *vocab, ek_arena *perm,
                            ek_err *err)
{
    *bpe = (ek_bpe){.vocab = vocab};
    ek_str name = EK_STR("default");
    ek_status status = ek_model_gguf_str(gguf, PRE_KEY, &name, err);
    if (status != EK_OK && status != EK_ENOTFOUND) return status;
    status = ek_model_pretokenizer_init(&bpe->pre, name, true, err);
    if (status != EK_OK) return status;
    status = init_bytes(vocab, err);
    if (status == EK_OK) status = init_pairs(bpe, gguf, perm, err);
    if (status == EK_OK) status = init_words(bpe, perm, err);
    if (status != EK_OK) ek_model_bpe_fini(bpe);
    return status;
}

void ek_model_bpe_fini(ek_bpe *bpe)
{
    ek_model_pretokenizer_fini(&bpe->pre);
}

ek_status ek_model_bpe_merge(const ek_bpe *bpe, ek_str piece, ek_arena scratch, ek_ids *ids,
                             int64_t *io_steps)
{
    ek_merge_small small;
    ek_merge merge;
    if (!ek_model_merge_init(&merge, (int32_t)piece.len, &small, &scratch)) return EK_ENOMEM;
    for (int32_t i = 0; i < merge.n; i++)
        merge.id[i] = bpe->vocab->byte_ids[(uint8_t)piece.data[i]];
    ek_model_merge_run(&merge, pair_join, bpe);
    ek_status status = EK_OK;
    for (int32_t i = 0; i < merge.n && status == EK_OK; i = merge.next[i])
        status = ek_model_ids_push(ids, merge.id[i]);
    if (io_steps) *io_steps += merge.n_steps;
    return status;
}

static ek_status encode_valid(const ek_bpe *bpe, ek_pretokenize_cursor *cursor, ek_str text,
                              ek_arena scratch, ek_ids *ids)
{
    ek_model_pretokenize_text(cursor, text);
    for (;;) {
        ek_str piece;
        ek_status status = ek_model_pretokenize_next(cursor, &piece);
        if (status != EK_OK) return status == EK_END ? EK_OK : status;
        int32_t word = ek_model_str_index_find(&bpe->words, piece);
        if (word >= 0)
            status = ek_model_ids_push(ids, word);
        else
            status = ek_model_bpe_merge(bpe, piece, scratch, ids, NULL);
        if (status != EK_OK) return status;
    }
}

/*
 * Patterns are for characters: bytes that form none stand between the texts and become a token
 * each.
 */
ek_status ek_model_bpe_encode(const ek_bpe *bpe, ek_pretokenize_cursor *cursor, ek_str text,
                              ek_arena scratch, ek_ids *ids)
{
    const char *end = text.data + text.len;
    const char *beg = text.data;
    for (const char *at = beg; beg < end;) {
        uint32_t cp = 0;
        size_t len = at < end ? ek_utf8_decode((ek_str){at, (size_t)(end - at)}, &cp) : 0;
        if (len > 0) {
            at += len;
            continue;
        }
        ek_status status =
            encode_valid(bpe, cursor, (ek_str){beg, (size_t)(at - beg)}, scratch, ids);
        if (status == EK_OK && at < end)
            status = ek_model_ids_push(ids, bpe->vocab->byte_ids[(uint8_t)*at++]);
        if (status != EK_OK) return status;
        beg = at;
    }
    return EK_OK;
}
