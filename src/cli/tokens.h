/*
 * Token ids of a text, for the commands that look inside a model.
 */
#ifndef EK_CLI_TOKENS_H
#define EK_CLI_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"
#include "model/tokenizer.h"

#define EK_CLI_TEXT_MAX ((size_t)64 << 20) /* bytes of a text file */

typedef struct ek_cli_tokens {
    int32_t *id; /* (n) owned */
    int64_t n;
} ek_cli_tokens;

/**
 * Encode a text.
 * @param parse_special text that spells a special token becomes that token
 * @param add_bos       begin with BOS where the model file says that prompts do
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_cli_tokens_encode(const ek_tokenizer *tokenizer, ek_str text,
                                       bool parse_special, bool add_bos, ek_cli_tokens *out_tokens,
                                       ek_err *err);
void ek_cli_tokens_free(ek_cli_tokens *tokens);

#endif
