/*
 * Threads, mutexes, condition variables: thin names over pthreads, with monotonic deadlines.
 */
#ifndef EK_SYS_THREAD_H
#define EK_SYS_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/status.h"

typedef struct ek_sys_thread {
    pthread_t handle;
    bool running; /* joinable */
} ek_sys_thread;

/**
 * Start `fn(ctx)`; name is cut at 15 bytes and shows in ps, top and perf. @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_sys_thread_start(ek_sys_thread *thread, const char *name, void (*fn)(void *),
                                      void *ctx);
/** Wait for its end; does nothing for a zeroed or joined thread. */
void ek_sys_thread_join(ek_sys_thread *thread);

/**
 * Pin the calling thread to one CPU of the process's mask (the cpu_idx-th, modulo). Best effort.
 */
void ek_sys_thread_pin(int32_t cpu_idx);

/** Kernel number of the cpu_idx-th CPU (modulo) of the process's mask; -1 when unknown. */
int32_t ek_sys_cpu_at(int32_t cpu_idx);

/** Whether the process's mask, as it was at start, has this kernel CPU number. */
bool ek_sys_cpu_allowed(int32_t cpu);

/**
 * Pin the calling thread to this kernel CPU number; nothing happens for one below 0. Best effort.
 */
void ek_sys_thread_pin_cpu(int32_t cpu);

/**
 * CPUs this process may run on (affinity mask at start and cgroup quota, rounded up), at least 1.
 */
int32_t ek_sys_cpu_count(void);

typedef struct ek_sys_mutex {
    pthread_mutex_t handle;
} ek_sys_mutex;

typedef struct ek_sys_cond {
    pthread_cond_t handle;
} ek_sys_cond;

void ek_sys_mutex_init(ek_sys_mutex *mutex);
void ek_sys_mutex_fini(ek_sys_mutex *mutex);
void ek_sys_mutex_lock(ek_sys_mutex *mutex);
void ek_sys_mutex_unlock(ek_sys_mutex *mutex);

void ek_sys_cond_init(ek_sys_cond *cond);
void ek_sys_cond_fini(ek_sys_cond *cond);
void ek_sys_cond_signal(ek_sys_cond *cond);
void ek_sys_cond_broadcast(ek_sys_cond *cond);
void ek_sys_cond_wait(ek_sys_cond *cond, ek_sys_mutex *mutex);
/** @return false when timeout_us (>= 0) passed first */
bool ek_sys_cond_wait_us(ek_sys_cond *cond, ek_sys_mutex *mutex, int64_t timeout_us);

#endif
