#include "gateway/logprobs.h"

#include <string.h>

#include "http/json_out.h"
#include "sys/mem.h"

/*
 * Held-back text is shorter than a stop string, so a token with text cannot wait behind more than
 * this many.
 */
#define HELD_MAX (2 * EK_ENGINE_STOP_BYTES_MAX)

void ek_gateway_logprobs_fini(ek_logprobs *logprobs)
{
    ek_sys_free(logprobs->token);
    *logprobs = (ek_logprobs){0};
}

static bool grow(ek_logprobs *logprobs, int32_t n_more)
{
    int32_t cap = logprobs->cap ? logprobs->cap : EK_ENGINE_READ_TOKENS;
    while (cap < logprobs->n + n_more)
        cap *= 2; /* at most twice the context length */
    if (cap == logprobs->cap) return true;
    ek_output_token *token = ek_sys_realloc(logprobs->token, (size_t)cap * sizeof *token);
    if (!token) return false;
    logprobs->token = token;
    logprobs->cap = cap;
    return true;
}

ek_status ek_gateway_logprobs_take(ek_logprobs *logprobs, const ek_output *output)
{
    if (!grow(logprobs, output->n_tokens)) return EK_ENOMEM;
    int32_t text_end = 0;
    for (int32_t i = 0; i < output->n_tokens; i++) {
        logprobs->token[logprobs->n++] = output->token[i];
        if (output->token[i].text_end > text_end) logprobs->n_shown = logprobs->n;
        text_end = output->token[i].text_end;
    }
    bool flushed = output->n_text > text_end; /* held text came out behind the last token */
    if (flushed || logprobs->n - logprobs->n_shown > HELD_MAX) logprobs->n_shown = logprobs->n;
    return EK_OK;
}

void ek_gateway_logprobs_end(ek_logprobs *logprobs, bool swallowed)
{
    if (swallowed) {
        logprobs->n = logprobs->n_shown;
    } else {
        logprobs->n_shown = logprobs->n;
    }
}

static void add_token_keys(ek_buf *json, const ek_engine *engine, int32_t id, float logprob)
{
    char piece[1024];
    size_t n = ek_engine_piece(engine, id, piece);
    ek_http_buf_addz(json, "{\"token\":");
    ek_http_json_string(json, (ek_str){piece, n});
    ek_http_buf_addz(json, ",\"logprob\":");
    ek_http_json_number(json, logprob);
    ek_http_buf_addz(json, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        ek_http_buf_addf(json, "%s%u", i ? "," : "", (unsigned char)piece[i]);
    ek_http_buf_addz(json, "]");
}

static void chat_json(const ek_logprobs *logprobs, const ek_engine *engine, ek_buf *json)
{
    ek_http_buf_addz(json, "{\"content\":[");
    for (int32_t i = 0; i < logprobs->n_shown; i++) {
        const ek_output_token *token = &logprobs->token[i];
        if (i) ek_http_buf_addz(json, ",");
        add_token_keys(json, engine, token->id, token->logprob);
        ek_http_buf_addz(json, ",\"top_logprobs\":[");
        for (int32_t k = 0; k < token->n_top; k++) {
            if (k) ek_http_buf_addz(json, ",");
            add_token_keys(json, engine, token->top[k].id, token->top[k].logprob);
            ek_http_buf_addz(json, "}");
        }
        ek_http_buf_addz(json, "]}");
    }
    ek_http_buf_addz(json, "],\"refusal\":null}");
}

static void add_spelled(ek_buf *json, const ek_engine *engine, int32_t id)
{
    char piece[1024];
    size_t n = ek_engine_piece(engine, id, piece);
    ek_http_json_string(json, (ek_str){piece, n});
}

/* As a key, with U+FFFD for NUL: there are parsers that take it in a string and not in a key. */
static void add_key(ek_buf *json, const ek_engine *engine, int32_t id)
{
    char piece[1024];
    size_t n = ek_engine_piece(engine, id, piece);
    for (size_t i = 0; i < n; i++)
        if (piece[i] == '\0') piece[i] = '\xff'; /* no UTF-8 either, so it is replaced */
    ek_http_json_string(json, (ek_str){piece, n});
}

/*
 * Two tokens can be spelled alike (parts of characters become U+FFFD): the first one, the likelier,
 * stands.
 */
static void add_alternatives(ek_buf *json, const ek_engine *engine, const ek_output_token *token)
{
    ek_http_buf_addz(json, "{");
    for (int32_t k = 0; k < token->n_top; k++) {
        ek_buf key = {0};
        add_key(&key, engine, token->top[k].id);
        bool twice = false;
        for (int32_t j = 0; j < k && !twice; j++) {
            ek_buf other = {0};
            add_key(&other, engine, token->top[j].id);
            twice = ek_str_eq(ek_http_buf_str(&key), ek_http_buf_str(&other));
            ek_http_buf_fini(&other);
        }
        if (!twice) {
            if (k) ek_http_buf_addz(json, ",");
            ek_http_buf_add(json, ek_http_buf_str(&key));
            ek_http_buf_addz(json, ":");
            ek_http_json_number(json, token->top[k].logprob);
        }
        ek_http_buf_fini(&key);
    }
    ek_http_buf_addz(json, "}");
}

static int64_t count_chars(const ek_engine *engine, int32_t id)
{
    char piece[1024];
    size_t n = ek_engine_piece(engine, id, piece);
    int64_t n_chars = 0;
    for (size_t i = 0; i < n; i++)
        n_chars += ((unsigned char)piece[i] & 0xc0) != 0x80; /* all but the tails of a character */
    return n_chars;
}

static void completion_json(ek_logprobs *logprobs, const ek_engine *engine, ek_buf *json)
{
    int32_t n = logprobs->n_shown;
    ek_http_buf_addz(json, "{\"tokens\":[");
    for (int32_t i = 0; i < n; i++) {
        if (i) ek_http_buf_addz(json, ",");
        add_spelled(json, engine, logprobs->token[i].id);
    }
    ek_http_buf_addz(json, "],\"token_logprobs\":[");
    for (int32_t i = 0; i < n; i++) {
        if (i) ek_http_buf_addz(json, ",");
        ek_http_json_number(json, logprobs->token[i].logprob);
    }
    ek_http_buf_addz(json, "],\"top_logprobs\":[");
    for (int32_t i = 0; i < n; i++) {
        if (i) ek_http_buf_addz(json, ",");
        add_alternatives(json, engine, &logprobs->token[i]);
    }
    ek_http_buf_addz(json, "],\"text_offset\":[");
    for (int32_t i = 0; i < n; i++) {
        if (i) ek_http_buf_addz(json, ",");
        ek_http_json_int(json, logprobs->n_chars);
        logprobs->n_chars += count_chars(engine, logprobs->token[i].id);
    }
    ek_http_buf_addz(json, "]}");
}

void ek_gateway_logprobs_json(ek_logprobs *logprobs, const ek_engine *engine, bool chat,
                              ek_buf *out_json)
{
    if (chat) {
        chat_json(logprobs, engine, out_json);
    } else {
        completion_json(logprobs, engine, out_json);
    }
    int32_t n_left = logprobs->n - logprobs->n_shown;
    if (n_left)
        memmove(logprobs->token, logprobs->token + logprobs->n_shown,
                (size_t)n_left * sizeof *logprobs->token);
    logprobs->n = n_left;
    logprobs->n_shown = 0;
}
