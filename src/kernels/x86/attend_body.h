/*
 * Attention over a paged f16 cache in one pass, written on v16; include a v16 header and v16_exp.h
 * first.
 *
 * Positions are taken in pieces of PIECE, always cut at multiples of PIECE from position 0. Per
 * piece: scores (16 lanes over the head's dimensions, c mod 16, then v16f_sum), the running
 * maximum, exp against it, and the running output and denominator rescaled by exp(old maximum - new
 * one). Values are added position by position. A query's arithmetic never looks at its neighbours,
 * so it is the same however queries are grouped; grouping only lets several of them share one
 * widening of each key and value.
 * Source: online softmax, Milakov and Gimelshein, arXiv:1805.02867; blocked as in arXiv:2205.14135.
 */
#include <math.h>

#include "kernels/kernels.h"

enum {
    PIECE = 32,
    QUERIES = EK_V16_ATTEND_QUERIES,
    SCORE_POSITIONS = 4, /* keys of one score tile */
};

/* What a group of queries carries from piece to piece. */
typedef struct attend_group {
    const ek_attend_args *args;
    int32_t first, n;         /* queries first..first + n - 1 */
    int32_t n_in[QUERIES];    /* positions of this piece that the query sees, 0..PIECE */
    float largest[QUERIES];   /* running maximum of the scores */
    float sum[QUERIES];       /* running denominator */
    float rescale[QUERIES];   /* of what was gathered before this piece */
    const uint16_t *k[PIECE]; /* this piece's vectors; repeats the last one beyond the end */
    const uint16_t *v[PIECE];
    float weight[QUERIES][PIECE]; /* scores, then exp(score - maximum) */
} attend_group;

static void piece_locate(attend_group *g, int32_t begin, int32_t n)
{
    const ek_attend_args *args = g->args;
    for (int32_t i = 0; i < PIECE; i++) {
        int32_t p = begin + (i < n ? i : n - 1);
        int32_t block = p / args->block_tokens, slot = p % args->block_tokens;
        g->k[i] = args->k_blocks[block] + (int64_t)slot * args->head_dim_k;
        g->v[i] = args->v_blocks[block] + (int64_t)slot * args->head_dim_v;
    }
}

/* Eight halves in the low lanes, zeros above: the end of a head whose dimension is 8 mod 16. */
EK_V16_INLINE v16f widen_8(const uint16_t *x)
{
    uint16_t padded[16] = {0};
    memcpy(padded, x, 8 * sizeof *x);
    return v16f_from_f16(padded);
}

