/*
 * Goal: each kind of trouble becomes one alert with its evidence, ends when it is over, and neither
 * flaps nor follows from quiet traffic. Method: windows made for one trouble at a time, drawn with
 * chance in them; readings that wander between the limits; long healthy runs.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "telemetry/detect.h"

enum { LAYERS = 2, E = 16, TOP_K = 2, CHANGES_MAX = 32 };

typedef struct rig {
    ek_detect_params params;
    ek_detect *d;
    void *memory; /* owned */
    ek_rng rng;
    int64_t tokens[LAYERS * E];
    float load[LAYERS * E];
    ek_detect_window window;
    ek_alert changes[CHANGES_MAX];
    int32_t n_changes; /* of the last window */
} rig;

static rig *rig_open(void)
{
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    ek_telemetry_detect_params_default(&r->params);
    size_t bytes = ek_telemetry_detect_bytes(&r->params, LAYERS, E);
    r->memory = malloc(bytes);
    assert_non_null(r->memory);
    ek_arena arena = ek_arena_over(r->memory, bytes);
    assert_int_equal(ek_telemetry_detect_create(&r->params, LAYERS, E, TOP_K, &arena, &r->d),
                     EK_OK);
    ek_rng_init(&r->rng, 3);
    r->window = (ek_detect_window){.tokens = r->tokens, .utilisation = r->load};
    for (int32_t i = 0; i < LAYERS * E; i++)
        r->load[i] = 0.3f;
    return r;
}

static void rig_close(rig *r)
{
    free(r->memory);
    free(r);
}

static void quiet_window(rig *r)
{
    memset(r->tokens, 0, sizeof r->tokens);
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t i = 0; i < 4000; i++)
            r->tokens[l * E + (int32_t)ek_rng_below(&r->rng, E)]++;
}

static int32_t step(rig *r)
{
    r->window.end_us += 1000000;
    r->n_changes = ek_telemetry_detect_step(r->d, &r->window, r->changes, CHANGES_MAX);
    assert_true(r->n_changes <= CHANGES_MAX);
    for (int32_t i = 0; i < r->n_changes; i++) { /* texts are whole, and in the order promised */
        const ek_alert *a = &r->changes[i];
        const char *routing = strstr(a->next_step, "routing: ");
        const char *experts = strstr(a->next_step, "; experts: ");
        const char *scale_out = strstr(a->next_step, "; scale-out: ");
        assert_true(strlen(a->evidence) > 20 && strlen(a->evidence) < EK_ALERT_TEXT_MAX - 1);
        assert_true(strlen(a->next_step) < EK_ALERT_TEXT_MAX - 1);
        assert_true(routing == a->next_step && experts > routing && scale_out > experts);
    }
    return r->n_changes;
}

static int32_t raised(const rig *r)
{
    int32_t n = 0;
    for (int32_t k = 0; k < EK_DETECT_N_KINDS; k++)
        n += ek_telemetry_detect_count(r->d, (ek_detect_kind)k);
    return n;
}

static void assert_says(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" is not in \"%s\"", part, text);
}

static void test_quiet_traffic(void **state)
{
    (void)state;
    rig *r = rig_open();
    for (int32_t i = 0; i < 500; i++) {
        quiet_window(r);
        assert_int_equal(step(r), 0);
    }
    assert_int_equal(raised(r), 0);
    rig_close(r);
}

