/*
 * The local dispatcher against a naive sum over experts in double, on models made up in memory:
 * every element type, any number of threads, devices and tokens, experts without a token, experts
 * with all of them, skipped choices.
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
#include "expert/act.h"
#include "expert/local.h"
#include "quant/convert.h"
#include "sys/cpu.h"
#include "sys/mem.h"

#define D         256
#define FF        512
#define N_EXPERTS 7
#define N_MAX     200
#define TOP_K     3
#define DEVICES   5

typedef struct fixture {
    ek_model model;
    ek_model_layer layers[2];
    ek_tensor tensors[6];
    ek_kernels kernels;
    ek_arena step;
    ek_sys_region region;
    float x[N_MAX * D];
    int32_t expert_id[N_MAX * TOP_K];
    /* The work's lists. */
    int32_t expert_beg[N_EXPERTS + 1];
    int32_t row_token[N_MAX * TOP_K];
    int32_t row_of[N_MAX * TOP_K];
    float weight[N_MAX * TOP_K];
    int32_t device_beg[DEVICES + 1];
    int32_t share_expert[N_EXPERTS * DEVICES];
    int32_t share_row[2 * N_EXPERTS * DEVICES];
} fixture;

static void make_tensor(ek_rng *rng, ek_type type, int64_t n_cols, int64_t n_rows, ek_tensor *out)
{
    size_t row_bytes = ek_quant_row_bytes(type, n_cols);
    size_t n = (size_t)n_rows * N_EXPERTS;
    uint8_t *data = calloc(n, row_bytes);
    float row[FF];
    for (size_t r = 0; r < n; r++) {
        for (int64_t c = 0; c < n_cols; c++)
            row[c] = (float)(ek_rng_unit(rng) - 0.5) * 0.25f;
        assert_int_equal(ek_quant_row_from_f32(type, row, n_cols, data + r * row_bytes), EK_OK);
    }
    *out =
        (ek_tensor){.type = type, .n_dims = 3, .dim = {n_cols, n_rows, N_EXPERTS, 1}, .data = data};
}

static fixture *setup(ek_type up_type, ek_type down_type, ek_kernels_choice choice)
{
    fixture *f = calloc(1, sizeof *f);
    ek_rng rng;
    ek_rng_init(&rng, 21);
    assert_int_equal(ek_kernels_select(choice, ek_sys_cpu_flags(), &f->kernels), EK_OK);
    for (int32_t l = 0; l < 2; l++) {
        ek_tensor *t = f->tensors + (ptrdiff_t)l * 3;
        make_tensor(&rng, up_type, D, FF, &t[0]);
        make_tensor(&rng, up_type, D, FF, &t[1]);
        make_tensor(&rng, l ? EK_TYPE_F32 : down_type, FF, D, &t[2]); /* types differ by layer */
        f->layers[l] =
            (ek_model_layer){.expert_gate = &t[0], .expert_up = &t[1], .expert_down = &t[2]};
    }
    f->model = (ek_model){.params = {.n_layers = 2,
                                     .d_model = D,
                                     .n_experts = N_EXPERTS,
                                     .top_k = TOP_K,
                                     .expert_ff = FF},
                          .layers = f->layers};
    for (int32_t i = 0; i < N_MAX * D; i++)
        f->x[i] = (float)(ek_rng_unit(&rng) * 2 - 1);
    assert_int_equal(ek_sys_region_open((size_t)64 << 20, 0, &f->region), EK_OK);
    return f;
}

static void teardown(fixture *f)
{
    for (int32_t i = 0; i < 6; i++)
        free((void *)(uintptr_t)f->tensors[i].data);
    ek_sys_region_close(&f->region);
    free(f);
}

/**
 * Draw experts (expert 5 never, expert 2 for most tokens, a choice in ten skipped) and pack them.
 */
