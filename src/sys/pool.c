#include "sys/pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/size.h"
#include "sys/clock.h"
#include "sys/mem.h"
#include "sys/thread.h"

/* Longer than the gap between two layers, shorter than what a sleeping neighbour would miss. */
#define SPIN_NS          30000
#define SPIN_PER_LOOK    16 /* pauses between two looks at the clock */
#define POOL_THREADS_MAX 1024

/*
 * A number that threads wait on. `value` carries the data's release/acquire; `n_sleepers` lets the
 * one who changes it skip the system call while everybody still spins. Sleeper: n_sleepers += 1,
 * then look at value. Changer: change value, then look at n_sleepers. Both in sequentially
 * consistent order, so that at least one of the two sees the other and no wake-up is lost.
 */
typedef struct wait_word {
    EK_ALIGNED(EK_CACHE_LINE) _Atomic uint32_t value;
    _Atomic uint32_t n_sleepers;
} wait_word;

typedef struct helper {
    ek_sys_pool *pool; /* borrowed, outlives the thread */
    int32_t thread_idx;
    int32_t cpu; /* to pin to, or -1 */
    ek_sys_thread thread;
} helper;

struct ek_sys_pool {
    wait_word run;     /* number of the current run; its change releases fn, ctx and stop */
    wait_word pending; /* helpers that have not finished the run */
    wait_word phase;   /* number of barriers passed */
    EK_ALIGNED(EK_CACHE_LINE) _Atomic uint32_t n_arrived; /* at the current barrier */

    /* Written by the owner between runs only. */
    EK_ALIGNED(EK_CACHE_LINE) void (*fn)(void *ctx, int32_t thread_idx);
    void *ctx;
    bool stop;
    int64_t
        spin_ns; /* 0 where there are more threads than CPUs: spinning would only be in the way */
    int32_t n_threads;
    int32_t owner_cpu;    /* where run pins its caller the first time; -1: nowhere, or done */
    helper *helpers;      /* (n_threads - 1), in the region */
    ek_sys_region region; /* owned; the pool itself lies in it */
};

static void cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    /*
     * EAGAIN (changed meanwhile) and EINTR send the caller back to look; nothing else can happen.
     */
    long rc = syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    ek_assert(rc == 0 || errno == EAGAIN || errno == EINTR);
}

/*
 * Returns the new value once it differs from `seen`; what was written before the change is visible
 * then.
 */
static uint32_t word_wait(wait_word *word, uint32_t seen, int64_t spin_ns)
{
    uint32_t value = atomic_load_explicit(&word->value, memory_order_acquire);
    if (value != seen) return value;
    if (spin_ns > 0) {
        int64_t until_ns = ek_sys_now_ns() + spin_ns;
        do {
            for (int i = 0; i < SPIN_PER_LOOK; i++) {
                cpu_pause();
                /* Pairs with the changes in word_add and word_sub. */
                value = atomic_load_explicit(&word->value, memory_order_acquire);
                if (value != seen) return value;
            }
        } while (ek_sys_now_ns() < until_ns);
    }
    atomic_fetch_add_explicit(&word->n_sleepers, 1, memory_order_seq_cst);
    while ((value = atomic_load_explicit(&word->value, memory_order_seq_cst)) == seen)
        futex_wait(&word->value, seen);
    atomic_fetch_sub_explicit(&word->n_sleepers, 1, memory_order_relaxed);
    return value;
}

