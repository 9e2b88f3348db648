/*
 * Goal: losses are what their formulas say, and the gradient is theirs. Method: every element of
 * the gradient against a central difference of the same losses, in double, for each kind of gate
 * and each term; hand-made cases for the values.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "synthetic.h"
#include "tune/loss.h"

#define N 5 /* tokens */
#define E 6 /* experts */

typedef struct fixture {
    double logits[N * E], teacher[N * E], share[E], choice[N * E], mean_choice[E];
    double gradient[N * E];
    ek_loss_batch batch;
} fixture;

static void fill(fixture *f, ek_route_score score, uint64_t seed)
{
    ek_rng rng;
    ek_rng_init(&rng, seed);
    for (int32_t i = 0; i < N * E; i++) {
        f->logits[i] = 2 * ek_tune_normal(&rng);
        f->teacher[i] = 2 * ek_tune_normal(&rng);
    }
    double sum = 0;
    for (int32_t e = 0; e < E; e++)
        sum += f->share[e] = 0.1 + ek_rng_unit(&rng);
    for (int32_t e = 0; e < E; e++)
        f->share[e] /= sum;
    f->batch =
        (ek_loss_batch){score, N, E, f->logits, f->teacher, f->share, f->choice, f->mean_choice};
}

static double total(const fixture *f, const ek_loss_weights *w)
{
    ek_losses losses;
    ek_tune_loss(&f->batch, w, NULL, &losses);
    return losses.total;
}

static void test_gradient_is_the_difference(void **state)
{
    (void)state;
    static const ek_route_score scores[] = {EK_ROUTE_SOFTMAX, EK_ROUTE_SIGMOID,
                                            EK_ROUTE_SOFTMAX_CHOSEN};
    static const ek_loss_weights weights[] = {{0, 0}, {0.7, 0}, {0, 0.3}, {0.2, 0.05}};
    static const double h = 1e-5;
    for (size_t s = 0; s < EK_COUNT_OF(scores); s++)
        for (size_t w = 0; w < EK_COUNT_OF(weights); w++) {
            fixture f;
            ek_losses losses;
            fill(&f, scores[s], 10 * s + w);
            ek_tune_loss(&f.batch, &weights[w], f.gradient, &losses);
            for (int32_t i = 0; i < N * E; i++) {
                double at = f.logits[i];
                f.logits[i] = at + h;
                double above = total(&f, &weights[w]);
                f.logits[i] = at - h;
                double below = total(&f, &weights[w]);
                f.logits[i] = at;
                assert_true(fabs((above - below) / (2 * h) - f.gradient[i]) < 1e-9);
            }
        }
}

static void test_values(void **state)
{
    (void)state;
    fixture f;
    ek_losses losses;
    static const ek_loss_weights weights = {2, 3};
    fill(&f, EK_ROUTE_SOFTMAX, 1);
    memcpy(f.teacher, f.logits, sizeof f.teacher);
    ek_tune_loss(&f.batch, &weights, f.gradient, &losses);
    assert_true(fabs(losses.kl) < 1e-12);
    /* Equal logits: every expert has 1/E, logsumexp is ln E, and balance is 1 whatever f is. */
    memset(f.logits, 0, sizeof f.logits);
    ek_tune_loss(&f.batch, &weights, f.gradient, &losses);
    assert_true(fabs(losses.balance - 1) < 1e-12);
    assert_true(fabs(losses.z - log(E) * log(E)) < 1e-12);
    assert_true(fabs(losses.total - losses.kl - 2 * losses.balance - 3 * losses.z) < 1e-12);
    for (int32_t e = 0; e < E; e++)
        assert_true(fabs(f.mean_choice[e] - 1.0 / E) < 1e-12);
    /* All on one expert, which has all slots: balance is E. */
    for (int32_t i = 0; i < N * E; i++)
        f.logits[i] = i % E == 2 ? 800 : 0;
    for (int32_t e = 0; e < E; e++)
        f.share[e] = e == 2;
    ek_tune_loss(&f.batch, &weights, f.gradient, &losses);
    assert_true(fabs(losses.balance - E) < 1e-9);
    for (int32_t i = 0; i < N * E; i++)
        assert_true(isfinite(f.gradient[i]));
}

static void test_far_logits_stay_finite(void **state)
{
    (void)state;
    static const ek_route_score scores[] = {EK_ROUTE_SOFTMAX, EK_ROUTE_SIGMOID};
    static const ek_loss_weights weights = {0.1, 1e-4};
    for (size_t s = 0; s < EK_COUNT_OF(scores); s++) {
        fixture f;
        ek_losses losses;
        fill(&f, scores[s], 3);
        for (int32_t i = 0; i < N * E; i++) {
            f.logits[i] *= 1e3;
            f.teacher[i] *= 1e3;
        }
        ek_tune_loss(&f.batch, &weights, f.gradient, &losses);
        assert_true(isfinite(losses.total));
        for (int32_t i = 0; i < N * E; i++)
            assert_true(isfinite(f.gradient[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradient_is_the_difference),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_far_logits_stay_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
