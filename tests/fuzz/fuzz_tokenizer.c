/*
 * Fuzz target of the tokenizer and the chat formats. The first byte chooses what the others are: 0
 * text for one of the fixed vocabularies: encoded both ways, decoded, compared 1  a conversation in
 * one of the chat formats: no message may add a special token 2  a byte-level BPE vocabulary, and a
 * text for it 3  a SentencePiece vocabulary, and a text for it A vocabulary that is refused is
 * fine; one that is accepted has to bring every text back unchanged.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/chat.h"
#include "model/chat_formats.h"
#include "model/tokenizer.h"
#include "model/vocab.h"

#include "../support/vocab_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(cond)                                                                  \
    do {                                                                             \
        if (!(cond)) {                                                               \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #cond); \
            abort();                                                                 \
        }                                                                            \
    } while (0)

/* ---- a tokenizer and its memory ---- */

typedef struct opened {
    vocab_file file;
    void *gguf_mem, *perm_mem;
    ek_tokenizer *tokenizer; /* NULL: refused */
} opened;

static void *take(size_t bytes)
{
    void *mem = malloc(bytes > 0 ? bytes : 1);
    CHECK(mem);
    return mem;
}

/* Takes the file. */
static opened open_vocab(vocab_file file)
{
    opened o = {.file = file};
    ek_span bytes = vocab_file_finish(&o.file);
    size_t gguf_bytes = ek_model_gguf_perm_bytes_max(bytes.len);
    o.gguf_mem = take(gguf_bytes);
    ek_arena arena = ek_arena_over(o.gguf_mem, gguf_bytes);
    ek_gguf *gguf = NULL;
    ek_err err = {0};
    CHECK(ek_model_gguf_parse(&bytes, 1, &arena, &gguf, &err) == EK_OK);
    size_t perm_bytes = ek_model_tokenizer_perm_bytes_max(gguf);
    o.perm_mem = take(perm_bytes);
    ek_arena perm = ek_arena_over(o.perm_mem, perm_bytes);
    ek_status status = ek_model_tokenizer_create(gguf, &perm, &o.tokenizer, &err);
    CHECK(status == EK_OK || (status != EK_ENOMEM && err.text[0] != '\0'));
    return o;
}

static void close_vocab(opened *o)
{
    ek_model_tokenizer_destroy(o->tokenizer);
    free(o->perm_mem);
    free(o->gguf_mem);
    vocab_file_free(&o->file);
}

/* ---- what holds for every text ---- */

typedef struct ids {
    int32_t *data; /* owned */
    int64_t n;
} ids;

static ids encode(const ek_tokenizer *t, ek_str text, bool special)
{
    int64_t max = ek_model_tokenizer_ids_max(t, text.len);
    size_t bytes = ek_model_tokenizer_scratch_bytes(t, text.len);
    ids out = {.data = take((size_t)max * sizeof(int32_t))};
    void *mem = take(bytes);
    ek_arena scratch = ek_arena_over(mem, bytes);
    CHECK(ek_model_tokenizer_encode(t, text, special, scratch, out.data, max, &out.n) == EK_OK);
    CHECK(out.n >= 0 && out.n <= max);
    for (int64_t i = 0; i < out.n; i++)
        CHECK(out.data[i] >= 0 && out.data[i] < ek_model_tokenizer_vocab(t));
    int64_t n = -1;
    if (out.n > 0) {
        CHECK(ek_model_tokenizer_encode(t, text, special, scratch, out.data, out.n - 1, &n) ==
              EK_ERANGE);
        CHECK(n == -1);
        CHECK(ek_model_tokenizer_encode(t, text, special, scratch, out.data, out.n, &n) == EK_OK);
        CHECK(n == out.n);
    }
    free(mem);
    return out;
}

