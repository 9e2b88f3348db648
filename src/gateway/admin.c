#include "gateway/admin.h"

#include <string.h>

#include "gateway/faults.h"

static const char *const forwarding[] = {"forwarded", "x-forwarded-for", "x-real-ip", "via",
                                         "origin"};

void ek_gateway_admin_init(ek_admin *admin)
{
    ek_sys_mutex_init(&admin->lock);
}

void ek_gateway_admin_fini(ek_admin *admin)
{
    ek_sys_mutex_fini(&admin->lock);
}

/* ---- keys ---- */

static ek_str trim(ek_str text)
{
    while (text.len && strchr(" \t\r", text.data[text.len - 1]))
        text.len--;
    while (text.len && strchr(" \t", text.data[0])) {
        text.data++;
        text.len--;
    }
    return text;
}

static bool is_key(ek_str text)
{
    if (text.len < EK_ADMIN_KEY_BYTES_MIN || text.len > EK_ADMIN_KEY_BYTES_MAX) return false;
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] <= ' ' || text.data[i] > '~') return false;
    return true;
}

bool ek_gateway_admin_next(ek_str *text, int32_t *line, ek_str *out_key)
{
    while (text->len > 0) {
        ptrdiff_t end = ek_str_find(*text, EK_STR("\n"));
        size_t n = end >= 0 ? (size_t)end : text->len;
        size_t taken = end >= 0 ? n + 1 : n;
        ek_str key = trim((ek_str){text->data, n});
        *text = (ek_str){text->data + taken, text->len - taken};
        ++*line;
        if (key.len == 0 || key.data[0] == '#') continue;
        *out_key = key;
        return true;
    }
    return false;
}

ek_status ek_gateway_admin_parse(ek_str text, ek_admin_keys *out_keys, ek_err *err)
{
    ek_admin_keys keys = {0};
    int32_t line = 0;
    ek_str key;
    while (ek_gateway_admin_next(&text, &line, &key)) {
        if (!is_key(key))
            return ek_err_set(err, EK_EINVAL,
                              "line %d is no key: %d to %d visible characters without blanks",
                              (int)line, EK_ADMIN_KEY_BYTES_MIN, EK_ADMIN_KEY_BYTES_MAX);
        if (keys.n == EK_ADMIN_KEYS_MAX)
            return ek_err_set(err, EK_EINVAL, "line %d: more than %d keys", (int)line,
                              EK_ADMIN_KEYS_MAX);
        ek_status status = ek_sys_sha256_of(key.data, key.len, keys.hex[keys.n++]);
        if (status != EK_OK) return ek_err_set(err, status, "no memory for a hash");
    }
    if (keys.n == 0) return ek_err_set(err, EK_EINVAL, "there is no key in it");
    *out_keys = keys;
    return EK_OK;
}

void ek_gateway_admin_set(ek_admin *admin, const ek_admin_keys *keys)
{
    ek_sys_mutex_lock(&admin->lock);
    admin->keys = *keys;
    ek_sys_mutex_unlock(&admin->lock);
}

/* ---- requests ---- */

/* "Bearer KEY", the word in any case. */
static bool read_bearer(const ek_head *head, ek_str *out_key)
{
    ek_str value;
    static const char word[] = "Bearer ";
    const size_t n = sizeof word - 1;
    if (ek_http_head_count(head, "authorization", &value) != 1 || value.len <= n) return false;
    if (!ek_http_head_same((ek_str){value.data, n}, word)) return false;
    *out_key = trim((ek_str){value.data + n, value.len - n});
    return true;
}

/* All keys and all digits, whatever differs first: time tells nothing. */
static bool is_known(ek_admin *admin, const char hex[EK_SHA256_HEX_BYTES])
{
    bool known = false;
    ek_sys_mutex_lock(&admin->lock);
    for (int32_t k = 0; k < admin->keys.n; k++) {
        unsigned different = 0;
        for (size_t i = 0; i < EK_SHA256_HEX_BYTES; i++)
            different |= (unsigned char)admin->keys.hex[k][i] ^ (unsigned char)hex[i];
        known |= different == 0;
    }
    ek_sys_mutex_unlock(&admin->lock);
    return known;
}

static bool is_from_here(const ek_head *head, const char *client)
{
    ek_str value;
    for (size_t i = 0; i < EK_COUNT_OF(forwarding); i++)
        if (ek_http_head_field(head, forwarding[i], &value)) return false;
    return strncmp(client, "127.", 4) == 0 || strcmp(client, "::1") == 0;
}

bool ek_gateway_admin_check(ek_admin *admin, const ek_head *head, const char *client,
                            ek_fault *fault)
{
    char hex[EK_SHA256_HEX_BYTES];
    ek_str key;
    ek_sys_mutex_lock(&admin->lock);
    bool has_keys = admin->keys.n > 0;
    ek_sys_mutex_unlock(&admin->lock);
    if (!has_keys && is_from_here(head, client)) return true;
    if (!has_keys)
        return ek_http_fault_set(fault, &ek_gateway_fault_ip_not_allowed, NULL,
                                 "without an admin key (gateway.admin_key_file) this is for "
                                 "clients on the server's own machine");
    if (!read_bearer(head, &key))
        return ek_http_fault_set(fault, &ek_gateway_fault_missing_api_key, NULL,
                                 "this takes an admin key: Authorization: Bearer KEY");
    if (ek_sys_sha256_of(key.data, key.len, hex) != EK_OK || !is_known(admin, hex))
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_api_key, NULL,
                                 "this is not an admin key of this server");
    return true;
}
