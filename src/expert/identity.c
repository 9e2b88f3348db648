#include "expert/identity.h"

#include <string.h>

#include "base/assert.h"
#include "sys/sha256.h"

static void add_tensor(ek_sys_sha256 *sha, const ek_tensor *t)
{
    const int32_t head[] = {(int32_t)t->type, t->n_dims};
    ek_sys_sha256_add(sha, t->name.data, t->name.len);
    ek_sys_sha256_add(sha, head, sizeof head);
    ek_sys_sha256_add(sha, t->dim, sizeof t->dim);
    const uint8_t *data = t->data;
    if (t->bytes <= (size_t)EK_IDENTITY_SAMPLES * EK_IDENTITY_SAMPLE_B) {
        ek_sys_sha256_add(sha, data, t->bytes);
        return;
    }
    /* The first one at the beginning, the last one at the end. */
    size_t span = t->bytes - EK_IDENTITY_SAMPLE_B;
    const size_t last = EK_IDENTITY_SAMPLES - 1;
    for (size_t i = 0; i <= last; i++) {
        size_t at = span / last * i + span % last * i / last;
        ek_sys_sha256_add(sha, data + at, EK_IDENTITY_SAMPLE_B);
    }
}

ek_status ek_expert_identity(const ek_gguf *gguf, uint8_t out_identity[EK_IDENTITY_BYTES])
{
    ek_sys_sha256 sha;
    ek_status status = ek_sys_sha256_open(&sha);
    if (status != EK_OK) return status;
    for (int64_t i = 0; i < ek_model_gguf_tensor_count(gguf); i++)
        add_tensor(&sha, ek_model_gguf_tensor_at(gguf, i));
    char hex[EK_SHA256_HEX_BYTES];
    ek_sys_sha256_close(&sha, hex);
    bool is_hex = ek_expert_identity_scan(hex, out_identity);
    ek_assert(is_hex);
    return EK_OK;
}

static const char digits[] = "0123456789abcdef";

bool ek_expert_identity_scan(const char *text, uint8_t out_identity[EK_IDENTITY_BYTES])
{
    if (strlen(text) != EK_IDENTITY_HEX_MAX - 1 || strspn(text, digits) != EK_IDENTITY_HEX_MAX - 1)
        return false;
    for (int i = 0; i < EK_IDENTITY_BYTES; i++) {
        ptrdiff_t high = strchr(digits, text[2 * i]) - digits;
        ptrdiff_t low = strchr(digits, text[2 * i + 1]) - digits;
        out_identity[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

void ek_expert_identity_print(const uint8_t identity[EK_IDENTITY_BYTES],
                              char out_text[EK_IDENTITY_HEX_MAX])
{
    for (int i = 0; i < EK_IDENTITY_BYTES; i++) {
        out_text[2 * i] = digits[identity[i] >> 4];
        out_text[2 * i + 1] = digits[identity[i] & 15];
    }
    out_text[EK_IDENTITY_HEX_MAX - 1] = '\0';
}