static int32_t make_lists(fixture *f, uint64_t seed, int32_t n_tokens)
{
    ek_rng rng;
    ek_rng_init(&rng, seed);
    for (int32_t t = 0; t < n_tokens; t++) {
        for (int32_t k = 0; k < TOP_K; k++) {
            int32_t i = t * TOP_K + k;
            int32_t e = k == 0 && ek_rng_below(&rng, 4) ? 2 : (t + 2 * k) % 5;
            for (int32_t j = t * TOP_K; j < i; j++) /* distinct within a token */
                if (f->expert_id[j] == e) e = 6;
            f->expert_id[i] = ek_rng_below(&rng, 10) ? e : -1;
            f->weight[i] = (float)ek_rng_unit(&rng);
        }
    }
    int32_t n_rows = 0;
    for (int32_t e = 0; e < N_EXPERTS; e++) {
        f->expert_beg[e] = n_rows;
        for (int32_t i = 0; i < n_tokens * TOP_K; i++) {
            if (f->expert_id[i] < 0) f->row_of[i] = -1;
            if (f->expert_id[i] != e) continue;
            f->row_token[n_rows] = i / TOP_K;
            f->row_of[i] = n_rows++;
        }
    }
    f->expert_beg[N_EXPERTS] = n_rows;
    return n_rows;
}

/** Cut each expert's rows into up to n_devices runs, one a device; with one device, one run. */
static void make_shares(fixture *f, uint64_t seed, int32_t n_devices)
{
    int32_t cut[N_EXPERTS][DEVICES + 1];
    ek_rng rng;
    ek_rng_init(&rng, seed);
    for (int32_t e = 0; e < N_EXPERTS; e++) {
        cut[e][0] = f->expert_beg[e];
        for (int32_t d = 1; d <= n_devices; d++) {
            int32_t left = f->expert_beg[e + 1] - cut[e][d - 1];
            int32_t n = d == n_devices ? left : (int32_t)ek_rng_below(&rng, (uint32_t)left + 1);
            cut[e][d] = cut[e][d - 1] + n;
        }
    }
    int32_t n_shares = 0;
    for (int32_t d = 0; d < n_devices; d++) {
        f->device_beg[d] = n_shares;
        for (int32_t e = 0; e < N_EXPERTS; e++) {
            if (cut[e][d] == cut[e][d + 1]) continue;
            f->share_expert[n_shares] = e;
            f->share_row[2 * n_shares] = cut[e][d];
            f->share_row[2 * n_shares + 1] = cut[e][d + 1];
            n_shares++;
        }
    }
    f->device_beg[n_devices] = n_shares;
}

static void expect_out(const fixture *f, int32_t layer, int32_t n_tokens, double *out)
{
    const ek_tensor *tensor = f->tensors + (ptrdiff_t)layer * 3;
    float row[FF];
    for (int32_t i = 0; i < n_tokens * TOP_K; i++) {
        int32_t e = f->expert_id[i];
        double hidden[2][FF];
        if (e < 0) continue;
        for (int32_t m = 0; m < 2; m++) {
            size_t bytes = ek_quant_row_bytes(tensor[m].type, D);
            for (int32_t r = 0; r < FF; r++) {
                const uint8_t *data = tensor[m].data;
                ek_quant_row_to_f32(tensor[m].type, data + (size_t)(e * FF + r) * bytes, D, row);
                hidden[m][r] = 0;
                for (int32_t c = 0; c < D; c++)
                    hidden[m][r] += (double)row[c] * (double)f->x[i / TOP_K * D + c];
            }
        }
        for (int32_t c = 0; c < FF; c++)
            hidden[0][c] = hidden[0][c] / (1 + exp(-hidden[0][c])) * hidden[1][c];
        size_t bytes = ek_quant_row_bytes(tensor[2].type, FF);
        for (int32_t r = 0; r < D; r++) {
            const uint8_t *data = tensor[2].data;
            ek_quant_row_to_f32(tensor[2].type, data + (size_t)(e * D + r) * bytes, FF, row);
            double sum = 0;
            for (int32_t c = 0; c < FF; c++)
                sum += (double)row[c] * hidden[0][c];
            out[i / TOP_K * D + r] += (double)f->weight[i] * sum;
        }
    }
}

