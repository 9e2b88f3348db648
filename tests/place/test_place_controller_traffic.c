/*
 * Goal: under traffic that stays the same the controller converges and then lies still, under
 * traffic that changes it follows, and a cluster is never worse off for listening to it. Method:
 * token-slots drawn from fixed shares (so that every window differs by chance alone), thousands of
 * windows, several seeds; the shares are known, so what a placement is truly worth can be computed.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "place/controller.h"
#include "place/inputs.h"
#include "support/fixtures.h"

#define S INT64_C(1000000)

enum { E = 64, G = 8, SLOTS_MAX = 80, LAYERS = 3 };

typedef struct traffic {
    ek_rng rng;
    double share[LAYERS][E];
    double upto[LAYERS][E]; /* running sums of the shares */
} traffic;

/* Zipf-like shares of random experts: the hottest takes some 8 %. */
static void traffic_shuffle(traffic *t)
{
    for (int32_t l = 0; l < LAYERS; l++) {
        double sum = 0.0;
        for (int32_t e = 0; e < E; e++)
            sum += t->share[l][e] = pow(e + 1, -0.7);
        for (int32_t e = E - 1; e > 0; e--) {
            int32_t other = (int32_t)ek_rng_below(&t->rng, (uint64_t)e + 1);
            double share = t->share[l][e];
            t->share[l][e] = t->share[l][other];
            t->share[l][other] = share;
        }
        double upto = 0.0;
        for (int32_t e = 0; e < E; e++) {
            t->share[l][e] /= sum;
            t->upto[l][e] = upto += t->share[l][e];
        }
    }
}

static void traffic_window(traffic *t, int32_t n_rows, int64_t *out_tokens)
{
    memset(out_tokens, 0, LAYERS * E * sizeof *out_tokens);
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t i = 0; i < n_rows; i++) {
            double u = ek_rng_unit(&t->rng);
            int32_t low = 0, high = E - 1;
            while (low < high) {
                int32_t middle = (low + high) / 2;
                if (t->upto[l][middle] < u)
                    low = middle + 1;
                else
                    high = middle;
            }
            out_tokens[l * E + low]++;
        }
}

typedef struct plant {
    ek_place_controller_setup setup;
    ek_place_controller_params params;
    int32_t start[LAYERS * SLOTS_MAX];
    ek_place_controller *c;
    void *memory, *scratch_memory; /* owned */
    ek_arena scratch;
    int64_t now_us;
} plant;

/* Experts in order, eight on each device, whose other slots are empty. */
static void plant_open(plant *p, int32_t per_device)
{
    int32_t n_slots = G * per_device;
    memset(p, 0, sizeof *p);
    for (int32_t i = 0; i < LAYERS * n_slots; i++) {
        int32_t device = i % n_slots / per_device, at = i % per_device;
        p->start[i] = at < E / G ? device * E / G + at : EK_PLACE_EMPTY;
    }
    p->setup = (ek_place_controller_setup){
        .topology =
            {.n_experts = E, .n_slots = n_slots, .n_devices = G, .n_nodes = 2, .n_groups = 1},
        .n_layers = LAYERS,
        .slot_expert = p->start,
    };
    ek_place_controller_params_default(&p->params);
    p->params.seconds_per_row = 1e-4; /* balance is worth a lot: what holds it back is chance */
    ek_arena perm = ek_fixture_arena(ek_place_controller_bytes(&p->setup, &p->params));
    p->memory = perm.beg;
    p->scratch = ek_fixture_arena(ek_place_controller_scratch_bytes(&p->setup, &p->params));
    p->scratch_memory = p->scratch.beg;
    assert_int_equal(ek_place_controller_create(&p->setup, &p->params, &perm, &p->c, NULL), EK_OK);
}

static void plant_close(plant *p)
{
    ek_fixture_arena_free(p->memory);
    ek_fixture_arena_free(p->scratch_memory);
}

/* What the present placements are worth for the true shares, worst layer. */
static double true_balance(const plant *p, const traffic *t)
{
    double worst = 0.0;
    for (int32_t l = 0; l < LAYERS; l++) {
        ek_place_balance b;
        assert_int_equal(ek_place_measure(&p->setup.topology, t->share[l],
                                          ek_place_controller_slots(p->c, l), p->scratch, &b),
                         EK_OK);
        worst = fmax(worst, b.max_over_mean);
    }
    return worst;
}

