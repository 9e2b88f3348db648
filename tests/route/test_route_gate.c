/*
 * The gate against a naive one: softmax or sigmoid in double, a full sort, no shortcuts.
 *
 * Random gates of every kind are drawn and must choose the same experts in the same order with the
 * same weights. Where two candidates of the naive gate are closer than float rounding can tell, the
 * order is not a fact of the mathematics; such draws are counted and must stay rare. Exact ties,
 * NaN and infinities have tests of their own.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "route/gate.h"

#define N_MAX EK_ROUTE_EXPERTS_MAX
#define K_MAX EK_ROUTE_TOP_K_MAX

typedef struct chosen {
    int32_t id[K_MAX];
    double weight[K_MAX];
    double margin; /* the closest decision that was taken */
} chosen;

static void choose(const ek_route_gate *gate, const float *logits, const float *bias,
                   int32_t *out_id, float *out_weight)
{
    static float logit[N_MAX], score[N_MAX], value[N_MAX];
    static uint8_t group_used[N_MAX];
    static int32_t candidate[N_MAX + 1];
    static uint64_t top[N_MAX];
    ek_gate_scratch scratch = {logit, score, value, group_used, candidate, top};
    ek_route_gate_choose(gate, logits, bias, &scratch, out_id, out_weight);
}

/**
 * Indices of the k highest of n values, best first, lower index first among equals; -inf is never
 * taken.
 */
static double naive_top(const double *value, int32_t n, int32_t k, int32_t *out_idx)
{
    bool taken[N_MAX] = {false};
    double margin = INFINITY;
    for (int32_t i = 0; i <= k && i < n; i++) {
        int32_t best = -1;
        for (int32_t e = 0; e < n; e++)
            if (!taken[e] && value[e] > -INFINITY && (best < 0 || value[e] > value[best])) best = e;
        if (best < 0) break;
        if (i > 0) margin = fmin(margin, value[out_idx[i - 1]] - value[best]);
        if (i == k) break;
        taken[best] = true;
        out_idx[i] = best;
    }
    return margin;
}

static void naive_softmax(const double *z, int32_t n, double *out)
{
    double max = -INFINITY;
    double sum = 0;
    for (int32_t e = 0; e < n; e++)
        max = fmax(max, z[e]);
    for (int32_t e = 0; e < n; e++)
        sum += out[e] = exp(z[e] - max);
    for (int32_t e = 0; e < n; e++)
        out[e] /= sum;
}

static void naive_mask_groups(const ek_route_gate *gate, double *value, double *margin)
{
    double sum[N_MAX];
    int32_t used[N_MAX];
    int32_t size = gate->n_experts / gate->n_groups;
    for (int32_t g = 0; g < gate->n_groups; g++) {
        int32_t two[2] = {0, 0};
        naive_top(value + g * size, size, size < 2 ? 1 : 2, two);
        sum[g] = value[g * size + two[0]] + (size < 2 ? 0 : value[g * size + two[1]]);
    }
    *margin = fmin(*margin, naive_top(sum, gate->n_groups, gate->n_groups_used, used));
    for (int32_t g = 0; g < gate->n_groups; g++) {
        bool keep = false;
        for (int32_t i = 0; i < gate->n_groups_used; i++)
            keep = keep || used[i] == g;
        for (int32_t e = g * size; !keep && e < (g + 1) * size; e++)
            value[e] = -INFINITY;
    }
}

