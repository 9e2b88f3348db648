#include "sys/mem.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/size.h"
#include "sys/proc.h"

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

ek_status ek_sys_region_open(size_t bytes, int huge, ek_sys_region *out_region)
{
    size_t page = page_bytes();
    if (bytes > SIZE_MAX - page) return EK_ENOMEM;
    size_t rounded = ek_size_align(bytes ? bytes : 1, page);
    void *base = mmap(NULL, rounded, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return EK_ENOMEM;
    if (huge) madvise(base, rounded, MADV_HUGEPAGE);
    *out_region = (ek_sys_region){base, rounded};
    return EK_OK;
}

void ek_sys_region_close(ek_sys_region *region)
{
    if (!region->base) return;
    int rc = munmap(region->base, region->bytes);
    ek_assert(rc == 0); /* only a region that was damaged or closed twice fails */
    *region = (ek_sys_region){0};
}

void ek_sys_mem_forget(const void *data, size_t bytes)
{
    uintptr_t page = page_bytes();
    uintptr_t beg = ek_size_align((uintptr_t)data, page);
    uintptr_t end = ((uintptr_t)data + bytes) / page * page;
    if (beg < end) madvise((void *)beg, end - beg, MADV_DONTNEED); /* a hint: it may fail */
}

void *ek_sys_calloc(size_t n, size_t size)
{
    size_t bytes;
    if (!ek_size_mul(n, size, &bytes)) return NULL;
    return calloc(bytes ? bytes : 1, 1);
}

void *ek_sys_realloc(void *mem, size_t bytes)
{
    return realloc(mem, bytes ? bytes : 1);
}

void ek_sys_free(void *mem)
{
    free(mem);
}

uint64_t ek_sys_mem_available(void)
{
    char text[8192];
    uint64_t kib;
    uint64_t machine = UINT64_MAX;
    if (ek_sys_proc_read("/proc/meminfo", text, sizeof text) &&
        ek_sys_proc_field(text, "MemAvailable:", &kib))
        machine = kib * 1024;
    uint64_t group = ek_sys_cgroup_memory_left(EK_SYS_SELF_CGROUP, EK_SYS_CGROUP_MOUNT);
    return machine < group ? machine : group;
}

uint64_t ek_sys_mem_resident(void)
{
    char text[4096];
    uint64_t kib;
    if (!ek_sys_proc_read("/proc/self/status", text, sizeof text)) return 0;
    return ek_sys_proc_field(text, "VmRSS:", &kib) ? kib * 1024 : 0;
}