static void test_overload(void **state)
{
    (void)state;
    rig *r = rig_open();
    r->load[E + 5] = 0.91f;
    for (int32_t i = 0; i < 3; i++) {
        quiet_window(r);
        assert_int_equal(step(r), i == 2);
    }
    const ek_alert *a = &r->changes[0];
    assert_int_equal(a->kind, EK_DETECT_OVERLOAD);
    assert_true(a->is_raised);
    assert_int_equal(a->layer, 1);
    assert_int_equal(a->expert, 5);
    assert_int_equal(a->since_us, 3000000);
    assert_int_equal(a->explained_by, -1);
    assert_says(a->evidence,
                "layer 1: expert 5 is busy 0.91 of the time, the layer's mean is 0.34");
    assert_says(a->next_step, "give expert 5 another replica; scale-out: not yet");
    /* All of them at work: then nothing but more machines helps. */
    for (int32_t i = E; i < 2 * E; i++)
        r->load[i] = 0.9f;
    quiet_window(r);
    assert_int_equal(step(r), 0);
    ek_alert now;
    assert_true(ek_telemetry_detect_get(r->d, EK_DETECT_OVERLOAD, 1, &now));
    assert_says(now.next_step, "scale-out: add devices, the whole layer works at 0.90");
    assert_int_equal(now.since_us, 3000000);
    assert_false(ek_telemetry_detect_get(r->d, EK_DETECT_OVERLOAD, 0, &now));
    rig_close(r);
}

/* Whatever wanders between the limits neither begins nor ends an alert; nor does one odd window. */
static void test_hysteresis(void **state)
{
    (void)state;
    static const struct {
        float load;
        int32_t change; /* 1 raised, -1 over */
    } windows[] = {
        {0.90f, 0}, {0.90f, 0},  {0.70f, 0}, {0.90f, 0}, {0.90f, 0}, {0.86f, 1},
        {0.90f, 0}, {0.50f, 0},  {0.50f, 0}, {0.61f, 0}, {0.50f, 0}, {0.59f, 0},
        {0.90f, 0}, {0.59f, 0},  {0.59f, 0}, {0.5f, -1}, {0.84f, 0}, {0.90f, 0},
        {0.90f, 0}, {0.849f, 0}, {0.86f, 0}, {0.86f, 0}, {0.86f, 1},
    };
    rig *r = rig_open();
    for (size_t i = 0; i < EK_COUNT_OF(windows); i++) {
        r->load[0] = windows[i].load;
        quiet_window(r);
        int32_t n = step(r);
        assert_int_equal(n, windows[i].change != 0);
        if (n) assert_int_equal(r->changes[0].is_raised, windows[i].change == 1);
    }
    /* While nothing is known of loads, the alert stays as it is. */
    r->window.utilisation = NULL;
    for (int32_t i = 0; i < 10; i++) {
        quiet_window(r);
        assert_int_equal(step(r), 0);
    }
    assert_int_equal(ek_telemetry_detect_count(r->d, EK_DETECT_OVERLOAD), 1);
    rig_close(r);
}

static void test_imbalance(void **state)
{
    (void)state;
    rig *r = rig_open();
    for (int32_t i = 0; i < 6; i++) {
        quiet_window(r);
        r->tokens[7] += 500; /* 750 of 4500: 2.67 times the mean */
        int32_t n = step(r);
        assert_int_equal(n, i == 2);
        if (n == 0) continue;
        assert_int_equal(r->changes[0].kind, EK_DETECT_IMBALANCE);
        assert_int_equal(r->changes[0].expert, 7);
        assert_says(r->changes[0].evidence, "layer 0: expert 7 gets 2.");
    }
    for (int32_t i = 0; i < 3; i++) {
        quiet_window(r);
        assert_int_equal(step(r), i == 2);
    }
    assert_false(r->changes[0].is_raised);
    assert_int_equal(raised(r), 0);
    rig_close(r);
}

/* 2 of 16 experts get nearly all, but not always: a collapse, which also explains the imbalance. */
static void test_collapse(void **state)
{
    (void)state;
    rig *r = rig_open();
    for (int32_t i = 0; i < 10; i++) {
        quiet_window(r);
        for (int32_t e = 0; e < E; e++)
            r->tokens[e] = e == 3 || e == 4 ? 1970 - (i % 2) * 60 * (e == 3) : 4 + 4 * (i % 2);
        step(r);
    }
    ek_alert a;
    assert_true(ek_telemetry_detect_get(r->d, EK_DETECT_COLLAPSE, 0, &a));
    assert_says(a.evidence, "of 16 experts do the work of top-2; the 2 hottest get 9");
    assert_true(ek_telemetry_detect_get(r->d, EK_DETECT_IMBALANCE, 0, &a));
    assert_int_equal(a.explained_by, EK_DETECT_COLLAPSE);
    assert_false(ek_telemetry_detect_get(r->d, EK_DETECT_COLLAPSE, 1, &a));
    assert_int_equal(ek_telemetry_detect_count(r->d, EK_DETECT_CONSTANT_GATE), 0);
    rig_close(r);
}

