/*
 * Bent choices against a naive computation: a(e) = s(e) p(e) + bias(e) in double, groups, a full
 * sort. With an unlimited budget the chosen sets have to be the same wherever float rounding can
 * tell; with a budget, the loss has to be inside it, weights have to be those of the set, and
 * tokens that no penalty touches have to be bit for bit what the gate alone gives.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "route/bend.h"

#define N_MAX 256
#define K_MAX 16

/** A bank whose penalties a test sets itself, and the scratch of a router. */
typedef struct rig {
    float log_p[N_MAX], p[N_MAX], mask[N_MAX];
    uint8_t is_bent[N_MAX];
    int32_t bent[N_MAX];
    ek_policy_bank bank;
    float logit[N_MAX], score[N_MAX], value[N_MAX], bent_value[N_MAX];
    uint8_t group_used[N_MAX], groups[N_MAX];
    int32_t candidate[N_MAX + 1];
    uint64_t top[N_MAX];
    ek_gate_scratch scratch;
    ek_bend bend;
} rig;

static void wire(rig *r, const ek_route_gate *gate, bool reads_scores)
{
    r->scratch =
        (ek_gate_scratch){r->logit, r->score, r->value, r->group_used, r->candidate, r->top};
    r->bank = (ek_policy_bank){.n = gate->n_experts,
                               .log_p = r->log_p,
                               .p = r->p,
                               .mask = r->mask,
                               .is_bent = r->is_bent,
                               .bent = r->bent};
    r->bend = (ek_bend){gate, &r->bank, reads_scores, &r->scratch, r->bent_value, r->groups};
}

static void set_penalty(rig *r, int32_t e, double p, bool excluded)
{
    r->is_bent[e] = p < 1 || excluded || !r->bend.reads_scores;
    r->log_p[e] = (float)log(p);
    r->p[e] = (float)p;
    r->mask[e] = excluded ? EK_ROUTE_EXCLUDED : 0;
    if (r->is_bent[e]) r->bent[r->bank.n_bent++] = e;
}

/* ---- naive ---- */

static void scores_of(const ek_route_gate *gate, const float *logits, double *out)
{
    double sum = 0, max = -INFINITY;
    for (int32_t e = 0; e < gate->n_experts; e++)
        max = fmax(max, (double)logits[e]);
    for (int32_t e = 0; e < gate->n_experts; e++)
        sum += out[e] = exp((double)logits[e] - max);
    for (int32_t e = 0; e < gate->n_experts; e++)
        out[e] = gate->score == EK_ROUTE_SIGMOID ? 1 / (1 + exp(-(double)logits[e])) : out[e] / sum;
}

/** Indices of the k highest; returns the margin to the next. */
static double top(const double *value, int32_t n, int32_t k, int32_t *out)
{
    bool taken[N_MAX] = {false};
    double last = INFINITY, margin = INFINITY;
    for (int32_t i = 0; i <= k && i < n; i++) {
        int32_t best = -1;
        for (int32_t e = 0; e < n; e++)
            if (!taken[e] && (best < 0 || value[e] > value[best])) best = e;
        if (value[best] < -1e20) break; /* excluded: their order is no matter */
        if (i == k) margin = last - value[best];
        if (i < k) out[i] = best;
        last = value[best];
        taken[best] = true;
    }
    return margin;
}

static double naive_choose(const rig *r, const ek_route_gate *gate, const double *value,
                           int32_t *out_id)
{
    double masked[N_MAX], sum[N_MAX], margin = INFINITY;
    int32_t size = gate->n_experts / gate->n_groups, used[N_MAX];
    (void)r;
    memcpy(masked, value, (size_t)gate->n_experts * sizeof *masked);
    if (gate->n_groups_used < gate->n_groups) {
        for (int32_t g = 0; g < gate->n_groups; g++) {
            double first = -INFINITY, second = -INFINITY;
            for (int32_t e = g * size; e < (g + 1) * size; e++) {
                if (value[e] > first)
                    second = first, first = value[e];
                else if (value[e] > second)
                    second = value[e];
            }
            sum[g] = size > 1 ? first + second : first;
        }
        margin = top(sum, gate->n_groups, gate->n_groups_used, used);
        for (int32_t e = 0; e < gate->n_experts; e++) {
            bool keep = false;
            for (int32_t i = 0; i < gate->n_groups_used; i++)
                keep = keep || used[i] == e / size;
            if (!keep) masked[e] = -INFINITY;
        }
    }
    return fmin(margin, top(masked, gate->n_experts, gate->top_k, out_id));
}