/** Rows that are taken out and summed here are the same bits as those that combine summed. */
static void sum_elsewhere(ek_dispatcher *dispatcher, const ek_expert_work *work, ek_arena step,
                          float before, const ek_kernels *kernels, const float *want)
{
    float *sum = malloc((size_t)work->n_tokens * D * sizeof *sum);
    assert_int_equal(ek_expert_dispatch(dispatcher, work, &step), EK_OK);
    const float *y = ek_expert_local_take_rows(dispatcher, work);
    for (int32_t i = 0; i < work->n_tokens * D; i++)
        sum[i] = before;
    for (int32_t i = 0; i < work->n_tokens * TOP_K; i++)
        if (work->row_of[i] >= 0)
            kernels->axpy(work->weight[i], y + (ptrdiff_t)work->row_of[i] * D, D,
                          sum + (ptrdiff_t)(i / TOP_K) * D);
    assert_memory_equal(sum, want, (size_t)work->n_tokens * D * sizeof *sum);
    for (int32_t e = 0; e < N_EXPERTS; e++)
        assert_true(ek_expert_local_busy_ns(dispatcher, e) >= 0);
    free(sum);
}

/** Dispatch and combine with a fresh dispatcher; out starts as `before` everywhere. */
static void run_on(fixture *f, int32_t layer, int32_t n_tokens, int32_t n_threads,
                   int32_t n_devices, ek_expert_stats *stats, ek_expert_stats *device_stats,
                   ek_queues *queues, float before, float *out)
{
    make_shares(f, (uint64_t)(n_devices * 100 + n_threads), n_devices);
    ek_sys_pool *pool;
    ek_dispatcher *dispatcher;
    assert_int_equal(ek_sys_pool_create(n_threads, false, &pool), EK_OK);
    const ek_expert_local_params params = {.model = &f->model,
                                           .kernels = &f->kernels,
                                           .pool = pool,
                                           .n_devices = n_devices,
                                           .stats = stats,
                                           .device_stats = device_stats,
                                           .queues = queues};
    assert_int_equal(ek_expert_local_create(&params, &dispatcher, NULL), EK_OK);
    ek_arena arena = ek_sys_region_arena(&f->region);
    bool int8 = f->kernels.act_int8[f->tensors[0].type];
    ek_act_buf buf;
    assert_true(ek_expert_act_take(&arena, n_tokens, D, int8, &buf));
    for (int32_t t = 0; t < n_tokens; t++) {
        memcpy(buf.f32 + (ptrdiff_t)t * D, f->x + (ptrdiff_t)t * D, D * sizeof(float));
        ek_expert_act_prepare(&f->kernels, &buf, t, 0, D);
    }
    for (int32_t i = 0; i < n_tokens * D; i++)
        out[i] = before;
    ek_act x = ek_expert_act_rows(&buf, 0);
    const ek_expert_work work = {.layer = layer,
                                 .n_tokens = n_tokens,
                                 .top_k = TOP_K,
                                 .n_experts = N_EXPERTS,
                                 .expert_beg = f->expert_beg,
                                 .row_token = f->row_token,
                                 .row_of = f->row_of,
                                 .weight = f->weight,
                                 .n_devices = n_devices,
                                 .device_beg = f->device_beg,
                                 .share_expert = f->share_expert,
                                 .share_row = f->share_row,
                                 .x = &x};
    size_t bytes = ek_expert_step_bytes(dispatcher, n_tokens);
    ek_arena step = ek_arena_over(arena.beg, bytes);
    memset(arena.beg, 0xff, bytes); /* all NaN: nothing may be read before it is written */
    assert_int_equal(ek_expert_dispatch(dispatcher, &work, &step), EK_OK);
    assert_int_equal(ek_expert_combine(dispatcher, &work, out), EK_OK);
    if (!stats && !device_stats) /* which would count it, too */
        sum_elsewhere(dispatcher, &work, arena, before, &f->kernels, out);

    ek_arena empty = ek_arena_over(arena.beg, 0);
    if (f->expert_beg[N_EXPERTS] > 0)
        assert_int_equal(ek_expert_dispatch(dispatcher, &work, &empty), EK_ENOMEM);
    assert_true(empty.beg == arena.beg);
    ek_expert_destroy(dispatcher);
    ek_sys_pool_destroy(pool);
}

static void run(fixture *f, int32_t layer, int32_t n_tokens, int32_t n_threads,
                ek_expert_stats *stats, float before, float *out)
{
    run_on(f, layer, n_tokens, n_threads, 1, stats, NULL, NULL, before, out);
}

