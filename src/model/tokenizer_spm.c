#include "model/tokenizer_spm.h"

#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "model/merge.h"
#include "model/tokenizer.h"

static const char SCORES_KEY[] = "tokenizer.ggml.scores";

/* Bits of a float in an order that counts down as the value goes up. */
static uint32_t rank_of_score(float score)
{
    uint32_t bits;
    score += 0.0f; /* -0 and 0 are one score */
    memcpy(&bits, &score, sizeof bits);
    uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ~ascending;
}

static ek_status init_ranks(ek_spm *spm, const ek_gguf *gguf, ek_arena *perm, ek_err *err)
{
    int32_t n_tokens = spm->vocab->n_tokens;
    ek_gguf_array scores;
    ek_status status = ek_model_gguf_array(gguf, SCORES_KEY, EK_GGUF_F32, &scores, err);
    if (status == EK_ENOTFOUND) return ek_err_set(err, EK_EFORMAT, "%s is missing", SCORES_KEY);
    if (status != EK_OK) return status;
    if (scores.len != n_tokens)
        return ek_err_set(err, EK_EFORMAT, "%s has %lld entries, tokenizer.ggml.tokens has %d",
                          SCORES_KEY, (long long)scores.len, n_tokens);
    spm->ranks = ek_try_new(perm, uint32_t, n_tokens);
    if (!spm->ranks) return ek_err_set(err, EK_ENOMEM, "no memory for %d scores", n_tokens);
    for (int32_t id = 0; id < n_tokens; id++) {
        float score = ek_model_gguf_array_f32(&scores, id);
        if (!isfinite(score))
            return ek_err_set(err, EK_EFORMAT, "%s[%d] is not a finite number", SCORES_KEY, id);
        spm->ranks[id] = rank_of_score(score);
    }
    return EK_OK;
}

static bool crosses_words(ek_str piece)
{
    for (size_t i = 1; i < piece.len; i++)
        if (piece.data[i] == ' ' && piece.data[i - 1] != ' ') return true;
    return false;
}

static ek_status init_pieces(ek_spm *spm, ek_arena *perm, ek_err *err)
{
    const ek_vocab *vocab = spm->vocab;
    spm->is_word = ek_try_new(perm, bool, vocab->n_tokens);
    if (!spm->is_word ||
        !ek_model_str_index_init(&spm->by_piece, vocab->pieces, vocab->n_tokens, perm))
        return ek_err_set(err, EK_ENOMEM, "no memory for an index of pieces");
    spm->whole_words = true;
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        if (!ek_model_vocab_is_text(vocab, id) || vocab->pieces[id].len == 0) continue;
        ek_model_str_index_put(&spm->by_piece,
                               id); /* a later " " beside an earlier U+2581 is moot */
        if (crosses_words(vocab->pieces[id])) spm->whole_words = false;
    }
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        if (vocab->kinds[id] != EK_TOKEN_NORMAL || vocab->pieces[id].len == 0) continue;
        int32_t first[1];
        ek_ids ids = {.data = first, .max = 1};
        ek_status status = ek_model_spm_merge(spm, vocab->pieces[id], *perm, &ids, NULL);
        if (status == EK_ENOMEM) return ek_err_set(err, EK_ENOMEM, "no memory to check the pieces");
        spm->is_word[id] = status == EK_OK && first[0] == id;
    }
    return EK_OK;
}

/* Every byte needs a way into a token. */
static ek_status init_fallback(ek_spm *spm, const ek_gguf *gguf, ek_err *err)
{
    int64_t unknown = -1;
    ek_status status = ek_model_gguf_int(gguf, "tokenizer.ggml.unknown_token_id", 0,
                                         spm->vocab->n_tokens - 1, &unknown, err);
    if (status != EK_OK && status != EK_ENOTFOUND) return status;
    for (int32_t id = 0; id < spm->vocab->n_tokens && unknown < 0; id++)
        if (spm->vocab->kinds[id] == EK_TOKEN_UNKNOWN) unknown = id;
    spm->unknown_id = (int32_t)unknown;
    for (int byte = 0; byte < 256 && unknown < 0; byte++)
        if (spm->vocab->byte_ids[byte] < 0)
            return ek_err_set(err, EK_EFORMAT,
                              "tokenizer.ggml.tokens has neither <0x%02X> nor an unknown token",
                              byte);
    return EK_OK;
}

ek_status ek_model_spm_init(ek_spm *spm, const ek_gguf *gguf, const ek_vocab *vocab, ek_arena *perm,
                            ek_err *err)
{
    *spm = (ek_spm){.vocab = vocab, .prefix_space = true};
    ek_status status =
        ek_model_gguf_bool(gguf, "tokenizer.ggml.add_space_prefix", &spm->prefix_space, err);
    if (status != EK_OK && status != EK_ENOTFOUND) return status;
    status = init_fallback(spm, gguf, err);
    if (status == EK_OK) status = init_ranks(spm, gguf, perm, err);
    if (status == EK_OK) status = init_pieces(spm, perm, err);
    return status;
}

typedef struct spelled {
    const ek_spm *spm;
    ek_str text;
} spelled;

/* Text of the original symbols [first, last). */
static ek_str text_of(const spelled *word, const ek_merge *merge, int32_t first, int32_t last)
{
    size_t beg = (size_t)merge->beg[first];
    return (ek_str){word->text.data + beg, (size_t)merge->beg[last] - beg};
}

