#include "crowd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "answers.h"
#include "base/rng.h"
#include "sys/clock.h"
#include "sys/mem.h"
#include "sys/thread.h"

/* ---- what is asked ---- */

/* A request that client and number determine. */
typedef struct order {
    int32_t prompt[CROWD_PROMPT_MAX];
    ek_str stops[2];
    ek_request_params params;
} order;

/*
 * Prompts of any length that begin alike for a while: some of what they need is in the prefix
 * cache.
 */
static int32_t make_prompt(const crowd_params *params, ek_rng *rng, int32_t *prompt)
{
    int32_t n = 1 + (int32_t)ek_rng_below(rng, (uint64_t)params->prompt_max);
    int32_t n_common = (int32_t)ek_rng_below(rng, (uint64_t)n);
    for (int32_t i = 0; i < n; i++) {
        int32_t common = 2 + i % 50;
        int32_t own = 2 + (int32_t)ek_rng_below(rng, (uint64_t)(params->n_vocab - 2));
        prompt[i] = i < n_common ? common : own;
    }
    return n;
}

static void make_order(const crowd_params *params, int32_t client, int32_t number, order *o)
{
    ek_rng rng;
    ek_rng_init(&rng, (uint64_t)client * 100000 + (uint64_t)number);
    int32_t n_prompt = make_prompt(params, &rng, o->prompt);
    int32_t n_answer = 1 + (int32_t)ek_rng_below(&rng, (uint64_t)params->answer_max);
    o->params = answer_request(o->prompt, n_prompt, n_answer);
    o->params.ignore_eos = ek_rng_below(&rng, 2) == 0;
    o->stops[0] = EK_STR("END");
    o->stops[1] = EK_STR("abab");
    o->params.stops = o->stops;
    o->params.n_stops = (int32_t)ek_rng_below(&rng, 3);
    ek_sampling *s = &o->params.sampling;
    s->seed = ek_rng_next(&rng);
    if (ek_rng_below(&rng, 2)) s->temperature = 0.8f;
    if (ek_rng_below(&rng, 3) == 0) s->top_p = 0.9f;
    if (ek_rng_below(&rng, 3) == 0) s->repetition_penalty = 1.2f;
    if (ek_rng_below(&rng, 3) == 0) s->frequency_penalty = 0.5f;
    if (ek_rng_below(&rng, 2)) s->n_logprobs = 3;
}

/* ---- who asks ---- */

typedef struct slot {
    ek_request *request; /* NULL: free */
    answer *got;
    int32_t number;
    int32_t n_reads_left; /* then it is given up; -1: never */
    bool cancels;         /* giving up means cancel and read on, else release */
} slot;

typedef struct client {
    const crowd *crowd;
    int32_t id;
    answer **finished; /* (n_per_client) NULL: given up */
    int32_t n_given_up;
    _Atomic int64_t n_news; /* counted by the listener */
    ek_sys_thread thread;
} client;

struct crowd {
    crowd_params params;
    ek_engine *engine;
    client *clients; /* (n_clients) */
    ek_sys_thread listener;
    _Atomic bool is_over;
};

static void start_next(client *c, slot *s, ek_rng *rng, int32_t *next)
{
    order o;
    if (*next == c->crowd->params.n_per_client) return;
    make_order(&c->crowd->params, c->id, *next, &o);
    o.params.tag = c;
    if (ek_engine_submit(c->crowd->engine, &o.params, &s->request, NULL) != EK_OK) {
        s->request = NULL; /* full: another time */
        return;
    }
    s->got = answer_new();
    s->number = (*next)++;
    s->n_reads_left = ek_rng_below(rng, 4) == 0 ? (int32_t)ek_rng_below(rng, 60) : -1;
    s->cancels = ek_rng_below(rng, 2) == 0;
}

static void end_slot(client *c, slot *s, bool is_finished)
{
    if (is_finished) {
        c->finished[s->number] = s->got;
    } else {
        ek_sys_free(s->got);
        c->n_given_up++;
    }
    ek_engine_release(c->crowd->engine, s->request);
    s->request = NULL;
}

