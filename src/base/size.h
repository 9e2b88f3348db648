/*
 * Checked arithmetic on sizes. Every product or sum of sizes that comes from a file, a peer or a
 * request goes through here; false means that the result does not fit and *out is untouched.
 */
#ifndef EK_BASE_SIZE_H
#define EK_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"

EK_MUST static inline bool ek_size_mul(size_t a, size_t b, size_t *out)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *out = product;
    return true;
}

EK_MUST static inline bool ek_size_add(size_t a, size_t b, size_t *out)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return false;
    *out = sum;
    return true;
}

EK_MUST static inline bool ek_u64_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *out = product;
    return true;
}

EK_MUST static inline bool ek_u64_add(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return false;
    *out = sum;
    return true;
}

/** Round n up to a multiple of align (a power of two); the caller knows that it fits. */
static inline size_t ek_size_align(size_t n, size_t align)
{
    return (n + (align - 1)) & ~(align - 1);
}

#endif
