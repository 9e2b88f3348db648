/*
 * SHA-256 of bytes that come in pieces. One thread per hash.
 */
#ifndef EK_SYS_SHA256_H
#define EK_SYS_SHA256_H

#include <stddef.h>

#include "base/attr.h"
#include "base/status.h"

#define EK_SHA256_HEX_BYTES 65 /* 64 lower-case hexadecimal digits and a NUL */

typedef struct ek_sys_sha256 {
    void *state; /* owned */
} ek_sys_sha256;

/** @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_sys_sha256_open(ek_sys_sha256 *out_hash);
void ek_sys_sha256_add(ek_sys_sha256 *hash, const void *data, size_t bytes);
/** The digest of everything added; ends the hash. */
void ek_sys_sha256_close(ek_sys_sha256 *hash, char out_hex[EK_SHA256_HEX_BYTES]);

/** The digest of one piece. @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_sys_sha256_of(const void *data, size_t bytes,
                                   char out_hex[EK_SHA256_HEX_BYTES]);

#endif
