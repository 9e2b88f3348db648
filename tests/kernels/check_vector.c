/*
 * The kernels over one vector. Each case runs at the lengths around a register's width and ends at
 * an inaccessible page; the bound stands with each check.
 */
#include <math.h>
#include <string.h>

#include "kcheck.h"
#include "quant/convert.h"

static const int32_t lengths[] = {1,   2,   3,   7,   8,   9,   15,   16,   17,  23, 24,
                                  31,  32,  33,  40,  47,  48,  49,   63,   64,  65, 100,
                                  127, 128, 129, 255, 256, 768, 1000, 2048, 4097};

static void check_twin(kc *k, const float *got, const float *twin, int32_t n)
{
    if (k->twin) kc_same(k, "another instruction set", got, twin, (size_t)n * sizeof *got);
}

static float *copy_of(kc *k, const float *x, int32_t n)
{
    float *copy = kc_floats(k, n);
    memcpy(copy, x, (size_t)n * sizeof *x);
    return copy;
}

/*
 * The sum of squares is taken in f64: what is left are the roundings of the factor, two products
 * and the result.
 */
static void check_rms_norm_case(kc *k, kc_pattern pattern, int32_t n)
{
    kc_case(k, "rms_norm %s, %d", kc_pattern_name(pattern), n);
    float *x = kc_floats(k, n), *weight = kc_floats(k, n);
    float *y = kc_floats(k, n), *expected = kc_floats(k, n), *twin = kc_floats(k, n);
    kc_fill(k, pattern, x, n);
    kc_fill(k, KC_UNIFORM, weight, n);
    float eps = 1e-6f;
    k->table->rms_norm(x, weight, n, eps, y);
    k->reference->rms_norm(x, weight, n, eps, expected);
    for (int32_t i = 0; i < n; i++) {
        double bound = 4 * KC_EPS * fabs((double)expected[i]) + 0x1p-148;
        kc_near(k, i, y[i], (double)expected[i], bound);
    }
    if (k->twin) k->twin->rms_norm(x, weight, n, eps, twin);
    check_twin(k, y, twin, n);
    k->table->rms_norm(x, weight, n, eps, x); /* in place */
    kc_same(k, "in place", x, y, (size_t)n * sizeof *x);
    kc_release(k);
}

void kc_check_rms_norm(kc *k)
{
    for (size_t i = 0; i < EK_COUNT_OF(lengths); i++)
        for (int pattern = 0; pattern < KC_PATTERNS; pattern++)
            check_rms_norm_case(k, (kc_pattern)pattern, lengths[i]);
}

