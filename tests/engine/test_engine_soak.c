/*
 * Goal: whatever else goes on, a request's answer is the one it gets alone, and everything that
 * was taken is given back. Method: several client threads send random requests to one engine with
 * a cache far too small for all of them, read slowly, cancel and release at random moments; every
 * answer that was let finish is compared byte for byte with the answer of an idle engine. The
 * histories are random but their requests are not: client and number make the seed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "answers.h"
#include "base/rng.h"
#include "sys/clock.h"
#include "sys/mem.h"
#include "sys/thread.h"
#include "toy_model.h"

#define N_CLIENTS    4
#define N_AT_ONCE    16 /* of one client: 64 concurrent in all */
#define N_PER_CLIENT 150
#define PROMPT_MAX   120

/* A request that client and number determine. */
typedef struct order {
    int32_t prompt[PROMPT_MAX];
    ek_str stops[2];
    ek_request_params params;
} order;

static void make_order(int32_t client, int32_t number, order *o)
{
    ek_rng rng;
    ek_rng_init(&rng, (uint64_t)(client * 100000 + number));
    int32_t n_prompt = 1 + (int32_t)ek_rng_below(&rng, PROMPT_MAX);
    int32_t n_common = (int32_t)ek_rng_below(&rng, (uint64_t)n_prompt);
    for (int32_t i = 0; i < n_prompt; i++) {
        int32_t common = 2 + i % 50;
        int32_t own = 2 + (int32_t)ek_rng_below(&rng, TOY_N_VOCAB - 2);
        o->prompt[i] = i < n_common ? common : own;
    }
    o->params = answer_request(o->prompt, n_prompt, 1 + (int32_t)ek_rng_below(&rng, 120));
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
    if (ek_rng_below(&rng, 4) == 0) s->n_logprobs = 3;
}

typedef struct slot {
    ek_request *request; /* NULL: free */
    answer *got;
    int32_t number;
    int32_t n_reads_left; /* then it is given up; -1: never */
    bool cancels;         /* giving up means cancel and read on, else release */
} slot;

typedef struct client {
    ek_engine *engine;
    int32_t id;
    uint64_t chance; /* seed of what is not part of the requests */
    answer *finished[N_PER_CLIENT];
    int32_t n_canceled;
    ek_sys_thread thread;
} client;

static void start_next(client *c, slot *s, ek_rng *rng, int32_t *next)
{
    order o;
    if (*next == N_PER_CLIENT) return;
    make_order(c->id, *next, &o);
    if (ek_engine_submit(c->engine, &o.params, &s->request, NULL) != EK_OK) {
        s->request = NULL; /* full: another time */
        return;
    }
    s->got = answer_new();
    s->number = (*next)++;
    s->n_reads_left = ek_rng_below(rng, 4) == 0 ? (int32_t)ek_rng_below(rng, 60) : -1;
    s->cancels = ek_rng_below(rng, 2) == 0;
}

static void end_slot(client *c, slot *s)
{
    ek_engine_release(c->engine, s->request);
    s->request = NULL;
}

static void serve(client *c, slot *s, ek_rng *rng)
{
    if (ek_rng_below(rng, 3) == 0) return; /* a reader that takes its time */
    if (s->n_reads_left == 0 && !s->cancels) {
        ek_sys_free(s->got);
        c->n_canceled++;
        end_slot(c, s);
        return;
    }
    if (s->n_reads_left == 0) ek_engine_cancel(c->engine, s->request);
    if (s->n_reads_left > 0) s->n_reads_left--;
    if (!answer_read(c->engine, s->request, s->got)) return;
    if (s->got->finish == EK_FINISH_CANCELED) {
        ek_sys_free(s->got);
        c->n_canceled++;
    } else {
        c->finished[s->number] = s->got;
    }
    end_slot(c, s);
}

static void run_client(void *ctx)
{
    client *c = ctx;
    slot slots[N_AT_ONCE] = {0};
    ek_rng rng;
    ek_rng_init(&rng, c->chance);
    int32_t next = 0;
    for (bool busy = true; busy;) {
        busy = next < N_PER_CLIENT;
        for (int32_t i = 0; i < N_AT_ONCE; i++) {
            if (!slots[i].request) start_next(c, &slots[i], &rng, &next);
            if (slots[i].request) serve(c, &slots[i], &rng);
            busy |= slots[i].request != NULL;
        }
        ek_sys_sleep_us(50);
    }
}