/* Every token visits experts 0 and 1, whatever it is. */
static void test_constant_gate(void **state)
{
    (void)state;
    rig *r = rig_open();
    for (int32_t i = 0; i < 12; i++) {
        quiet_window(r);
        memset(r->tokens, 0, E * sizeof r->tokens[0]);
        r->tokens[0] = r->tokens[1] = 2000 + 10 * i;
        step(r);
    }
    ek_alert a;
    assert_true(ek_telemetry_detect_get(r->d, EK_DETECT_CONSTANT_GATE, 0, &a));
    assert_says(a.evidence, "layer 0: 100.0 % of tokens visit the same 2 of 16 experts");
    assert_int_equal(a.explained_by, -1);
    assert_true(ek_telemetry_detect_get(r->d, EK_DETECT_COLLAPSE, 0, &a));
    assert_int_equal(a.explained_by, EK_DETECT_CONSTANT_GATE);
    assert_true(ek_telemetry_detect_get(r->d, EK_DETECT_ZERO_HIT, 0, &a));
    assert_int_equal(a.explained_by, EK_DETECT_CONSTANT_GATE);
    assert_says(a.evidence, "14 of 16 experts (the first is 2) got none");
    for (int32_t i = 0; i < 4; i++) {
        quiet_window(r);
        step(r);
    }
    assert_int_equal(raised(r), 0);
    rig_close(r);
}

static void test_zero_hit(void **state)
{
    (void)state;
    rig *r = rig_open();
    for (int32_t i = 0; i < 20; i++) {
        quiet_window(r);
        r->tokens[E + 9] = i == 5; /* one token in between: counting starts over */
        int32_t n = step(r);
        assert_int_equal(n, i == 13); /* eight windows without, 6 to 13 */
        if (n) assert_says(r->changes[0].evidence, "layer 1: 1 of 16 experts (the first is 9)");
    }
    quiet_window(r);
    assert_int_equal(step(r), 1);
    assert_false(r->changes[0].is_raised);
    rig_close(r);
}

static void test_oscillation(void **state)
{
    (void)state;
    rig *r = rig_open();
    int32_t n_alerts = 0;
    for (int32_t i = 0; i < 16; i++) {
        quiet_window(r);
        /* A fifth of expert 2's and 3's neighbours' tokens swings between the two. */
        int32_t hot = i % 2 ? 2 : 3;
        for (int32_t e = 8; e < E; e++) {
            r->tokens[hot] += r->tokens[e] / 3;
            r->tokens[e] -= r->tokens[e] / 3;
        }
        step(r);
        for (int32_t k = 0; k < r->n_changes; k++)
            if (r->changes[k].kind == EK_DETECT_OSCILLATION) {
                n_alerts++;
                assert_true(r->changes[k].is_raised);
                assert_true(r->changes[k].expert == 2 || r->changes[k].expert == 3);
                assert_says(r->changes[k].evidence, "of traffic goes to and fro per window");
            }
    }
    assert_int_equal(n_alerts, 1);
    for (int32_t i = 0; i < 16; i++) {
        quiet_window(r);
        step(r);
    }
    assert_int_equal(raised(r), 0);
    rig_close(r);
}

