#include "cluster/identity.h"

#include <openssl/evp.h>
#include <string.h>

static bool add_tensor(EVP_MD_CTX *sha, const ek_tensor *t)
{
    const int32_t head[] = {(int32_t)t->type, t->n_dims};
    bool ok = EVP_DigestUpdate(sha, t->name.data, t->name.len) &&
              EVP_DigestUpdate(sha, head, sizeof head) &&
              EVP_DigestUpdate(sha, t->dim, sizeof t->dim);
    const uint8_t *data = t->data;
    if (t->bytes <= (size_t)EK_IDENTITY_SAMPLES * EK_IDENTITY_SAMPLE_B)
        return ok && EVP_DigestUpdate(sha, data, t->bytes);
    /* The first one at the beginning, the last one at the end. */
    size_t span = t->bytes - EK_IDENTITY_SAMPLE_B;
    const size_t last = EK_IDENTITY_SAMPLES - 1;
    for (size_t i = 0; ok && i <= last; i++) {
        size_t at = span / last * i + span % last * i / last;
        ok = EVP_DigestUpdate(sha, data + at, EK_IDENTITY_SAMPLE_B);
    }
    return ok;
}

ek_status ek_cluster_identity(const ek_gguf *gguf, uint8_t out_identity[EK_IDENTITY_BYTES])
{
    EVP_MD_CTX *sha = EVP_MD_CTX_new();
    bool ok = sha && EVP_DigestInit_ex(sha, EVP_sha256(), NULL);
    for (int64_t i = 0; ok && i < ek_model_gguf_tensor_count(gguf); i++)
        ok = add_tensor(sha, ek_model_gguf_tensor_at(gguf, i));
    ok = ok && EVP_DigestFinal_ex(sha, out_identity, NULL);
    EVP_MD_CTX_free(sha);
    return ok ? EK_OK : EK_EINTERNAL;
}

static const char digits[] = "0123456789abcdef";

bool ek_cluster_identity_scan(const char *text, uint8_t out_identity[EK_IDENTITY_BYTES])
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

void ek_cluster_identity_print(const uint8_t identity[EK_IDENTITY_BYTES],
                               char out_text[EK_IDENTITY_HEX_MAX])
{
    for (int i = 0; i < EK_IDENTITY_BYTES; i++) {
        out_text[2 * i] = digits[identity[i] >> 4];
        out_text[2 * i + 1] = digits[identity[i] & 15];
    }
    out_text[EK_IDENTITY_HEX_MAX - 1] = '\0';
}
