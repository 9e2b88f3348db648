/*
 * The kernel checker's harness. A check runs one operation of the table under test over many shapes
 * and inputs, on buffers that end at an inaccessible page or at a canary, and holds every result
 * against the scalar reference under a stated bound. One kc per process; nothing here is thread
 * safe.
 */
#ifndef EK_TESTS_KERNELS_KCHECK_H
#define EK_TESTS_KERNELS_KCHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/rng.h"
#include "kernels/kernels.h"

#define KC_GUARDS 256

/* Half an ulp of 1: the relative error of one f32 rounding. */
#define KC_EPS 0x1p-24

typedef struct kc_guard {
    uint8_t *map; /* owned; its last page is inaccessible */
    size_t map_bytes;
    uint8_t *data;
    size_t data_bytes;
} kc_guard;

typedef struct kc {
    const ek_kernels *reference;
    const ek_kernels *table; /* under test */
    const ek_kernels *twin;  /* must agree with `table` bit for bit; NULL: none on this machine */
    ek_rng rng;
    char context[160]; /* the case at hand, for messages */
    int64_t n_cases;
    int n_failures;
    kc_guard guard[KC_GUARDS];
    int n_guards;
} kc;

/** What the following failures belong to; printf format. */
void kc_case(kc *k, const char *fmt, ...) EK_PRINTF(2, 3);
void kc_fail(kc *k, const char *fmt, ...) EK_PRINTF(2, 3);

/**
 * Memory between a canary and an inaccessible page, filled with a pattern.
 * @param slack bytes of canary between the end and the page: 0 catches every read past the end,
 *              other
 *              values give other alignments
 */
void *kc_alloc(kc *k, size_t bytes, size_t slack);

/** Floats, and a token's worth of them with an end at the page. */
static inline float *kc_floats(kc *k, int64_t n)
{
    return kc_alloc(k, (size_t)n * sizeof(float), 0);
}

/** Check every canary since the last call, and give the memory back. */
void kc_release(kc *k);

/** |got - expected| <= bound; both NaN agree; equal infinities agree. */
void kc_near(kc *k, int64_t idx, float got, double expected, double bound);
/** The same bytes. */
void kc_same(kc *k, const char *what, const void *got, const void *expected, size_t bytes);

/* Inputs that have broken kernels before. */
typedef enum kc_pattern {
    KC_UNIFORM,  /* [-1, 1] */
    KC_ZERO,     /* zeros of both signs */
    KC_DENORMAL, /* subnormal and tiny numbers */
    KC_LARGE,    /* around 1e18 */
    KC_MIXED,    /* magnitudes from 1e-6 to 1e6 */
    KC_SPIKE,    /* zero but for one element per 37 */
    KC_TIES,     /* multiples of one half: where rounding rules show */
    KC_FULL, /* the same large number all over, with all bits set in codes: where sums overflow */
    KC_PATTERNS,
} kc_pattern;

const char *kc_pattern_name(kc_pattern pattern);
void kc_fill(kc *k, kc_pattern pattern, float *x, int64_t n);
double kc_uniform(kc *k, double low, double high);

/* The checks; each covers one operation. */
void kc_check_act(kc *k);
void kc_check_matmul(kc *k, ek_type type);
void kc_check_attend(kc *k);
void kc_check_rms_norm(kc *k);
void kc_check_rope(kc *k);
void kc_check_swiglu(kc *k);
void kc_check_axpy(kc *k);
void kc_check_f16(kc *k);
void kc_check_softmax(kc *k);

/** Print speed per operation and shape; checks nothing. */
void kc_bench(const ek_kernels *table);

#endif