/* A second of traffic, and all that the controller wants done about it. @return replicas moved */
static int32_t second(plant *p, traffic *t, int32_t n_rows)
{
    int64_t tokens[LAYERS * E];
    int32_t n_replicas = 0;
    ek_place_outlook o;
    ek_place_step step;
    p->now_us += S;
    traffic_window(t, n_rows, tokens);
    ek_place_controller_feed(p->c, p->now_us, S, tokens);
    while (ek_place_controller_decide(p->c, p->now_us, p->scratch, &o) == EK_OK) {
        if (o.verdict == EK_PLACE_PAYS) assert_true(o.gain >= p->params.min_gain);
        while (ek_place_controller_next(p->c, p->now_us, &step) == EK_OK) {
            n_replicas += step.n_replicas;
            assert_int_equal(ek_place_controller_confirm(p->c, p->now_us, step.id), EK_OK);
            if (o.verdict == EK_PLACE_PAYS) /* what is required is valid when all of it is done */
                ek_place_input_check(&p->setup.topology,
                                     ek_place_controller_slots(p->c, step.layer));
            assert_int_equal(ek_place_input_duplicates(&p->setup.topology,
                                                       ek_place_controller_slots(p->c, step.layer)),
                             0);
        }
    }
    return n_replicas;
}

/*
 * Chance alone puts a device 18, 9 and 4 % off its mean in windows of these sizes. After it has
 * converged a late step may still come, seldom, and only one that does no harm.
 */
static void test_lies_still_under_noise(void **state)
{
    (void)state;
    static const struct {
        int32_t rows, late_max;
    } cases[] = {{256, 16}, {1024, 16}, {6000, 8}};
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            static plant p;
            static traffic t;
            int32_t n_first = 0, n_then = 0;
            ek_rng_init(&t.rng, seed);
            traffic_shuffle(&t);
            plant_open(&p, 9);
            double before = true_balance(&p, &t);
            for (int32_t s = 0; s < 400; s++)
                n_first += second(&p, &t, cases[i].rows);
            double after = true_balance(&p, &t);
            for (int32_t s = 0; s < 400; s++)
                n_then += second(&p, &t, cases[i].rows);
            print_message("%d rows: %.3f -> %.3f; moved %d, then %d\n", cases[i].rows, before,
                          after, n_first, n_then);
            assert_true(n_first > 0);
            assert_true(after < 1.0 + 0.25 * (before - 1.0));
            assert_true(n_then <= cases[i].late_max);
            assert_true(true_balance(&p, &t) <= after + 0.01);
            plant_close(&p);
        }
}

static void test_follows_a_change(void **state)
{
    (void)state;
    static plant p;
    static traffic t;
    ek_rng_init(&t.rng, 77);
    traffic_shuffle(&t);
    plant_open(&p, 9);
    for (int32_t s = 0; s < 30; s++)
        second(&p, &t, 6000);
    for (int32_t change = 0; change < 6; change++) {
        traffic_shuffle(&t);
        double before = true_balance(&p, &t);
        int32_t n_moved = 0, s = 0;
        while (s < 30 && true_balance(&p, &t) > 1.08) {
            n_moved += second(&p, &t, 6000);
            s++;
        }
        print_message("%.3f -> %.3f after %d s and %d replicas\n", before, true_balance(&p, &t), s,
                      n_moved);
        assert_true(s <= p.params.n_windows_min + 1);
        for (; s < 30; s++)
            second(&p, &t, 6000);
    }
    ek_place_controller_stats stats;
    ek_place_controller_stats_get(p.c, &stats);
    assert_true(stats.n_reclaimed > 0); /* yesterday's hot experts gave their slots */
    assert_true(stats.n_fresh_starts >= 6 * LAYERS);
    plant_close(&p);
}

/* Traffic that changes sides each two windows: no kind lasts for n_windows_min, nothing moves. */
static void test_does_not_chase(void **state)
{
    (void)state;
    static plant p;
    static traffic t[2];
    for (int32_t i = 0; i < 2; i++) {
        ek_rng_init(&t[i].rng, (uint64_t)i + 5);
        traffic_shuffle(&t[i]);
    }
    plant_open(&p, 9);
    int32_t n_moved = 0;
    for (int32_t s = 0; s < 200; s++)
        n_moved += second(&p, &t[s / 2 % 2], 6000);
    assert_int_equal(n_moved, 0);
    plant_close(&p);
}