/* Rotations are bit for bit the reference's: the same two products and one sum. */
static void check_rope_case(kc *k, ek_rope_kind kind, kc_pattern pattern, int32_t n_pairs)
{
    int32_t n_rot = 2 * n_pairs, n = n_rot + 5; /* what lies behind n_rot stays */
    kc_case(k, "rope kind %d %s, %d rotated", (int)kind, kc_pattern_name(pattern), n_rot);
    float *x = kc_floats(k, n), *cosine = kc_floats(k, n_pairs), *sine = kc_floats(k, n_pairs);
    kc_fill(k, pattern, x, n);
    for (int32_t i = 0; i < n_pairs; i++) {
        double angle = kc_uniform(k, -100.0, 100.0);
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
    float *expected = copy_of(k, x, n);
    float *flush = copy_of(k, x, n_rot); /* ends at the page */
    k->table->rope(kind, x, n_rot, cosine, sine);
    k->table->rope(kind, flush, n_rot, cosine, sine);
    k->reference->rope(kind, expected, n_rot, cosine, sine);
    kc_same(k, "rotation", x, expected, (size_t)n * sizeof *x);
    kc_same(k, "rotation", flush, expected, (size_t)n_rot * sizeof *x);
    kc_release(k);
}

void kc_check_rope(kc *k)
{
    for (int32_t n_pairs = 1; n_pairs <= 70; n_pairs++)
        for (int pattern = 0; pattern < KC_PATTERNS; pattern++) {
            check_rope_case(k, EK_ROPE_NORM, (kc_pattern)pattern, n_pairs);
            check_rope_case(k, EK_ROPE_NEOX, (kc_pattern)pattern, n_pairs);
        }
}

/*
 * exp within 4 eps, a sum, a quotient, a product: 8 eps; and 1e-36 of gate * up where exp
 * saturates.
 */
static void check_swiglu_values(kc *k, const float *gate, const float *up, int32_t n)
{
    float *y = kc_floats(k, n), *expected = kc_floats(k, n), *twin = kc_floats(k, n);
    k->table->swiglu(gate, up, n, y);
    k->reference->swiglu(gate, up, n, expected);
    for (int32_t i = 0; i < n; i++) {
        double product = fabs((double)gate[i] * (double)up[i]);
        double bound = 8 * KC_EPS * fabs((double)expected[i]) + 1e-36 * product + 0x1p-148;
        kc_near(k, i, y[i], (double)expected[i], bound);
    }
    if (k->twin) k->twin->swiglu(gate, up, n, twin);
    check_twin(k, y, twin, n);
    float *over_gate = copy_of(k, gate, n), *over_up = copy_of(k, up, n);
    k->table->swiglu(over_gate, up, n, over_gate);
    k->table->swiglu(gate, over_up, n, over_up);
    kc_same(k, "over gate", over_gate, y, (size_t)n * sizeof *y);
    kc_same(k, "over up", over_up, y, (size_t)n * sizeof *y);
}

void kc_check_swiglu(kc *k)
{
    for (size_t i = 0; i < EK_COUNT_OF(lengths); i++)
        for (int pattern = 0; pattern < KC_PATTERNS; pattern++) {
            int32_t n = lengths[i];
            kc_case(k, "swiglu %s, %d", kc_pattern_name((kc_pattern)pattern), n);
            float *gate = kc_floats(k, n), *up = kc_floats(k, n);
            kc_fill(k, (kc_pattern)pattern, gate, n);
            kc_fill(k, KC_UNIFORM, up, n);
            check_swiglu_values(k, gate, up, n);
            kc_release(k);
        }
    /* A sweep over every binade on both sides, the saturating ends of exp included, and NaN. */
    enum { SWEEP = 20000 };
    kc_case(k, "swiglu sweep");
    float *gate = kc_floats(k, SWEEP), *up = kc_floats(k, SWEEP);
    for (int i = 0; i < SWEEP; i++) {
        gate[i] = i == 77 ? NAN : (float)(i - SWEEP / 2) * 0.0125f;
        up[i] = 1.0f;
    }
    check_swiglu_values(k, gate, up, SWEEP);
    kc_release(k);
}

/* Fused in every table: the reference's bits. */
void kc_check_axpy(kc *k)
{
    for (size_t i = 0; i < EK_COUNT_OF(lengths); i++)
        for (int pattern = 0; pattern < KC_PATTERNS; pattern++) {
            int32_t n = lengths[i];
            kc_case(k, "axpy %s, %d", kc_pattern_name((kc_pattern)pattern), n);
            float *x = kc_floats(k, n), *y = kc_floats(k, n);
            kc_fill(k, (kc_pattern)pattern, x, n);
            kc_fill(k, (kc_pattern)pattern, y, n);
            float *expected = copy_of(k, y, n), a = (float)kc_uniform(k, -2.0, 2.0);
            k->table->axpy(a, x, n, y);
            k->reference->axpy(a, x, n, expected);
            kc_same(k, "axpy", y, expected, (size_t)n * sizeof *y);
            kc_release(k);
        }
}

/*
 * Every f16 with its neighbours half and a quarter of a step away, every f32 exponent, and NaN: the
 * same bits.
 */
static float half_neighbour(int i)
{
    uint32_t bits;
    float f = ek_quant_f16_to_f32((uint16_t)(i / 5));
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) return f;
    bits +=
        (uint32_t)(i % 5 - 2) * 0x800u; /* f16 drops 13 bits of the fraction: 0x2000 is one step */
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void check_f16_case(kc *k, const float *x, int32_t n)
{
    uint16_t *y = kc_alloc(k, (size_t)n * sizeof *y, 0);
    uint16_t *expected = kc_alloc(k, (size_t)n * sizeof *y, 0);
    k->table->f32_to_f16(x, n, y);
    k->reference->f32_to_f16(x, n, expected);
    kc_same(k, "f32_to_f16", y, expected, (size_t)n * sizeof *y);
}

void kc_check_f16(kc *k)
{
    enum { SWEEP = 65536 * 5 };
    kc_case(k, "f32_to_f16 around every half");
    float *x = kc_floats(k, SWEEP);
    for (int i = 0; i < SWEEP; i++)
        x[i] = half_neighbour(i);
    check_f16_case(k, x, SWEEP);
    kc_release(k);
    for (size_t i = 0; i < EK_COUNT_OF(lengths); i++)
        for (int pattern = 0; pattern < KC_PATTERNS; pattern++) {
            kc_case(k, "f32_to_f16 %s, %d", kc_pattern_name((kc_pattern)pattern), lengths[i]);
            float *some = kc_floats(k, lengths[i]);
            kc_fill(k, (kc_pattern)pattern, some, lengths[i]);
            check_f16_case(k, some, lengths[i]);
            kc_release(k);
        }
}

/*
 * A difference is exact to eps of its size, exp adds 4 eps, a sum of n positives n / 16 + 8, one
 * product.
 */
static void check_softmax_case(kc *k, const float *x, int32_t n, double largest)
{
    float *y = copy_of(k, x, n), *expected = copy_of(k, x, n), *twin = copy_of(k, x, n);
    k->table->softmax(y, n);
    k->reference->softmax(expected, n);
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        double spread = fmin(2 * largest, 90.0); /* beyond, both are zero */
        double relative = (spread + n / 16 + 16) * KC_EPS;
        kc_near(k, i, y[i], (double)expected[i], relative * (double)expected[i] + 0x1p-126);
        sum += (double)y[i];
    }
    kc_near(k, -1, (float)sum, 1.0, (n / 16 + 16) * KC_EPS + n * 0x1p-126);
    if (k->twin) k->twin->softmax(twin, n);
    check_twin(k, y, twin, n);
}

void kc_check_softmax(kc *k)
{
    for (size_t i = 0; i < EK_COUNT_OF(lengths); i++)
        for (int pattern = 0; pattern < KC_PATTERNS; pattern++) {
            int32_t n = lengths[i];
            kc_case(k, "softmax %s, %d", kc_pattern_name((kc_pattern)pattern), n);
            float *x = kc_floats(k, n);
            kc_fill(k, (kc_pattern)pattern, x, n);
            double largest = 0.0;
            for (int32_t j = 0; j < n; j++)
                largest = fmax(largest, fabs((double)x[j]));
            check_softmax_case(k, x, n, largest);
            kc_release(k);
        }
    enum { VOCABULARY = 50304 };
    kc_case(k, "softmax over a vocabulary");
    float *x = kc_floats(k, VOCABULARY);
    for (int i = 0; i < VOCABULARY; i++)
        x[i] = (float)kc_uniform(k, -30.0, 5.0);
    check_softmax_case(k, x, VOCABULARY, 30.0);
    kc_release(k);
}
