#include <string.h>

#include "model/gguf_internal.h"

static ek_str record_name(const ek_gguf_index *index, int32_t record)
{
    const uint8_t *at = (const uint8_t *)index->records + (size_t)record * index->stride;
    return *(const ek_str *)(const void *)at;
}

static int names_compare(ek_str a, ek_str b)
{
    size_t shorter = a.len < b.len ? a.len : b.len;
    int order = shorter > 0 ? memcmp(a.data, b.data, shorter) : 0;
    if (order != 0 || a.len == b.len) return order;
    return a.len < b.len ? -1 : 1;
}

/* Equal names keep the file's order, so that a duplicate is always the later one. */
static bool record_less(const ek_gguf_index *index, int32_t a, int32_t b)
{
    int order = names_compare(record_name(index, a), record_name(index, b));
    return order != 0 ? order < 0 : a < b;
}

/* Restore the heap (largest on top) of order[0, n), where only element `at` may be too small. */
static void sift_down(const ek_gguf_index *index, int32_t at, int32_t n)
{
    int32_t *order = index->order;
    int32_t moving = order[at];
    for (int32_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && record_less(index, order[child], order[child + 1])) child++;
        if (!record_less(index, moving, order[child])) break;
        order[at] = order[child];
        at = child;
    }
    order[at] = moving;
}

/* Heapsort: in place, no recursion, and no input that makes it quadratic. */
static void index_sort(const ek_gguf_index *index)
{
    for (int32_t at = index->n / 2 - 1; at >= 0; at--)
        sift_down(index, at, index->n);
    for (int32_t n = index->n - 1; n > 0; n--) {
        int32_t largest = index->order[0];
        index->order[0] = index->order[n];
        index->order[n] = largest;
        sift_down(index, 0, n);
    }
}

ek_status ek_model_gguf_index_build(const void *records, size_t stride, int32_t n, ek_arena *perm,
                                    ek_gguf_index *out_index, int32_t *out_duplicate)
{
    ek_gguf_index index = {.records = records, .stride = stride, .n = n};
    index.order = ek_try_new(perm, int32_t, n);
    if (!index.order) return EK_ENOMEM;
    for (int32_t i = 0; i < n; i++)
        index.order[i] = i;
    index_sort(&index);
    *out_index = index;
    *out_duplicate = -1;
    for (int32_t i = 1; i < n; i++)
        if (ek_str_eq(record_name(&index, index.order[i - 1]), record_name(&index, index.order[i])))
            *out_duplicate = index.order[i];
    return EK_OK;
}

int32_t ek_model_gguf_index_find(const ek_gguf_index *index, ek_str name)
{
    int32_t beg = 0;
    int32_t end = index->n;
    while (beg < end) {
        int32_t middle = beg + (end - beg) / 2;
        int order = names_compare(record_name(index, index->order[middle]), name);
        if (order == 0) return index->order[middle];
        if (order < 0)
            beg = middle + 1;
        else
            end = middle;
    }
    return -1;
}