static const ek_type types[] = {EK_TYPE_F32,  EK_TYPE_F16,  EK_TYPE_BF16, EK_TYPE_Q8_0,
                                EK_TYPE_Q4_0, EK_TYPE_Q4_K, EK_TYPE_Q5_K, EK_TYPE_Q6_K};

/** Every type as gate and up, with the next one as down. */
static void test_matches_naive(void **state)
{
    (void)state;
    static const int32_t counts[] = {1, 2, 17, N_MAX};
    double *want = calloc(N_MAX * D, sizeof *want);
    float *out = calloc(N_MAX * D, sizeof *out);
    for (size_t i = 0; i < EK_COUNT_OF(types); i++) {
        for (int32_t c = 0; c < 2; c++) {
            ek_type down = types[(i + 1) % EK_COUNT_OF(types)];
            fixture *f = setup(types[i], down, c ? EK_KERNELS_AUTO : EK_KERNELS_REFERENCE);
            /* int8 activations are good to about 1 % of a block's largest element. */
            bool int8 = f->kernels.act_int8[types[i]] || f->kernels.act_int8[down];
            for (size_t n = 0; n < (c ? EK_COUNT_OF(counts) : 3); n++) {
                int32_t layer = (int32_t)(n % 2);
                make_lists(f, n, counts[n]);
                memset(want, 0, N_MAX * D * sizeof *want);
                expect_out(f, layer, counts[n], want);
                run(f, layer, counts[n], 2, NULL, 3.0f, out);
                double error = 0;
                double power = 0;
                for (int32_t j = 0; j < counts[n] * D; j++) {
                    error += pow((double)out[j] - 3.0 - want[j], 2);
                    power += want[j] * want[j];
                }
                assert_true(sqrt(error / power) <= (int8 ? 2e-2 : 2e-6));
            }
            teardown(f);
        }
    }
    free(want);
    free(out);
}

static void test_threads_devices_and_company_change_nothing(void **state)
{
    (void)state;
    float *first = calloc(N_MAX * D, sizeof *first);
    float *again = calloc(N_MAX * D, sizeof *again);
    for (size_t i = 0; i < EK_COUNT_OF(types); i++) {
        fixture *f = setup(types[i], types[i], EK_KERNELS_AUTO);
        make_lists(f, 4, N_MAX);
        run(f, 0, N_MAX, 1, NULL, 0.0f, first);
        for (int32_t n_threads = 2; n_threads <= 4; n_threads++) {
            run(f, 0, N_MAX, n_threads, NULL, 0.0f, again);
            assert_memory_equal(first, again, N_MAX * D * sizeof *first);
        }
        for (int32_t n_devices = 2; n_devices <= DEVICES; n_devices++) {
            int32_t n_threads = 1 + (n_devices + (int32_t)i) % 3; /* fewer, as many, and more */
            run_on(f, 0, N_MAX, n_threads, n_devices, NULL, NULL, NULL, 0.0f, again);
            assert_memory_equal(first, again, N_MAX * D * sizeof *first);
        }
        /* The lists of the first tokens are the same without the others. */
        for (int32_t n = 1; n < N_MAX; n = 3 * n + 1) {
            make_lists(f, 4, n);
            run(f, 0, n, 2, NULL, 0.0f, again);
            assert_memory_equal(first, again, (size_t)n * D * sizeof *first);
        }
        teardown(f);
    }
    free(first);
    free(again);
}

static void test_nothing_to_do(void **state)
{
    (void)state;
    fixture *f = setup(EK_TYPE_F32, EK_TYPE_F32, EK_KERNELS_AUTO);
    float out[4 * D];
    make_lists(f, 0, 0);
    run(f, 0, 0, 2, NULL, 0.0f, out);
    make_lists(f, 0, 4);
    for (int32_t i = 0; i < 4 * TOP_K; i++) /* all degraded: the output stays as it was */
        f->row_of[i] = -1;
    memset(f->expert_beg, 0, sizeof f->expert_beg);
    run(f, 0, 4, 2, NULL, 7.0f, out);
    for (int32_t i = 0; i < 4 * D; i++)
        assert_true(out[i] == 7.0f);
    teardown(f);
}