static void naive_weights(const ek_route_gate *gate, const double *score, const int32_t *id,
                          double *out)
{
    double sum = 0;
    for (int32_t k = 0; k < gate->top_k; k++)
        sum += out[k] = score[id[k]];
    bool normalise = gate->renormalise || gate->score == EK_ROUTE_SOFTMAX_CHOSEN;
    for (int32_t k = 0; k < gate->top_k; k++)
        out[k] *= (double)gate->scale / (normalise ? sum : 1);
}

static bool same_set(const int32_t *a, const int32_t *b, int32_t k)
{
    int32_t n = 0;
    for (int32_t i = 0; i < k; i++)
        for (int32_t j = 0; j < k; j++)
            n += a[i] == b[j];
    return n == k;
}

static double sum_of(const double *score, const int32_t *id, int32_t k)
{
    double sum = 0;
    for (int32_t i = 0; i < k; i++)
        sum += score[id[i]];
    return sum;
}

/* ---- draws ---- */

static ek_route_gate random_gate(ek_rng *rng)
{
    static const int32_t experts[] = {8, 16, 64, 96, 256};
    ek_route_gate gate = {
        .score = (ek_route_score)ek_rng_below(rng, 3),
        .n_experts = experts[ek_rng_below(rng, EK_COUNT_OF(experts))],
        .n_groups = 1,
        .n_groups_used = 1,
        .renormalise = ek_rng_below(rng, 2) != 0,
        .scale = ek_rng_below(rng, 2) ? 1.0f : 2.5f,
    };
    if (gate.score != EK_ROUTE_SOFTMAX_CHOSEN && ek_rng_below(rng, 2)) {
        gate.n_groups = 4;
        gate.n_groups_used = 1 + (int32_t)ek_rng_below(rng, 4);
    }
    int32_t most = gate.n_experts / gate.n_groups * gate.n_groups_used / 2;
    gate.top_k = 1 + (int32_t)ek_rng_below(rng, (uint64_t)(most < 8 ? most : 8));
    return gate;
}

typedef struct draw {
    ek_route_gate gate;
    rig r;
    float logits[N_MAX], bias[N_MAX];
    const float *bias_or_null;
    double score[N_MAX]; /* naive */
    double bent[N_MAX];  /* naive a(e) */
    double p[N_MAX];
    int32_t static_id[K_MAX], id[K_MAX];
    float static_weight[K_MAX], weight[K_MAX];
    ek_bend_outcome outcome;
} draw;

static void make_draw(ek_rng *rng, draw *d)
{
    memset(d, 0, sizeof *d);
    d->gate = random_gate(rng);
    wire(&d->r, &d->gate, ek_rng_below(rng, 4) != 0);
    bool has_bias = d->gate.score != EK_ROUTE_SOFTMAX_CHOSEN && ek_rng_below(rng, 2);
    d->bias_or_null = has_bias ? d->bias : NULL;
    for (int32_t e = 0; e < d->gate.n_experts; e++) {
        d->logits[e] = (float)(4 * ek_rng_unit(rng) - 2);
        d->bias[e] = (float)(0.2 * ek_rng_unit(rng) - 0.1);
    }
    scores_of(&d->gate, d->logits, d->score);
    int32_t n_excluded = 0;
    for (int32_t e = 0; e < d->gate.n_experts; e++) {
        bool penalised = !d->r.bend.reads_scores || ek_rng_below(rng, 4) == 0;
        bool excluded =
            penalised && n_excluded < d->gate.n_experts / 8 && ek_rng_below(rng, 4) == 0;
        n_excluded += excluded;
        d->p[e] = penalised ? 0.01 + 0.98 * ek_rng_unit(rng) : 1;
        set_penalty(&d->r, e, d->p[e], excluded);
        d->bent[e] = d->r.bend.reads_scores
                         ? d->score[e] * d->p[e] + (has_bias ? (double)d->bias[e] : 0)
                         : log(d->p[e]) + 0.01 * (double)d->logits[e];
        if (excluded) d->bent[e] -= 1e30;
    }
}

static void bend(draw *d, double bound)
{
    const float *value = ek_route_gate_choose(&d->gate, d->logits, d->bias_or_null, &d->r.scratch,
                                              d->static_id, d->static_weight);
    memcpy(d->id, d->static_id, sizeof d->id);
    memcpy(d->weight, d->static_weight, sizeof d->weight);
    ek_route_bend_token(&d->r.bend, d->bias_or_null, value, bound, d->id, d->weight, &d->outcome);
}