static void naive_choose(const ek_route_gate *gate, const float *logits, const float *bias,
                         chosen *out)
{
    double z[N_MAX], score[N_MAX], value[N_MAX];
    int32_t n = gate->n_experts;
    for (int32_t e = 0; e < n; e++)
        z[e] = (double)logits[e];
    if (gate->score == EK_ROUTE_SOFTMAX) naive_softmax(z, n, score);
    for (int32_t e = 0; e < n; e++) {
        if (gate->score == EK_ROUTE_SIGMOID) score[e] = 1 / (1 + exp(-z[e]));
        if (gate->score == EK_ROUTE_SOFTMAX_CHOSEN) score[e] = z[e];
        value[e] = score[e] + (bias ? (double)bias[e] : 0);
    }
    out->margin = INFINITY;
    if (gate->n_groups_used < gate->n_groups) naive_mask_groups(gate, value, &out->margin);
    out->margin = fmin(out->margin, naive_top(value, n, gate->top_k, out->id));

    double sum = 0;
    for (int32_t k = 0; k < gate->top_k; k++)
        out->weight[k] = score[out->id[k]];
    if (gate->score == EK_ROUTE_SOFTMAX_CHOSEN)
        naive_softmax(out->weight, gate->top_k, out->weight);
    for (int32_t k = 0; k < gate->top_k; k++)
        sum += out->weight[k];
    for (int32_t k = 0; k < gate->top_k; k++) {
        if (gate->renormalise) out->weight[k] /= fmax(sum, 6.103515625e-5);
        out->weight[k] *= (double)gate->scale;
    }
}

static float normal(ek_rng *rng)
{
    double radius = sqrt(-2 * log(1 - ek_rng_unit(rng)));
    return (float)(radius * cos(6.283185307179586 * ek_rng_unit(rng)));
}

static ek_route_gate random_gate(ek_rng *rng)
{
    static const int32_t experts[] = {1, 2, 3, 8, 16, 60, 64, 96, 128, 256, 1024};
    ek_route_gate gate = {
        .score = (ek_route_score)ek_rng_below(rng, 3),
        .n_experts = experts[ek_rng_below(rng, EK_COUNT_OF(experts))],
        .n_groups = 1,
        .n_groups_used = 1,
        .renormalise = ek_rng_below(rng, 2) != 0,
        .scale = ek_rng_below(rng, 2) ? 1.0f : 2.5f,
    };
    if (gate.n_experts % 8 == 0 && ek_rng_below(rng, 2)) {
        gate.n_groups = 8;
        gate.n_groups_used = 1 + (int32_t)ek_rng_below(rng, 8);
    }
    int32_t eligible = gate.n_experts / gate.n_groups * gate.n_groups_used;
    int32_t max = eligible < K_MAX ? eligible : K_MAX;
    gate.top_k = ek_rng_below(rng, 4) ? 1 + (int32_t)ek_rng_below(rng, (uint64_t)max) : max;
    return gate;
}

static void test_random_gates_match_naive(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 7);
    int32_t n_close = 0;
    const int32_t n_draws = 20000;
    for (int32_t draw = 0; draw < n_draws; draw++) {
        ek_route_gate gate = random_gate(&rng);
        assert_int_equal(ek_route_gate_check(&gate, NULL), EK_OK);
        float logits[N_MAX], bias[N_MAX], spread = (float)(0.5 + 4 * ek_rng_unit(&rng));
        bool with_bias = ek_rng_below(&rng, 2) != 0;
        for (int32_t e = 0; e < gate.n_experts; e++) {
            logits[e] = spread * normal(&rng);
            bias[e] = 0.2f * normal(&rng);
        }
        chosen want;
        int32_t id[K_MAX];
        float weight[K_MAX];
        naive_choose(&gate, logits, with_bias ? bias : NULL, &want);
        choose(&gate, logits, with_bias ? bias : NULL, id, weight);
        /*
         * Choices on raw logits are exact; scores in float are good to about 1e-7 of the values
         * here.
         */
        bool on_logits = !with_bias && gate.n_groups_used == gate.n_groups;
        if (!on_logits && want.margin < 2e-6) {
            n_close++;
            continue;
        }
        for (int32_t k = 0; k < gate.top_k; k++) {
            assert_int_equal(id[k], want.id[k]);
            double diff = fabs((double)weight[k] - want.weight[k]);
            assert_true(diff <= 1e-6 * want.weight[k] + 1e-9);
        }
    }
    print_message("%d of %d draws had a margin below float rounding\n", n_close, n_draws);
    /* Softmax scores of 1,024 experts crowd around 1e-3, so that it happens at all. */
    assert_true(n_close < n_draws / 20);
}

