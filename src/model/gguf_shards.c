/* Names of split models: "<base>-00001-of-00003.gguf". */
#include <stdio.h>
#include <string.h>

#include "model/gguf.h"

/* "-00001-of-00003.gguf" */
#define SUFFIX_LEN 20
#define DIGITS     5

static bool digits_parse(const char *text, int32_t *out_value)
{
    int32_t value = 0;
    for (int i = 0; i < DIGITS; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        value = value * 10 + (text[i] - '0');
    }
    *out_value = value;
    return true;
}

/* The shard number and count that a name's end spells; false: an ordinary name. */
static bool suffix_parse(const char *path, size_t *out_base_len, int32_t *out_number,
                         int32_t *out_count)
{
    size_t len = strlen(path);
    if (len < SUFFIX_LEN) return false;
    const char *suffix = path + len - SUFFIX_LEN;
    if (suffix[0] != '-' || memcmp(suffix + 6, "-of-", 4) != 0 ||
        memcmp(suffix + 15, ".gguf", 5) != 0)
        return false;
    if (!digits_parse(suffix + 1, out_number) || !digits_parse(suffix + 10, out_count))
        return false;
    *out_base_len = len - SUFFIX_LEN;
    return true;
}

ek_status ek_model_gguf_shard_count(const char *path, int32_t *out_n, ek_err *err)
{
    size_t base_len;
    int32_t number;
    int32_t count;
    if (!suffix_parse(path, &base_len, &number, &count)) {
        *out_n = 1;
        return EK_OK;
    }
    if (count < 1 || count > EK_GGUF_SHARDS_MAX)
        return ek_err_set(err, EK_EINVAL, "the name says %d shards, must be 1..%d", count,
                          EK_GGUF_SHARDS_MAX);
    if (number < 1 || number > count)
        return ek_err_set(err, EK_EINVAL, "the name says shard %d of %d", number, count);
    if (number != 1)
        return ek_err_set(err, EK_EINVAL,
                          "this is shard %d of %d: name the first one, %.*s-00001-of-%05d.gguf",
                          number, count, (int)base_len, path, count);
    *out_n = count;
    return EK_OK;
}

ek_status ek_model_gguf_shard_path(const char *path, int32_t idx, char *out_path, size_t bytes)
{
    size_t base_len;
    int32_t number;
    int32_t count;
    int n;
    if (suffix_parse(path, &base_len, &number, &count))
        n = snprintf(out_path, bytes, "%.*s-%05d-of-%05d.gguf", (int)base_len, path, idx + 1,
                     count);
    else
        n = snprintf(out_path, bytes, "%s", path);
    return n >= 0 && (size_t)n < bytes ? EK_OK : EK_ERANGE;
}
