/*
 * Text <-> ids for the engine's users. The tokenizer is immutable, so any thread may call; what a
 * call needs lives as long as the call.
 */
#include <string.h>

#include "base/size.h"
#include "engine/engine_internal.h"

/* Ids that a call collects: a heap block that is handed to the user in the end. */
static ek_status new_ids(int64_t n_max, int32_t **out_ids, ek_err *err)
{
    size_t bytes;
    if (ek_size_mul((size_t)n_max, sizeof(int32_t), &bytes)) {
        *out_ids = ek_sys_calloc(1, bytes ? bytes : 1);
        if (*out_ids) return EK_OK;
    }
    return ek_err_set(err, EK_ENOMEM, "no memory for %lld token ids", (long long)n_max);
}

/* Give back what the upper bound took too much. */
static int32_t *shrink_ids(int32_t *ids, int64_t n)
{
    int32_t *shrunk = ek_sys_realloc(ids, (size_t)(n > 0 ? n : 1) * sizeof *ids);
    return shrunk ? shrunk : ids;
}

ek_status ek_engine_tokenize(const ek_engine *engine, ek_str text, bool parse_special, bool add_bos,
                             int32_t **out_ids, int64_t *out_n, ek_err *err)
{
    const ek_tokenizer *tokenizer = engine->file->tokenizer;
    int64_t n_bos = add_bos && ek_model_tokenizer_adds_bos(tokenizer) ? 1 : 0;
    int64_t n_max = ek_model_tokenizer_ids_max(tokenizer, text.len) + n_bos, n = 0;
    ek_sys_region scratch = {0};
    int32_t *ids;
    ek_status status = new_ids(n_max, &ids, err);
    if (status != EK_OK) return status;
    status = ek_sys_region_open(ek_model_tokenizer_scratch_bytes(tokenizer, text.len), 0, &scratch);
    if (status == EK_OK) {
        if (n_bos) ids[0] = ek_model_tokenizer_bos(tokenizer);
        status =
            ek_model_tokenizer_encode(tokenizer, text, parse_special, ek_sys_region_arena(&scratch),
                                      ids + n_bos, n_max - n_bos, &n);
        ek_sys_region_close(&scratch);
    }
    if (status != EK_OK) {
        ek_sys_free(ids);
        return ek_err_set(err, status, "cannot encode %zu bytes of text: %s", text.len,
                          ek_status_text(status));
    }
    *out_ids = shrink_ids(ids, n + n_bos);
    *out_n = n + n_bos;
    return EK_OK;
}

/* ---- conversations ---- */

static ek_status encode_chat(const ek_engine *engine, const ek_chat_message *messages,
                             int32_t n_messages, int32_t **out_ids, int64_t *out_n, ek_err *err)
{
    const ek_tokenizer *tokenizer = engine->file->tokenizer;
    const ek_chat_format *format = engine->file->chat;
    int64_t n_max = ek_model_chat_ids_max(format, tokenizer, messages, n_messages);
    size_t bytes = ek_model_chat_scratch_bytes(format, tokenizer, messages, n_messages);
    ek_sys_region scratch;
    int32_t *ids;
    ek_status status = new_ids(n_max, &ids, err);
    if (status != EK_OK) return status;
    status = ek_sys_region_open(bytes ? bytes : 1, 0, &scratch);
    if (status != EK_OK) {
        ek_sys_free(ids);
        return ek_err_set(err, status, "no memory to encode %d messages", (int)n_messages);
    }
    int64_t n = 0;
    status = ek_model_chat_encode(format, tokenizer, messages, n_messages,
                                  ek_sys_region_arena(&scratch), ids, n_max, &n, err);
    ek_sys_region_close(&scratch);
    if (status != EK_OK) {
        ek_sys_free(ids);
        return status;
    }
    *out_ids = shrink_ids(ids, n);
    *out_n = n;
    return EK_OK;
}

ek_status ek_engine_chat_ids(const ek_engine *engine, const ek_engine_message *messages,
                             int32_t n_messages, int32_t **out_ids, int64_t *out_n, ek_err *err)
{
    if (!engine->file->chat)
        return ek_err_set(err, EK_EUNSUPPORTED, "%s", engine->file->chat_problem);
    if (n_messages < 1) return ek_err_set(err, EK_EINVAL, "messages is empty");
    ek_chat_message *copies = ek_sys_calloc((size_t)n_messages, sizeof *copies);
    if (!copies) return ek_err_set(err, EK_ENOMEM, "no memory for %d messages", (int)n_messages);
    for (int32_t i = 0; i < n_messages; i++)
        copies[i] = (ek_chat_message){.role = messages[i].role, .content = messages[i].content};
    ek_status status = encode_chat(engine, copies, n_messages, out_ids, out_n, err);
    ek_sys_free(copies);
    return status;
}

/* ---- ids -> text ---- */

static size_t piece_of(const ek_tokenizer *tokenizer, int32_t id, bool show_special, bool is_first,
                       char *out)
{
    size_t n = ek_model_tokenizer_piece(tokenizer, id, show_special, out);
    if (!is_first || n == 0 || out[0] != ' ') return n;
    if (!ek_model_tokenizer_strips_first_space(tokenizer)) return n;
    memmove(out, out + 1, n - 1);
    return n - 1;
}

ek_status ek_engine_detokenize(const ek_engine *engine, const int32_t *ids, int64_t n_ids,
                               bool show_special, ek_str *out_text, ek_err *err)
{
    const ek_tokenizer *tokenizer = engine->file->tokenizer;
    size_t len = 0, room = 256;
    bool is_first = true;
    char *text = ek_sys_calloc(1, room);
    for (int64_t i = 0; text && i < n_ids; i++) {
        char piece[EK_TOKENIZER_PIECE_MAX];
        if (ids[i] < 0 || ids[i] >= engine->shape.n_vocab) {
            ek_sys_free(text);
            return ek_err_set(err, EK_EINVAL, "tokens[%lld] is %d; ids go from 0 to %d",
                              (long long)i, (int)ids[i], (int)(engine->shape.n_vocab - 1));
        }
        bool is_text = !ek_model_tokenizer_is_special(tokenizer, ids[i]);
        size_t n = piece_of(tokenizer, ids[i], show_special, is_first && is_text, piece);
        if (is_text) is_first = false;
        if (len + n + 1 > room) {
            room = 2 * (len + n + 1);
            char *bigger = ek_sys_realloc(text, room);
            if (!bigger) ek_sys_free(text);
            text = bigger;
        }
        if (text) memcpy(text + len, piece, n);
        len += n;
    }
    if (!text) return ek_err_set(err, EK_ENOMEM, "no memory for %zu bytes of text", room);
    text[len] = '\0';
    *out_text = (ek_str){text, len};
    return EK_OK;
}

size_t ek_engine_piece(const ek_engine *engine, int32_t id, char out_piece[1024])
{
    if (id < 0 || id >= engine->shape.n_vocab) return 0;
    return ek_model_tokenizer_piece(engine->file->tokenizer, id, true, out_piece);
}