/* Devices die and come back at random: within a second every expert is served again. */
static void test_devices_come_and_go(void **state)
{
    (void)state;
    static plant p;
    static traffic t;
    ek_rng_init(&t.rng, 4);
    traffic_shuffle(&t);
    plant_open(&p, 10); /* seven devices have room for all */
    for (int32_t s = 0; s < 300; s++) {
        bool dead[G] = {false};
        int32_t down = (int32_t)ek_rng_below(&t.rng, 2 * G);
        if (down < G) dead[down] = true;
        ek_place_controller_devices(p.c, p.now_us, dead);
        p.setup.topology.device_dead = dead;
        second(&p, &t, 1000);
        for (int32_t l = 0; l < LAYERS; l++)
            ek_place_input_check(&p.setup.topology, ek_place_controller_slots(p.c, l));
    }
    ek_place_controller_stats stats;
    ek_place_controller_stats_get(p.c, &stats);
    assert_true(stats.n_replicas > 100);
    plant_close(&p);
}

/* A placement of what ek_place_input_random made, shared experts in each device's first slots. */
static void widen(const ek_place_random *problem, int32_t n_shared, int32_t *device_slots,
                  ek_place_topology *whole, int32_t *out_slots)
{
    const ek_place_topology *t = &problem->topology;
    ek_place_params params;
    ek_place_hint hint = {0};
    ek_place_balance b;
    int32_t routed[2048];
    ek_place_params_default(&params);
    ek_arena scratch = ek_fixture_arena(ek_place_scratch_bytes(t));
    assert_int_equal(ek_place_layer(t, &params, problem->loads, &hint, scratch, routed, &b), EK_OK);
    ek_fixture_arena_free(scratch.beg);
    *whole = *t;
    whole->n_experts += n_shared;
    whole->n_slots += n_shared * t->n_devices;
    whole->device_slots = device_slots;
    for (int32_t d = 0, from = 0, to = 0; d < t->n_devices; d++) {
        bool is_dead = t->device_dead && t->device_dead[d];
        device_slots[d] = t->device_slots[d] + n_shared;
        for (int32_t i = 0; i < n_shared; i++)
            out_slots[to++] = is_dead ? EK_PLACE_EMPTY : t->n_experts + i;
        for (int32_t i = 0; i < t->device_slots[d]; i++)
            out_slots[to++] = routed[from++];
    }
}

/* Uneven devices, groups, dead ones, shared experts: sizes suffice, every move is a valid one. */
static void test_any_topology(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 12);
    int32_t n_steps = 0;
    for (int32_t round = 0; round < 300; round++) {
        static ek_place_random problem;
        int32_t device_slots[64], slots[2048], n_shared = (int32_t)ek_rng_below(&rng, 3);
        int64_t tokens[512] = {0};
        ek_place_controller_setup setup = {
            .n_layers = 1, .n_shared = n_shared, .shared_everywhere = true, .slot_expert = slots};
        ek_place_controller_params params;
        ek_place_controller *c;
        ek_place_input_random(&rng, &problem);
        widen(&problem, n_shared, device_slots, &setup.topology, slots);
        ek_place_controller_params_default(&params);
        params.seconds_per_row = 1.0;
        params.n_windows = 1 + (int32_t)ek_rng_below(&rng, 8);
        params.n_windows_min = 1;
        params.max_replicas = 2 + (int32_t)ek_rng_below(&rng, 100);
        ek_arena perm = ek_fixture_arena(ek_place_controller_bytes(&setup, &params));
        void *memory = perm.beg;
        ek_arena scratch = ek_fixture_arena(ek_place_controller_scratch_bytes(&setup, &params));
        assert_int_equal(ek_place_controller_create(&setup, &params, &perm, &c, NULL), EK_OK);
        for (int32_t e = 0; e < setup.topology.n_experts; e++) /* not what it was placed for */
            tokens[e] = (int64_t)(1000.0 * exp(3.0 * ek_rng_unit(&rng)));
        ek_place_controller_feed(c, S, S, tokens);
        ek_place_outlook o;
        ek_place_step step;
        while (ek_place_controller_decide(c, S, scratch, &o) == EK_OK)
            while (ek_place_controller_next(c, S, &step) == EK_OK) {
                assert_int_equal(ek_place_controller_confirm(c, S, step.id), EK_OK);
                const int32_t *now = ek_place_controller_slots(c, 0);
                ek_place_input_check(&setup.topology, now);
                for (int32_t s = 0; s < setup.topology.n_slots; s++) /* shared ones stay put */
                    assert_int_equal(now[s] >= problem.topology.n_experts,
                                     slots[s] >= problem.topology.n_experts);
                n_steps++;
            }
        ek_fixture_arena_free(memory);
        ek_fixture_arena_free(scratch.beg);
    }
    print_message("%d steps\n", n_steps);
    assert_true(n_steps > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies_still_under_noise), cmocka_unit_test(test_follows_a_change),
        cmocka_unit_test(test_does_not_chase),         cmocka_unit_test(test_devices_come_and_go),
        cmocka_unit_test(test_any_topology),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
