#include "http/workers.h"

#include "http/service.h"
#include "sys/mem.h"
#include "sys/queue.h"

struct ek_http_workers {
    ek_sys_queue *queue; /* owned */
    int32_t n_threads;
    ek_sys_thread thread[]; /* (n_threads) */
};

static void run_exchange(ek_exchange *exchange)
{
    exchange->service->handler->run(exchange);
    ek_sys_mutex_lock(&exchange->lock);
    /*
     * What is answered later went on to WAITING, and may have gone further; all others have their
     * reply now.
     */
    if (exchange->phase == EK_EXCHANGE_WORKING) ek_http_exchange_ready_locked(exchange);
    ek_sys_mutex_unlock(&exchange->lock);
    ek_http_exchange_unref(exchange);
}

static void worker_main(void *ctx)
{
    ek_http_workers *workers = ctx;
    for (;;) {
        void *item;
        if (ek_sys_queue_pop(workers->queue, &item, 1, -1) == 0) return; /* closed and empty */
        run_exchange(item);
    }
}

ek_status ek_http_workers_create(int32_t n_threads, int32_t queue_max,
                                 ek_http_workers **out_workers)
{
    size_t bytes = sizeof(ek_http_workers) + (size_t)n_threads * sizeof(ek_sys_thread);
    ek_http_workers *workers = ek_sys_calloc(1, bytes);
    if (!workers) return EK_ENOMEM;
    ek_status status = ek_sys_queue_create((size_t)queue_max, &workers->queue);
    for (; status == EK_OK && workers->n_threads < n_threads; workers->n_threads++)
        status = ek_sys_thread_start(&workers->thread[workers->n_threads], "ek-worker", worker_main,
                                     workers);
    if (status != EK_OK) {
        ek_http_workers_destroy(workers);
        return status;
    }
    *out_workers = workers;
    return EK_OK;
}

ek_status ek_http_workers_push(ek_http_workers *workers, ek_exchange *exchange)
{
    ek_status status = ek_sys_queue_push(workers->queue, ek_http_exchange_ref(exchange));
    if (status != EK_OK) ek_http_exchange_unref(exchange);
    return status;
}

void ek_http_workers_destroy(ek_http_workers *workers)
{
    if (!workers) return;
    if (workers->queue) ek_sys_queue_close(workers->queue);
    for (int32_t i = 0; i < workers->n_threads; i++)
        ek_sys_thread_join(&workers->thread[i]);
    ek_sys_queue_destroy(workers->queue);
    ek_sys_free(workers);
}
