#include "tune/problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t ek_tune_problem_bytes(const ek_states_shape *shape)
{
    size_t n_experts = (size_t)shape->n_experts, d = (size_t)shape->d_model;
    return (size_t)shape->n_tokens * d * sizeof(float) + n_experts * d * sizeof(double) +
           n_experts * (sizeof(int32_t) + 2 * sizeof(double)) + d * sizeof(double) +
           8 * (size_t)EK_CACHE_LINE;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *x, int32_t n)
{
    qsort(x, (size_t)n, sizeof *x, compare);
    return n % 2 == 1 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static double row_length(const double *row, int32_t d)
{
    double sum = 0;
    for (int32_t c = 0; c < d; c++)
        sum += row[c] * row[c];
    return sqrt(sum);
}

/* What mending goes by; arrays of one number per expert, but for `state`. */
typedef struct mending {
    double *weight; /* (n_experts, d) */
    double *state;  /* (d) mean of the states that are learned from */
    double *length;
    double *sorted;
    int32_t n_experts, d;
} mending;

static double mean_logit(const mending *m, int32_t expert)
{
    double sum = 0;
    for (int32_t c = 0; c < m->d; c++)
        sum += m->weight[(int64_t)expert * m->d + c] * m->state[c];
    return sum;
}

/* Is a row's mean logit far from the others', and would the opposite row's be among them? */
static bool is_turned_round(const mending *m, int32_t expert)
{
    for (int32_t e = 0; e < m->n_experts; e++)
        m->sorted[e] = mean_logit(m, e);
    double mine = m->sorted[expert], median = median_of(m->sorted, m->n_experts);
    return fabs(mine - median) > 3 * fabs(-mine - median);
}

/* Set rows of an odd length to the median length; an empty row has no direction to keep. */
static int32_t mend_rows(const mending *m, double mend, int32_t *out_mended)
{
    int32_t n_mended = 0;
    for (int32_t e = 0; e < m->n_experts; e++)
        m->length[e] = m->sorted[e] = row_length(m->weight + (int64_t)e * m->d, m->d);
    double median = median_of(m->sorted, m->n_experts);
    for (int32_t e = 0; e < m->n_experts; e++) {
        double *row = m->weight + (int64_t)e * m->d;
        if (m->length[e] <= median * mend && m->length[e] * mend >= median) continue;
        for (int32_t c = 0; c < m->d && m->length[e] > 0; c++)
            row[c] *= median / m->length[e];
        out_mended[n_mended++] = e;
    }
    for (int32_t i = 0; i < n_mended; i++) {
        if (!is_turned_round(m, out_mended[i])) continue;
        double *row = m->weight + (int64_t)out_mended[i] * m->d;
        for (int32_t c = 0; c < m->d; c++)
            row[c] = -row[c];
    }
    return n_mended;
}

static void mean_state(const float *rows, int32_t n_rows, int32_t d, double *out)
{
    for (int64_t i = 0; i < (int64_t)n_rows * d; i++)
        out[i % d] += (double)rows[i] / n_rows;
}

static void gather(const ek_states *states, int32_t layer, bool held, float *out)
{
    size_t d = (size_t)states->shape.d_model;
    const float *hidden = ek_tune_states_hidden(states, layer);
    for (int32_t t = 0; t < states->shape.n_tokens; t++) {
        if (ek_tune_held_out(states->chunk[t]) != held) continue;
        memcpy(out, hidden + (size_t)t * d, d * sizeof *out);
        out += d;
    }
}

ek_status ek_tune_problem_make(const ek_states *states, int32_t layer, const ek_gate_setup *setup,
                               ek_arena *perm, ek_gate_problem *out_problem)
{
    const ek_states_shape *shape = &states->shape;
    int32_t n_experts = shape->n_experts, d = shape->d_model, n_held = 0;
    for (int32_t t = 0; t < shape->n_tokens; t++)
        n_held += ek_tune_held_out(states->chunk[t]);
    int32_t n_train = shape->n_tokens - n_held;
    if (n_held == 0 || n_train == 0) return EK_EINVAL;
    size_t n = (size_t)n_experts * (size_t)d;
    float *train =
        ek_arena_try_raw(perm, (size_t)n_train * (size_t)d, sizeof *train, EK_CACHE_LINE);
    float *held = ek_arena_try_raw(perm, (size_t)n_held * (size_t)d, sizeof *held, EK_CACHE_LINE);
    double *teacher = ek_try_new(perm, double, n);
    double *length = ek_try_new(perm, double, 2 * (size_t)n_experts + (size_t)d);
    int32_t *mended = ek_try_new(perm, int32_t, n_experts);
    if (!train || !held || !teacher || !length || !mended) return EK_ENOMEM;
    gather(states, layer, false, train);
    gather(states, layer, true, held);
    for (size_t i = 0; i < n; i++)
        teacher[i] = (double)setup->weight[i];
    const mending m = {.weight = teacher,
                       .state = length + 2 * n_experts,
                       .length = length,
                       .sorted = length + n_experts,
                       .n_experts = n_experts,
                       .d = d};
    mean_state(train, n_train, d, m.state);
    *out_problem = (ek_gate_problem){
        .gemm = setup->gemm,
        .gate = setup->gate,
        .d_model = d,
        .n_train = n_train,
        .n_held = n_held,
        .train = train,
        .held = held,
        .weight = setup->weight,
        .bias = setup->bias,
        .teacher = teacher,
        .mended = mended,
        .n_mended = mend_rows(&m, setup->mend, mended),
    };
    return EK_OK;
}

double ek_tune_normal(ek_rng *rng)
{
    /* Box and Muller; 1 - u is never 0. */
    double u = 1 - ek_rng_unit(rng), v = ek_rng_unit(rng);
    return sqrt(-2 * log(u)) * cos(6.28318530717958647692 * v);
}

void ek_tune_problem_reset(const ek_gate_problem *p, ek_rng *rng, double *out)
{
    int32_t n_experts = p->gate.n_experts, d = p->d_model;
    double lengths[EK_ROUTE_EXPERTS_MAX];
    for (int32_t e = 0; e < n_experts; e++)
        lengths[e] = row_length(p->teacher + (int64_t)e * d, d);
    double deviation = median_of(lengths, n_experts) / sqrt(d);
    for (int64_t i = 0; i < (int64_t)n_experts * d; i++)
        out[i] = deviation * ek_tune_normal(rng);
}
