#include "base/arena.h"

#include <string.h>

#include "base/assert.h"
#include "base/size.h"

void *ek_arena_try_raw(ek_arena *arena, size_t n, size_t size, size_t align)
{
    size_t bytes;
    if (!ek_size_mul(n, size, &bytes)) return NULL;
    size_t pad = (size_t)(-(uintptr_t)arena->beg & (align - 1));
    size_t room = ek_arena_free_bytes(arena);
    if (pad > room || bytes > room - pad) return NULL;
    void *mem = arena->beg + pad;
    arena->beg += pad + bytes;
    return mem;
}

void *ek_arena_try_alloc(ek_arena *arena, size_t n, size_t size, size_t align)
{
    void *mem = ek_arena_try_raw(arena, n, size, align);
    return mem && n && size ? memset(mem, 0, n * size) : mem;
}

void *ek_arena_alloc(ek_arena *arena, size_t n, size_t size, size_t align)
{
    void *mem = ek_arena_try_alloc(arena, n, size, align);
    ek_assert(mem != NULL);
    return mem;
}

const char *ek_arena_try_strz(ek_arena *arena, ek_str text)
{
    size_t bytes;
    if (!ek_size_add(text.len, 1, &bytes)) return NULL;
    char *copy = ek_arena_try_alloc(arena, bytes, 1, 1);
    if (copy && text.len) memcpy(copy, text.data, text.len);
    return copy;
}
