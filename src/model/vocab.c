#include "model/vocab.h"

#include <string.h>

#include "base/utf8.h"
#include "model/desc.h"
#include "model/tokenizer.h"

static const char TYPES_KEY[] = "tokenizer.ggml.token_type";

/*
 * Byte-level BPE writes bytes as printable characters: those that are printable in Latin-1 as
 * themselves, the other 68 as U+0100 and up, in order. Source: the encoder of GPT-2 (Radford et al.
 * 2019).
 */
static uint32_t char_of_byte(uint8_t byte)
{
    if (byte <= 32) return 256u + byte;
    if (byte >= 127 && byte <= 160) return 289u + (byte - 127u);
    return byte == 173 ? 323u : byte;
}

/* The byte that a character stands for; -1: none. */
static int byte_of_char(uint32_t cp)
{
    if (cp >= 256 && cp <= 288) return (int)(cp - 256);
    if (cp >= 289 && cp <= 322) return (int)(cp - 289 + 127);
    if (cp == 323) return 173;
    return cp < 256 && char_of_byte((uint8_t)cp) == cp ? (int)cp : -1;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0x0A>" -> 10; -1: not such a name. */
static int byte_of_name(ek_str name)
{
    if (name.len != 6 || memcmp(name.data, "<0x", 3) != 0 || name.data[5] != '>') return -1;
    int high = hex_digit(name.data[3]);
    int low = hex_digit(name.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/*
 * Some converters file the markers of a chat format as user-defined text. Then everybody who types
 * one would forge a turn, so whatever is spelled like a marker is control.
 */
static bool is_marker_name(ek_str name)
{
    static const char *const others[] = {"<start_of_turn>",
                                         "<end_of_turn>",
                                         "[INST]",
                                         "[/INST]",
                                         "[SYSTEM_PROMPT]",
                                         "[/SYSTEM_PROMPT]",
                                         "[gMASK]",
                                         "<sop>",
                                         "<s>",
                                         "</s>",
                                         "<eos>",
                                         "<bos>"};
    static const ek_str wide = {"｜", sizeof "｜" - 1}; /* U+FF5C, DeepSeek's bar */
    for (size_t i = 0; i < EK_COUNT_OF(others); i++)
        if (ek_str_eqz(name, others[i])) return true;
    if (name.len < 5 || name.data[0] != '<' || name.data[name.len - 1] != '>') return false;
    ek_str inner = {name.data + 1, name.len - 2};
    if (inner.data[0] == '|' && inner.data[inner.len - 1] == '|') return true;
    return inner.len > 2 * wide.len && ek_str_starts(inner, wide) &&
           memcmp(inner.data + inner.len - wide.len, wide.data, wide.len) == 0;
}

static ek_status load_names(const ek_gguf *gguf, ek_vocab *vocab, ek_err *err)
{
    ek_gguf_array tokens;
    ek_status status = ek_model_gguf_array(gguf, EK_VOCAB_TOKENS_KEY, EK_GGUF_STRING, &tokens, err);
    if (status == EK_ENOTFOUND)
        return ek_err_set(err, EK_EFORMAT, "%s is missing", EK_VOCAB_TOKENS_KEY);
    if (status != EK_OK) return status;
    if (tokens.len < 1 || tokens.len > EK_MODEL_VOCAB_MAX)
        return ek_err_set(err, EK_EFORMAT, "%s has %lld entries; 1 to %d are supported",
                          EK_VOCAB_TOKENS_KEY, (long long)tokens.len, EK_MODEL_VOCAB_MAX);
    vocab->n_tokens = (int32_t)tokens.len;
    vocab->names = tokens.strings;
    for (int32_t id = 0; id < vocab->n_tokens; id++)
        if (vocab->names[id].len > EK_TOKENIZER_PIECE_MAX)
            return ek_err_set(err, EK_EFORMAT, "%s[%d] is %zu bytes long; %d are supported",
                              EK_VOCAB_TOKENS_KEY, id, vocab->names[id].len,
                              EK_TOKENIZER_PIECE_MAX);
    return EK_OK;
}

static ek_status load_kinds(const ek_gguf *gguf, ek_vocab *vocab, ek_err *err)
{
    ek_gguf_array types = {.kind = EK_GGUF_I32};
    ek_status status = ek_model_gguf_array(gguf, TYPES_KEY, EK_GGUF_I32, &types, err);
    if (status != EK_OK && status != EK_ENOTFOUND) return status;
    bool has_types = status == EK_OK;
    if (has_types && types.len != vocab->n_tokens)
        return ek_err_set(err, EK_EFORMAT, "%s has %lld entries, %s has %d", TYPES_KEY,
                          (long long)types.len, EK_VOCAB_TOKENS_KEY, vocab->n_tokens);
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        int32_t type = has_types ? ek_model_gguf_array_i32(&types, id) : EK_TOKEN_NORMAL;
        if (type < 0 || type > EK_TOKEN_BYTE)
            return ek_err_set(err, EK_EFORMAT, "%s[%d] is %d, outside 0 to %d", TYPES_KEY, id, type,
                              EK_TOKEN_BYTE);
        if (type == 0 || vocab->names[id].len == 0) type = EK_TOKEN_UNUSED;
        if (type == EK_TOKEN_USER && is_marker_name(vocab->names[id])) type = EK_TOKEN_CONTROL;
        if (type == EK_TOKEN_BYTE && byte_of_name(vocab->names[id]) < 0)
            return ek_err_set(err, EK_EFORMAT,
                              "%s[%d] is a byte by its type, but \"%.*s\" is not <0x00> to <0xFF>",
                              EK_VOCAB_TOKENS_KEY, id, EK_STR_ARG(vocab->names[id]));
        vocab->kinds[id] = (uint8_t)type;
    }
    return EK_OK;
}

static ek_status index_names(ek_vocab *vocab, ek_arena *perm, ek_err *err)
{
    if (!ek_model_str_index_init(&vocab->by_name, vocab->names, vocab->n_tokens, perm))
        return ek_err_set(err, EK_ENOMEM, "no memory for an index of %d tokens", vocab->n_tokens);
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        if (vocab->names[id].len == 0) continue;
        int32_t first = ek_model_str_index_put(&vocab->by_name, id);
        if (first >= 0)
            return ek_err_set(err, EK_EFORMAT, "%s[%d] and [%d] are both \"%.*s\"",
                              EK_VOCAB_TOKENS_KEY, first, id, EK_STR_ARG(vocab->names[id]));
    }
    return EK_OK;
}

/*
 * Characters that stand for no byte are kept as they are: such a name can be printed, never
 * encoded.
 */
static size_t spell_bytes(ek_str name, char *out)
{
    size_t n = 0;
    const char *end = name.data + name.len;
    for (const char *c = name.data; c < end;) {
        uint32_t cp = 0;
        size_t len = ek_utf8_decode((ek_str){c, (size_t)(end - c)}, &cp);
        int byte = len > 0 ? byte_of_char(cp) : -1;
        if (byte >= 0) {
            out[n++] = (char)byte;
        } else {
            if (len == 0) len = 1;
            memcpy(out + n, c, len);
            n += len;
        }
        c += len;
    }
    return n;
}

bool ek_model_vocab_is_byte_spelled(const ek_vocab *vocab, int32_t id)
{
    ek_str name = vocab->names[id];
    const char *end = name.data + name.len;
    for (const char *c = name.data; c < end;) {
        uint32_t cp = 0;
        size_t len = ek_utf8_decode((ek_str){c, (size_t)(end - c)}, &cp);
        if (len == 0 || byte_of_char(cp) < 0) return false;
        c += len;
    }
    return true;
}

static size_t spell_space(ek_str name, char *out)
{
    static const ek_str mark = {"▁", sizeof "▁" - 1}; /* U+2581 */
    size_t n = 0;
    for (size_t i = 0; i < name.len;) {
        ek_str rest = {name.data + i, name.len - i};
        bool space = ek_str_starts(rest, mark);
        out[n++] = space ? ' ' : name.data[i];
        i += space ? mark.len : 1;
    }
    return n;
}

static size_t spell(const ek_vocab *vocab, int32_t id, char *out)
{
    ek_str name = vocab->names[id];
    ek_token_kind kind = ek_model_vocab_kind(vocab, id);
    switch (kind) {
    case EK_TOKEN_CONTROL:
    case EK_TOKEN_UNKNOWN: return 0;
    case EK_TOKEN_BYTE: out[0] = (char)byte_of_name(name); return 1;
    case EK_TOKEN_NORMAL:
    case EK_TOKEN_UNUSED:
        if (vocab->spelling == EK_SPELLING_BYTES) return spell_bytes(name, out);
        return spell_space(name, out);
    case EK_TOKEN_USER:
        if (vocab->spelling == EK_SPELLING_SPACE) return spell_space(name, out);
        break;
    }
    memcpy(out, name.data, name.len);
    return name.len;
}

static ek_status spell_pieces(ek_vocab *vocab, ek_arena *perm, ek_err *err)
{
    char piece[EK_TOKENIZER_PIECE_MAX];
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        ek_str name = vocab->names[id];
        size_t len = spell(vocab, id, piece);
        if (len == name.len && (len == 0 || memcmp(piece, name.data, len) == 0)) {
            vocab->pieces[id] = name;
            continue;
        }
        char *copy = ek_try_new(perm, char, len);
        if (!copy) return ek_err_set(err, EK_ENOMEM, "no memory for the pieces of the vocabulary");
        if (len > 0) memcpy(copy, piece, len);
        vocab->pieces[id] = (ek_str){copy, len};
    }
    return EK_OK;
}

