/*
 * Chat format: messages -> the token sequence that a model was trained on.
 *
 * The file's Jinja template is recognised (by what it contains), never executed: a known format is
 * a table row with the strings around each role. An unknown template is an error that lists the
 * known names, one of which the user can choose (`--chat-format chatml`). Only the format's own
 * markers become special tokens; what users wrote is encoded as plain text, so nobody can forge a
 * turn. Pure.
 */
#ifndef EK_MODEL_CHAT_H
#define EK_MODEL_CHAT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/span.h"
#include "model/tokenizer.h"

typedef struct ek_chat_format ek_chat_format; /* static table rows: never freed */

typedef struct ek_chat_message {
    ek_str role;    /* "system", "user", "assistant", "tool"; "developer" counts as system */
    ek_str content; /* UTF-8 */
} ek_chat_message;

/** By name ("chatml", "mixtral", "olmo", "deepseek-v3", ...: ek_model_chat_list); NULL: unknown. */
const ek_chat_format *ek_model_chat_by_name(ek_str name);

/**
 * By the file's `tokenizer.chat_template`.
 * @return EK_OK; EK_ENOTFOUND no template; EK_EUNSUPPORTED not recognised
 */
EK_MUST ek_status ek_model_chat_detect(const ek_gguf *gguf, const ek_chat_format **out_format,
                                       ek_err *err);

const char *ek_model_chat_name(const ek_chat_format *format);
const char *ek_model_chat_list(void); /* names for error texts and --help */

/**
 * Upper bounds of ids, and of scratch bytes, for the messages given; 0 where encoding refuses them.
 */
int64_t ek_model_chat_ids_max(const ek_chat_format *format, const ek_tokenizer *tokenizer,
                              const ek_chat_message *messages, int32_t n_messages);
size_t ek_model_chat_scratch_bytes(const ek_chat_format *format, const ek_tokenizer *tokenizer,
                                   const ek_chat_message *messages, int32_t n_messages);

/**
 * Encode a conversation, ending where the assistant's next answer begins.
 * @return EK_OK; EK_EINVAL no messages, or one whose role has no place there (err says which);
 *         EK_ERANGE; EK_ENOMEM
 */
EK_MUST ek_status ek_model_chat_encode(const ek_chat_format *format, const ek_tokenizer *tokenizer,
                                       const ek_chat_message *messages, int32_t n_messages,
                                       ek_arena scratch, int32_t *out_ids, int64_t max_ids,
                                       int64_t *out_n, ek_err *err);

/**
 * The same conversation as text, for people and logs (special tokens spelled out).
 * @return EK_OK; EK_EINVAL; EK_ENOMEM
 */
EK_MUST ek_status ek_model_chat_render(const ek_chat_format *format, const ek_tokenizer *tokenizer,
                                       const ek_chat_message *messages, int32_t n_messages,
                                       ek_arena *perm, ek_str *out_text, ek_err *err);

#endif
