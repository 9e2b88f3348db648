/*
 * kcheck --bench: a quick look at one table's speed, beside the checks; bench/kernels.c measures
 * properly.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "kcheck.h"
#include "quant/convert.h"
#include "sys/clock.h"
#include "sys/mem.h"

enum {
    ROWS = 1024,
    COLS = 2048,
    TOKENS_MAX = 64,
    COPIES = 32, /* of the matrix, so that one token's pass reads memory and not cache */
    REPEATS = 5,
};

static int64_t time_matmul(const ek_kernels *table, ek_mat w, const ek_act *x, int32_t n_tokens,
                           float *y)
{
    int64_t best = INT64_MAX;
    const uint8_t *base = w.data;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        int64_t beg = ek_sys_now_ns();
        for (int copy = 0; copy < COPIES; copy++) {
            w.data = base + (size_t)copy * ROWS * w.row_bytes;
            table->matmul[w.type](&w, 0, ROWS, x, NULL, n_tokens, y, ROWS);
        }
        int64_t ns = (ek_sys_now_ns() - beg) / COPIES;
        best = ns < best ? ns : best;
    }
    return best;
}

static void bench_type(const ek_kernels *table, ek_type type, ek_arena scratch, const ek_act *x)
{
    static const int32_t n_tokens[] = {1, 4, 16, TOKENS_MAX};
    size_t row_bytes = ek_quant_row_bytes(type, COLS);
    uint8_t *data = ek_new_aligned(&scratch, uint8_t, row_bytes * ROWS * COPIES);
    float *y = ek_new_aligned(&scratch, float, ROWS *TOKENS_MAX);
    for (size_t r = 0; r < ROWS; r++) {
        ek_status status = ek_quant_row_from_f32(type, x->f32, COLS, data + r * row_bytes);
        ek_assert(status == EK_OK);
    }
    for (size_t copy = 1; copy < COPIES; copy++)
        memcpy(data + copy * row_bytes * ROWS, data, row_bytes * ROWS);
    ek_mat w = {.data = data, .row_bytes = row_bytes, .type = type, .n_rows = ROWS, .n_cols = COLS};
    printf("%-5s", ek_quant_type_info((uint32_t)type)->name);
    for (size_t i = 0; i < EK_COUNT_OF(n_tokens); i++) {
        double ns = (double)time_matmul(table, w, x, n_tokens[i], y);
        printf("  %2d tokens %5.1f GB/s %6.1f GOP/s", n_tokens[i], (double)row_bytes * ROWS / ns,
               2.0 * ROWS * COLS * n_tokens[i] / ns);
    }
    printf("\n");
}

void kc_bench(const ek_kernels *table)
{
    static const ek_type types[] = {EK_TYPE_Q4_K, EK_TYPE_Q5_K, EK_TYPE_Q6_K, EK_TYPE_Q8_0,
                                    EK_TYPE_Q4_0, EK_TYPE_F32,  EK_TYPE_F16,  EK_TYPE_BF16};
    ek_sys_region region;
    ek_status status = ek_sys_region_open((size_t)1 << 30, true, &region);
    ek_assert(status == EK_OK);
    ek_arena arena = ek_sys_region_arena(&region);
    int64_t n = TOKENS_MAX * COLS;
    float *f32 = ek_new_aligned(&arena, float, n);
    ek_act x = {.n_cols = COLS, .f32 = f32};
    x.q = ek_new_aligned(&arena, int8_t, n);
    x.scale = ek_new_aligned(&arena, float, n / EK_ACT_BLOCK);
    x.scaled_sum = ek_new_aligned(&arena, float, n / EK_ACT_BLOCK);
    x.half_offset = ek_new_aligned(&arena, int32_t, 2 * n / EK_ACT_BLOCK);
    ek_rng rng;
    ek_rng_init(&rng, 1);
    for (int64_t i = 0; i < n; i++)
        f32[i] = (float)(ek_rng_unit(&rng) * 2.0 - 1.0);
    for (int64_t t = 0; t < TOKENS_MAX; t++)
        table->act_quantize(f32 + t * COLS, COLS, x.q + t * COLS,
                            x.scale + t * (COLS / EK_ACT_BLOCK),
                            x.scaled_sum + t * (COLS / EK_ACT_BLOCK),
                            x.half_offset + 2 * t * (COLS / EK_ACT_BLOCK));
    printf("%s, one thread, %d x %d, best of %d\n", table->name, ROWS, COLS, REPEATS);
    for (size_t i = 0; i < EK_COUNT_OF(types); i++)
        bench_type(table, types[i], arena, &x);
    ek_sys_region_close(&region);
}
