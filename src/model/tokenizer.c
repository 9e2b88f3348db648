#include "model/tokenizer.h"

#include <stdio.h>
#include <string.h>

#include "model/merge.h"
#include "model/tokenizer_internal.h"

static const char MODEL_KEY[] = "tokenizer.ggml.model";

/*
 * Names by which chat models end a turn. eos_token_id alone does not do: many files name only one.
 */
static const char *const end_names[] = {"<|im_end|>",
                                        "<|endoftext|>",
                                        "</s>",
                                        "<eos>",
                                        "<|eot_id|>",
                                        "<|eom_id|>",
                                        "<|eot|>",
                                        "<|end_of_text|>",
                                        "<|end|>",
                                        "<|return|>",
                                        "<|call|>",
                                        "<end_of_turn>",
                                        "<|end_of_turn|>",
                                        "<｜end▁of▁sentence｜>",
                                        "<EOT>",
                                        "<|EOT|>",
                                        "[EOT]",
                                        "[EOS]"};

/* ---- creation ---- */

static ek_status read_id(const ek_gguf *gguf, const ek_vocab *vocab, const char *key,
                         const char *usual_name, int32_t *out_id, ek_err *err)
{
    int64_t id = -1;
    ek_status status = ek_model_gguf_int(gguf, key, 0, vocab->n_tokens - 1, &id, err);
    if (status != EK_OK && status != EK_ENOTFOUND) return status;
    if (status == EK_ENOTFOUND && usual_name) {
        id = ek_model_str_index_find(&vocab->by_name, ek_str_from(usual_name));
        if (id >= 0 && vocab->kinds[id] != EK_TOKEN_CONTROL) id = -1;
    }
    *out_id = (int32_t)id;
    return EK_OK;
}

static ek_status init_begin(ek_tokenizer *t, const ek_gguf *gguf, ek_err *err)
{
    static const char key[] = "tokenizer.ggml.add_bos_token";
    ek_status status = read_id(gguf, &t->vocab, "tokenizer.ggml.bos_token_id",
                               t->is_spm ? "<s>" : NULL, &t->bos_id, err);
    if (status != EK_OK) return status;
    t->adds_bos = t->bos_id >= 0 && (t->is_spm || t->bpe.pre.rule->adds_bos);
    status = ek_model_gguf_bool(gguf, key, &t->adds_bos, err);
    if (status != EK_OK && status != EK_ENOTFOUND) return status;
    if (t->adds_bos && t->bos_id < 0)
        return ek_err_set(err, EK_EFORMAT, "%s is true, but tokenizer.ggml.bos_token_id is missing",
                          key);
    return EK_OK;
}

static int32_t control_id(const ek_tokenizer *t, const char *name)
{
    int32_t id = ek_model_tokenizer_find(t, ek_str_from(name));
    return id >= 0 && t->vocab.kinds[id] == EK_TOKEN_CONTROL ? id : -1;
}

static ek_status init_ends(ek_tokenizer *t, const ek_gguf *gguf, ek_arena *perm, ek_err *err)
{
    static const char *const more_keys[] = {"tokenizer.ggml.eot_token_id",
                                            "tokenizer.ggml.eom_token_id"};
    t->is_end = ek_try_new(perm, bool, t->vocab.n_tokens);
    if (!t->is_end) return ek_err_set(err, EK_ENOMEM, "no memory for the list of end tokens");
    /* In the harmony format <|end|> closes one channel of an answer that goes on in another. */
    bool harmony = control_id(t, "<|return|>") >= 0 && control_id(t, "<|call|>") >= 0;
    for (size_t i = 0; i < EK_COUNT_OF(end_names); i++) {
        int32_t id = control_id(t, end_names[i]);
        bool closes = !harmony || strcmp(end_names[i], "<|end|>") != 0;
        if (id >= 0 && closes) t->is_end[id] = true;
    }
    for (size_t i = 0; i < EK_COUNT_OF(more_keys); i++) {
        int32_t id = -1;
        ek_status status = read_id(gguf, &t->vocab, more_keys[i], NULL, &id, err);
        if (status != EK_OK) return status;
        if (id >= 0) t->is_end[id] = true;
    }
    ek_status status = read_id(gguf, &t->vocab, "tokenizer.ggml.eos_token_id",
                               t->is_spm ? "</s>" : NULL, &t->eos_id, err);
    if (status == EK_OK && t->eos_id >= 0) t->is_end[t->eos_id] = true;
    return status;
}

