/*
 * Bounded queue of pointers, many producers, many consumers. Capacity is fixed at creation; a full
 * queue is an answer (EK_EFULL), never a wait: whoever produces decides what overload means.
 */
#ifndef EK_SYS_QUEUE_H
#define EK_SYS_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/status.h"

typedef struct ek_sys_queue ek_sys_queue;

/** @param capacity >= 1; @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_sys_queue_create(size_t capacity, ek_sys_queue **out_queue);
/** Items still inside are the caller's to drain first. Accepts NULL. */
void ek_sys_queue_destroy(ek_sys_queue *queue);

/** @return EK_OK; EK_EFULL; EK_EDRAINING after close */
EK_MUST ek_status ek_sys_queue_push(ek_sys_queue *queue, void *item);

/**
 * Take up to max items in order.
 * @param timeout_us how long to wait for the first one: 0 not at all, < 0 for ever
 * @return number of items; 0 on timeout, or at once when the queue is closed and empty
 */
size_t ek_sys_queue_pop(ek_sys_queue *queue, void **out_items, size_t max, int64_t timeout_us);

/** Wake all waiters; later pushes are refused; what is inside can still be taken. */
void ek_sys_queue_close(ek_sys_queue *queue);
bool ek_sys_queue_closed(ek_sys_queue *queue);
size_t ek_sys_queue_len(ek_sys_queue *queue);

#endif
