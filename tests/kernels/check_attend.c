/*
 * attend over paged caches: values, independence of how queries are grouped, and untouched
 * positions.
 *
 * Bounds. With S = sum over a key's dimensions of |scale * q * k| at its largest, a score is off by
 * at most (dim / 16 + 8) * eps * S, and so is the exponent of every weight, whose own relative
 * error is 4 eps; sums of n positions add (n + 8) * eps. An output is an average of values of size
 * at most V, so it is off by the sum of these times 2 V.
 */
#include <math.h>

#include "kcheck.h"
#include "quant/convert.h"

enum { QUERIES_MAX = 11, BLOCKS_MAX = 80 };

typedef struct attend_case {
    ek_attend_args args;
    const float *q[QUERIES_MAX];
    float *out[QUERIES_MAX];
    int32_t n_pos[QUERIES_MAX];
    const uint16_t *k_blocks[BLOCKS_MAX], *v_blocks[BLOCKS_MAX];
    double score_size, value_size;
} attend_case;

static uint16_t *random_halves(kc *k, kc_pattern pattern, int64_t n, double *out_size)
{
    uint16_t *half = kc_alloc(k, (size_t)n * sizeof *half, 0);
    for (int64_t i = 0; i < n; i++) {
        float x;
        kc_fill(k, pattern, &x, 1);
        half[i] = ek_quant_f32_to_f16(x);
        *out_size = fmax(*out_size, fabs((double)ek_quant_f16_to_f32(half[i])));
    }
    return half;
}

/* A cache whose blocks are scattered; positions that nobody sees are NaN. */
static void fill_cache(kc *k, attend_case *c, kc_pattern pattern, int32_t n_pos, double *k_size)
{
    ek_attend_args *a = &c->args;
    int32_t n_blocks = (n_pos + a->block_tokens - 1) / a->block_tokens;
    for (int32_t b = n_blocks - 1; b >= 0; b--) {
        uint16_t *keys = random_halves(k, pattern, a->block_tokens * a->head_dim_k, k_size);
        uint16_t *values =
            random_halves(k, pattern, a->block_tokens * a->head_dim_v, &c->value_size);
        for (int32_t p = b * a->block_tokens; p < (b + 1) * a->block_tokens; p++) {
            int32_t slot = p % a->block_tokens;
            for (int32_t i = 0; p >= n_pos && i < a->head_dim_k; i++)
                keys[slot * a->head_dim_k + i] = 0x7e00;
            for (int32_t i = 0; p >= n_pos && i < a->head_dim_v; i++)
                values[slot * a->head_dim_v + i] = 0x7e00;
        }
        c->k_blocks[b] = keys;
        c->v_blocks[b] = values;
    }
}

static void make_case(kc *k, attend_case *c, kc_pattern pattern, int32_t n_q, int32_t n_pos)
{
    ek_attend_args *a = &c->args;
    double k_size = 0.0, q_size = 0.0;
    fill_cache(k, c, pattern, n_pos, &k_size);
    a->n_q = n_q;
    for (int32_t i = 0; i < n_q; i++) {
        float *q = kc_floats(k, a->head_dim_k);
        kc_fill(k, KC_UNIFORM, q, a->head_dim_k);
        for (int32_t d = 0; d < a->head_dim_k; d++)
            q_size = fmax(q_size, fabs((double)q[d]));
        c->q[i] = q;
        c->out[i] = kc_floats(k, a->head_dim_v);
        /* One sees all, the others what a causal mask or another sequence leaves them. */
        c->n_pos[i] = i == n_q / 2 ? n_pos : 1 + (int32_t)ek_rng_below(&k->rng, (uint64_t)n_pos);
    }
    a->q = c->q;
    a->out = c->out;
    a->n_pos = c->n_pos;
    a->k_blocks = c->k_blocks;
    a->v_blocks = c->v_blocks;
    a->lse = kc_floats(k, n_q);
    a->scratch = kc_floats(k, n_pos + 16);
    c->score_size = fabs((double)a->scale) * a->head_dim_k * q_size * k_size;
}

static void check_values(kc *k, const attend_case *c)
{
    ek_attend_args expected = c->args;
    float *out[QUERIES_MAX];
    expected.out = out;
    for (int32_t i = 0; i < expected.n_q; i++)
        out[i] = kc_floats(k, expected.head_dim_v);
    expected.lse = kc_floats(k, expected.n_q);
    k->reference->attend(&expected);
    double score = (expected.head_dim_k / 16 + 8) * KC_EPS * c->score_size;
    for (int32_t i = 0; i < expected.n_q; i++) {
        double relative = 2 * score + (2 * c->n_pos[i] + 16) * KC_EPS;
        for (int32_t d = 0; d < expected.head_dim_v; d++)
            kc_near(k, d, c->out[i][d], (double)out[i][d], relative * 2 * c->value_size);
        double lse_size = fabs((double)expected.lse[i]);
        kc_near(k, i, c->args.lse[i], (double)expected.lse[i], relative + 4 * KC_EPS * lse_size);
    }
}

/* Each query alone, without lse, gives the same bits; and so does the other instruction set. */
static void check_invariance(kc *k, const attend_case *c)
{
    for (int32_t i = 0; i < c->args.n_q; i++) {
        ek_attend_args one = c->args;
        float *out = kc_floats(k, one.head_dim_v);
        one.n_q = 1;
        one.q = &c->q[i];
        one.n_pos = &c->n_pos[i];
        one.out = &out;
        one.lse = NULL;
        k->table->attend(&one);
        kc_same(k, "a query alone", out, c->out[i], (size_t)one.head_dim_v * sizeof *out);
        if (!k->twin) continue;
        float lse;
        one.lse = &lse;
        k->twin->attend(&one);
        kc_same(k, "another instruction set", out, c->out[i], (size_t)one.head_dim_v * sizeof *out);
        kc_same(k, "its lse", &lse, &c->args.lse[i], sizeof lse);
    }
}

void kc_check_attend(kc *k)
{
    static const struct {
        int32_t dim_k, dim_v, block_tokens;
    } shape[] = {{128, 128, 16}, {64, 64, 32},  {8, 8, 16},
                 {72, 40, 16},   {192, 128, 8}, {16, 264, 7}};
    static const int32_t n_pos[] = {1, 2, 15, 31, 32, 33, 64, 100, 257};
    static const kc_pattern pattern[] = {KC_UNIFORM, KC_ZERO, KC_TIES, KC_DENORMAL};
    for (size_t s = 0; s < EK_COUNT_OF(shape); s++)
        for (size_t p = 0; p < EK_COUNT_OF(n_pos); p++)
            for (size_t t = 0; t < EK_COUNT_OF(pattern); t++) {
                int32_t n_q = 1 + (int32_t)ek_rng_below(&k->rng, QUERIES_MAX);
                kc_case(k, "attend %s, %d queries, %d positions, dims %d and %d",
                        kc_pattern_name(pattern[t]), n_q, n_pos[p], shape[s].dim_k, shape[s].dim_v);
                attend_case c = {.args = {.head_dim_k = shape[s].dim_k,
                                          .head_dim_v = shape[s].dim_v,
                                          .block_tokens = shape[s].block_tokens,
                                          .scale = 1.0f / sqrtf((float)shape[s].dim_k)}};
                make_case(k, &c, pattern[t], n_q, n_pos[p]);
                k->table->attend(&c.args);
                check_values(k, &c);
                check_invariance(k, &c);
                kc_release(k);
            }
}