/* Scores of n_q queries (a constant) against the 4 keys from `at`. */
EK_V16_INLINE void score_tile(attend_group *g, int first, int n_q, int at)
{
    const ek_attend_args *args = g->args;
    const float *const *q = args->q + g->first + first;
    const uint16_t *const *k = g->k + at;
    v16f sum[QUERIES][SCORE_POSITIONS];
#pragma GCC unroll 4
    for (int i = 0; i < n_q; i++)
#pragma GCC unroll 4
        for (int p = 0; p < SCORE_POSITIONS; p++)
            sum[i][p] = v16f_zero();
    int32_t c = 0;
    for (; c + 16 <= args->head_dim_k; c += 16) {
        v16f key[SCORE_POSITIONS];
#pragma GCC unroll 4
        for (int p = 0; p < SCORE_POSITIONS; p++)
            key[p] = v16f_from_f16(k[p] + c);
#pragma GCC unroll 4
        for (int i = 0; i < n_q; i++) {
            v16f query = v16f_load(q[i] + c);
#pragma GCC unroll 4
            for (int p = 0; p < SCORE_POSITIONS; p++)
                sum[i][p] = v16f_fma(query, key[p], sum[i][p]);
        }
    }
    if (c < args->head_dim_k) {
#pragma GCC unroll 4
        for (int p = 0; p < SCORE_POSITIONS; p++) {
            v16f key = widen_8(k[p] + c);
#pragma GCC unroll 4
            for (int i = 0; i < n_q; i++)
                sum[i][p] = v16f_fma(v16f_load_n(q[i] + c, 8), key, sum[i][p]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < n_q; i++)
        v16f_sum4(sum[i], &g->weight[first + i][at]);
}

/* Whole groups and what is left at the end: a tile for each number of queries. */
static void score_tile_all(attend_group *g, int at)
{
    static_assert(QUERIES == 2 || QUERIES == 4, "every number is listed");
    switch (g->n) {
    case 1: score_tile(g, 0, 1, at); break;
    case 2: score_tile(g, 0, 2, at); break;
    case 3: score_tile(g, 0, QUERIES < 3 ? QUERIES : 3, at); break;
    default: score_tile(g, 0, QUERIES, at); break;
    }
}

static void piece_score(attend_group *g, int32_t n)
{
    for (int at = 0; at < n; at += SCORE_POSITIONS)
        score_tile_all(g, at);
}

/* Scores become weights against the new maximum; a query that sees nothing here keeps its state. */
static void piece_weigh(attend_group *g, int i)
{
    int n = g->n_in[i];
    g->rescale[i] = 1.0f;
    if (n == 0) return;
    v16f scale = v16f_set1(g->args->scale), lowest = v16f_set1(-INFINITY);
    v16f low = v16f_mul(v16f_load(g->weight[i]), scale);
    v16f high = v16f_mul(v16f_load(g->weight[i] + 16), scale);
    low = v16f_first(n < 16 ? n : 16, low, lowest);
    high = v16f_first(n < 16 ? 0 : n - 16, high, lowest);
    float top = v16f_largest(v16f_max(low, high));
    float largest = top > g->largest[i] ? top : g->largest[i];
    v16f shift = v16f_set1(largest);
    low = v16f_exp(v16f_sub(low, shift));
    high = v16f_exp(v16f_sub(high, shift));
    v16f_store(g->weight[i], low);
    v16f_store(g->weight[i] + 16, high);
    float old = g->largest[i] - largest;
    float rescale[16];
    v16f_store(rescale, v16f_exp(v16f_set1(old)));
    g->rescale[i] = rescale[0];
    g->sum[i] = fmaf(g->sum[i], g->rescale[i], v16f_sum(v16f_add(low, high)));
    g->largest[i] = largest;
}

/*
 * Add a piece's values of n_vectors * 16 dimensions from c (8 dimensions where tail is set) to n_q
 * queries' outputs.
 */
EK_V16_INLINE void value_tile(attend_group *g, int first, int n_q, int beg, int end, int32_t c,
                              int n_vectors, bool tail)
{
    float *const *out = g->args->out + g->first + first;
    int lanes = tail ? 8 : 16;
    v16f sum[QUERIES][4];
#pragma GCC unroll 4
    for (int i = 0; i < n_q; i++)
#pragma GCC unroll 4
        for (int d = 0; d < n_vectors; d++) {
            sum[i][d] = v16f_load_n(out[i] + c + d * 16, lanes);
            if (beg == 0) sum[i][d] = v16f_mul(sum[i][d], v16f_set1(g->rescale[first + i]));
        }
    for (int p = beg; p < end; p++) {
        v16f value[4];
#pragma GCC unroll 4
        for (int d = 0; d < n_vectors; d++)
            value[d] = tail ? widen_8(g->v[p] + c) : v16f_from_f16(g->v[p] + c + d * 16);
#pragma GCC unroll 4
        for (int i = 0; i < n_q; i++) {
            v16f weight = v16f_set1(g->weight[first + i][p]);
#pragma GCC unroll 4
            for (int d = 0; d < n_vectors; d++)
                sum[i][d] = v16f_fma(weight, value[d], sum[i][d]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < n_q; i++)
#pragma GCC unroll 4
        for (int d = 0; d < n_vectors; d++)
            v16f_store_n(out[i] + c + d * 16, lanes, sum[i][d]);
}

EK_V16_INLINE void value_rows(attend_group *g, int first, int n_q, int beg, int end, int wide)
{
    int32_t c = 0, dim = g->args->head_dim_v;
    for (; c + 16 * wide <= dim; c += 16 * wide)
        value_tile(g, first, n_q, beg, end, c, wide, false);
    for (; c + 16 <= dim; c += 16)
        value_tile(g, first, n_q, beg, end, c, 1, false);
    if (c < dim) value_tile(g, first, n_q, beg, end, c, 1, true);
}

static void value_rows_all(attend_group *g, int end)
{
    switch (g->n) {
    case 1: value_rows(g, 0, 1, 0, end, 4); break;
    case 2: value_rows(g, 0, 2, 0, end, 2); break;
    case 3: value_rows(g, 0, QUERIES < 3 ? QUERIES : 3, 0, end, 2); break;
    default: value_rows(g, 0, QUERIES, 0, end, 2); break;
    }
}

static void value_rows_single(attend_group *g, int query, int beg, int end)
{
    value_rows(g, query, 1, beg, end, 4);
}

/*
 * Positions that all queries of the group see are added together, the rest one query at a time.
 */
static void piece_gather(attend_group *g)
{
    int shared = g->n_in[0];
    for (int i = 1; i < g->n; i++)
        if (g->n_in[i] < shared) shared = g->n_in[i];
    if (shared > 0) value_rows_all(g, shared);
    for (int i = 0; i < g->n; i++)
        if (g->n_in[i] > shared) value_rows_single(g, i, shared, g->n_in[i]);
}

static void group_finish(const attend_group *g)
{
    const ek_attend_args *args = g->args;
    for (int i = 0; i < g->n; i++) {
        float *out = args->out[g->first + i];
        v16f inverse = v16f_set1(1.0f / g->sum[i]);
        int32_t c = 0;
        for (; c + 16 <= args->head_dim_v; c += 16)
            v16f_store(out + c, v16f_mul(v16f_load(out + c), inverse));
        if (c < args->head_dim_v)
            v16f_store_n(out + c, 8, v16f_mul(v16f_load_n(out + c, 8), inverse));
        if (args->lse) args->lse[g->first + i] = g->largest[i] + logf(g->sum[i]);
    }
}

static void attend(const ek_attend_args *args)
{
    attend_group g = {.args = args};
    for (g.first = 0; g.first < args->n_q; g.first += g.n) {
        g.n = args->n_q - g.first < QUERIES ? args->n_q - g.first : QUERIES;
        int32_t n_pos = 0;
        for (int i = 0; i < g.n; i++) {
            int32_t sees = args->n_pos[g.first + i];
            if (sees > n_pos) n_pos = sees;
            g.largest[i] = -INFINITY;
            g.sum[i] = 0.0f;
            memset(args->out[g.first + i], 0, (size_t)args->head_dim_v * sizeof(float));
        }
        for (int32_t begin = 0; begin < n_pos; begin += PIECE) {
            int32_t n = n_pos - begin < PIECE ? n_pos - begin : PIECE;
            piece_locate(&g, begin, n);
            piece_score(&g, n);
            for (int i = 0; i < g.n; i++) {
                int32_t sees = args->n_pos[g.first + i] - begin;
                g.n_in[i] = sees < 0 ? 0 : sees > PIECE ? PIECE : sees;
                piece_weigh(&g, i);
            }
            piece_gather(&g);
        }
        group_finish(&g);
    }
}

static void attend_fill(ek_kernels *table)
{
    table->attend = attend;
}
