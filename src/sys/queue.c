#include "sys/queue.h"

#include "base/assert.h"
#include "base/size.h"
#include "sys/clock.h"
#include "sys/mem.h"
#include "sys/thread.h"

/*
 * A ring under a mutex. Both sides do so little inside that the lock is rarely contended, and a
 * lock makes the rules of full, closed and empty plain; what runs per token does not come through
 * here.
 */
struct ek_sys_queue {
    ek_sys_mutex mutex;
    ek_sys_cond not_empty; /* also signalled by close */
    size_t capacity;
    size_t head; /* index of the oldest item */
    size_t len;
    bool closed;
    void *item[]; /* (capacity) */
};

ek_status ek_sys_queue_create(size_t capacity, ek_sys_queue **out_queue)
{
    ek_assert(capacity > 0);
    size_t bytes;
    ek_sys_queue *queue = NULL;
    if (!ek_size_mul(capacity, sizeof queue->item[0], &bytes)) return EK_ENOMEM;
    if (!ek_size_add(bytes, sizeof *queue, &bytes)) return EK_ENOMEM;
    queue = ek_sys_calloc(1, bytes);
    if (!queue) return EK_ENOMEM;
    ek_sys_mutex_init(&queue->mutex);
    ek_sys_cond_init(&queue->not_empty);
    queue->capacity = capacity;
    *out_queue = queue;
    return EK_OK;
}

void ek_sys_queue_destroy(ek_sys_queue *queue)
{
    if (!queue) return;
    ek_sys_cond_fini(&queue->not_empty);
    ek_sys_mutex_fini(&queue->mutex);
    ek_sys_free(queue);
}

ek_status ek_sys_queue_push(ek_sys_queue *queue, void *item)
{
    ek_status status = EK_OK;
    ek_sys_mutex_lock(&queue->mutex);
    if (queue->closed) {
        status = EK_EDRAINING;
    } else if (queue->len == queue->capacity) {
        status = EK_EFULL;
    } else {
        queue->item[(queue->head + queue->len) % queue->capacity] = item;
        queue->len++;
        ek_sys_cond_signal(&queue->not_empty);
    }
    ek_sys_mutex_unlock(&queue->mutex);
    return status;
}

static void wait_item_locked(ek_sys_queue *queue, int64_t timeout_us)
{
    if (timeout_us == 0) return;
    int64_t until_us = 0; /* set at the first wait, so that an immediate item costs no clock */
    while (queue->len == 0 && !queue->closed) {
        if (timeout_us < 0) {
            ek_sys_cond_wait(&queue->not_empty, &queue->mutex);
            continue;
        }
        int64_t now_us = ek_sys_now_us();
        if (until_us == 0)
            until_us = timeout_us > INT64_MAX - now_us ? INT64_MAX : now_us + timeout_us;
        if (now_us >= until_us) return;
        ek_sys_cond_wait_us(&queue->not_empty, &queue->mutex, until_us - now_us);
    }
}

size_t ek_sys_queue_pop(ek_sys_queue *queue, void **out_items, size_t max, int64_t timeout_us)
{
    ek_sys_mutex_lock(&queue->mutex);
    wait_item_locked(queue, timeout_us);
    size_t n = queue->len < max ? queue->len : max;
    for (size_t i = 0; i < n; i++) {
        out_items[i] = queue->item[queue->head];
        queue->head = (queue->head + 1) % queue->capacity;
    }
    queue->len -= n;
    ek_sys_mutex_unlock(&queue->mutex);
    return n;
}

void ek_sys_queue_close(ek_sys_queue *queue)
{
    ek_sys_mutex_lock(&queue->mutex);
    queue->closed = true;
    ek_sys_cond_broadcast(&queue->not_empty);
    ek_sys_mutex_unlock(&queue->mutex);
}

bool ek_sys_queue_closed(ek_sys_queue *queue)
{
    ek_sys_mutex_lock(&queue->mutex);
    bool closed = queue->closed;
    ek_sys_mutex_unlock(&queue->mutex);
    return closed;
}

size_t ek_sys_queue_len(ek_sys_queue *queue)
{
    ek_sys_mutex_lock(&queue->mutex);
    size_t len = queue->len;
    ek_sys_mutex_unlock(&queue->mutex);
    return len;
}
