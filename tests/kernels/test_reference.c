/*
 * Goal: the scalar reference, which kcheck holds every other table against, does what kernels.h
 * says. Method: small cases with results worked out by hand or in closed form.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "quant/convert.h"

static ek_kernels table;

static int select_reference(void **state EK_UNUSED)
{
    return ek_kernels_select(EK_KERNELS_REFERENCE, 0, &table);
}

static void assert_near(float got, double expected, double bound)
{
    if (!(fabs((double)got - expected) <= bound))
        fail_msg("%.9g, expected %.9g", (double)got, expected);
}

static void quantizes_activations(void **state EK_UNUSED)
{
    float x[64] = {0}, scale[2], sum[2];
    int8_t q[64];
    int32_t half[4];
    /*
     * Scale 2: 254 is 127; 3 and 5 are ties at 1.5 and 2.5 and go to the even 2; -7 is -3.5, to -4.
     */
    x[0] = 254.0f;
    x[1] = 3.0f;
    x[2] = 5.0f;
    x[3] = -7.0f;
    x[40] = 1e-38f;
    table.act_quantize(x, 64, q, scale, sum, half);
    assert_near(scale[0], 2.0, 0.0);
    assert_int_equal(q[0], 127);
    assert_int_equal(q[1], 2);
    assert_int_equal(q[2], 2);
    assert_int_equal(q[3], -4);
    assert_near(sum[0], 2.0 * (127 + 2 + 2 - 4), 0.0);
    assert_int_equal(half[0], -32 * (127 + 2 + 2 - 4));
    assert_int_equal(half[1], 0);
    /* Too small to matter counts as zero. */
    assert_near(scale[1], 0.0, 0.0);
    assert_near(sum[1], 0.0, 0.0);
    assert_int_equal(q[40], 0);
    x[33] = NAN;
    table.act_quantize(x, 64, q, scale, sum, half);
    assert_true(isnan(scale[1]) && isnan(sum[1]));
    assert_near(scale[0], 2.0, 0.0);
}

static void multiplies_matrices(void **state EK_UNUSED)
{
    /* Rows (1, 2, 3) and (0, -1, 0.5); tokens (1, 1, 1), (0, 2, 4). */
    const float w[2][3] = {{1, 2, 3}, {0, -1, 0.5f}}, x[2][3] = {{1, 1, 1}, {0, 2, 4}};
    const ek_mat mat = {
        .data = w, .row_bytes = sizeof w[0], .type = EK_TYPE_F32, .n_rows = 2, .n_cols = 3};
    const ek_act act = {.n_cols = 3, .f32 = x[0]};
    const int32_t picks[3] = {1, 0, 1};
    float y[3][4];
    for (int i = 0; i < 12; i++)
        (&y[0][0])[i] = 77.0f;
    table.matmul[EK_TYPE_F32](&mat, 0, 2, &act, picks, 3, y[0], 4);
    const float expected[3][4] = {{16, 0, 77, 77}, {6, -0.5f, 77, 77}, {16, 0, 77, 77}};
    assert_memory_equal(y, expected, sizeof y);
    y[0][0] = 77.0f;
    table.matmul[EK_TYPE_F32](&mat, 1, 2, &act, NULL, 1, y[0], 4);
    assert_near(y[0][0], 77.0, 0.0);
    assert_near(y[0][1], -0.5, 0.0);
}

/*
 * Every type goes through the definition of its blocks, in pieces that must not lose their place.
 */
static void multiplies_every_type(void **state EK_UNUSED)
{
    enum { COLS = 768 };
    float x[COLS], row[COLS];
    uint8_t packed[COLS * 4];
    for (uint32_t type = 0; type < EK_TYPE_MAX; type++) {
        const ek_type_info *info = ek_quant_type_info(type);
        if (!info || !info->supported) {
            assert_null(table.matmul[type]);
            continue;
        }
        for (int i = 0; i < COLS; i++)
            row[i] = (float)((i * 37) % 101 - 50) * 0.02f;
        assert_int_equal(ek_quant_row_from_f32((ek_type)type, row, COLS, packed), EK_OK);
        ek_quant_row_to_f32((ek_type)type, packed, COLS, row);
        /* One-hot tokens read single weights back. */
        const ek_mat mat = {.data = packed,
                            .row_bytes = ek_quant_row_bytes((ek_type)type, COLS),
                            .type = (ek_type)type,
                            .n_rows = 1,
                            .n_cols = COLS};
        const ek_act act = {.n_cols = COLS, .f32 = x};
        for (int hot = 0; hot < COLS; hot += 7) {
            float y;
            memset(x, 0, sizeof x);
            x[hot] = 2.0f;
            table.matmul[type](&mat, 0, 1, &act, NULL, 1, &y, 1);
            assert_near(y, 2.0 * (double)row[hot], 0.0);
        }
    }
}

