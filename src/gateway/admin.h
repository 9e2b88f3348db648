/*
 * Who may administer: routes that change something for everybody (routes.c marks them).
 *
 * With admin keys, whoever shows one of them as `Authorization: Bearer KEY`. Without any, clients
 * of this machine only, and of those none that speaks for somebody else: what a proxy passes on,
 * and what a page in a browser sends, has a header that says so.
 *
 * Keys can be exchanged at any time and are kept as hashes only. Any thread.
 */
#ifndef EK_GATEWAY_ADMIN_H
#define EK_GATEWAY_ADMIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"
#include "http/fault.h"
#include "http/head.h"
#include "sys/sha256.h"
#include "sys/thread.h"

#define EK_ADMIN_KEYS_MAX       8
#define EK_ADMIN_KEY_BYTES_MIN  16
#define EK_ADMIN_KEY_BYTES_MAX  256
#define EK_ADMIN_FILE_BYTES_MAX 16384 /* of a file of keys */

typedef struct ek_admin_keys {
    char hex[EK_ADMIN_KEYS_MAX][EK_SHA256_HEX_BYTES];
    int32_t n;
} ek_admin_keys;

typedef struct ek_admin {
    ek_sys_mutex lock;
    ek_admin_keys keys; /* lock; n = 0: there are none */
} ek_admin;

void ek_gateway_admin_init(ek_admin *admin);
void ek_gateway_admin_fini(ek_admin *admin);

/**
 * The next line that counts, without the blanks around it.
 * @param text what is left; moved on
 * @param line of the file, of the key; counted on
 * @return false: there is none
 */
bool ek_gateway_admin_next(ek_str *text, int32_t *line, ek_str *out_key);

/**
 * Read keys: one in each line, without blanks inside; empty lines and those with # do not count.
 * @return EK_OK; EK_EINVAL no key, too many, or one of a wrong length: the text has the line, never
 *         the key; EK_ENOMEM
 */
EK_MUST ek_status ek_gateway_admin_parse(ek_str text, ek_admin_keys *out_keys, ek_err *err);

/** From now on these. */
void ek_gateway_admin_set(ek_admin *admin, const ek_admin_keys *keys);

/**
 * May the sender of this head administer?
 * @param client its address, as text
 * @return false: the fault says what to answer
 */
bool ek_gateway_admin_check(ek_admin *admin, const ek_head *head, const char *client,
                            ek_fault *fault);

#endif