static void test_ties_go_to_lower_id(void **state)
{
    (void)state;
    const float flat[8] = {0};
    const float zeros[8] = {-0.0f, 0.0f, -0.0f, 0.0f, 1.0f, 1.0f, -1.0f, 1.0f};
    int32_t id[8];
    float weight[8];
    for (int32_t score = 0; score < 3; score++) {
        ek_route_gate gate = {(ek_route_score)score, 8, 4, 1, 1, false, 1.0f};
        choose(&gate, flat, NULL, id, weight);
        for (int32_t k = 0; k < 4; k++)
            assert_int_equal(id[k], k);
        choose(&gate, zeros, flat, id, weight);
        const int32_t want[4] = {4, 5, 7, 0};
        assert_memory_equal(id, want, sizeof want);
    }
    /*
     * Group sums tie too: groups {2,3} and {4,5} and {6,7} have the same sum, the lower ones win.
     */
    const float grouped[8] = {0, 0, 2, 1, 1, 2, 2, 1};
    ek_route_gate gate = {EK_ROUTE_SIGMOID, 8, 3, 4, 2, false, 1.0f};
    choose(&gate, grouped, NULL, id, weight);
    const int32_t want[3] = {2, 5, 3};
    assert_memory_equal(id, want, sizeof want);
}

static void test_saturated_scores_keep_the_order_of_logits(void **state)
{
    (void)state;
    const float logits[4] = {30.0f, 50.0f, 40.0f, 20.0f}; /* sigmoid is 1.0f for all of them */
    int32_t id[4];
    float weight[4];
    ek_route_gate gate = {EK_ROUTE_SIGMOID, 4, 4, 1, 1, true, 1.0f};
    choose(&gate, logits, NULL, id, weight);
    const int32_t want[4] = {1, 2, 0, 3};
    assert_memory_equal(id, want, sizeof want);
    for (int32_t k = 0; k < 4; k++)
        assert_float_equal(weight[k], 0.25, 1e-7);
}

static void test_nan_and_infinity(void **state)
{
    (void)state;
    const float logits[6] = {NAN, -INFINITY, 1.0f, INFINITY, NAN, -2.0f};
    const float all_nan[6] = {NAN, NAN, NAN, NAN, NAN, NAN};
    const float bias[6] = {9, 0, 0, 0, 0, 0};
    const int32_t want[6] = {3, 2, 5, 1, 0, 4};
    int32_t id[6];
    float weight[6];
    for (int32_t i = 0; i < 12; i++) {
        ek_route_gate gate = {(ek_route_score)(i % 3), 6, 6, 1, 1, i >= 6, 1.0f};
        choose(&gate, logits, NULL, id, weight);
        assert_memory_equal(id, want, sizeof want);
        for (int32_t k = 0; k < 6; k++)
            assert_true(isfinite(weight[k]) && weight[k] >= 0);
        assert_true(weight[4] == 0 && weight[5] == 0);
        if (gate.score != EK_ROUTE_SIGMOID) assert_float_equal(weight[0], 1, 1e-6);

        choose(&gate, logits, bias, id, weight); /* a bias does not lift a NaN */
        assert_int_equal(id[4], 0);
        assert_int_equal(id[5], 4);

        choose(&gate, all_nan, NULL, id, weight);
        for (int32_t k = 0; k < 6; k++) {
            assert_int_equal(id[k], k);
            assert_true(weight[k] == 0);
        }
    }
}

