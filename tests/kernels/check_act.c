/* act_quantize: every table gives the reference's bytes, and they are what kernels.h promises. */
#include <math.h>

#include "kcheck.h"

enum { BLOCK = EK_ACT_BLOCK };

/* One block's int8 form against its definition. */
static void check_block(kc *k, int32_t block, const float *x, const int8_t *q, float scale,
                        float scaled_sum, const int32_t *half_offset)
{
    bool finite = true;
    int sum = 0, half[2] = {0, 0};
    for (int i = 0; i < BLOCK; i++) {
        finite = finite && isfinite(x[i]);
        sum += q[i];
        half[i / (BLOCK / 2)] += q[i];
        if (q[i] < -127) kc_fail(k, "block %d: q is %d", block, q[i]);
    }
    if (half_offset[0] != -32 * half[0] || half_offset[1] != -32 * half[1])
        kc_fail(k, "block %d: half_offset is wrong", block);
    if (!finite) {
        if (!isnan(scale) || !isnan(scaled_sum) || sum != 0)
            kc_fail(k, "block %d: a NaN or infinity must give scale NaN and q 0", block);
        return;
    }
    if (scaled_sum != scale * (float)sum) kc_fail(k, "block %d: scaled_sum is wrong", block);
    for (int i = 0; i < BLOCK; i++) {
        double error = fabs((double)x[i] - (double)scale * q[i]);
        /* Half a step, a few roundings of q's size, and what counts as zero. */
        double bound = (double)scale * (0.5 + 127 * 4 * KC_EPS) + 0x1p-100;
        if (!(error <= bound))
            kc_fail(k, "block %d: %.9g became %d * %.9g", block, (double)x[i], q[i], (double)scale);
    }
}

static void check_case(kc *k, int32_t n_cols, const float *x)
{
    int32_t n_blocks = n_cols / BLOCK;
    int8_t *q[3];
    float *scale[3], *sum[3];
    int32_t *half[3];
    const ek_kernels *table[3] = {k->table, k->reference, k->twin ? k->twin : k->reference};
    for (int i = 0; i < 3; i++) {
        q[i] = kc_alloc(k, (size_t)n_cols, 0);
        scale[i] = kc_floats(k, n_blocks);
        sum[i] = kc_floats(k, n_blocks);
        half[i] = kc_alloc(k, (size_t)n_blocks * 2 * sizeof *half[i], 0);
        table[i]->act_quantize(x, n_cols, q[i], scale[i], sum[i], half[i]);
        kc_same(k, "q", q[i], q[0], (size_t)n_cols);
    }
    for (int32_t b = 0; b < n_blocks; b++) {
        check_block(k, b, x + b * BLOCK, q[0] + b * BLOCK, scale[0][b], sum[0][b], half[0] + 2 * b);
        for (int i = 1; i < 3; i++) {
            kc_near(k, b, scale[0][b], (double)scale[i][b], 0.0);
            kc_near(k, b, sum[0][b], (double)sum[i][b], 0.0);
        }
    }
}

void kc_check_act(kc *k)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, -NAN};
    for (int pattern = 0; pattern < KC_PATTERNS; pattern++) {
        for (int32_t n_cols = BLOCK; n_cols <= 9 * BLOCK; n_cols += BLOCK) {
            kc_case(k, "act_quantize %s, %d columns", kc_pattern_name((kc_pattern)pattern), n_cols);
            float *x = kc_floats(k, n_cols);
            kc_fill(k, (kc_pattern)pattern, x, n_cols);
            check_case(k, n_cols, x);
            kc_release(k);
        }
    }
    for (int where = 0; where < 4 * BLOCK; where++) {
        kc_case(k, "act_quantize, odd value at %d", where);
        float *x = kc_floats(k, 4 * BLOCK);
        kc_fill(k, KC_UNIFORM, x, 4 * BLOCK);
        x[where] = odd[where % (int)EK_COUNT_OF(odd)];
        check_case(k, 4 * BLOCK, x);
        kc_release(k);
    }
}
