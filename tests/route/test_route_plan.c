/*
 * The plan: every (token, choice) pair lies in exactly one row of its expert, rows are packed and
 * ascending, memory is what was announced, and nothing is taken when it does not fit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "route/gate.h"
#include "route/route.h"

static const ek_route_params static_params = {.policy = EK_ROUTE_POLICY_STATIC};
static uint8_t perm_mem[1 << 19];

static void check_plan(const ek_route_gate *gate, const ek_route_plan *plan, int32_t n_tokens)
{
    assert_int_equal(plan->n_tokens, n_tokens);
    assert_int_equal(plan->n_experts, gate->n_experts);
    assert_int_equal(plan->top_k, gate->top_k);
    assert_int_equal(plan->n_rows, n_tokens * gate->top_k);
    assert_int_equal(plan->expert_beg[0], 0);
    assert_int_equal(plan->expert_beg[gate->n_experts], plan->n_rows);

    int32_t n_active = 0;
    for (int32_t e = 0; e < gate->n_experts; e++) {
        assert_true(plan->expert_beg[e] <= plan->expert_beg[e + 1]);
        n_active += plan->expert_beg[e] < plan->expert_beg[e + 1];
        for (int32_t row = plan->expert_beg[e] + 1; row < plan->expert_beg[e + 1]; row++)
            assert_true(plan->row_token[row - 1] < plan->row_token[row]);
    }
    assert_int_equal(plan->n_active, n_active);

    uint8_t *met = calloc((size_t)plan->n_rows + 1, 1);
    for (int32_t i = 0; i < n_tokens * gate->top_k; i++) {
        int32_t row = plan->row_of[i];
        assert_in_range(row, 0, plan->n_rows - 1);
        assert_false(met[row]);
        met[row] = 1;
        assert_int_equal(plan->row_token[row], i / gate->top_k);
        int32_t expert = plan->expert_id[i];
        assert_in_range(row, plan->expert_beg[expert], plan->expert_beg[expert + 1] - 1);
    }
    free(met);
}

static void test_every_pair_has_one_row(void **state)
{
    (void)state;
    static const ek_route_gate gates[] = {
        {EK_ROUTE_SOFTMAX, 64, 8, 1, 1, false, 1.0f},
        {EK_ROUTE_SOFTMAX, 128, 8, 1, 1, true, 1.0f},
        {EK_ROUTE_SIGMOID, 256, 8, 8, 4, true, 2.5f},
        {EK_ROUTE_SOFTMAX_CHOSEN, 32, 4, 1, 1, false, 1.0f},
        {EK_ROUTE_SOFTMAX, 8, 8, 1, 1, true, 1.0f},
        {EK_ROUTE_SOFTMAX, 1, 1, 1, 1, false, 1.0f},
        {EK_ROUTE_SOFTMAX, 1024, 64, 1, 1, true, 1.0f},
    };
    static const int32_t batches[] = {0, 1, 2, 7, 64, 513};
    ek_rng rng;
    ek_rng_init(&rng, 3);
    for (size_t g = 0; g < EK_COUNT_OF(gates); g++) {
        const ek_route_gate *gate = &gates[g];
        ek_arena perm = ek_arena_over(perm_mem, sizeof perm_mem);
        ek_router *router;
        assert_int_equal(ek_route_create(gate, 1, &static_params, &perm, &router, NULL), EK_OK);
        for (size_t b = 0; b < EK_COUNT_OF(batches); b++) {
            int32_t n = batches[b];
            float *logits = calloc((size_t)n * (size_t)gate->n_experts + 1, sizeof *logits);
            for (int32_t i = 0; i < n * gate->n_experts; i++)
                logits[i] = (float)ek_rng_below(&rng, 50) * 0.125f; /* many exact ties */
            size_t bytes = ek_route_plan_bytes(gate, n);
            uint8_t *mem = calloc(1, bytes + 1);
            ek_arena step = ek_arena_over(mem + 1, bytes); /* as badly aligned as can be */
            ek_route_plan plan;
            assert_int_equal(ek_route_plan_layer(router, 0, logits, NULL, n, NULL, &step, &plan),
                             EK_OK);
            check_plan(gate, &plan, n);
            free(mem);
            free(logits);
        }
    }
}

