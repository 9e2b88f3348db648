/*
 * Arenas: memory that is given back all at once.
 *
 * An arena is two pointers into memory that somebody else owns (sys/mem.h gives pages). Four
 * lifetimes exist: process, model, request and step. A function that returns data takes `ek_arena
 * *perm`; scratch is passed *by value*, so that returning gives it back:
 *
 *     static ek_status parse(ek_arena *perm, ek_arena scratch, ...);
 *
 * ek_new is for sizes that follow from our own configuration: running out is a bug and asserts.
 * ek_try_new is for sizes that a file or client decided: it returns NULL, the caller says
 * EK_ENOMEM. Memory is zeroed. No thread safety: an arena has one owner at a time.
 */
#ifndef EK_BASE_ARENA_H
#define EK_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/span.h"

typedef struct ek_arena {
    uint8_t *beg; /* next free byte; borrowed from whoever made the arena */
    uint8_t *end; /* one past the last byte */
} ek_arena;

/** An arena over caller's memory. */
static inline ek_arena ek_arena_over(void *mem, size_t bytes)
{
    ek_arena arena = {(uint8_t *)mem, (uint8_t *)mem + bytes};
    return arena;
}

static inline size_t ek_arena_free_bytes(const ek_arena *arena)
{
    return (size_t)(arena->end - arena->beg);
}

/**
 * n objects of `size` bytes, zeroed, aligned to `align` (a power of two).
 * @return NULL when the arena is too small or n * size overflows
 */
void *ek_arena_try_alloc(ek_arena *arena, size_t n, size_t size, size_t align);

/**
 * As ek_arena_try_alloc, but the memory holds whatever was there: for buffers that are written from
 * end to end before anybody reads them, where zeroing would cost as much as the work itself.
 */
void *ek_arena_try_raw(ek_arena *arena, size_t n, size_t size, size_t align);

/** As ek_arena_try_alloc, but asserts instead of returning NULL. */
void *ek_arena_alloc(ek_arena *arena, size_t n, size_t size, size_t align);

#define ek_new(arena, type, n) \
    ((type *)ek_arena_alloc(arena, (size_t)(n), sizeof(type), EK_ALIGN_OF(type)))
#define ek_try_new(arena, type, n) \
    ((type *)ek_arena_try_alloc(arena, (size_t)(n), sizeof(type), EK_ALIGN_OF(type)))

/** Cache-line aligned array, for data that threads or vector loads touch. */
#define ek_new_aligned(arena, type, n) \
    ((type *)ek_arena_alloc(arena, (size_t)(n), sizeof(type), EK_CACHE_LINE))

/** A NUL-terminated copy of text; NULL when the arena is full. */
const char *ek_arena_try_strz(ek_arena *arena, ek_str text);

#endif
