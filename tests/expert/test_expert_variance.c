/*
 * Goal: the variance of an expert's outputs is that of its network's formula. Method: the tiny F32
 * model against the formula in double; equal tokens, which vary by nothing; experts without tokens.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "expert/model_file.h"
#include "expert/variance.h"
#include "support/fixtures.h"

#define N_TOKENS 5

/* Row `row` of matrix `idx` of an F32 tensor times x. */
static double row_times(const ek_tensor *t, int32_t idx, int64_t row, const double *x)
{
    const float *w = (const float *)t->data + (idx * t->dim[1] + row) * t->dim[0];
    double sum = 0;
    for (int64_t c = 0; c < t->dim[0]; c++)
        sum += (double)w[c] * x[c];
    return sum;
}

/* Variance of expert e's outputs over all tokens. */
static double by_formula(const ek_model *model, int32_t e, const float *hidden)
{
    const ek_model_params *p = &model->params;
    const ek_model_layer *l = &model->layers[0];
    double *x = calloc((size_t)p->d_model, sizeof *x), *h = calloc((size_t)p->expert_ff, sizeof *h);
    double *y = calloc((size_t)p->d_model * N_TOKENS, sizeof *y), total = 0;
    for (int32_t t = 0; t < N_TOKENS; t++) {
        for (int32_t c = 0; c < p->d_model; c++)
            x[c] = (double)hidden[t * p->d_model + c];
        for (int32_t j = 0; j < p->expert_ff; j++) {
            double g = row_times(l->expert_gate, e, j, x);
            h[j] = g / (1 + exp(-g)) * row_times(l->expert_up, e, j, x);
        }
        for (int32_t c = 0; c < p->d_model; c++)
            y[c * N_TOKENS + t] = row_times(l->expert_down, e, c, h);
    }
    for (int32_t c = 0; c < p->d_model; c++) {
        double sum = 0, squares = 0;
        for (int32_t t = 0; t < N_TOKENS; t++)
            sum += y[c * N_TOKENS + t];
        for (int32_t t = 0; t < N_TOKENS; t++)
            squares += pow(y[c * N_TOKENS + t] - sum / N_TOKENS, 2);
        total += squares / N_TOKENS;
    }
    free(x);
    free(h);
    free(y);
    return total / p->d_model;
}

static void test_variance(void **state)
{
    (void)state;
    ek_fixture_path path;
    ek_model_file *file = NULL;
    ek_kernels kernels;
    ek_fixture_build("tests/support/tiny-qwen2moe-f32.gguf", &path);
    assert_int_equal(ek_expert_model_open(path.text, NULL, &file, NULL), EK_OK);
    assert_int_equal(ek_kernels_select(EK_KERNELS_REFERENCE, 0, &kernels), EK_OK);
    const ek_model_params *p = &file->model->params;
    assert_true(p->top_k >= 2 && p->n_experts >= 4);
    float *hidden = calloc((size_t)N_TOKENS * (size_t)p->d_model, sizeof *hidden);
    int32_t *ids = calloc((size_t)N_TOKENS * (size_t)p->top_k, sizeof *ids);
    double *out = calloc((size_t)p->n_experts, sizeof *out);
    for (int32_t i = 0; i < N_TOKENS * p->d_model; i++)
        hidden[i] = (float)sin(0.7 * i) + 0.1f;
    /* All tokens visit expert 1, one visits expert 2, none expert 3; the rest is left out. */
    for (int32_t i = 0; i < N_TOKENS * p->top_k; i++)
        ids[i] = i % p->top_k == 0 ? 1 : -1;
    ids[1] = 2;
    size_t bytes = ek_expert_variance_bytes(file->model);
    ek_arena scratch = ek_fixture_arena(bytes);
    void *base = scratch.beg;
    assert_int_equal(
        ek_expert_variance(file->model, &kernels, 0, hidden, N_TOKENS, ids, scratch, out), EK_OK);
    double wanted = by_formula(file->model, 1, hidden);
    assert_true(wanted > 0);
    assert_true(fabs(out[1] - wanted) < 1e-3 * wanted);
    assert_true(out[2] == -1);
    assert_true(out[3] == -1);

    for (int32_t i = 0; i < N_TOKENS * p->d_model; i++)
        hidden[i] = (float)(i % p->d_model);
    assert_int_equal(
        ek_expert_variance(file->model, &kernels, 0, hidden, N_TOKENS, ids, scratch, out), EK_OK);
    assert_true(out[1] >= 0 && out[1] < 1e-9);

    ek_arena small = ek_arena_over(base, bytes / 8);
    assert_int_equal(
        ek_expert_variance(file->model, &kernels, 0, hidden, N_TOKENS, ids, small, out), EK_ENOMEM);
    ek_fixture_arena_free(base);
    free(hidden);
    free(ids);
    free(out);
    ek_expert_model_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variance)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