/** A worked example of the group rule, by hand: 8 experts, 4 groups, 2 of them used. */
static void test_groups_by_hand(void **state)
{
    (void)state;
    /*
     * Group sums of the two best: 1.0+0.0, 0.6+0.6, 0.9+0.2, 0.5+0.5 (softmax-free: choose on
     * logits).
     */
    const float logits[8] = {1.0f, 0.0f, 0.6f, 0.6f, 0.9f, 0.2f, 0.5f, 0.5f};
    int32_t id[3];
    float weight[3];
    ek_route_gate gate = {EK_ROUTE_SOFTMAX_CHOSEN, 8, 3, 4, 2, false, 1.0f};
    choose(&gate, logits, NULL, id, weight);
    const int32_t want[3] = {4, 2, 3}; /* expert 0 has the best logit, but its group is not used */
    assert_memory_equal(id, want, sizeof want);
    double sum = exp(0.9) + 2 * exp(0.6);
    assert_float_equal(weight[0], (float)(exp(0.9) / sum), 1e-6);
    assert_float_equal(weight[1], (float)(exp(0.6) / sum), 1e-6);
}

/** A bias can choose experts whose scores are all tiny: the divisor stays at 2^-14. */
static void test_renormalise_is_clamped(void **state)
{
    (void)state;
    const float logits[4] = {20, 20, -20, -20};
    const float bias[4] = {0, 0, 5, 5};
    int32_t id[2];
    float weight[2];
    ek_route_gate gate = {EK_ROUTE_SIGMOID, 4, 2, 1, 1, true, 1.0f};
    choose(&gate, logits, bias, id, weight);
    assert_int_equal(id[0], 2);
    assert_int_equal(id[1], 3);
    double want = 1 / (1 + exp(20)) / 6.103515625e-5;
    assert_float_equal(weight[0], want, 1e-9);
}

static void test_check_names_what_is_wrong(void **state)
{
    (void)state;
    const ek_route_gate good = {EK_ROUTE_SOFTMAX, 64, 8, 8, 4, true, 1.0f};
    struct {
        ek_route_gate gate;
        const char *says;
    } bad[] = {
        {{(ek_route_score)7, 64, 8, 8, 4, true, 1.0f}, "score kind 7"},
        {{EK_ROUTE_SOFTMAX, 0, 8, 8, 4, true, 1.0f}, "0 experts"},
        {{EK_ROUTE_SOFTMAX, 1025, 8, 1, 1, true, 1.0f}, "1025 experts"},
        {{EK_ROUTE_SOFTMAX, 64, 8, 0, 4, true, 1.0f}, "0 groups"},
        {{EK_ROUTE_SOFTMAX, 64, 8, 7, 4, true, 1.0f}, "7 groups"},
        {{EK_ROUTE_SOFTMAX, 64, 8, 8, 0, true, 1.0f}, "0 groups used"},
        {{EK_ROUTE_SOFTMAX, 64, 8, 8, 9, true, 1.0f}, "9 groups used"},
        {{EK_ROUTE_SOFTMAX, 64, 0, 8, 4, true, 1.0f}, "0 experts per token"},
        {{EK_ROUTE_SOFTMAX, 64, 33, 8, 4, true, 1.0f}, "allowed are 1..32"},
        {{EK_ROUTE_SOFTMAX, 1024, 65, 1, 1, true, 1.0f}, "allowed are 1..64"},
        {{EK_ROUTE_SOFTMAX, 64, 8, 8, 4, true, NAN}, "scale"},
        {{EK_ROUTE_SOFTMAX, 64, 8, 8, 4, true, 0.0f}, "scale"},
        {{EK_ROUTE_SOFTMAX, 64, 8, 8, 4, true, -1.0f}, "scale"},
        {{EK_ROUTE_SOFTMAX, 64, 8, 8, 4, true, INFINITY}, "scale"},
    };
    assert_int_equal(ek_route_gate_check(&good, NULL), EK_OK);
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++) {
        ek_err err = {0};
        assert_int_equal(ek_route_gate_check(&bad[i].gate, &err), EK_EINVAL);
        assert_non_null(strstr(err.text, bad[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_gates_match_naive),
        cmocka_unit_test(test_ties_go_to_lower_id),
        cmocka_unit_test(test_saturated_scores_keep_the_order_of_logits),
        cmocka_unit_test(test_nan_and_infinity),
        cmocka_unit_test(test_groups_by_hand),
        cmocka_unit_test(test_renormalise_is_clamped),
        cmocka_unit_test(test_check_names_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