static ek_status init(ek_tokenizer *t, const ek_gguf *gguf, ek_arena *perm, ek_err *err)
{
    ek_str model;
    ek_status status = ek_model_gguf_str(gguf, MODEL_KEY, &model, err);
    if (status == EK_ENOTFOUND) return ek_err_set(err, EK_EFORMAT, "%s is missing", MODEL_KEY);
    if (status != EK_OK) return status;
    t->is_spm = ek_str_eqz(model, "llama");
    if (!t->is_spm && !ek_str_eqz(model, "gpt2"))
        return ek_err_set(err, EK_EUNSUPPORTED,
                          "%s is \"%.*s\"; known: gpt2 (byte-level BPE), llama (SentencePiece)",
                          MODEL_KEY, EK_STR_ARG(model));
    status = ek_model_vocab_load(gguf, t->is_spm ? EK_SPELLING_SPACE : EK_SPELLING_BYTES, perm,
                                 &t->vocab, err);
    if (status != EK_OK) return status;
    if (ek_model_specials_init(&t->vocab, perm, &t->specials) != EK_OK)
        return ek_err_set(err, EK_ENOMEM, "no memory for the special tokens");
    status = t->is_spm ? ek_model_spm_init(&t->spm, gguf, &t->vocab, perm, err)
                       : ek_model_bpe_init(&t->bpe, gguf, &t->vocab, perm, err);
    if (status == EK_OK) status = init_begin(t, gguf, err);
    if (status == EK_OK) status = init_ends(t, gguf, perm, err);
    return status;
}

size_t ek_model_tokenizer_perm_bytes_max(const ek_gguf *gguf)
{
    /*
     * An index has fewer than 4n slots of 8 bytes, the table of merges fewer than 4n pairs of 16.
     */
    const size_t per_token = 2 * 4 * sizeof(ek_str_slot) + sizeof(ek_str) + sizeof(ek_special) +
                             sizeof(uint32_t) + 3 * sizeof(bool);
    size_t bytes = sizeof(ek_tokenizer) + ek_model_merge_bytes(EK_TOKENIZER_PIECE_MAX) + 4096;
    ek_gguf_array array;
    if (ek_model_gguf_array(gguf, EK_VOCAB_TOKENS_KEY, EK_GGUF_STRING, &array, NULL) == EK_OK)
        for (int64_t i = 0; i < array.len; i++)
            bytes += per_token + array.strings[i].len;
    if (ek_model_gguf_array(gguf, EK_BPE_MERGES_KEY, EK_GGUF_STRING, &array, NULL) == EK_OK)
        bytes += (size_t)array.len * 4 * sizeof(ek_bpe_pair);
    return bytes;
}

ek_status ek_model_tokenizer_create(const ek_gguf *gguf, ek_arena *perm,
                                    ek_tokenizer **out_tokenizer, ek_err *err)
{
    ek_tokenizer *t = ek_try_new(perm, ek_tokenizer, 1);
    if (!t) return ek_err_set(err, EK_ENOMEM, "no memory for a tokenizer");
    ek_status status = init(t, gguf, perm, err);
    if (status != EK_OK) {
        ek_model_tokenizer_destroy(t);
        return status;
    }
    if (t->is_spm)
        snprintf(t->kind, sizeof t->kind, "spm");
    else
        snprintf(t->kind, sizeof t->kind, "bpe/%s", t->bpe.pre.rule->name);
    *out_tokenizer = t;
    return EK_OK;
}

void ek_model_tokenizer_destroy(ek_tokenizer *tokenizer)
{
    if (tokenizer) ek_model_bpe_fini(&tokenizer->bpe);
}

/* ---- encoding ---- */

int64_t ek_model_tokenizer_ids_max(const ek_tokenizer *tokenizer, size_t text_bytes)
{
    int64_t n = (int64_t)text_bytes;
    if (!tokenizer->is_spm) return n;
    /* A space in front of the text, and of what follows each special token in it. */
    return n + n / (int64_t)(tokenizer->specials.len_min + 1) + 2;
}

size_t ek_model_tokenizer_scratch_bytes(const ek_tokenizer *tokenizer, size_t text_bytes)
{
    size_t copy = tokenizer->is_spm ? text_bytes + 2 : 0;
    return copy + ek_model_merge_bytes(text_bytes + 1);
}

/* One call of encode. */
typedef struct encoder {
    const ek_tokenizer *t;
    ek_pretokenize_cursor cursor; /* byte-level BPE only */
    ek_arena scratch;
    ek_ids ids;
    bool at_start; /* nothing yet, or a control token, lies before what comes next */
} encoder;

static ek_status encode_run(encoder *e, ek_str run)
{
    if (!e->t->is_spm) return ek_model_bpe_encode(&e->t->bpe, &e->cursor, run, e->scratch, &e->ids);
    ek_status status = ek_model_spm_encode(&e->t->spm, run, e->at_start, e->scratch, &e->ids);
    e->at_start = false;
    return status;
}

/*
 * text[beg, end), in which no mark is a given token. A control token starts the text anew
 * (SentencePiece puts its space in front again); a user-defined one is part of it.
 */
