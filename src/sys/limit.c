#include "sys/limit.h"

#include <sys/resource.h>

/* RLIM_INFINITY is the greatest value of its type, so plain comparisons hold for it, too. */
uint64_t ek_sys_descriptors_allow(uint64_t n)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
    if (limit.rlim_cur >= n) return limit.rlim_cur;
    const struct rlimit wanted = {
        .rlim_cur = n < limit.rlim_max ? n : limit.rlim_max,
        .rlim_max = limit.rlim_max,
    };
    if (setrlimit(RLIMIT_NOFILE, &wanted) != 0) return limit.rlim_cur;
    return wanted.rlim_cur;
}
