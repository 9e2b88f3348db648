/*
 * Fork-join pool for compute: the caller is thread 0, n_threads - 1 helpers join it for each run.
 *
 * A run hands the same function to every thread; between runs helpers spin for a moment and then
 * sleep. One owner thread calls run; nothing here is re-entrant. Work inside a run is divided by
 * index (static) or by an ek_sys_ticket (dynamic); either way results must not depend on who
 * computed them.
 */
#ifndef EK_SYS_POOL_H
#define EK_SYS_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/status.h"

typedef struct ek_sys_pool ek_sys_pool;

/**
 * @param n_threads 1..1024, the caller of run included
 * @param pin bind thread i to the i-th allowed CPU; thread 0, the one that calls run, at its first
 *            run
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_sys_pool_create(int32_t n_threads, bool pin, ek_sys_pool **out_pool);
/**
 * The same with a CPU for each thread.
 * @param cpu (n_threads) kernel numbers, below 0: anywhere; NULL: all anywhere
 * @return as ek_sys_pool_create
 */
EK_MUST ek_status ek_sys_pool_create_on(int32_t n_threads, const int32_t *cpu,
                                        ek_sys_pool **out_pool);
/** Joins the helpers. Accepts NULL. */
void ek_sys_pool_destroy(ek_sys_pool *pool);
int32_t ek_sys_pool_threads(const ek_sys_pool *pool);

/**
 * Call fn(ctx, thread_idx) once on every thread and return when all have. All writes are visible
 * after.
 */
void ek_sys_pool_run(ek_sys_pool *pool, void (*fn)(void *ctx, int32_t thread_idx), void *ctx);

/** Wait, inside a run, until every thread of the pool has arrived; a full memory barrier. */
void ek_sys_pool_barrier(ek_sys_pool *pool);

/**
 * Dynamic division of [0, n): each take gives the next index to whoever asks. Reset only between
 * uses.
 */
typedef struct ek_sys_ticket {
    EK_ALIGNED(EK_CACHE_LINE) _Atomic int32_t next;
} ek_sys_ticket;

static inline int32_t ek_sys_ticket_take(ek_sys_ticket *ticket)
{
    return atomic_fetch_add_explicit(&ticket->next, 1, memory_order_relaxed);
}

/** How often it was taken, for whoever knows that nobody is taking. */
static inline int32_t ek_sys_ticket_taken(const ek_sys_ticket *ticket)
{
    return atomic_load_explicit(&ticket->next, memory_order_relaxed);
}

static inline void ek_sys_ticket_reset(ek_sys_ticket *ticket)
{
    atomic_store_explicit(&ticket->next, 0, memory_order_relaxed);
}

#endif
