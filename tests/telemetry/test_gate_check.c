/*
 * Goal: gates that are in order pass, however uneven; each way of being broken is told by layer and
 * figure; a text that is too short says nothing.
 * Method: counts made by hand for two layers of 32 experts, top-4.
 */
#include "telemetry/gate_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

enum { N_LAYERS = 2, N_EXPERTS = 32, TOP_K = 4, N_TOKENS = 200 };

typedef struct rig {
    _Alignas(64) uint8_t memory[1 << 14];
    ek_gate_counts counts;
} rig;

static void visit(rig *r, int32_t layer, int32_t token, int32_t expert, double weight)
{
    int64_t at = (int64_t)layer * N_EXPERTS + expert;
    if (token < N_TOKENS / 2)
        r->counts.early[at]++;
    else
        r->counts.late[at]++;
    r->counts.weight[at] += weight;
}

/* Each token visits four neighbours; which ones depends on chance, with `spread` places to be. */
static void fill(rig *r, int32_t layer, int32_t spread)
{
    ek_rng rng;
    ek_rng_init(&rng, (uint64_t)layer + 1);
    for (int32_t t = 0; t < N_TOKENS; t++) {
        int32_t first = (int32_t)ek_rng_below(&rng, (uint64_t)spread);
        for (int32_t k = 0; k < TOP_K; k++)
            visit(r, layer, t, (first + k) % N_EXPERTS, 0.25);
    }
}

static void start(rig *r)
{
    memset(r->memory, 0, sizeof r->memory);
    ek_arena arena = ek_arena_over(r->memory, sizeof r->memory);
    assert_int_equal(ek_telemetry_gate_counts_make(N_LAYERS, N_EXPERTS, TOP_K, &arena, &r->counts),
                     EK_OK);
    r->counts.n_tokens = N_TOKENS;
    fill(r, 0, N_EXPERTS);
}

static void expect(rig *r, const char *part)
{
    ek_err err = {0};
    ek_status status = ek_telemetry_gate_check(&r->counts, &err);
    assert_int_equal(status, part ? EK_ERANGE : EK_OK);
    if (part && !strstr(err.text, part)) fail_msg("'%s' is not in '%s'", part, err.text);
}

static void test_sane(void **state)
{
    (void)state;
    rig r;
    start(&r);
    fill(&r, 1, N_EXPERTS);
    expect(&r, NULL);
    start(&r);
    fill(&r, 1, 10); /* 13 of 32 experts: uneven, and no more */
    expect(&r, NULL);
}

static void test_not_finite(void **state)
{
    (void)state;
    rig r;
    start(&r);
    fill(&r, 1, N_EXPERTS);
    r.counts.n_not_finite[1] = 3;
    expect(&r, "layer 1: 3 of 6400 gate logits are no finite numbers");
}

static void test_one_expert_is_visited_by_all(void **state)
{
    (void)state;
    rig r;
    start(&r);
    for (int32_t t = 0; t < N_TOKENS; t++) {
        visit(&r, 1, t, 7, 0.4);
        for (int32_t k = 1; k < TOP_K; k++)
            visit(&r, 1, t, 8 + (t + 6 * k) % 24, 0.2);
    }
    expect(&r, "layer 1: expert 7 gets 100.0 % of 200 tokens (at most 99 % is sane), and 40 % of");
}

static void test_one_expert_has_the_weight(void **state)
{
    (void)state;
    rig r;
    start(&r);
    fill(&r, 1, N_EXPERTS);
    r.counts.weight[N_EXPERTS + 5] += 30 * N_TOKENS;
    expect(&r, "layer 1: expert 5 has 9");
}

static void test_collapse(void **state)
{
    (void)state;
    rig r;
    start(&r);
    fill(&r, 1, 2);                       /* five experts in use */
    for (int32_t k = 1; k < TOP_K; k++) { /* of which none is everybody's */
        r.counts.early[N_EXPERTS + k] -= 4;
        r.counts.early[N_EXPERTS + 30 - k] += 4;
    }
    expect(&r, "of 32 experts are in use, and the hottest 4 have");
}

static void test_short_text(void **state)
{
    (void)state;
    rig r;
    start(&r);
    r.counts.n_tokens = 3;
    memset(r.counts.early, 0, sizeof(int64_t) * N_LAYERS * N_EXPERTS);
    memset(r.counts.late, 0, sizeof(int64_t) * N_LAYERS * N_EXPERTS);
    for (int32_t t = 0; t < 3; t++)
        for (int32_t l = 0; l < N_LAYERS; l++)
            for (int32_t k = 0; k < TOP_K; k++)
                visit(&r, l, t, k, 0.25);
    expect(&r, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sane),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_one_expert_is_visited_by_all),
        cmocka_unit_test(test_one_expert_has_the_weight),
        cmocka_unit_test(test_collapse),
        cmocka_unit_test(test_short_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
