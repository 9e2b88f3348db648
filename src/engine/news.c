#include "engine/news.h"

#include "base/assert.h"
#include "sys/clock.h"

void ek_engine_news_init(ek_news *news)
{
    ek_sys_mutex_init(&news->mutex);
    ek_sys_cond_init(&news->cond);
    news->first = news->last = NULL;
    news->woken = false;
}

void ek_engine_news_fini(ek_news *news)
{
    ek_assert(news->first == NULL);
    ek_sys_cond_fini(&news->cond);
    ek_sys_mutex_fini(&news->mutex);
}

static void append_locked(ek_news *news, ek_news_item *item)
{
    item->prev = news->last;
    item->next = NULL;
    if (news->last)
        news->last->next = item;
    else
        news->first = item;
    news->last = item;
    item->listed = true;
}

static void remove_locked(ek_news *news, ek_news_item *item)
{
    if (item->prev)
        item->prev->next = item->next;
    else
        news->first = item->next;
    if (item->next)
        item->next->prev = item->prev;
    else
        news->last = item->prev;
    item->prev = item->next = NULL;
    item->listed = false;
}

void ek_engine_news_add(ek_news *news, ek_news_item *const *items, int32_t n_items)
{
    bool added = false;
    ek_sys_mutex_lock(&news->mutex);
    for (int32_t i = 0; i < n_items; i++) {
        if (items[i]->unread || items[i]->closed) continue;
        items[i]->unread = true;
        append_locked(news, items[i]);
        added = true;
    }
    if (added) ek_sys_cond_signal(&news->cond);
    ek_sys_mutex_unlock(&news->mutex);
}

void ek_engine_news_read(ek_news *news, ek_news_item *item)
{
    ek_sys_mutex_lock(&news->mutex);
    item->unread = false;
    if (item->listed) remove_locked(news, item);
    ek_sys_mutex_unlock(&news->mutex);
}

void ek_engine_news_close(ek_news *news, ek_news_item *item)
{
    ek_sys_mutex_lock(&news->mutex);
    item->closed = true;
    if (item->listed) remove_locked(news, item);
    ek_sys_mutex_unlock(&news->mutex);
}

static void wait_locked(ek_news *news, int64_t timeout_us)
{
    int64_t start_us = ek_sys_now_us();
    while (news->first == NULL && !news->woken) {
        if (timeout_us < 0) {
            ek_sys_cond_wait(&news->cond, &news->mutex);
            continue;
        }
        int64_t waited_us = ek_sys_now_us() - start_us;
        if (waited_us >= timeout_us) return;
        ek_sys_cond_wait_us(&news->cond, &news->mutex, timeout_us - waited_us);
    }
}

int32_t ek_engine_news_take(ek_news *news, void **out_tags, int32_t max, int64_t timeout_us)
{
    int32_t n = 0;
    ek_sys_mutex_lock(&news->mutex);
    if (news->first == NULL && timeout_us != 0) wait_locked(news, timeout_us);
    news->woken = false;
    for (; n < max && news->first; n++) {
        out_tags[n] = news->first->tag;
        remove_locked(news, news->first);
    }
    ek_sys_mutex_unlock(&news->mutex);
    return n;
}

void ek_engine_news_wake(ek_news *news)
{
    ek_sys_mutex_lock(&news->mutex);
    news->woken = true;
    ek_sys_cond_signal(&news->cond);
    ek_sys_mutex_unlock(&news->mutex);
}
