/*
 * Goal: the cuts (top_k, top_p, min_p) keep exactly the tokens that sorting would keep, the draw
 * follows the distribution that is left, and a seed repeats it. Method: cuts are compared with a
 * plain reference that sorts, over random rows with many ties and wide ranges; the distribution
 * is held to a chi-square bound with fixed seeds, so that the outcome never changes.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/sampler.h"
#include "engine/sampler_cut.h"
#include "engine/sampler_select.h"

#define ROW_MAX 300

/* ---- the cuts against sorting ---- */

typedef struct entry {
    float logit;
    int32_t id;
} entry;

static int by_logit_then_id(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/*
 * Rows of every temper: all different, few distinct values, all equal, huge range, with
 * infinities.
 */
static int32_t make_row(ek_rng *rng, float *logits)
{
    int32_t n = 1 + (int32_t)ek_rng_below(rng, ROW_MAX);
    uint64_t kind = ek_rng_below(rng, 5);
    for (int32_t i = 0; i < n; i++) {
        double unit = ek_rng_unit(rng);
        switch (kind) {
        case 0: logits[i] = (float)(20 * unit - 10); break;
        case 1: logits[i] = (float)ek_rng_below(rng, 4); break;
        case 2: logits[i] = -1.5f; break;
        case 3: logits[i] = (float)((unit - 0.5) * 1e30); break;
        default: logits[i] = unit < 0.2 ? -INFINITY : (float)(4 * unit); break;
        }
    }
    return n;
}

static int32_t sort_row(const float *logits, int32_t n, entry *sorted)
{
    for (int32_t i = 0; i < n; i++)
        sorted[i] = (entry){.logit = logits[i], .id = i};
    qsort(sorted, (size_t)n, sizeof *sorted, by_logit_then_id);
    return n;
}

static void keep_count_equals_sorting(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 7);
    for (int round = 0; round < 4000; round++) {
        float logits[ROW_MAX], weights[ROW_MAX];
        entry sorted[ROW_MAX];
        int32_t n = sort_row(logits, make_row(&rng, logits), sorted);
        int32_t k = 1 + (int32_t)ek_rng_below(&rng, (uint64_t)n);
        for (int32_t i = 0; i < n; i++)
            weights[i] = 1.0f;
        ek_engine_select_keep_count(logits, n, k, weights);
        for (int32_t rank = 0; rank < n; rank++)
            assert_true((weights[sorted[rank].id] > 0.0f) == (rank < k));
    }
}

static void keep_amount_equals_sorting(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 8);
    int n_compared = 0;
    for (int round = 0; round < 4000; round++) {
        float logits[ROW_MAX], weights[ROW_MAX], before[ROW_MAX];
        entry sorted[ROW_MAX];
        int32_t n = sort_row(logits, make_row(&rng, logits), sorted);
        if (sorted[0].logit == -INFINITY) continue;
        ek_engine_select_weights(logits, n, sorted[0].logit, 1.0f, weights);
        memcpy(before, weights, sizeof before);
        float share = (float)(1.0 - ek_rng_unit(&rng) * 0.999);
        double sum = 0, kept = 0;
        for (int32_t i = 0; i < n; i++)
            sum += (double)weights[i];
        ek_engine_select_keep_amount(logits, n, (double)share * sum, weights);
        for (int32_t rank = 0; rank < n; rank++) {
            int32_t id = sorted[rank].id;
            bool wanted = kept < (double)share * sum;
            /* Where the border falls on a rounding error, either answer is right. */
            bool too_close = fabs(kept - (double)share * sum) < 1e-9 * sum;
            if (before[id] > 0.0f && !too_close) {
                assert_true((weights[id] > 0.0f) == wanted);
                n_compared++;
            }
            assert_true(weights[id] == 0.0f || weights[id] == before[id]);
            kept += (double)before[id];
        }
        assert_true(weights[sorted[0].id] > 0.0f);
    }
    assert_true(n_compared > 100000);
}

/* ---- the whole cut ---- */

#define CUT_MAX 3000

/* top_k, then top_p, then min_p, by sorting everything. */
static void cut_by_sorting(const float *logits, int32_t n, float max, const ek_sampling *s,
                           float *weights)
{
    static entry sorted[CUT_MAX];
    sort_row(logits, n, sorted);
    ek_engine_select_weights(logits, n, max, s->temperature, weights);
    int32_t n_kept = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    double sum = 0, before = 0;
    for (int32_t rank = 0; rank < n_kept; rank++)
        sum += (double)weights[sorted[rank].id];
    for (int32_t rank = 0; rank < n; rank++) {
        float *weight = &weights[sorted[rank].id];
        double own = (double)*weight;
        bool in_share = s->top_p >= 1.0f || before < (double)s->top_p * sum;
        if (rank >= n_kept || !in_share || *weight < s->min_p) *weight = 0.0f;
        before += own;
    }
}

