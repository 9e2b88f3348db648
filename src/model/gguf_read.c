#include <stdarg.h>
#include <stdio.h>

#include "model/gguf_internal.h"

ek_status ek_model_gguf_fail(const ek_gguf_reader *reader, ek_status status, const char *fmt, ...)
{
    char text[EK_ERR_TEXT_MAX / 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (reader->name.len > 0)
        return ek_err_set(reader->err, status, "%s %.*s: %s", reader->noun,
                          EK_STR_ARG(reader->name), text);
    if (reader->count > 0)
        return ek_err_set(reader->err, status, "%s %lld of %lld: %s", reader->noun,
                          (long long)reader->idx + 1, (long long)reader->count, text);
    return ek_err_set(reader->err, status, "%s: %s", reader->noun, text);
}

ek_status ek_model_gguf_take(ek_gguf_reader *reader, size_t n, const char *part,
                             const uint8_t **out_bytes)
{
    if (n > ek_model_gguf_left(reader))
        return ek_model_gguf_fail(reader, EK_ETRUNCATED,
                                  "the %s needs %zu bytes, the file has %zu left", part, n,
                                  ek_model_gguf_left(reader));
    *out_bytes = reader->file.data + reader->at;
    reader->at += n;
    return EK_OK;
}

ek_status ek_model_gguf_take_u32(ek_gguf_reader *reader, const char *part, uint32_t *out_value)
{
    const uint8_t *bytes = NULL;
    ek_status status = ek_model_gguf_take(reader, sizeof *out_value, part, &bytes);
    if (status == EK_OK) *out_value = ek_model_gguf_load_u32(bytes);
    return status;
}

ek_status ek_model_gguf_take_u64(ek_gguf_reader *reader, const char *part, uint64_t *out_value)
{
    const uint8_t *bytes = NULL;
    ek_status status = ek_model_gguf_take(reader, sizeof *out_value, part, &bytes);
    if (status == EK_OK) *out_value = ek_model_gguf_load_u64(bytes);
    return status;
}

ek_status ek_model_gguf_take_str(ek_gguf_reader *reader, const char *part, ek_str *out_text)
{
    uint64_t len = 0;
    const uint8_t *bytes = NULL;
    ek_status status = ek_model_gguf_take_u64(reader, part, &len);
    if (status != EK_OK) return status;
    if (len > SIZE_MAX) len = SIZE_MAX; /* then it is longer than any file, too */
    status = ek_model_gguf_take(reader, (size_t)len, part, &bytes);
    if (status == EK_OK) *out_text = (ek_str){(const char *)bytes, (size_t)len};
    return status;
}

ek_status ek_model_gguf_take_name(ek_gguf_reader *reader)
{
    ek_str name = {0};
    ek_status status = ek_model_gguf_take_str(reader, "name", &name);
    if (status != EK_OK) return status;
    if (name.len == 0 || name.len > EK_GGUF_NAME_MAX)
        return ek_model_gguf_fail(reader, EK_EFORMAT, "its name has %zu bytes, must have 1..%d",
                                  name.len, EK_GGUF_NAME_MAX);
    for (size_t i = 0; i < name.len; i++)
        if (name.data[i] < 0x20 || name.data[i] > 0x7e)
            return ek_model_gguf_fail(reader, EK_EFORMAT,
                                      "byte %zu of its name is 0x%02x, must be printable ASCII", i,
                                      (unsigned)(uint8_t)name.data[i]);
    reader->name = name;
    return EK_OK;
}