/** What holds for any outcome. */
static void check_outcome(const draw *d, double bound)
{
    int32_t k = d->gate.top_k;
    bool changed = !same_set(d->id, d->static_id, k);
    assert_int_equal(d->outcome.changed, changed);
    if (!changed) {
        assert_memory_equal(d->id, d->static_id, (size_t)k * sizeof *d->id);
        assert_memory_equal(d->weight, d->static_weight, (size_t)k * sizeof *d->weight);
        assert_true(d->outcome.loss == 0);
        return;
    }
    double want[K_MAX];
    double loss = 1 - sum_of(d->score, d->id, k) / sum_of(d->score, d->static_id, k);
    assert_true(d->outcome.loss <= bound);
    assert_float_equal(d->outcome.loss, fmax(loss, 0), 1e-5);
    naive_weights(&d->gate, d->score, d->id, want);
    for (int32_t i = 0; i < k; i++) {
        assert_true(fabs((double)d->weight[i] - want[i]) <= 2e-6 * want[i] + 1e-9);
        if (!d->bias_or_null && i > 0) /* best first, by the unbent score */
            assert_true(d->score[d->id[i]] <= d->score[d->id[i - 1]] * (1 + 1e-6));
        for (int32_t j = 0; j < i; j++)
            assert_int_not_equal(d->id[i], d->id[j]);
    }
}

static int32_t n_groups_of(const draw *d)
{
    bool used[N_MAX] = {false};
    int32_t n = 0;
    for (int32_t i = 0; i < d->gate.top_k; i++) {
        int32_t g = d->id[i] / (d->gate.n_experts / d->gate.n_groups);
        n += !used[g];
        used[g] = true;
    }
    return n;
}

static void test_unlimited_matches_naive(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 21);
    int32_t n_close = 0, n_changed = 0;
    const int32_t n_draws = 20000;
    for (int32_t i = 0; i < n_draws; i++) {
        static draw d;
        make_draw(&rng, &d);
        bend(&d, 1);
        int32_t want[K_MAX];
        double margin = naive_choose(&d.r, &d.gate, d.bent, want);
        check_outcome(&d, 1);
        assert_int_equal(d.outcome.n_undone, 0);
        n_changed += d.outcome.changed;
        if (margin < 1e-6) {
            n_close++;
            continue;
        }
        if (!same_set(d.id, want, d.gate.top_k))
            fail_msg("draw %d: another set than the naive one, margin %g", i, margin);
    }
    print_message("%d of %d changed, %d too close to tell\n", n_changed, n_draws, n_close);
    assert_true(n_changed > n_draws / 3 && n_close < n_draws / 50);
}

static void test_bounded(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 22);
    int32_t n_undone = 0;
    for (int32_t i = 0; i < 20000; i++) {
        static draw d;
        make_draw(&rng, &d);
        double bound = ek_rng_below(&rng, 3) ? 0.3 * ek_rng_unit(&rng) : 0;
        bend(&d, bound);
        check_outcome(&d, bound);
        assert_true(n_groups_of(&d) <= d.gate.n_groups_used);
        n_undone += d.outcome.n_undone;
    }
    assert_true(n_undone > 1000);
}

/**
 * Three experts by hand. Softmax of these logits is 0.5, 0.3, 0.2; their sigmoids are 1/3, 3/13 and
 * 1/6. Only the first one has a penalty.
 */
static void test_by_hand(void **state)
{
    (void)state;
    static const struct {
        ek_route_score score;
        double p, bound;
        int32_t id;
        double loss;
    } cases[] = {
        {EK_ROUTE_SOFTMAX, 0.7, 1, 0, 0},    /* 0.35 is still best */
        {EK_ROUTE_SOFTMAX, 0.5, 1, 1, 0.4},  /* 0.25 < 0.3: lost 1 - 0.3 / 0.5 */
        {EK_ROUTE_SOFTMAX, 0.5, 0.39, 0, 0}, /* too dear */
        {EK_ROUTE_SOFTMAX_CHOSEN, 0.5, 1, 1, 0.4},
        {EK_ROUTE_SIGMOID, 0.70, 1, 0, 0},          /* 0.2333 against 0.2308 */
        {EK_ROUTE_SIGMOID, 0.69, 1, 1, 4.0 / 13.0}, /* 0.2300: lost 1 - (3/13) / (1/3) */
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        static rig r;
        memset(&r, 0, sizeof r);
        const ek_route_gate gate = {cases[i].score, 3, 1, 1, 1, true, 1.0f};
        const float logits[3] = {logf(0.5f), logf(0.3f), logf(0.2f)};
        wire(&r, &gate, true);
        set_penalty(&r, 0, cases[i].p, false);
        r.p[1] = r.p[2] = 1;
        int32_t id[1];
        float weight[1];
        ek_bend_outcome outcome;
        const float *value = ek_route_gate_choose(&gate, logits, NULL, &r.scratch, id, weight);
        assert_int_equal(id[0], 0);
        ek_route_bend_token(&r.bend, NULL, value, cases[i].bound, id, weight, &outcome);
        assert_int_equal(id[0], cases[i].id);
        assert_float_equal(outcome.loss, cases[i].loss, 1e-6);
    }
}