static void check_decodes(const ek_tokenizer *t, ids tokens, bool special, ek_str text)
{
    char *back = take((size_t)tokens.n * EK_TOKENIZER_PIECE_MAX);
    size_t len = 0;
    for (int64_t i = 0; i < tokens.n; i++)
        len += ek_model_tokenizer_piece(t, tokens.data[i], special, back + len);
    size_t skip = ek_model_tokenizer_strips_first_space(t) && len > 0 && back[0] == ' ';
    CHECK(len - skip == text.len);
    CHECK(text.len == 0 || memcmp(back + skip, text.data, text.len) == 0);
    free(back);
}

static void check_text(const ek_tokenizer *t, ek_str text)
{
    ids plain = encode(t, text, false);
    for (int64_t i = 0; i < plain.n; i++)
        CHECK(!ek_model_tokenizer_is_special(t, plain.data[i]));
    check_decodes(t, plain, false, text);
    free(plain.data);
    ids parsed = encode(t, text, true);
    /* SentencePiece puts a space after each special token, which is not in the text. */
    if (!ek_model_tokenizer_strips_first_space(t)) check_decodes(t, parsed, true, text);
    free(parsed.data);
}

/* ---- the fixed vocabularies ---- */

typedef struct token {
    const char *name;
    ek_token_kind kind;
} token;

static const token common[] = {
    {"<|im_start|>", EK_TOKEN_CONTROL}, {"<|im_end|>", EK_TOKEN_CONTROL},
    {"<|im_end|>x", EK_TOKEN_CONTROL},  {"[INST]", EK_TOKEN_CONTROL},
    {"[/INST]", EK_TOKEN_CONTROL},      {"<｜User｜>", EK_TOKEN_CONTROL},
    {"<begin>", EK_TOKEN_CONTROL},      {"<end>", EK_TOKEN_CONTROL},
    {"<think>", EK_TOKEN_USER},         {"    ", EK_TOKEN_USER},
};
#define N_COMMON EK_COUNT_OF(common)
#define BEGIN    6 /* place of <begin>, <end> follows */

/* Single bytes in the alphabet of byte-level BPE, or as <0xXX>; text[i] must outlive the names. */
static void byte_names(bool spm, char text[256][8], ek_str *names)
{
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
        size_t len;
        if (spm)
            len = (size_t)snprintf(text[byte], 8, "<0x%02X>", (unsigned)byte);
        else
            len = ek_utf8_encode(printable ? byte : next++, text[byte]);
        names[byte] = (ek_str){text[byte], len};
    }
}

static opened open_fixed(const char *pre)
{
    static const char *const pieces[] = {"ab", "abc", "in", "ing", "Ġt", "Ġth", "ä½", "ä½ł"};
    static const ek_str merges[] = {{"a b", 3}, {"i n", 3},  {"ab c", 4}, {"in g", 4},
                                    {"Ġ t", 4}, {"Ġt h", 5}, {"ä ½", 5},  {"ä½ ł", 7}};
    static const char *const spm_pieces[] = {"▁", "a", "b", "ab", "▁a", "▁ab", "▁▁", "你好"};
    char text[256][8];
    ek_str names[256 + N_COMMON + 8];
    int32_t kinds[256 + N_COMMON + 8];
    float scores[256 + N_COMMON + 8];
    bool spm = !pre;
    byte_names(spm, text, names);
    size_t n = 256;
    for (size_t i = 0; i < 256; i++)
        kinds[i] = spm ? EK_TOKEN_BYTE : EK_TOKEN_NORMAL;
    for (size_t i = 0; i < N_COMMON; i++, n++) {
        names[n] = ek_str_from(common[i].name);
        kinds[n] = (int32_t)common[i].kind;
    }
    for (size_t i = 0; i < 8; i++, n++) {
        names[n] = ek_str_from(spm ? spm_pieces[i] : pieces[i]);
        kinds[n] = EK_TOKEN_NORMAL;
    }
    for (size_t i = 0; i < n; i++)
        scores[i] = -(float)(i % 5);
    vocab_file f = {0};
    vocab_file_str(&f, "tokenizer.ggml.model", spm ? "llama" : "gpt2");
    vocab_file_strings(&f, "tokenizer.ggml.tokens", names, n);
    vocab_file_i32s(&f, "tokenizer.ggml.token_type", kinds, n);
    if (spm)
        vocab_file_f32s(&f, "tokenizer.ggml.scores", scores, n);
    else
        vocab_file_str(&f, "tokenizer.ggml.pre", pre);
    if (!spm) vocab_file_strings(&f, "tokenizer.ggml.merges", merges, EK_COUNT_OF(merges));
    vocab_file_id(&f, "tokenizer.ggml.bos_token_id", 256 + BEGIN);
    vocab_file_id(&f, "tokenizer.ggml.eos_token_id", 256 + BEGIN + 1);
    opened o = open_vocab(f);
    CHECK(o.tokenizer);
    return o;
}