static void test_time_is_reported_for_active_experts(void **state)
{
    (void)state;
    fixture *f = setup(EK_TYPE_Q8_0, EK_TYPE_Q8_0, EK_KERNELS_AUTO);
    ek_sys_region region;
    assert_int_equal(ek_sys_region_open((size_t)64 << 20, 0, &region), EK_OK);
    ek_arena perm = ek_sys_region_arena(&region);
    ek_expert_stats *stats;
    assert_int_equal(ek_telemetry_experts_create(2, N_EXPERTS, &perm, &stats), EK_OK);
    float *out = calloc(N_MAX * D, sizeof *out);
    make_lists(f, 8, 50);
    run(f, 1, 50, 2, stats, 0.0f, out);
    int64_t busy_ns[2 * N_EXPERTS];
    ek_telemetry_experts_read(stats, 0, NULL, NULL, busy_ns);
    for (int32_t e = 0; e < N_EXPERTS; e++) {
        bool active = f->expert_beg[e] < f->expert_beg[e + 1];
        assert_true(busy_ns[e] == 0);
        assert_true((busy_ns[N_EXPERTS + e] > 0) == active);
        assert_true(active || e == 5);
    }
    free(out);
    ek_sys_region_close(&region);
    teardown(f);
}

/** A device counts the rows that it computed and the time they took, whoever shares an expert. */
static void test_rows_and_time_are_reported_for_devices(void **state)
{
    (void)state;
    fixture *f = setup(EK_TYPE_Q8_0, EK_TYPE_Q8_0, EK_KERNELS_AUTO);
    float *out = calloc(N_MAX * D, sizeof *out);
    make_lists(f, 8, 50);
    for (int32_t n_devices = 1; n_devices <= DEVICES; n_devices++) {
        ek_sys_region region;
        assert_int_equal(ek_sys_region_open((size_t)64 << 20, 0, &region), EK_OK);
        ek_arena perm = ek_sys_region_arena(&region);
        ek_expert_stats *experts, *devices;
        assert_int_equal(ek_telemetry_experts_create(2, N_EXPERTS, &perm, &experts), EK_OK);
        assert_int_equal(ek_telemetry_experts_create(2, n_devices, &perm, &devices), EK_OK);
        ek_queues *queues;
        int32_t most[2 * DEVICES];
        assert_int_equal(ek_telemetry_queues_create(2, n_devices, &perm, &queues), EK_OK);
        run_on(f, 1, 50, 2, n_devices, experts, devices, queues, 0.0f, out);
        ek_telemetry_queues_most(queues, most);
        int64_t rows[2 * DEVICES], device_ns[2 * DEVICES], expert_ns[2 * N_EXPERTS];
        ek_telemetry_experts_read(devices, 0, rows, NULL, device_ns);
        ek_telemetry_experts_read(experts, 0, NULL, NULL, expert_ns);
        int64_t n_rows = 0, by_device = 0, by_expert = 0;
        for (int32_t d = 0; d < n_devices; d++) {
            int64_t want = 0;
            for (int32_t s = f->device_beg[d]; s < f->device_beg[d + 1]; s++)
                want += f->share_row[2 * s + 1] - f->share_row[2 * s];
            assert_int_equal(rows[d], 0);
            assert_int_equal(rows[n_devices + d], want);
            /* All of it waited at first, and every tile of it was taken off, not one too many. */
            assert_int_equal(most[d], 0);
            assert_int_equal(most[n_devices + d], want);
            assert_int_equal(ek_telemetry_queues_rows(queues, d), 0);
            assert_true((device_ns[n_devices + d] > 0) == (want > 0));
            n_rows += want;
            by_device += device_ns[n_devices + d];
        }
        for (int32_t e = 0; e < N_EXPERTS; e++)
            by_expert += expert_ns[N_EXPERTS + e];
        assert_int_equal(n_rows, f->expert_beg[N_EXPERTS]);
        assert_int_equal(by_device, by_expert);
        ek_sys_region_close(&region);
    }
    free(out);
    teardown(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matches_naive),
        cmocka_unit_test(test_threads_devices_and_company_change_nothing),
        cmocka_unit_test(test_nothing_to_do),
        cmocka_unit_test(test_time_is_reported_for_active_experts),
        cmocka_unit_test(test_rows_and_time_are_reported_for_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