static ek_status encode_stretch(encoder *e, ek_str text, size_t beg, size_t end,
                                const ek_token_mark *mark, const ek_token_mark *marks_end)
{
    const ek_specials *specials = &e->t->specials;
    size_t run = beg; /* where the plain text since the last special token began */
    for (size_t at = beg; at < end;) {
        if (!specials->first[(uint8_t)text.data[at]]) {
            at++;
            continue;
        }
        while (mark < marks_end && mark->end <= at)
            mark++;
        bool marked = mark < marks_end && mark->beg <= at;
        /* What a message ends with may not swallow the beginning of what the format says next. */
        size_t user_end = marked || mark == marks_end || mark->beg > end ? end : mark->beg;
        size_t len = 0;
        int32_t id =
            ek_model_specials_match(specials, text, at, user_end, marked ? mark->end : at, &len);
        if (id < 0) {
            at++;
            continue;
        }
        bool user = e->t->vocab.kinds[id] == EK_TOKEN_USER;
        ek_status status = EK_OK;
        if (at > run || (user && e->at_start))
            status = encode_run(e, (ek_str){text.data + run, at - run});
        if (status == EK_OK) status = ek_model_ids_push(&e->ids, id);
        if (status != EK_OK) return status;
        e->at_start = !user;
        at += len;
        run = at;
    }
    return run < end ? encode_run(e, (ek_str){text.data + run, end - run}) : EK_OK;
}

static ek_status encode_all(encoder *e, ek_str text, const ek_token_mark *marks, int64_t n_marks)
{
    size_t beg = 0;
    ek_status status = EK_OK;
    const ek_token_mark *end = marks + n_marks;
    for (const ek_token_mark *mark = marks; mark < end; mark++) {
        if (mark->id < 0) continue;
        status = encode_stretch(e, text, beg, mark->beg, marks, mark);
        if (status == EK_OK) status = ek_model_ids_push(&e->ids, mark->id);
        if (status != EK_OK) return status;
        e->at_start = true;
        beg = mark->end;
        marks = mark + 1;
    }
    return encode_stretch(e, text, beg, text.len, marks, end);
}

ek_status ek_model_tokenizer_encode_marked(const ek_tokenizer *tokenizer, ek_str text,
                                           const ek_token_mark *marks, int64_t n_marks,
                                           ek_arena scratch, int32_t *out_ids, int64_t max_ids,
                                           int64_t *out_n)
{
    if (text.len > EK_TOKENIZER_TEXT_MAX) return EK_ERANGE;
    if (text.len == 0) text.data = "";
    encoder e = {.t = tokenizer, .scratch = scratch, .at_start = true};
    e.ids = (ek_ids){.data = out_ids, .max = max_ids};
    ek_status status = EK_OK;
    if (!tokenizer->is_spm) status = ek_model_pretokenize_open(&e.cursor, &tokenizer->bpe.pre);
    if (status == EK_OK) status = encode_all(&e, text, marks, n_marks);
    ek_model_pretokenize_close(&e.cursor);
    if (status == EK_OK) *out_n = e.ids.n;
    return status;
}

ek_status ek_model_tokenizer_encode(const ek_tokenizer *tokenizer, ek_str text, bool parse_special,
                                    ek_arena scratch, int32_t *out_ids, int64_t max_ids,
                                    int64_t *out_n)
{
    ek_token_mark all = {.beg = 0, .end = text.len, .id = -1};
    return ek_model_tokenizer_encode_marked(tokenizer, text, &all, parse_special ? 1 : 0, scratch,
                                            out_ids, max_ids, out_n);
}

/* ---- decoding and look-ups ---- */

size_t ek_model_tokenizer_piece(const ek_tokenizer *tokenizer, int32_t id, bool show_special,
                                char out_piece[EK_TOKENIZER_PIECE_MAX])
{
    const ek_vocab *vocab = &tokenizer->vocab;
    ek_str piece = vocab->pieces[id];
    if (show_special && ek_model_vocab_is_special(vocab, id)) piece = vocab->names[id];
    if (piece.len > 0) memcpy(out_piece, piece.data, piece.len);
    return piece.len;
}

bool ek_model_tokenizer_strips_first_space(const ek_tokenizer *tokenizer)
{
    return tokenizer->is_spm && tokenizer->spm.prefix_space;
}

ek_str ek_model_tokenizer_name(const ek_tokenizer *tokenizer, int32_t id)
{
    return tokenizer->vocab.names[id];
}

int32_t ek_model_tokenizer_find(const ek_tokenizer *tokenizer, ek_str name)
{
    return ek_model_str_index_find(&tokenizer->vocab.by_name, name);
}

int32_t ek_model_tokenizer_vocab(const ek_tokenizer *tokenizer)
{
    return tokenizer->vocab.n_tokens;
}

int32_t ek_model_tokenizer_bos(const ek_tokenizer *tokenizer)
{
    return tokenizer->bos_id;
}

int32_t ek_model_tokenizer_eos(const ek_tokenizer *tokenizer)
{
    return tokenizer->eos_id;
}

bool ek_model_tokenizer_adds_bos(const ek_tokenizer *tokenizer)
{
    return tokenizer->adds_bos;
}

bool ek_model_tokenizer_is_end(const ek_tokenizer *tokenizer, int32_t id)
{
    return tokenizer->is_end[id];
}

bool ek_model_tokenizer_is_special(const ek_tokenizer *tokenizer, int32_t id)
{
    return ek_model_vocab_is_special(&tokenizer->vocab, id);
}

const char *ek_model_tokenizer_kind(const ek_tokenizer *tokenizer)
{
    return tokenizer->kind;
}
