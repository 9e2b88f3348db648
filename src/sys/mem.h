/*
 * Memory from the OS: the only room that calls malloc or mmap.
 *
 * Arenas are reserved as address space and touched page by page, so that a generous reservation
 * costs nothing until it is used. The heap calls exist for the few objects that outlive every
 * arena's pattern (connections, queues) and for growing buffers; nothing on the step path calls
 * them.
 */
#ifndef EK_SYS_MEM_H
#define EK_SYS_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

typedef struct ek_sys_region {
    void *base;   /* owned */
    size_t bytes; /* page multiple */
} ek_sys_region;

/**
 * Reserve zeroed memory of at least `bytes`; pages are committed when touched.
 * @param huge ask the kernel for huge pages (a hint; never fails for it)
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_sys_region_open(size_t bytes, int huge, ek_sys_region *out_region);

/** Accepts a zeroed region. */
void ek_sys_region_close(ek_sys_region *region);

static inline ek_arena ek_sys_region_arena(const ek_sys_region *region)
{
    return ek_arena_over(region->base, region->bytes);
}

/**
 * Give back the pages that lie wholly in a range: of a file's read-only map they are read again
 * from the file when they are touched, of a region they are zeros then.
 */
void ek_sys_mem_forget(const void *data, size_t bytes);

/** Zeroed heap object; NULL when out of memory or on overflow. */
void *ek_sys_calloc(size_t n, size_t size);
/** Grow or shrink; contents kept, new bytes undefined; NULL leaves the old block valid. */
void *ek_sys_realloc(void *mem, size_t bytes);
/** Accepts NULL. */
void ek_sys_free(void *mem);

/**
 * Bytes a new process could use now: the smaller of MemAvailable and what the cgroup still allows.
 */
uint64_t ek_sys_mem_available(void);

/** Resident set size of this process in bytes. */
uint64_t ek_sys_mem_resident(void);

#endif