static void test_stale_view(void **state)
{
    (void)state;
    static const int64_t ages_us[] = {-1, 90000, 400000, 740000, 300000, 210000, 150000, -1};
    static const int32_t changes[] = {0, 0, 0, 1, 0, 0, 1, 0};
    rig *r = rig_open();
    for (size_t i = 0; i < EK_COUNT_OF(ages_us); i++) {
        r->window.view_age_us = ages_us[i];
        quiet_window(r);
        assert_int_equal(step(r), changes[i]);
        if (changes[i] && i == 3) {
            assert_int_equal(r->changes[0].layer, -1);
            assert_says(r->changes[0].evidence, "740 ms old, 7.4 sampling periods");
        }
    }
    r->window.view_age_us = INT64_MAX; /* no view at all */
    quiet_window(r);
    assert_int_equal(step(r), 1);
    assert_says(r->changes[0].evidence, "there is no load view");
    rig_close(r);
}

/* Next to no traffic: whatever the few tokens look like, nothing is said about them. */
static void test_too_little_to_say(void **state)
{
    (void)state;
    rig *r = rig_open();
    for (int32_t i = 0; i < 40; i++) {
        memset(r->tokens, 0, sizeof r->tokens);
        r->tokens[0] = r->tokens[1] = i % 2 ? 0 : 255;
        assert_int_equal(step(r), 0);
    }
    rig_close(r);
}

static void test_changes_beyond_the_room(void **state)
{
    (void)state;
    rig *r = rig_open();
    ek_alert one;
    for (int32_t i = 0; i < 3; i++) {
        quiet_window(r);
        r->load[1] = r->load[E + 1] = 0.95f;
        r->window.end_us += 1000000;
        int32_t n = ek_telemetry_detect_step(r->d, &r->window, &one, 1);
        assert_int_equal(n, i == 2 ? 2 : 0);
    }
    assert_int_equal(one.layer, 0);
    assert_int_equal(ek_telemetry_detect_count(r->d, EK_DETECT_OVERLOAD), 2);
    rig_close(r);
}

static void test_params_are_checked(void **state)
{
    (void)state;
    static uint8_t memory[256];
    ek_arena arena = ek_arena_over(memory, sizeof memory);
    ek_detect *d = NULL;
    ek_detect_params p;
    ek_telemetry_detect_params_default(&p);
    assert_int_equal(ek_telemetry_detect_create(&p, LAYERS, E, TOP_K, &arena, &d), EK_ENOMEM);
    assert_int_equal(ek_telemetry_detect_create(&p, 0, E, TOP_K, &arena, &d), EK_ERANGE);
    assert_int_equal(ek_telemetry_detect_create(&p, LAYERS, 1025, TOP_K, &arena, &d), EK_ERANGE);
    assert_int_equal(ek_telemetry_detect_create(&p, LAYERS, E, E + 1, &arena, &d), EK_ERANGE);
    assert_int_equal(ek_telemetry_detect_create(&p, LAYERS, E, 0, &arena, &d), EK_ERANGE);
    p.n_windows = 2;
    assert_int_equal(ek_telemetry_detect_create(&p, LAYERS, E, TOP_K, &arena, &d), EK_ERANGE);
    ek_telemetry_detect_params_default(&p);
    p.limit[EK_DETECT_OVERLOAD].clear = 0.9;
    assert_int_equal(ek_telemetry_detect_create(&p, LAYERS, E, TOP_K, &arena, &d), EK_ERANGE);
    p.limit[EK_DETECT_OVERLOAD].clear = NAN;
    assert_int_equal(ek_telemetry_detect_create(&p, LAYERS, E, TOP_K, &arena, &d), EK_ERANGE);
    assert_null(d);
    for (int32_t k = 0; k < EK_DETECT_N_KINDS; k++)
        assert_true(strlen(ek_telemetry_detect_name((ek_detect_kind)k)) > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quiet_traffic),
        cmocka_unit_test(test_overload),
        cmocka_unit_test(test_hysteresis),
        cmocka_unit_test(test_imbalance),
        cmocka_unit_test(test_collapse),
        cmocka_unit_test(test_constant_gate),
        cmocka_unit_test(test_zero_hit),
        cmocka_unit_test(test_oscillation),
        cmocka_unit_test(test_stale_view),
        cmocka_unit_test(test_too_little_to_say),
        cmocka_unit_test(test_changes_beyond_the_room),
        cmocka_unit_test(test_params_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