static ek_sampling random_cut(ek_rng *rng)
{
    ek_sampling s = {.temperature = 0.2f + (float)ek_rng_unit(rng), .top_p = 1.0f};
    if (ek_rng_below(rng, 2)) s.top_k = 1 + (int32_t)ek_rng_below(rng, 1 << ek_rng_below(rng, 12));
    if (ek_rng_below(rng, 2)) s.top_p = (float)(1.0 - 0.99 * ek_rng_unit(rng));
    if (ek_rng_below(rng, 3) == 0) s.min_p = (float)(0.3 * ek_rng_unit(rng));
    return s;
}

static void the_cut_equals_sorting(void **state)
{
    (void)state;
    static float logits[CUT_MAX], want[CUT_MAX], got[CUT_MAX];
    static uint8_t memory[CUT_MAX * EK_SAMPLER_SCRATCH_PER_TOKEN + EK_CACHE_LINE];
    ek_rng rng;
    ek_rng_init(&rng, 9);
    int32_t n_differences = 0;
    for (int round = 0; round < 1000; round++) {
        int32_t n = 1 + (int32_t)ek_rng_below(&rng, CUT_MAX);
        ek_sampling s = random_cut(&rng);
        /* Where only tokens are counted the answer is one with ties, too: then there are many. */
        float step = s.top_p < 1.0f ? 0.0f : 0.25f;
        for (int32_t i = 0; i < n; i++) {
            float logit = (float)(12 * ek_rng_unit(&rng) * ek_rng_unit(&rng));
            logits[i] = step > 0.0f ? step * (float)(int32_t)(logit / step) : logit;
        }
        float max = ek_engine_select_max(logits, n, NULL);
        cut_by_sorting(logits, n, max, &s, want);
        ek_arena scratch = ek_arena_over(memory, sizeof memory);
        ek_candidates kept;
        ek_engine_sampler_cut(logits, n, max, &s, &scratch, &kept);
        memset(got, 0, sizeof got);
        for (int32_t i = 0; i < kept.n; i++)
            got[kept.id ? kept.id[i] : i] = kept.weight[i];
        for (int32_t i = 0; i < n; i++)
            n_differences += got[i] != want[i];
    }
    /* Sums in another order may shift a border by one token once in a long while. */
    assert_in_range(n_differences, 0, 2);
}

/* ---- arithmetic ---- */

static void weights_are_exponentials(void **state)
{
    (void)state;
    enum { N = 20000 };
    static float logits[N], weights[N];
    double worst = 0;
    for (int t = 1; t <= 3; t++) {
        for (int i = 0; i < N; i++)
            logits[i] = 3.0f - (float)i * (float)t * 0.0043f;
        ek_engine_select_weights(logits, N, logits[0], (float)t, weights);
        assert_true(weights[0] == 1.0f);
        for (int i = 0; i < N; i++) {
            double exact = exp((double)((logits[i] - logits[0]) / (float)t));
            double error = fabs((double)weights[i] - exact) / exact;
            if (exact > 1.7e-38) worst = error > worst ? error : worst;
            assert_true(weights[i] >= 0.0f && weights[i] <= 1.0f);
        }
    }
    assert_true(worst < 2e-7);
    const float edges[] = {-INFINITY, -3e38f, -88.0f, 0.0f};
    ek_engine_select_weights(edges, 4, 0.0f, 1.0f, weights);
    assert_memory_equal(weights, ((float[]){0, 0, 0, 1}), 4 * sizeof *weights);
    const float infinite[] = {INFINITY, 3e38f, INFINITY};
    ek_engine_select_weights(infinite, 3, INFINITY, 1.0f, weights);
    assert_memory_equal(weights, ((float[]){1, 0, 1}), 3 * sizeof *weights);
}

static void max_and_sum_serve_every_length(void **state)
{
    (void)state;
    float row[70];
    for (int32_t n = 1; n <= 70; n++) {
        for (int32_t best = 0; best < n; best++) {
            for (int32_t i = 0; i < n; i++)
                row[i] = (float)(i % 3);
            row[best] = 9;
            if (best + 1 < n) row[n - 1] = 9; /* an equal one behind it */
            int32_t id;
            assert_true(ek_engine_select_max(row, n, &id) == 9);
            assert_int_equal(id, best);
            double sum = 0;
            for (int32_t i = 0; i < n; i++)
                sum += (double)row[i];
            assert_true(ek_engine_select_sum(row, n) == sum);
        }
    }
}

static void pick_walks_the_stacked_weights(void **state)
{
    (void)state;
    const float weights[] = {0.0f, 1.0f, 0.0f, 0.5f, 0.5f, 0.0f};
    assert_int_equal(ek_engine_select_pick(weights, 6, 0.0), 1);
    assert_int_equal(ek_engine_select_pick(weights, 6, 0.49), 1);
    assert_int_equal(ek_engine_select_pick(weights, 6, 0.5), 3);
    assert_int_equal(ek_engine_select_pick(weights, 6, 0.74), 3);
    assert_int_equal(ek_engine_select_pick(weights, 6, 0.75), 4);
    assert_int_equal(ek_engine_select_pick(weights, 6, 0.9999999999999999), 4);
}