static const char *const fixed_rules[] = {"qwen2",        "gpt-2",       "llama-bpe", "gpt-4o",
                                          "deepseek-llm", "deepseek-v3", "default",   NULL};
#define N_FIXED EK_COUNT_OF(fixed_rules)

/* Built at first use and kept: a fuzzer calls millions of times. */
static const ek_tokenizer *fixed(size_t which)
{
    static opened kept[N_FIXED];
    opened *o = &kept[which % N_FIXED];
    if (!o->tokenizer) *o = open_fixed(fixed_rules[which % N_FIXED]);
    return o->tokenizer;
}

/* ---- conversations ---- */

#define MESSAGES_MAX 6

/* Special tokens of the conversation; -1: it is refused. */
static int64_t count_specials(const ek_tokenizer *t, const ek_chat_format *format,
                              const ek_chat_message *messages, int32_t n_messages)
{
    int64_t max = ek_model_chat_ids_max(format, t, messages, n_messages);
    size_t bytes = ek_model_chat_scratch_bytes(format, t, messages, n_messages);
    int32_t *data = take((size_t)max * sizeof *data);
    void *mem = take(bytes);
    int64_t n = 0;
    ek_err err = {0};
    ek_status status = ek_model_chat_encode(format, t, messages, n_messages,
                                            ek_arena_over(mem, bytes), data, max, &n, &err);
    CHECK(status == EK_OK || (status == EK_EINVAL && err.text[0] != '\0'));
    int64_t n_specials = status == EK_OK ? 0 : -1;
    for (int64_t i = 0; status == EK_OK && i < n; i++)
        n_specials += ek_model_tokenizer_is_special(t, data[i]);
    free(mem);
    free(data);
    return n_specials;
}

static void fuzz_chat(const uint8_t *data, size_t size)
{
    static const char *const roles[] = {"user", "assistant", "system", "tool", "developer", "none"};
    if (size < 2) return;
    int32_t n_formats;
    const ek_chat_format *formats = ek_model_chat_formats(&n_formats);
    const ek_tokenizer *t = fixed(data[0]);
    const ek_chat_format *format = &formats[data[1] % (unsigned)n_formats];
    ek_chat_message messages[MESSAGES_MAX];
    ek_chat_message harmless[MESSAGES_MAX];
    int32_t n = 0;
    for (size_t at = 2; at < size && n < MESSAGES_MAX; n++) {
        const char *role = roles[data[at++] % EK_COUNT_OF(roles)];
        const uint8_t *end = at < size ? memchr(data + at, 0, size - at) : NULL;
        size_t len = end ? (size_t)(end - (data + at)) : size - at;
        messages[n] = (ek_chat_message){ek_str_from(role), {(const char *)data + at, len}};
        harmless[n] = (ek_chat_message){ek_str_from(role), EK_STR("x")};
        at += len + 1;
    }
    CHECK(count_specials(t, format, messages, n) == count_specials(t, format, harmless, n));
}

/* ---- vocabularies ---- */

#define EXTRA_MAX   64
#define SPELLED_MAX 48

typedef struct bytes {
    const uint8_t *data;
    size_t len, at;
} bytes;

