/*
 * Other params from other threads while plans are made: no plan sees half of one and half of
 * another, and the last ones left are the ones in force in the end. Run under a thread sanitizer
 * this is also the proof that the mailbox synchronises.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "route/route.h"

enum { N_WRITERS = 3, N_SWITCHES = 3000 };

static const ek_route_gate gate = {EK_ROUTE_SOFTMAX, 8, 2, 1, 1, true, 1.0f};

typedef struct shared {
    ek_router *router;
    _Atomic int32_t n_writing;
    _Atomic int64_t n_left;
} shared;

/** Params that can be recognised as one piece: seed, defer_rounds and dwell say the same number. */
static ek_route_params marked(int32_t mark)
{
    ek_route_params params;
    ek_route_params_default(&params);
    params.policy = mark % 2 ? EK_ROUTE_POLICY_BREAKER : EK_ROUTE_POLICY_DISCOUNT;
    params.seed = mark;
    params.breaker.dwell_us = mark;
    params.shadow_every = mark;
    return params;
}

static void *write_params(void *ctx)
{
    shared *s = ctx;
    for (int32_t i = 1; i <= N_SWITCHES; i++) {
        const ek_route_params params = marked(i);
        ek_status status = ek_route_switch(s->router, &params, NULL);
        if (status == EK_OK) atomic_fetch_add(&s->n_left, 1);
    }
    atomic_fetch_sub(&s->n_writing, 1);
    return NULL;
}

static void test_switch_while_planning(void **state)
{
    (void)state;
    static uint8_t perm_mem[1 << 14], step_mem[1 << 12];
    static const float logits[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const float loads[8] = {0.9f, 0.9f, 0.9f, 0.9f, 0.9f, 0.9f, 0.1f, 0.9f};
    ek_arena perm = ek_arena_over(perm_mem, sizeof perm_mem);
    const ek_route_params first = marked(1);
    shared s = {.n_writing = N_WRITERS};
    assert_int_equal(ek_route_create(&gate, 1, &first, &perm, &s.router, NULL), EK_OK);
    pthread_t threads[N_WRITERS];
    for (int32_t i = 0; i < N_WRITERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_params, &s), 0);

    int64_t n_adopted = 0;
    uint32_t last_version = 0;
    for (uint64_t version = 1;; version++) {
        bool done = atomic_load(&s.n_writing) == 0;
        n_adopted += ek_route_adopt(s.router);
        const ek_route_params *now = ek_route_params_of(s.router);
        assert_int_equal(now->seed, now->shadow_every);
        assert_int_equal(now->seed, now->breaker.dwell_us);
        const ek_route_view view = {
            .version = version, .utilisation = loads, .sampled_us = (int64_t)version * 100};
        ek_arena step = ek_arena_over(step_mem, sizeof step_mem);
        ek_route_plan plan;
        assert_int_equal(ek_route_plan_layer(s.router, 0, logits, NULL, 1, &view, &step, &plan),
                         EK_OK);
        assert_true(plan.params_version >= last_version);
        last_version = plan.params_version;
        if (done) break;
    }
    for (int32_t i = 0; i < N_WRITERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(last_version, n_adopted + 1);
    assert_true(n_adopted > 0 && n_adopted <= atomic_load(&s.n_left));
    /* Nobody is in the way any more: the next one gets through. */
    const ek_route_params last = marked(77777);
    assert_int_equal(ek_route_switch(s.router, &last, NULL), EK_OK);
    assert_true(ek_route_adopt(s.router));
    assert_int_equal(ek_route_params_of(s.router)->seed, 77777);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_switch_while_planning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