/* ---- whole draws ---- */

#define N_VOCAB 8
#define N_DRAWS 20000

static const float row[N_VOCAB] = {0.5f, 2.0f, -1.0f, 1.0f, 1.0f, 0.0f, -3.0f, 1.5f};

static void count_draws(const ek_sampling *sampling, int32_t *counts)
{
    uint8_t perm[4096], scratch[N_VOCAB * EK_SAMPLER_SCRATCH_PER_TOKEN + EK_CACHE_LINE];
    ek_arena arena = ek_arena_over(perm, sizeof perm);
    ek_sampler *sampler = ek_engine_sampler_init(&arena, N_VOCAB, N_DRAWS, sampling);
    memset(counts, 0, N_VOCAB * sizeof *counts);
    for (int32_t i = 0; i < N_DRAWS; i++) {
        float logits[N_VOCAB];
        memcpy(logits, row, sizeof row);
        ek_sampled sampled;
        ek_engine_sampler_draw(sampler, logits, ek_arena_over(scratch, sizeof scratch), &sampled);
        counts[sampled.id]++;
    }
}

/* Chi-square of the counts against weights; ids of weight 0 must never have been drawn. */
static double chi_square(const int32_t *counts, const double *weight)
{
    double sum = 0, chi = 0;
    for (int i = 0; i < N_VOCAB; i++)
        sum += weight[i];
    for (int i = 0; i < N_VOCAB; i++) {
        if (weight[i] == 0) assert_int_equal(counts[i], 0);
        if (weight[i] == 0) continue;
        double expected = N_DRAWS * weight[i] / sum;
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    return chi;
}

/*
 * 24.3: what seven degrees of freedom exceed once in a thousand; fewer degrees exceed it less
 * often.
 */
static void assert_follows(const ek_sampling *sampling, const double *weight)
{
    int32_t counts[N_VOCAB];
    count_draws(sampling, counts);
    assert_true(chi_square(counts, weight) < 24.3);
}

static void draws_follow_what_is_left_of_the_distribution(void **state)
{
    (void)state;
    ek_sampling s = {
        .temperature = 1.0f,
        .top_p = 1.0f,
        .repetition_penalty = 1.0f,
        .n_logprobs = -1,
        .seed = 11,
    };
    double weight[N_VOCAB];
    for (int i = 0; i < N_VOCAB; i++)
        weight[i] = exp((double)row[i]);
    assert_follows(&s, weight);

    s.temperature = 0.5f;
    for (int i = 0; i < N_VOCAB; i++)
        weight[i] = exp((double)row[i] / 0.5);
    assert_follows(&s, weight);

    s.temperature = 1.0f;
    s.top_k = 3; /* 2.0, 1.5, and the lower id of the two 1.0 */
    assert_follows(&s, (double[]){0, exp(2), 0, exp(1), 0, 0, 0, exp(1.5)});

    /* Of those three the first two have 0.82; the share asked for counts what top_k left. */
    s.top_p = 0.8f;
    assert_follows(&s, (double[]){0, exp(2), 0, 0, 0, 0, 0, exp(1.5)});

    s.top_k = 0;
    s.top_p = 1.0f;
    s.min_p = 0.3f; /* of exp(2): down to exp(0.8) */
    assert_follows(&s, (double[]){0, exp(2), 0, exp(1), exp(1), 0, 0, exp(1.5)});
}

static void a_seed_repeats_and_another_differs(void **state)
{
    (void)state;
    ek_sampling s = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    int32_t a[N_VOCAB], b[N_VOCAB], c[N_VOCAB];
    s.seed = 1;
    count_draws(&s, a);
    count_draws(&s, b);
    s.seed = 2;
    count_draws(&s, c);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
}

/*
 * One number of the generator per token, so that logprobs, cuts or bias do not shift what comes
 * later.
 */
static void logprobs_do_not_change_the_draws(void **state)
{
    (void)state;
    ek_sampling s = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 5};
    int32_t a[N_VOCAB], b[N_VOCAB];
    s.n_logprobs = -1;
    count_draws(&s, a);
    s.n_logprobs = 5;
    count_draws(&s, b);
    assert_memory_equal(a, b, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keep_count_equals_sorting),
        cmocka_unit_test(keep_amount_equals_sorting),
        cmocka_unit_test(the_cut_equals_sorting),
        cmocka_unit_test(weights_are_exponentials),
        cmocka_unit_test(max_and_sum_serve_every_length),
        cmocka_unit_test(pick_walks_the_stacked_weights),
        cmocka_unit_test(draws_follow_what_is_left_of_the_distribution),
        cmocka_unit_test(a_seed_repeats_and_another_differs),
        cmocka_unit_test(logprobs_do_not_change_the_draws),
    };
    return cmocka_run_group_tests_name("engine/sampler_draws", tests, NULL, NULL);
}
