#include "gateway/workers.h"

#include "gateway/routes.h"
#include "sys/mem.h"
#include "sys/queue.h"

struct ek_workers {
    ek_sys_queue *queue; /* owned */
    int32_t n_threads;
    ek_sys_thread thread[]; /* (n_threads) */
};

static void run_call(ek_call *call)
{
    call->route->run(call);
    ek_sys_mutex_lock(&call->lock);
    /*
     * A generation went on to WAITING, and may have gone further; every other route has its reply
     * now.
     */
    if (call->phase == EK_CALL_WORKING) ek_gateway_call_ready_locked(call);
    ek_sys_mutex_unlock(&call->lock);
    ek_gateway_call_unref(call);
}

static void worker_main(void *ctx)
{
    ek_workers *workers = ctx;
    for (;;) {
        void *item;
        if (ek_sys_queue_pop(workers->queue, &item, 1, -1) == 0) return; /* closed and empty */
        run_call(item);
    }
}

ek_status ek_gateway_workers_create(int32_t n_threads, int32_t queue_max, ek_workers **out_workers)
{
    size_t bytes = sizeof(ek_workers) + (size_t)n_threads * sizeof(ek_sys_thread);
    ek_workers *workers = ek_sys_calloc(1, bytes);
    if (!workers) return EK_ENOMEM;
    ek_status status = ek_sys_queue_create((size_t)queue_max, &workers->queue);
    for (; status == EK_OK && workers->n_threads < n_threads; workers->n_threads++)
        status = ek_sys_thread_start(&workers->thread[workers->n_threads], "ek-worker", worker_main,
                                     workers);
    if (status != EK_OK) {
        ek_gateway_workers_destroy(workers);
        return status;
    }
    *out_workers = workers;
    return EK_OK;
}

ek_status ek_gateway_workers_push(ek_workers *workers, ek_call *call)
{
    ek_status status = ek_sys_queue_push(workers->queue, ek_gateway_call_ref(call));
    if (status != EK_OK) ek_gateway_call_unref(call);
    return status;
}

void ek_gateway_workers_destroy(ek_workers *workers)
{
    if (!workers) return;
    if (workers->queue) ek_sys_queue_close(workers->queue);
    for (int32_t i = 0; i < workers->n_threads; i++)
        ek_sys_thread_join(&workers->thread[i]);
    ek_sys_queue_destroy(workers->queue);
    ek_sys_free(workers);
}
