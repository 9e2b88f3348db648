#include "gateway/pump.h"

#include <stdatomic.h>

#include "sys/clock.h"
#include "sys/mem.h"

#define TAGS_MAX 64
#define TICK_US  100000 /* pings are looked at this often, and a stop is noticed */

struct ek_pump {
    ek_sys_thread thread;
    ek_sys_mutex lock;
    ek_sys_cond changed; /* attached or stopping, while there is no engine to wait on */
    ek_engine *engine;   /* lock; borrowed; NULL until attached */
    ek_call *kick_first; /* lock: calls to look at, oldest first; each holds a reference */
    ek_call *kick_last;
    bool stopping; /* lock */

    /* The thread's own. */
    ek_call *listed; /* calls with a generation; each holds a reference */
};

/*
 * Let go of calls whose generation is over, after what they still hold in the engine was given
 * back.
 */
static void unlink_over(ek_pump *pump)
{
    ek_call **link = &pump->listed;
    while (*link) {
        ek_call *call = *link;
        ek_sys_mutex_lock(&call->http.lock);
        bool over = call->generation->over;
        if (over) ek_gateway_generation_release_locked(call);
        ek_sys_mutex_unlock(&call->http.lock);
        if (over) {
            *link = call->list_next;
            call->listed = false;
            ek_gateway_call_unref(call);
        } else {
            link = &call->list_next;
        }
    }
}

/*
 * One at a time: once its flag is cleared, a call may be kicked anew and its link belongs to the
 * list again.
 */
static ek_call *pop_kick(ek_pump *pump)
{
    ek_sys_mutex_lock(&pump->lock);
    ek_call *call = pump->kick_first;
    if (call) {
        pump->kick_first = call->kick_next;
        if (!pump->kick_first) pump->kick_last = NULL;
        call->kicked = false;
    }
    ek_sys_mutex_unlock(&pump->lock);
    return call;
}

/* New calls join the list, slow ones go on, abandoned ones show that they are over. */
static bool take_kicks(ek_pump *pump)
{
    bool any_over = false;
    for (ek_call *call; (call = pop_kick(pump)) != NULL;) {
        ek_sys_mutex_lock(&call->http.lock);
        ek_gateway_generation_unstall_locked(call);
        any_over |= call->generation->over;
        /* Once released it must not come back: its end was seen by unlink_over. */
        bool join = !call->listed && !call->generation->released;
        ek_sys_mutex_unlock(&call->http.lock);
        if (join) {
            call->listed = true;
            call->list_next = pump->listed;
            pump->listed = call; /* the kick's reference becomes the list's */
        } else {
            ek_gateway_call_unref(call);
        }
    }
    return any_over;
}

static void tick(ek_pump *pump, int64_t now_us)
{
    for (ek_call *call = pump->listed; call; call = call->list_next) {
        ek_sys_mutex_lock(&call->http.lock);
        ek_gateway_generation_tick_locked(call, now_us);
        ek_sys_mutex_unlock(&call->http.lock);
    }
}

static ek_engine *wait_engine(ek_pump *pump)
{
    ek_sys_mutex_lock(&pump->lock);
    while (!pump->engine && !pump->stopping)
        ek_sys_cond_wait(&pump->changed, &pump->lock);
    ek_engine *engine = pump->engine;
    ek_sys_mutex_unlock(&pump->lock);
    return engine;
}

static bool is_stopping(ek_pump *pump)
{
    ek_sys_mutex_lock(&pump->lock);
    bool stopping = pump->stopping && !pump->kick_first;
    ek_sys_mutex_unlock(&pump->lock);
    return stopping;
}

static void pump_main(void *ctx)
{
    ek_pump *pump = ctx;
    ek_engine *engine = wait_engine(pump);
    int64_t next_tick_us = 0;
    while (engine && !(is_stopping(pump) && !pump->listed)) {
        void *tags[TAGS_MAX];
        int32_t n = ek_engine_wait(engine, tags, TAGS_MAX, TICK_US);
        bool any_over = false;
        for (int32_t i = 0; i < n; i++) {
            ek_choice *choice = tags[i];
            ek_call *call = choice->call;
            ek_sys_mutex_lock(&call->http.lock);
            ek_gateway_generation_pull_locked(choice);
            any_over |= call->generation->over;
            ek_sys_mutex_unlock(&call->http.lock);
        }
        any_over |= take_kicks(pump);
        if (any_over) unlink_over(pump);
        int64_t now_us = ek_sys_now_us();
        if (now_us < next_tick_us) continue;
        tick(pump, now_us);
        next_tick_us = now_us + TICK_US;
    }
}

ek_status ek_gateway_pump_create(ek_pump **out_pump)
{
    ek_pump *pump = ek_sys_calloc(1, sizeof *pump);
    if (!pump) return EK_ENOMEM;
    ek_sys_mutex_init(&pump->lock);
    ek_sys_cond_init(&pump->changed);
    ek_status status = ek_sys_thread_start(&pump->thread, "ek-pump", pump_main, pump);
    if (status != EK_OK) {
        ek_gateway_pump_destroy(pump);
        return status;
    }
    *out_pump = pump;
    return EK_OK;
}

void ek_gateway_pump_attach(ek_pump *pump, ek_engine *engine)
{
    ek_sys_mutex_lock(&pump->lock);
    pump->engine = engine;
    ek_sys_cond_broadcast(&pump->changed);
    ek_sys_mutex_unlock(&pump->lock);
}

void ek_gateway_pump_kick(ek_pump *pump, ek_call *call)
{
    ek_sys_mutex_lock(&pump->lock);
    ek_engine *engine = pump->engine;
    if (!call->kicked) {
        call->kicked = true;
        call->kick_next = NULL;
        if (pump->kick_last) {
            pump->kick_last->kick_next = ek_gateway_call_ref(call);
        } else {
            pump->kick_first = ek_gateway_call_ref(call);
        }
        pump->kick_last = call;
    }
    ek_sys_mutex_unlock(&pump->lock);
    if (engine) ek_engine_wake(engine);
}

void ek_gateway_pump_destroy(ek_pump *pump)
{
    if (!pump) return;
    ek_sys_mutex_lock(&pump->lock);
    pump->stopping = true;
    ek_engine *engine = pump->engine;
    ek_sys_cond_broadcast(&pump->changed);
    ek_sys_mutex_unlock(&pump->lock);
    if (engine) ek_engine_wake(engine);
    ek_sys_thread_join(&pump->thread);
    ek_sys_cond_fini(&pump->changed);
    ek_sys_mutex_fini(&pump->lock);
    ek_sys_free(pump);
}
