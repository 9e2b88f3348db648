#include "sys/sha256.h"

#include <openssl/evp.h>

#include "base/assert.h"

ek_status ek_sys_sha256_open(ek_sys_sha256 *out_hash)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    if (!ctx) return EK_ENOMEM;
    if (EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(ctx);
        return EK_ENOMEM;
    }
    out_hash->state = ctx;
    return EK_OK;
}

void ek_sys_sha256_add(ek_sys_sha256 *hash, const void *data, size_t bytes)
{
    int rc = EVP_DigestUpdate(hash->state, data, bytes);
    ek_assert(rc == 1);
}

void ek_sys_sha256_close(ek_sys_sha256 *hash, char out_hex[EK_SHA256_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char digest[EVP_MAX_MD_SIZE];
    int rc = EVP_DigestFinal_ex(hash->state, digest, NULL);
    ek_assert(rc == 1);
    EVP_MD_CTX_free(hash->state);
    hash->state = NULL;
    for (int i = 0; i < (EK_SHA256_HEX_BYTES - 1) / 2; i++) {
        out_hex[2 * i] = digits[digest[i] >> 4];
        out_hex[2 * i + 1] = digits[digest[i] & 15];
    }
    out_hex[EK_SHA256_HEX_BYTES - 1] = '\0';
}

ek_status ek_sys_sha256_of(const void *data, size_t bytes, char out_hex[EK_SHA256_HEX_BYTES])
{
    ek_sys_sha256 hash;
    ek_status status = ek_sys_sha256_open(&hash);
    if (status != EK_OK) return status;
    ek_sys_sha256_add(&hash, data, bytes);
    ek_sys_sha256_close(&hash, out_hex);
    return EK_OK;
}
