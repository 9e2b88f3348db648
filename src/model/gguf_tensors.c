/* The tensor directory: names, shapes, types, and where the data lies. */
#include <stdio.h>

#include "base/size.h"
#include "model/gguf_internal.h"

/* "F32, F16, ...": the types of this build, for error texts. */
static void types_list(char *out_text, size_t bytes)
{
    size_t n = 0;
    out_text[0] = '\0';
    for (uint32_t type = 0; type < EK_TYPE_MAX && n < bytes; type++) {
        const ek_type_info *info = ek_quant_type_info(type);
        if (!info || !info->supported) continue;
        int added = snprintf(out_text + n, bytes - n, "%s%s", n ? ", " : "", info->name);
        if (added > 0) n += (size_t)added;
    }
}

static ek_status type_check(const ek_gguf_reader *reader, uint32_t type,
                            const ek_type_info **out_info)
{
    const ek_type_info *info = ek_quant_type_info(type);
    char known[128];
    if (info && info->supported) {
        *out_info = info;
        return EK_OK;
    }
    types_list(known, sizeof known);
    if (info)
        return ek_model_gguf_fail(reader, EK_EUNSUPPORTED,
                                  "type %s is not supported (supported: %s)", info->name, known);
    return ek_model_gguf_fail(reader, EK_EUNSUPPORTED,
                              "type number %u is not known (supported: %s)", type, known);
}

/* Dimensions and their product, each below 2^63, so that an int64_t holds every count. */
static ek_status dims_read(ek_gguf_reader *reader, ek_tensor *tensor, uint64_t *out_elems)
{
    uint32_t n_dims = 0;
    uint64_t elems = 1;
    ek_status status = ek_model_gguf_take_u32(reader, "number of dimensions", &n_dims);
    if (status != EK_OK) return status;
    if (n_dims < 1 || n_dims > EK_GGUF_DIMS_MAX)
        return ek_model_gguf_fail(reader, EK_EFORMAT, "has %u dimensions, must have 1..%d", n_dims,
                                  EK_GGUF_DIMS_MAX);
    tensor->n_dims = (int32_t)n_dims;
    for (uint32_t i = 0; i < EK_GGUF_DIMS_MAX; i++) {
        uint64_t dim = 1;
        if (i < n_dims) {
            status = ek_model_gguf_take_u64(reader, "dimension", &dim);
            if (status != EK_OK) return status;
        }
        if (dim == 0) return ek_model_gguf_fail(reader, EK_EFORMAT, "dimension %u is 0", i);
        if (!ek_u64_mul(elems, dim, &elems) || elems > INT64_MAX)
            return ek_model_gguf_fail(reader, EK_EFORMAT, "its number of elements overflows");
        tensor->dim[i] = (int64_t)dim;
    }
    *out_elems = elems;
    return EK_OK;
}

static ek_status tensor_read(ek_gguf_reader *reader, ek_tensor *tensor, uint64_t *out_offset)
{
    uint64_t elems = 0;
    uint32_t type = 0;
    const ek_type_info *info = NULL;
    ek_status status = ek_model_gguf_take_name(reader);
    if (status == EK_OK) status = dims_read(reader, tensor, &elems);
    if (status == EK_OK) status = ek_model_gguf_take_u32(reader, "type", &type);
    if (status == EK_OK) status = type_check(reader, type, &info);
    if (status == EK_OK) status = ek_model_gguf_take_u64(reader, "data offset", out_offset);
    if (status != EK_OK) return status;

    if (tensor->dim[0] % info->block_elems != 0)
        return ek_model_gguf_fail(reader, EK_EFORMAT,
                                  "a row of %lld elements is not a multiple of %s's block of %d",
                                  (long long)tensor->dim[0], info->name, info->block_elems);
    uint64_t bytes;
    uint64_t n_blocks = elems / (uint64_t)info->block_elems;
    if (!ek_u64_mul(n_blocks, (uint64_t)info->block_bytes, &bytes) || bytes > SIZE_MAX)
        return ek_model_gguf_fail(reader, EK_EFORMAT, "its size in bytes overflows");
    tensor->name = reader->name;
    tensor->type = (ek_type)type;
    tensor->bytes = (size_t)bytes;
    return EK_OK;
}

/*
 * A tensor's data begins aligned, after the one before it, and ends inside the file. Writers lay
 * tensors out in the directory's order; holding them to it keeps two tensors from sharing bytes, so
 * that all tensors together are never larger than the file.
 */
static ek_status data_place(const ek_gguf_reader *reader, ek_span section, size_t align,
                            uint64_t offset, uint64_t *section_used, ek_tensor *tensor)
{
    uint64_t end;
    if (offset % align != 0)
        return ek_model_gguf_fail(reader, EK_EFORMAT, "data offset %llu is not a multiple of %zu",
                                  (unsigned long long)offset, align);
    if (offset < *section_used)
        return ek_model_gguf_fail(reader, EK_EFORMAT, "its data overlaps the tensor before it");
    if (!ek_u64_add(offset, tensor->bytes, &end))
        return ek_model_gguf_fail(reader, EK_EFORMAT, "data offset %llu is outside any file",
                                  (unsigned long long)offset);
    if (end > section.len)
        return ek_model_gguf_fail(reader, EK_ETRUNCATED,
                                  "data ends %llu bytes past the end of the file",
                                  (unsigned long long)(end - section.len));
    tensor->data = section.data + offset;
    *section_used = end;
    return EK_OK;
}

ek_status ek_model_gguf_tensors_read(ek_gguf_reader *reader, int32_t n_tensors, size_t align,
                                     ek_arena scratch, ek_tensor *out_tensors)
{
    ek_gguf_reader entry = *reader;
    uint64_t *offsets = ek_try_new(&scratch, uint64_t, n_tensors);
    if (!offsets)
        return ek_model_gguf_fail(reader, EK_ENOMEM, "no memory for the tensor directory");
    entry.noun = "tensor";
    entry.count = n_tensors;
    for (entry.idx = 0; entry.idx < n_tensors; entry.idx++) {
        entry.name = (ek_str){0};
        ek_status status = tensor_read(&entry, &out_tensors[entry.idx], &offsets[entry.idx]);
        if (status != EK_OK) return status;
    }
    reader->at = entry.at;

    ek_span file = reader->file;
    size_t beg = ek_size_align(reader->at, align);
    if (beg > file.len) beg = file.len;
    ek_span section = {file.data + beg, file.len - beg};
    uint64_t section_used = 0;
    for (entry.idx = 0; entry.idx < n_tensors; entry.idx++) {
        ek_tensor *tensor = &out_tensors[entry.idx];
        entry.name = tensor->name;
        ek_status status =
            data_place(&entry, section, align, offsets[entry.idx], &section_used, tensor);
        if (status != EK_OK) return status;
    }
    return EK_OK;
}