/** A token's choice is the same alone and in any batch. */
static void test_batch_does_not_change_a_token(void **state)
{
    (void)state;
    enum { n = 40, n_experts = 16, top_k = 4 };
    const ek_route_gate gate = {EK_ROUTE_SIGMOID, n_experts, top_k, 4, 2, true, 2.5f};
    uint8_t mem[65536];
    ek_arena perm = ek_arena_over(perm_mem, sizeof perm_mem);
    ek_router *router;
    assert_int_equal(ek_route_create(&gate, 4, &static_params, &perm, &router, NULL), EK_OK);
    ek_rng rng;
    ek_rng_init(&rng, 5);
    float logits[n * n_experts], bias[n_experts];
    for (int32_t i = 0; i < n * n_experts; i++)
        logits[i] = (float)(ek_rng_unit(&rng) * 4 - 2);
    for (int32_t e = 0; e < n_experts; e++)
        bias[e] = (float)(ek_rng_unit(&rng) * 0.2 - 0.1);

    ek_arena step = ek_arena_over(mem, sizeof mem);
    ek_route_plan all;
    assert_int_equal(ek_route_plan_layer(router, 3, logits, bias, n, NULL, &step, &all), EK_OK);
    for (int32_t t = 0; t < n; t++) {
        ek_arena scratch = step;
        ek_route_plan one;
        assert_int_equal(
            ek_route_plan_layer(router, 3, logits + t * n_experts, bias, 1, NULL, &scratch, &one),
            EK_OK);
        assert_memory_equal(one.expert_id, all.expert_id + t * top_k, top_k * sizeof(int32_t));
        assert_memory_equal(one.weight, all.weight + t * top_k, top_k * sizeof(float));
    }
}

static void test_full_arena_takes_nothing(void **state)
{
    (void)state;
    const ek_route_gate gate = {EK_ROUTE_SOFTMAX, 8, 2, 1, 1, false, 1.0f};
    uint8_t mem[16384];
    ek_arena perm = ek_arena_over(perm_mem, sizeof perm_mem);
    ek_router *router;
    assert_int_equal(ek_route_create(&gate, 4, &static_params, &perm, &router, NULL), EK_OK);
    float logits[16 * 8] = {0};
    size_t enough = ek_route_plan_bytes(&gate, 16);
    for (size_t bytes = 0; bytes < enough; bytes += 13) {
        ek_arena step = ek_arena_over(mem, bytes);
        ek_route_plan plan = {.n_tokens = -5};
        ek_status status = ek_route_plan_layer(router, 0, logits, NULL, 16, NULL, &step, &plan);
        if (status == EK_OK) continue; /* padding was not needed after all */
        assert_int_equal(status, EK_ENOMEM);
        assert_true(enough - bytes > 0 && step.beg == mem && plan.n_tokens == -5);
    }
    ek_arena step = ek_arena_over(mem, 0);
    ek_route_plan plan;
    assert_int_equal(ek_route_plan_layer(router, 0, logits, NULL, 16, NULL, &step, &plan),
                     EK_ENOMEM);
}

static void test_create_refuses(void **state)
{
    (void)state;
    uint8_t mem[4096];
    ek_arena perm = ek_arena_over(mem, sizeof mem);
    ek_router *router = NULL;
    ek_err err = {0};
    const ek_route_gate bad = {EK_ROUTE_SOFTMAX, 8, 9, 1, 1, false, 1.0f};
    const ek_route_gate good = {EK_ROUTE_SOFTMAX, 8, 2, 1, 1, false, 1.0f};
    const ek_route_params unknown = {.policy = (ek_route_policy)99};
    assert_int_equal(ek_route_create(&bad, 1, &static_params, &perm, &router, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "9 experts per token"));
    assert_int_equal(ek_route_create(&good, 1, &unknown, &perm, &router, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "policy 99"));
    ek_arena small = ek_arena_over(mem, 16);
    assert_int_equal(ek_route_create(&good, 1, &static_params, &small, &router, &err), EK_ENOMEM);
    assert_null(router);
    assert_true(small.beg == mem && perm.beg == mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair_has_one_row),
        cmocka_unit_test(test_batch_does_not_change_a_token),
        cmocka_unit_test(test_full_arena_takes_nothing),
        cmocka_unit_test(test_create_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