/** Weights come from unbent scores: a penalty changes who is chosen, not its share. */
static void test_weights_are_unbent(void **state)
{
    (void)state;
    static rig r;
    const ek_route_gate gate = {EK_ROUTE_SOFTMAX, 3, 2, 1, 1, true, 1.0f};
    const float logits[3] = {logf(0.5f), logf(0.3f), logf(0.2f)};
    memset(&r, 0, sizeof r);
    wire(&r, &gate, true);
    set_penalty(&r, 0, 0.9, false);
    set_penalty(&r, 1, 0.1, false);
    r.p[2] = 1;
    int32_t id[2];
    float weight[2];
    ek_bend_outcome outcome;
    const float *value = ek_route_gate_choose(&gate, logits, NULL, &r.scratch, id, weight);
    ek_route_bend_token(&r.bend, NULL, value, 1, id, weight, &outcome);
    assert_true(id[0] == 0 && id[1] == 2);
    assert_float_equal(weight[0], 5.0f / 7, 1e-6);
    assert_float_equal(weight[1], 2.0f / 7, 1e-6);
    assert_float_equal((float)outcome.loss, 0.125f, 1e-6);
}

/** Logits that break arithmetic: nothing is NaN, NaN logits stay last, even before the excluded. */
static void test_odd_logits(void **state)
{
    (void)state;
    static const float odd[] = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 88, -88, 104, -104, 0};
    ek_rng rng;
    ek_rng_init(&rng, 23);
    for (int32_t i = 0; i < 30000; i++) {
        static draw d;
        make_draw(&rng, &d);
        int32_t n_nan = 0, k = d.gate.top_k;
        for (int32_t e = 0; e < d.gate.n_experts; e++) {
            if (ek_rng_below(&rng, 3) == 0) d.logits[e] = odd[ek_rng_below(&rng, 10)];
            n_nan += d.logits[e] != d.logits[e];
        }
        bend(&d, ek_rng_unit(&rng));
        assert_true(d.outcome.loss >= 0 && d.outcome.loss <= 1);
        for (int32_t j = 0; j < k; j++) {
            assert_in_range(d.id[j], 0, d.gate.n_experts - 1);
            assert_true(isfinite(d.weight[j]) && d.weight[j] >= 0);
            for (int32_t l = 0; l < j; l++)
                assert_int_not_equal(d.id[j], d.id[l]);
            bool grouped = d.gate.n_groups_used < d.gate.n_groups;
            if (!grouped && d.gate.n_experts - n_nan >= k)
                assert_true(d.logits[d.id[j]] == d.logits[d.id[j]]);
        }
        double divergence = ek_route_bend_divergence(&d.r.bend);
        assert_true(isfinite(divergence) && divergence >= 0);
    }
}

/** sum P log(P/Q) in double, term by term. */
static void test_divergence(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 24);
    for (int32_t i = 0; i < 2000; i++) {
        static draw d;
        make_draw(&rng, &d);
        bend(&d, 1);
        double sum = 0, sum_bent = 0, want = 0;
        for (int32_t e = 0; e < d.gate.n_experts; e++) {
            sum += d.score[e];
            sum_bent += (d.r.bend.reads_scores ? d.score[e] : 1) * d.p[e];
        }
        for (int32_t e = 0; e < d.gate.n_experts; e++) {
            double p = d.score[e] / sum;
            double q = (d.r.bend.reads_scores ? d.score[e] : 1) * d.p[e] / sum_bent;
            want += p * log(p / q);
        }
        double got = ek_route_bend_divergence(&d.r.bend);
        assert_true(fabs(got - want) <= 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unlimited_matches_naive),
        cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_weights_are_unbent),
        cmocka_unit_test(test_odd_logits),
        cmocka_unit_test(test_divergence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