static ek_join piece_join(const void *ctx, const ek_merge *merge, int32_t left, int32_t right)
{
    const spelled *word = ctx;
    ek_str both = text_of(word, merge, left, merge->next[right]);
    int32_t id = ek_model_str_index_find(&word->spm->by_piece, both);
    if (id < 0) return (ek_join){.rank = EK_JOIN_NONE, .id = -1};
    return (ek_join){.rank = word->spm->ranks[id], .id = id};
}

/* A character outside the vocabulary: its bytes, or where those are missing the unknown token. */
static ek_status push_bytes(const ek_spm *spm, ek_str character, ek_ids *ids)
{
    for (size_t i = 0; i < character.len; i++)
        if (spm->vocab->byte_ids[(uint8_t)character.data[i]] < 0)
            return ek_model_ids_push(ids, spm->unknown_id);
    ek_status status = EK_OK;
    for (size_t i = 0; i < character.len && status == EK_OK; i++)
        status = ek_model_ids_push(ids, spm->vocab->byte_ids[(uint8_t)character.data[i]]);
    return status;
}

/* Where the last of the joins that made [first, last) took place. */
static int32_t last_join(const ek_merge *merge, int32_t first, int32_t last)
{
    int32_t at = first + 1;
    for (int32_t i = first + 2; i < last; i++)
        if (merge->prev[i] > merge->prev[at]) at = i;
    return at;
}

/*
 * Unused pieces may serve as steps to longer ones, but do not come out: one that is left over is
 * taken apart the way it was put together. Its right halves wait on a stack; it is at most a piece
 * deep.
 */
static ek_status push_apart(const spelled *word, const ek_merge *merge, int32_t first, int32_t last,
                            ek_ids *ids)
{
    int32_t waiting[EK_TOKENIZER_PIECE_MAX];
    int n_waiting = 0;
    ek_status status = EK_OK;
    while (status == EK_OK) {
        ek_str text = text_of(word, merge, first, last);
        int32_t id = ek_model_str_index_find(&word->spm->by_piece, text);
        bool unused = id >= 0 && word->spm->vocab->kinds[id] == EK_TOKEN_UNUSED;
        if (unused && last - first > 1) {
            waiting[n_waiting++] = last;
            last = last_join(merge, first, last);
            continue;
        }
        status = id >= 0 ? ek_model_ids_push(ids, id) : push_bytes(word->spm, text, ids);
        if (n_waiting == 0) break;
        first = last;
        last = waiting[--n_waiting];
    }
    return status;
}

/* One symbol per character; a byte that belongs to none is a symbol of its own. */
static int32_t split_characters(const ek_spm *spm, ek_str word, ek_merge *merge)
{
    int32_t n = 0;
    const char *end = word.data + word.len;
    for (const char *c = word.data; c < end; n++) {
        uint32_t cp = 0;
        size_t len = ek_utf8_decode((ek_str){c, (size_t)(end - c)}, &cp);
        if (len == 0) len = 1;
        if (merge) {
            merge->beg[n] = (int32_t)(c - word.data);
            merge->id[n] = ek_model_str_index_find(&spm->by_piece, (ek_str){c, len});
        }
        c += len;
    }
    if (merge) merge->beg[n] = (int32_t)word.len;
    return n;
}

ek_status ek_model_spm_merge(const ek_spm *spm, ek_str word, ek_arena scratch, ek_ids *ids,
                             int64_t *io_steps)
{
    ek_merge_small small;
    ek_merge merge;
    if (!ek_model_merge_init(&merge, split_characters(spm, word, NULL), &small, &scratch))
        return EK_ENOMEM;
    split_characters(spm, word, &merge);
    spelled spelling = {spm, word};
    ek_model_merge_run(&merge, piece_join, &spelling);
    ek_status status = EK_OK;
    for (int32_t i = 0; i < merge.n && status == EK_OK; i = merge.next[i]) {
        int32_t id = merge.id[i];
        if (id < 0)
            status = push_bytes(spm, text_of(&spelling, &merge, i, merge.next[i]), ids);
        else if (spm->vocab->kinds[id] == EK_TOKEN_UNUSED)
            status = push_apart(&spelling, &merge, i, merge.next[i], ids);
        else
            status = ek_model_ids_push(ids, id);
    }
    if (io_steps) *io_steps += merge.n_steps;
    return status;
}

/* Bytes of the word that text begins with: its spaces, and all up to the next one. */
static size_t word_len(ek_str text)
{
    size_t i = 0;
    while (i < text.len && text.data[i] == ' ')
        i++;
    const char *space = i < text.len ? memchr(text.data + i, ' ', text.len - i) : NULL;
    return space ? (size_t)(space - text.data) : text.len;
}

ek_status ek_model_spm_encode(const ek_spm *spm, ek_str text, bool with_prefix, ek_arena scratch,
                              ek_ids *ids)
{
    if (with_prefix && spm->prefix_space) {
        char *prefixed = ek_try_new(&scratch, char, text.len + 1);
        if (!prefixed) return EK_ENOMEM;
        prefixed[0] = ' ';
        if (text.len > 0) memcpy(prefixed + 1, text.data, text.len);
        text = (ek_str){prefixed, text.len + 1};
    }
    ek_status status = EK_OK;
    while (text.len > 0 && status == EK_OK) {
        ek_str word = {text.data, spm->whole_words ? word_len(text) : text.len};
        int32_t id = ek_model_str_index_find(&spm->by_piece, word);
        if (id >= 0 && spm->is_word[id])
            status = ek_model_ids_push(ids, id);
        else
            status = ek_model_spm_merge(spm, word, scratch, ids, NULL);
        text = (ek_str){text.data + word.len, text.len - word.len};
    }
    return status;
}