static void normalises(void **state EK_UNUSED)
{
    float x[4] = {3, -4, 0, 12}; /* squares sum to 169 */
    const float weight[4] = {1, 2, 3, 0.5f};
    table.rms_norm(x, weight, 4, 0.0f, x);
    double rms = 6.5;
    assert_near(x[0], 3 / rms, 1e-7);
    assert_near(x[1], -8 / rms, 1e-7);
    assert_near(x[2], 0, 0);
    assert_near(x[3], 6 / rms, 1e-7);
    float zero[2] = {0, 0};
    table.rms_norm(zero, weight, 2, 1e-6f, zero);
    assert_near(zero[0], 0, 0);
}

static void rotates(void **state EK_UNUSED)
{
    /*
     * A quarter turn of the first pair, a half turn of the second; the fifth element is not
     * rotated.
     */
    const float cosine[2] = {0, -1}, sine[2] = {1, 0};
    float norm[5] = {1, 2, 3, 4, 5}, neox[5] = {1, 2, 3, 4, 5};
    const float norm_expected[5] = {-2, 1, -3, -4, 5}, neox_expected[5] = {-3, -2, 1, -4, 5};
    table.rope(EK_ROPE_NORM, norm, 4, cosine, sine);
    table.rope(EK_ROPE_NEOX, neox, 4, cosine, sine);
    assert_memory_equal(norm, norm_expected, sizeof norm);
    assert_memory_equal(neox, neox_expected, sizeof neox);
}

static void applies_point_by_point(void **state EK_UNUSED)
{
    const float gate[4] = {0, 1, -1, 100}, up[4] = {5, 2, 2, 0.5f};
    float y[4] = {1, 2, 3, 4};
    table.swiglu(gate, up, 4, y);
    assert_near(y[0], 0, 0);
    assert_near(y[1], 2 / (1 + exp(-1)), 1e-7);
    assert_near(y[2], -2 / (1 + exp(1)), 1e-7);
    assert_near(y[3], 50, 0);
    float sum[2] = {1, 2};
    table.axpy(0.5f, gate + 1, 2, sum);
    assert_near(sum[0], 1.5, 0);
    assert_near(sum[1], 1.5, 0);
    uint16_t half[2];
    const float wide[2] = {1.0f, -2.0f};
    table.f32_to_f16(wide, 2, half);
    assert_int_equal(half[0], 0x3c00);
    assert_int_equal(half[1], 0xc000);
}

static void softens(void **state EK_UNUSED)
{
    float x[3] = {1000.0f, 1000.0f + logf(2.0f), -1000.0f}, one[1] = {-5.0f};
    table.softmax(x, 3);
    assert_near(x[0], 1.0 / 3, 1e-4); /* 1000.69 has four digits behind the point */
    assert_near(x[1], 2.0 / 3, 1e-4);
    assert_near(x[2], 0, 0);
    table.softmax(one, 1);
    assert_near(one[0], 1, 0);
}

/*
 * Two keys in different blocks; scores 0 and ln 3 weigh the values 1 : 3; a third position is not
 * seen.
 */
static void attends(void **state EK_UNUSED)
{
    enum { DIM = 8, BLOCK = 1 };
    float q[DIM] = {1}, out[DIM], lse, scratch[3 + 16];
    uint16_t keys[3][DIM] = {{0}}, values[3][DIM] = {{0}};
    keys[1][0] = ek_quant_f32_to_f16(2.0f);
    values[0][0] = values[1][1] = ek_quant_f32_to_f16(1.0f);
    values[2][0] = keys[2][0] = 0x7e00; /* NaN */
    const uint16_t *k_blocks[3] = {keys[0], keys[1], keys[2]};
    const uint16_t *v_blocks[3] = {values[0], values[1], values[2]};
    const float *queries[1] = {q};
    float *outs[1] = {out};
    const int32_t n_pos[1] = {2};
    ek_attend_args args = {.q = queries,
                           .out = outs,
                           .lse = &lse,
                           .n_pos = n_pos,
                           .k_blocks = k_blocks,
                           .v_blocks = v_blocks,
                           .n_q = 1,
                           .head_dim_k = DIM,
                           .head_dim_v = DIM,
                           .block_tokens = BLOCK,
                           .scale = 0.5f * logf(3.0f),
                           .scratch = scratch};
    table.attend(&args);
    assert_near(out[0], 0.25, 1e-6);
    assert_near(out[1], 0.75, 1e-6);
    assert_near(out[7], 0, 0);
    assert_near(lse, log(4), 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantizes_activations),
        cmocka_unit_test(multiplies_matrices),
        cmocka_unit_test(multiplies_every_type),
        cmocka_unit_test(normalises),
        cmocka_unit_test(rotates),
        cmocka_unit_test(applies_point_by_point),
        cmocka_unit_test(softens),
        cmocka_unit_test(attends),
    };
    return cmocka_run_group_tests(tests, select_reference, NULL);
}
