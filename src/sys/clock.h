/*
 * Time. Outside sys and cli, time is an argument (`now_us`), so that tests and the simulator set
 * it.
 */
#ifndef EK_SYS_CLOCK_H
#define EK_SYS_CLOCK_H

#include <stdint.h>

/** Monotonic microseconds since an arbitrary start. */
int64_t ek_sys_now_us(void);

/** Monotonic nanoseconds, for measurements. */
int64_t ek_sys_now_ns(void);

/**
 * Nanoseconds of processor time that the calling thread has used: what a shared machine cannot
 * disturb.
 */
int64_t ek_sys_thread_cpu_ns(void);

/** Seconds since 1970 (what `created` in API answers is). */
int64_t ek_sys_wall_s(void);

/** Microseconds since 1970, for time stamps that people read; it may jump when the clock is set. */
int64_t ek_sys_wall_us(void);

/** Sleep at least this long, signals notwithstanding; returns at once for us <= 0. */
void ek_sys_sleep_us(int64_t us);

#endif
