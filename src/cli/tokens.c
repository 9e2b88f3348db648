#include "cli/tokens.h"

#include "sys/mem.h"

ek_status ek_cli_tokens_encode(const ek_tokenizer *tokenizer, ek_str text, bool parse_special,
                               bool add_bos, ek_cli_tokens *out_tokens, ek_err *err)
{
    const int64_t n_max = ek_model_tokenizer_ids_max(tokenizer, text.len) + 1;
    int32_t *ids = ek_sys_calloc((size_t)n_max, sizeof *ids);
    ek_sys_region scratch = {0};
    ek_status status = EK_ENOMEM;
    int64_t n = 0, n_bos = 0;
    if (ids)
        status =
            ek_sys_region_open(ek_model_tokenizer_scratch_bytes(tokenizer, text.len), 0, &scratch);
    if (status >= 0 && add_bos && ek_model_tokenizer_adds_bos(tokenizer))
        ids[n_bos++] = ek_model_tokenizer_bos(tokenizer);
    if (status >= 0)
        status =
            ek_model_tokenizer_encode(tokenizer, text, parse_special, ek_sys_region_arena(&scratch),
                                      ids + n_bos, n_max - n_bos, &n);
    ek_sys_region_close(&scratch);
    if (status < 0) {
        ek_sys_free(ids);
        return ek_err_set(err, status, "cannot encode a text of %zu bytes: %s", text.len,
                          ek_status_text(status));
    }
    *out_tokens = (ek_cli_tokens){ids, n + n_bos};
    return EK_OK;
}

void ek_cli_tokens_free(ek_cli_tokens *tokens)
{
    ek_sys_free(tokens->id);
    *tokens = (ek_cli_tokens){0};
}