static void word_wake(wait_word *word)
{
    if (atomic_load_explicit(&word->n_sleepers, memory_order_seq_cst) > 0)
        syscall(SYS_futex, (void *)&word->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Releases everything written so far to those who see the new value in word_wait. */
static void word_add(wait_word *word)
{
    atomic_fetch_add_explicit(&word->value, 1, memory_order_seq_cst);
    word_wake(word);
}

/* As word_add; wakes only at zero, which is all that anybody waits for in a count that falls. */
static void word_sub(wait_word *word)
{
    if (atomic_fetch_sub_explicit(&word->value, 1, memory_order_seq_cst) == 1) word_wake(word);
}

static void helper_main(void *arg)
{
    helper *self = arg;
    ek_sys_pool *pool = self->pool;
    ek_sys_thread_pin_cpu(self->cpu);
    for (uint32_t run = 0;;) {
        run = word_wait(&pool->run, run, pool->spin_ns);
        if (pool->stop) return;
        pool->fn(pool->ctx, self->thread_idx);
        word_sub(&pool->pending);
    }
}

static ek_status start_helpers(ek_sys_pool *pool, const int32_t *cpu)
{
    for (int32_t i = 0; i < pool->n_threads - 1; i++) {
        helper *h = &pool->helpers[i];
        *h = (helper){.pool = pool, .thread_idx = i + 1, .cpu = cpu ? cpu[i + 1] : -1};
        ek_status status = ek_sys_thread_start(&h->thread, "ek-compute", helper_main, h);
        if (status != EK_OK) return status;
    }
    return EK_OK;
}

ek_status ek_sys_pool_create(int32_t n_threads, bool pin, ek_sys_pool **out_pool)
{
    int32_t cpu[POOL_THREADS_MAX];
    ek_assert(n_threads <= POOL_THREADS_MAX);
    for (int32_t t = 0; t < n_threads; t++)
        cpu[t] = ek_sys_cpu_at(t);
    return ek_sys_pool_create_on(n_threads, pin ? cpu : NULL, out_pool);
}

ek_status ek_sys_pool_create_on(int32_t n_threads, const int32_t *cpu, ek_sys_pool **out_pool)
{
    ek_assert(n_threads >= 1);
    ek_assert(n_threads <= POOL_THREADS_MAX);
    /* A region because the heap does not promise cache lines. */
    ek_sys_region region;
    size_t bytes = sizeof(ek_sys_pool) + sizeof(helper) * (size_t)n_threads;
    if (ek_sys_region_open(bytes, 0, &region) != EK_OK) return EK_ENOMEM;
    ek_arena arena = ek_sys_region_arena(&region);
    ek_sys_pool *pool = ek_new(&arena, ek_sys_pool, 1);
    pool->helpers = ek_new(&arena, helper, n_threads - 1);
    pool->region = region;
    pool->n_threads = n_threads;
    pool->spin_ns = n_threads <= ek_sys_cpu_count() ? SPIN_NS : 0;
    pool->owner_cpu = cpu ? cpu[0] : -1;
    if (start_helpers(pool, cpu) != EK_OK) {
        ek_sys_pool_destroy(pool);
        return EK_ENOMEM;
    }
    *out_pool = pool;
    return EK_OK;
}

void ek_sys_pool_destroy(ek_sys_pool *pool)
{
    if (!pool) return;
    pool->stop = true;
    word_add(&pool->run);
    for (int32_t i = 0; i < pool->n_threads - 1; i++)
        ek_sys_thread_join(&pool->helpers[i].thread);
    ek_sys_region region = pool->region; /* a copy, since closing unmaps the original */
    ek_sys_region_close(&region);
}

int32_t ek_sys_pool_threads(const ek_sys_pool *pool)
{
    return pool->n_threads;
}

void ek_sys_pool_run(ek_sys_pool *pool, void (*fn)(void *ctx, int32_t thread_idx), void *ctx)
{
    if (pool->owner_cpu >= 0) {
        ek_sys_thread_pin_cpu(pool->owner_cpu);
        pool->owner_cpu = -1;
    }
    if (pool->n_threads > 1) {
        pool->fn = fn;
        pool->ctx = ctx;
        /*
         * Ordered before the helpers' decrements by the release of word_add, which they acquire
         * first.
         */
        atomic_store_explicit(&pool->pending.value, (uint32_t)pool->n_threads - 1,
                              memory_order_relaxed);
        word_add(&pool->run);
    }
    fn(ctx, 0);
    uint32_t left = atomic_load_explicit(&pool->pending.value, memory_order_acquire);
    while (left > 0)
        left = word_wait(&pool->pending, left, pool->spin_ns);
}

void ek_sys_pool_barrier(ek_sys_pool *pool)
{
    if (pool->n_threads == 1) return;
    /*
     * The phase cannot move before this thread arrives, so reading it first is safe. Arrivals
     * release and the last one acquires them all; its word_add releases to those who wait, and all
     * see all.
     */
    uint32_t phase = atomic_load_explicit(&pool->phase.value, memory_order_relaxed);
    uint32_t before = atomic_fetch_add_explicit(&pool->n_arrived, 1, memory_order_acq_rel);
    if (before + 1 == (uint32_t)pool->n_threads) {
        atomic_store_explicit(&pool->n_arrived, 0, memory_order_relaxed);
        word_add(&pool->phase);
    } else {
        word_wait(&pool->phase, phase, pool->spin_ns);
    }
}
