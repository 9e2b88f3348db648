#include "store/ledger.h"

#include <jansson.h>
#include <string.h>

#include "sys/file.h"
#include "sys/mem.h"

#define FORMAT    "evenkeel-fetch"
#define VERSION   1
#define BYTES_MAX ((size_t)64 << 20)

/* Marks the shards of a range [first, last]. False: it is none. */
static bool mark(const json_t *range, int32_t n_shards, uint8_t *done)
{
    const json_t *first = json_array_get(range, 0), *last = json_array_get(range, 1);
    if (!json_is_integer(first) || !json_is_integer(last)) return false;
    json_int_t beg = json_integer_value(first), end = json_integer_value(last);
    if (beg < 0 || end < beg || end >= n_shards) return false;
    memset(done + beg, 1, (size_t)(end - beg) + 1);
    return true;
}

static bool is_text(const json_t *object, const char *key, const char *wanted)
{
    const json_t *value = json_object_get(object, key);
    return json_is_string(value) && strcmp(json_string_value(value), wanted) == 0;
}

static ek_status take(const json_t *root, const ek_store_manifest *m, uint8_t *done)
{
    const json_t *complete = json_object_get(root, "complete");
    if (!is_text(root, "format", FORMAT) || !json_is_array(complete) ||
        json_integer_value(json_object_get(root, "version")) != VERSION)
        return EK_EFORMAT;
    if (!is_text(root, "manifest", m->body_sha256)) return EK_ESTALE;
    for (size_t i = 0; i < json_array_size(complete); i++)
        if (!mark(json_array_get(complete, i), m->n_shards, done)) return EK_EFORMAT;
    return EK_OK;
}

ek_status ek_store_ledger_read(const char *path, const ek_store_manifest *manifest,
                               uint8_t *out_done, ek_err *err)
{
    ek_str text;
    json_error_t wrong;
    ek_status status = ek_sys_file_read(path, BYTES_MAX, &text, err);
    if (status == EK_ERANGE) return ek_err_set(err, EK_EFORMAT, "%s: is damaged", path);
    if (status != EK_OK) return status;
    json_t *root = json_loadb(text.data, text.len, JSON_REJECT_DUPLICATES, &wrong);
    ek_sys_free((void *)(uintptr_t)text.data);
    uint8_t *done = ek_sys_calloc((size_t)manifest->n_shards, 1);
    status = !done ? EK_ENOMEM : !root ? EK_EFORMAT : take(root, manifest, done);
    if (status == EK_OK) memcpy(out_done, done, (size_t)manifest->n_shards);
    ek_sys_free(done);
    json_decref(root);
    switch ((int)status) {
    case EK_OK: return EK_OK;
    case EK_ESTALE: return ek_err_set(err, status, "%s: is of another model", path);
    case EK_EFORMAT: return ek_err_set(err, status, "%s: is damaged", path);
    default: return ek_err_set(err, status, "%s: no memory", path);
    }
}

static json_t *ranges(const ek_store_manifest *m, const uint8_t *done)
{
    json_t *complete = json_array();
    for (int32_t i = 0; complete && i < m->n_shards; i++) {
        if (!done[i]) continue;
        int32_t last = i;
        while (last + 1 < m->n_shards && done[last + 1])
            last++;
        if (json_array_append_new(complete, json_pack("[i, i]", (int)i, (int)last)) != 0) {
            json_decref(complete);
            return NULL;
        }
        i = last;
    }
    return complete;
}

ek_status ek_store_ledger_write(const char *path, const ek_store_manifest *manifest,
                                const uint8_t *done, ek_err *err)
{
    json_t *root = json_pack("{s:s, s:i, s:s, s:o}", "format", FORMAT, "version", VERSION,
                             "manifest", manifest->body_sha256, "complete", ranges(manifest, done));
    size_t bytes = root ? json_dumpb(root, NULL, 0, JSON_COMPACT) : 0;
    char *text = bytes ? ek_sys_calloc(1, bytes + 1) : NULL;
    ek_status status = EK_OK;
    if (text) {
        (void)json_dumpb(root, text, bytes, JSON_COMPACT);
        text[bytes] = '\n';
        status = ek_sys_file_write(path, (ek_span){(const uint8_t *)text, bytes + 1}, err);
    } else {
        status = ek_err_set(err, EK_ENOMEM, "%s: no memory", path);
    }
    ek_sys_free(text);
    json_decref(root);
    return status;
}