static uint8_t next_byte(bytes *b)
{
    return b->at < b->len ? b->data[b->at++] : 0;
}

/*
 * Up to EXTRA_MAX tokens beyond the bytes, from records: a token spelled out, or two earlier ones
 * joined (with a merge that says so), either with a kind and a score of their own.
 */
static void fuzz_vocab(const uint8_t *data, size_t size, bool spm)
{
    static char joined[EXTRA_MAX][2 * SPELLED_MAX];
    static char merge[EXTRA_MAX][2 * SPELLED_MAX + 1];
    char text[256][8];
    ek_str names[256 + EXTRA_MAX];
    ek_str merges[EXTRA_MAX];
    int32_t kinds[256 + EXTRA_MAX];
    float scores[256 + EXTRA_MAX] = {0};
    bytes b = {data, size, 0};
    size_t n_merges = 0;
    uint8_t rule = next_byte(&b);
    size_t n_extra = next_byte(&b) % EXTRA_MAX;
    byte_names(spm, text, names);
    for (size_t i = 0; i < 256; i++)
        kinds[i] = spm ? EK_TOKEN_BYTE : EK_TOKEN_NORMAL;
    size_t n = 256;
    for (size_t i = 0; i < n_extra; i++, n++) {
        uint8_t op = next_byte(&b);
        kinds[n] = op >= 0xf0 ? op % 9 : EK_TOKEN_NORMAL;
        scores[n] = (float)(int8_t)next_byte(&b);
        if (op & 1) {
            ek_str left = names[next_byte(&b) % n];
            ek_str right = names[n - 1 - next_byte(&b) % (n - 255)];
            if (left.len + right.len > SPELLED_MAX) left.len = 0;
            memcpy(joined[i], left.data, left.len);
            memcpy(joined[i] + left.len, right.data, right.len);
            names[n] = (ek_str){joined[i], left.len + right.len};
            memcpy(merge[i], left.data, left.len);
            merge[i][left.len] = ' ';
            memcpy(merge[i] + left.len + 1, right.data, right.len);
            merges[n_merges++] = (ek_str){merge[i], names[n].len + 1};
        } else {
            size_t len = next_byte(&b) % SPELLED_MAX;
            if (len > b.len - b.at) len = b.len - b.at;
            names[n] = (ek_str){(const char *)b.data + b.at, len};
            b.at += len;
        }
    }
    vocab_file f = {0};
    vocab_file_str(&f, "tokenizer.ggml.model", spm ? "llama" : "gpt2");
    vocab_file_strings(&f, "tokenizer.ggml.tokens", names, n);
    vocab_file_i32s(&f, "tokenizer.ggml.token_type", kinds, n);
    if (spm) {
        vocab_file_f32s(&f, "tokenizer.ggml.scores", scores, n);
        vocab_file_bool(&f, "tokenizer.ggml.add_space_prefix", rule & 1);
    } else {
        const char *pre = fixed_rules[rule % N_FIXED];
        if (pre) vocab_file_str(&f, "tokenizer.ggml.pre", pre);
        vocab_file_strings(&f, "tokenizer.ggml.merges", merges, n_merges);
    }
    opened o = open_vocab(f);
    if (o.tokenizer) {
        ek_str rest = {(const char *)b.data + b.at, b.len - b.at};
        ids parsed = encode(o.tokenizer, rest, true);
        if (!spm) check_decodes(o.tokenizer, parsed, true, rest);
        free(parsed.data);
        ids plain = encode(o.tokenizer, rest, false);
        check_decodes(o.tokenizer, plain, false, rest);
        free(plain.data);
    }
    close_vocab(&o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > 1 << 16) return 0;
    switch (data[0] % 4) {
    case 0: check_text(fixed(data[1]), (ek_str){(const char *)data + 2, size - 2}); break;
    case 1: fuzz_chat(data + 1, size - 1); break;
    case 2: fuzz_vocab(data + 1, size - 1, false); break;
    default: fuzz_vocab(data + 1, size - 1, true); break;
    }
    return 0;
}
