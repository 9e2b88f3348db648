#include "sys/thread.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "sys/mem.h"
#include "sys/proc.h"

#define NS_PER_S       INT64_C(1000000000)
#define NAME_MAX_BYTES 16 /* with the NUL; the kernel's own limit */

typedef struct start_args {
    void (*fn)(void *);
    void *ctx;
    char name[NAME_MAX_BYTES];
} start_args;

static void *thread_main(void *arg)
{
    start_args args = *(start_args *)arg;
    ek_sys_free(arg);
    pthread_setname_np(pthread_self(), args.name);
    args.fn(args.ctx);
    return NULL;
}

ek_status ek_sys_thread_start(ek_sys_thread *thread, const char *name, void (*fn)(void *),
                              void *ctx)
{
    start_args *args = ek_sys_calloc(1, sizeof *args);
    if (!args) return EK_ENOMEM;
    args->fn = fn;
    args->ctx = ctx;
    snprintf(args->name, sizeof args->name, "%s", name);
    pthread_t handle;
    if (pthread_create(&handle, NULL, thread_main, args) != 0) {
        ek_sys_free(args);
        return EK_ENOMEM;
    }
    *thread = (ek_sys_thread){.handle = handle, .running = true};
    return EK_OK;
}

void ek_sys_thread_join(ek_sys_thread *thread)
{
    if (!thread->running) return;
    int rc = pthread_join(thread->handle, NULL);
    ek_assert(rc == 0);
    thread->running = false;
}

/*
 * The mask as it was before anything here was pinned: later every thread's own may be down to one
 * CPU. Filled once, on first use, and constant from then on; empty where the kernel does not tell.
 */
static cpu_set_t start_mask;
static pthread_once_t start_mask_once = PTHREAD_ONCE_INIT;

static void read_start_mask(void)
{
    if (sched_getaffinity(0, sizeof start_mask, &start_mask) != 0) CPU_ZERO(&start_mask);
}

static const cpu_set_t *process_mask(void)
{
    pthread_once(&start_mask_once, read_start_mask);
    return &start_mask;
}

int32_t ek_sys_cpu_at(int32_t cpu_idx)
{
    const cpu_set_t *mask = process_mask();
    int32_t n_cpus = CPU_COUNT(mask);
    if (cpu_idx < 0 || n_cpus == 0) return -1;
    int32_t left = cpu_idx % n_cpus;
    for (int32_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, mask) && left-- == 0) return cpu;
    return -1;
}

bool ek_sys_cpu_allowed(int32_t cpu)
{
    return cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET((size_t)cpu, process_mask());
}

void ek_sys_thread_pin_cpu(int32_t cpu)
{
    if (cpu < 0 || cpu >= CPU_SETSIZE) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

void ek_sys_thread_pin(int32_t cpu_idx)
{
    ek_sys_thread_pin_cpu(ek_sys_cpu_at(cpu_idx));
}

int32_t ek_sys_cpu_count(void)
{
    int32_t allowed = CPU_COUNT(process_mask());
    if (allowed == 0) allowed = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    int32_t quota = ek_sys_cgroup_cpus(EK_SYS_SELF_CGROUP, EK_SYS_CGROUP_MOUNT);
    if (quota > 0 && quota < allowed) allowed = quota;
    return allowed > 0 ? allowed : 1;
}

void ek_sys_mutex_init(ek_sys_mutex *mutex)
{
    int rc = pthread_mutex_init(&mutex->handle, NULL);
    ek_assert(rc == 0);
}

void ek_sys_mutex_fini(ek_sys_mutex *mutex)
{
    int rc = pthread_mutex_destroy(&mutex->handle);
    ek_assert(rc == 0); /* somebody still holds it */
}

void ek_sys_mutex_lock(ek_sys_mutex *mutex)
{
    int rc = pthread_mutex_lock(&mutex->handle);
    ek_assert(rc == 0);
}

void ek_sys_mutex_unlock(ek_sys_mutex *mutex)
{
    int rc = pthread_mutex_unlock(&mutex->handle);
    ek_assert(rc == 0);
}

void ek_sys_cond_init(ek_sys_cond *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int rc = pthread_cond_init(&cond->handle, &attr);
    ek_assert(rc == 0);
    pthread_condattr_destroy(&attr);
}

void ek_sys_cond_fini(ek_sys_cond *cond)
{
    pthread_cond_destroy(&cond->handle);
}

void ek_sys_cond_signal(ek_sys_cond *cond)
{
    pthread_cond_signal(&cond->handle);
}

void ek_sys_cond_broadcast(ek_sys_cond *cond)
{
    pthread_cond_broadcast(&cond->handle);
}

void ek_sys_cond_wait(ek_sys_cond *cond, ek_sys_mutex *mutex)
{
    int rc = pthread_cond_wait(&cond->handle, &mutex->handle);
    ek_assert(rc == 0);
}

bool ek_sys_cond_wait_us(ek_sys_cond *cond, ek_sys_mutex *mutex, int64_t timeout_us)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t us = timeout_us < 0 ? 0 : timeout_us;
    int64_t ns = until.tv_nsec + us % 1000000 * 1000;
    until.tv_sec += (time_t)(us / 1000000 + ns / NS_PER_S);
    until.tv_nsec = ns % NS_PER_S;
    int rc = pthread_cond_timedwait(&cond->handle, &mutex->handle, &until);
    ek_assert(rc == 0 || rc == ETIMEDOUT);
    return rc == 0;
}
