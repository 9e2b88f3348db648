/*
 * Goal: experts of one kind of traffic lie side by side while ordinary load is even, everybody has
 * an expert, and replicas are spread over other workers. Method: cases computed by hand, and
 * properties over drawn loads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "lab/spread.h"

static void test_by_hand(void **state)
{
    (void)state;
    const int64_t ordinary[] = {10, 10, 10, 10, 10, 10, 10, 10};
    const int64_t kind[] = {0, 40, 1, 30, 2, 20, 3, 10};
    int32_t worker[8];
    /* Order by kind: 1 3 5 7 6 4 2 0; two each. */
    const int32_t expected[] = {3, 0, 3, 0, 2, 1, 2, 1};
    assert_int_equal(ek_lab_together(ordinary, kind, 8, 4, worker), EK_OK);
    for (int e = 0; e < 8; e++)
        assert_int_equal(worker[e], expected[e]);
}

static void test_uneven_by_hand(void **state)
{
    (void)state;
    /* Half of all load is one expert's: it is alone on its worker. */
    const int64_t ordinary[] = {60, 20, 20, 20};
    const int64_t kind[] = {90, 10, 5, 0};
    int32_t worker[4], replica[4];
    assert_int_equal(ek_lab_together(ordinary, kind, 4, 2, worker), EK_OK);
    assert_int_equal(worker[0], 0);
    for (int e = 1; e < 4; e++)
        assert_int_equal(worker[e], 1);
    /* The hottest two: 0's replica goes to worker 1; 1's, the lowest of equals, to worker 0. */
    assert_int_equal(ek_lab_replicas(ordinary, worker, 4, 2, 2, replica), EK_OK);
    assert_int_equal(replica[0], 1);
    assert_int_equal(replica[1], 0);
    assert_int_equal(replica[2], -1);
    assert_int_equal(replica[3], -1);
}

static void check_drawn(ek_rng *rng)
{
    int64_t ordinary[64], kind[64];
    int32_t worker[64], replica[64], n_of[16] = {0}, between[16][16] = {{0}};
    const int32_t n = 1 + (int32_t)ek_rng_below(rng, 64);
    const int32_t w = 1 + (int32_t)ek_rng_below(rng, (uint64_t)(n < 16 ? n : 16));
    const int32_t n_replicas = (int32_t)ek_rng_below(rng, (uint64_t)n + 1);
    for (int32_t e = 0; e < n; e++) {
        ordinary[e] = ek_rng_below(rng, 4) ? (int64_t)ek_rng_below(rng, 1000) : 0;
        kind[e] = (int64_t)ek_rng_below(rng, 1000);
    }
    assert_int_equal(ek_lab_together(ordinary, kind, n, w, worker), EK_OK);
    assert_int_equal(ek_lab_replicas(ordinary, worker, n, w, n_replicas, replica), EK_OK);
    int32_t found = 0;
    for (int32_t e = 0; e < n; e++) {
        assert_in_range(worker[e], 0, w - 1);
        n_of[worker[e]]++;
        assert_int_not_equal(replica[e], worker[e]);
        if (replica[e] < 0) continue;
        assert_in_range(replica[e], 0, w - 1);
        between[worker[e]][replica[e]]++;
        found++;
    }
    assert_int_equal(found, w > 1 ? n_replicas : 0);
    for (int32_t i = 0; i < w; i++) {
        int32_t most = 0, least = n;
        assert_true(n_of[i] > 0);
        for (int32_t j = 0; j < w; j++) {
            if (j == i) continue;
            most = between[i][j] > most ? between[i][j] : most;
            least = between[i][j] < least ? between[i][j] : least;
        }
        if (w > 1) assert_true(most - least <= 1);
    }
}

static void test_properties(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 5);
    for (int i = 0; i < 5000; i++)
        check_drawn(&rng);
}

static void test_refused(void **state)
{
    (void)state;
    const int64_t loads[2] = {1, 1};
    const int32_t wrong[2] = {0, 2};
    int32_t out[2];
    assert_int_equal(ek_lab_together(loads, loads, 2, 3, out), EK_EINVAL);
    assert_int_equal(ek_lab_together(loads, loads, 2, 0, out), EK_EINVAL);
    assert_int_equal(ek_lab_together(loads, loads, EK_LAB_EXPERTS_MAX + 1, 1, out), EK_EINVAL);
    assert_int_equal(ek_lab_replicas(loads, wrong, 2, 2, 1, out), EK_EINVAL);
    const int32_t right[2] = {0, 1};
    assert_int_equal(ek_lab_replicas(loads, right, 2, 2, 3, out), EK_EINVAL);
    assert_int_equal(ek_lab_replicas(loads, right, 2, 2, -1, out), EK_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_uneven_by_hand),
        cmocka_unit_test(test_properties),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
