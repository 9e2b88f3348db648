/*
 * Who has news: the list between the step thread, which adds requests once per step, and the one
 * thread that waits for them.
 *
 * An item is embedded in its request, so the list needs no memory of its own and cannot run full.
 * An item that was added stays marked until its request is read, so each appears at most once
 * until then. A closed item is never handed out again: after close its tag is the user's to free.
 * All under one lock.
 */
#ifndef EK_ENGINE_NEWS_H
#define EK_ENGINE_NEWS_H

#include <stdbool.h>
#include <stdint.h>

#include "sys/thread.h"

typedef struct ek_news_item {
    struct ek_news_item *prev, *next; /* in the list, while listed */
    void *tag;                        /* the user's; set before the first add */
    bool listed;                      /* waits to be taken */
    bool unread;                      /* was added and not read since */
    bool closed;
} ek_news_item; /* zeroed: nothing new */

typedef struct ek_news {
    ek_sys_mutex mutex;
    ek_sys_cond cond;
    ek_news_item *first, *last;
    bool woken;
} ek_news;

void ek_engine_news_init(ek_news *news);
/** No item is listed any more. */
void ek_engine_news_fini(ek_news *news);

/** Mark items and wake the waiting thread if there is anything new for it. */
void ek_engine_news_add(ek_news *news, ek_news_item *const *items, int32_t n_items);

/** The reader is about to look: what comes from now on is news again. */
void ek_engine_news_read(ek_news *news, ek_news_item *item);

void ek_engine_news_close(ek_news *news, ek_news_item *item);

/**
 * Take up to max tags, oldest news first.
 * @param timeout_us < 0: for ever
 * @return number of tags; 0 on timeout or after a wake
 */
int32_t ek_engine_news_take(ek_news *news, void **out_tags, int32_t max, int64_t timeout_us);

/** Make a take that waits, or else the next one, return at once. */
void ek_engine_news_wake(ek_news *news);

#endif