static void serve(client *c, slot *s, ek_rng *rng)
{
    if (ek_rng_below(rng, 3) == 0) return; /* a reader that takes its time */
    if (s->n_reads_left == 0 && !s->cancels) {
        end_slot(c, s, false);
        return;
    }
    if (s->n_reads_left == 0) ek_engine_cancel(c->crowd->engine, s->request);
    if (s->n_reads_left > 0) s->n_reads_left--;
    if (answer_read(c->crowd->engine, s->request, s->got))
        end_slot(c, s, s->got->finish != EK_FINISH_CANCELED);
}

static void run_client(void *ctx)
{
    client *c = ctx;
    slot slots[CROWD_AT_ONCE] = {0};
    ek_rng rng;
    ek_rng_init(&rng, (uint64_t)c->id + 77);
    int32_t next = 0;
    for (bool busy = true; busy;) {
        busy = next < c->crowd->params.n_per_client;
        for (int32_t i = 0; i < CROWD_AT_ONCE; i++) {
            if (!slots[i].request) start_next(c, &slots[i], &rng, &next);
            if (slots[i].request) serve(c, &slots[i], &rng);
            busy |= slots[i].request != NULL;
        }
        ek_sys_sleep_us(50);
    }
}

/* One more thread waits for news, as a gateway does: each has to name a client of this crowd. */
static void listen_to_news(void *ctx)
{
    crowd *c = ctx;
    while (!atomic_load(&c->is_over)) {
        void *tags[8];
        int32_t n = ek_engine_wait(c->engine, tags, 8, 1000000);
        for (int32_t i = 0; i < n; i++) {
            client *one = tags[i];
            assert_true(one >= c->clients && one < c->clients + c->params.n_clients);
            atomic_fetch_add(&one->n_news, 1);
        }
    }
}

/* ---- the crowd ---- */

crowd *crowd_run(ek_engine *engine, const crowd_params *params)
{
    crowd *c = ek_sys_calloc(1, sizeof *c);
    assert_non_null(c);
    c->params = *params;
    c->engine = engine;
    c->clients = ek_sys_calloc((size_t)params->n_clients, sizeof *c->clients);
    assert_non_null(c->clients);
    assert_int_equal(ek_sys_thread_start(&c->listener, "listener", listen_to_news, c), EK_OK);
    for (int32_t i = 0; i < params->n_clients; i++) {
        client *one = &c->clients[i];
        one->crowd = c;
        one->id = i;
        one->finished = ek_sys_calloc((size_t)params->n_per_client, sizeof *one->finished);
        assert_non_null(one->finished);
        assert_int_equal(ek_sys_thread_start(&one->thread, "client", run_client, one), EK_OK);
    }
    for (int32_t i = 0; i < params->n_clients; i++)
        ek_sys_thread_join(&c->clients[i].thread);
    atomic_store(&c->is_over, true);
    ek_engine_wake(engine);
    ek_sys_thread_join(&c->listener);
    for (int32_t i = 0; i < params->n_clients; i++)
        assert_true(atomic_load(&c->clients[i].n_news) > 0);
    return c;
}

int32_t crowd_compare(crowd *c, ek_engine *alone)
{
    int32_t n_compared = 0;
    for (int32_t i = 0; i < c->params.n_clients; i++) {
        for (int32_t number = 0; number < c->params.n_per_client; number++) {
            const answer *got = c->clients[i].finished[number];
            if (!got) continue;
            order o;
            make_order(&c->params, i, number, &o);
            answer *want = answer_get(alone, &o.params);
            answer_assert_equal(got, want);
            ek_sys_free(want);
            n_compared++;
        }
    }
    return n_compared;
}

int32_t crowd_given_up(const crowd *c)
{
    int32_t n = 0;
    for (int32_t i = 0; i < c->params.n_clients; i++)
        n += c->clients[i].n_given_up;
    return n;
}

void crowd_free(crowd *c)
{
    for (int32_t i = 0; i < c->params.n_clients; i++) {
        for (int32_t number = 0; number < c->params.n_per_client; number++)
            ek_sys_free(c->clients[i].finished[number]);
        ek_sys_free(c->clients[i].finished);
    }
    ek_sys_free(c->clients);
    ek_sys_free(c);
}