static ek_engine_params soak_params(void)
{
    ek_engine_params params = toy_params();
    params.running_max = 12;
    params.queue_max = 60;
    params.prefill_chunk_tokens = 48;
    return params;
}

/* Each finished answer against the same request on an idle engine with room for everything. */
static int32_t compare_with_alone(const client *clients)
{
    ek_engine_params params = soak_params();
    ek_engine *alone = toy_engine(&params, NULL);
    int32_t n_compared = 0;
    for (int32_t c = 0; c < N_CLIENTS; c++) {
        for (int32_t i = 0; i < N_PER_CLIENT; i++) {
            answer *got = clients[c].finished[i];
            if (!got) continue;
            order o;
            make_order(c, i, &o);
            answer *want = answer_get(alone, &o.params);
            answer_assert_equal(got, want);
            ek_sys_free(want);
            ek_sys_free(got);
            n_compared++;
        }
    }
    ek_engine_destroy(alone);
    return n_compared;
}

static void soak(int64_t kv_blocks, bool prefix_cache, int n_preemptions_least)
{
    ek_engine_params params = soak_params();
    params.kv_bytes = kv_blocks * toy_block_bytes(&params);
    params.prefix_cache = prefix_cache;
    ek_metrics *metrics;
    ek_sys_region region;
    assert_int_equal(ek_sys_region_open(EK_METRICS_BYTES_MAX, 0, &region), EK_OK);
    ek_arena arena = ek_sys_region_arena(&region);
    assert_int_equal(ek_telemetry_metrics_create(&arena, &metrics), EK_OK);
    ek_engine *engine = toy_engine(&params, metrics);
    client *clients = ek_sys_calloc(N_CLIENTS, sizeof *clients);
    assert_non_null(clients);
    for (int32_t i = 0; i < N_CLIENTS; i++) {
        clients[i].engine = engine;
        clients[i].id = i;
        clients[i].chance = (uint64_t)(i + 77);
        assert_int_equal(ek_sys_thread_start(&clients[i].thread, "client", run_client, &clients[i]),
                         EK_OK);
    }
    int32_t n_canceled = 0;
    for (int32_t i = 0; i < N_CLIENTS; i++) {
        ek_sys_thread_join(&clients[i].thread);
        n_canceled += clients[i].n_canceled;
    }
    answer_assert_idle(engine);
    ek_counter *preemptions = ek_telemetry_counter(metrics, "evenkeel_preemptions_total", NULL, "");
    int n_preemptions = (int)ek_counter_get(preemptions);
    assert_true(toy.n_tokens_max <= params.running_max + params.prefill_chunk_tokens);
    assert_true(toy.n_prompt_max <= params.prefill_chunk_tokens);
    ek_engine_destroy(engine);
    ek_sys_region_close(&region);
    int32_t n_compared = compare_with_alone(clients);
    print_message("%d answers compared, %d given up, %d preemptions\n", (int)n_compared,
                  (int)n_canceled, n_preemptions);
    assert_int_equal(n_compared + n_canceled, N_CLIENTS * N_PER_CLIENT);
    /* The history reached what it is there for. */
    assert_true(n_compared > 100 && n_canceled > 20 && n_preemptions >= n_preemptions_least);
    ek_sys_free(clients);
}

/* The largest request takes 15 blocks of 16. */
static void answers_are_those_of_an_idle_engine_when_the_cache_is_tiny(void **state)
{
    (void)state;
    soak(16, true, 20);
    soak(16, false, 20);
}

static void answers_are_those_of_an_idle_engine_when_the_cache_is_small(void **state)
{
    (void)state;
    soak(40, true, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_an_idle_engine_when_the_cache_is_tiny),
        cmocka_unit_test(answers_are_those_of_an_idle_engine_when_the_cache_is_small),
    };
    return cmocka_run_group_tests_name("engine/soak", tests, NULL, NULL);
}