static void find_bytes(ek_vocab *vocab)
{
    for (int byte = 0; byte < 256; byte++)
        vocab->byte_ids[byte] = -1;
    if (vocab->spelling == EK_SPELLING_SPACE) {
        for (int32_t id = vocab->n_tokens - 1; id >= 0; id--)
            if (ek_model_vocab_kind(vocab, id) == EK_TOKEN_BYTE)
                vocab->byte_ids[byte_of_name(vocab->names[id])] = id;
        return;
    }
    for (int byte = 0; byte < 256; byte++) {
        char name[4];
        size_t len = ek_utf8_encode(char_of_byte((uint8_t)byte), name);
        int32_t id = ek_model_str_index_find(&vocab->by_name, (ek_str){name, len});
        if (id >= 0 && ek_model_vocab_is_text(vocab, id)) vocab->byte_ids[byte] = id;
    }
}

ek_status ek_model_vocab_load(const ek_gguf *gguf, ek_spelling spelling, ek_arena *perm,
                              ek_vocab *out_vocab, ek_err *err)
{
    ek_vocab vocab = {.spelling = spelling};
    ek_status status = load_names(gguf, &vocab, err);
    if (status != EK_OK) return status;
    vocab.kinds = ek_try_new(perm, uint8_t, vocab.n_tokens);
    vocab.pieces = ek_try_new(perm, ek_str, vocab.n_tokens);
    if (!vocab.kinds || !vocab.pieces)
        return ek_err_set(err, EK_ENOMEM, "no memory for %d tokens", vocab.n_tokens);
    status = load_kinds(gguf, &vocab, err);
    if (status == EK_OK) status = index_names(&vocab, perm, err);
    if (status == EK_OK) status = spell_pieces(&vocab, perm, err);
    if (status != EK_OK) return status;
    find_bytes(&vocab);
    *out_vocab = vocab;
    return EK_OK;
}
