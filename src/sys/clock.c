#include "sys/clock.h"

#include <errno.h>
#include <time.h>

#define NS_PER_S  INT64_C(1000000000)
#define NS_PER_US INT64_C(1000)

int64_t ek_sys_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

int64_t ek_sys_thread_cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

int64_t ek_sys_now_us(void)
{
    return ek_sys_now_ns() / NS_PER_US;
}

int64_t ek_sys_wall_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return ((int64_t)ts.tv_sec * NS_PER_S + ts.tv_nsec) / NS_PER_US;
}

int64_t ek_sys_wall_s(void)
{
    return ek_sys_wall_us() / 1000000;
}

void ek_sys_sleep_us(int64_t us)
{
    if (us <= 0) return;
    struct timespec left = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (us % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}
