/* Selection biases: one pass over the states, one step of each expert towards its share. */
#include <math.h>

#include "tune/tuner_internal.h"

#define ROWS_AT_ONCE 256
#define SPREAD_ROWS  1024 /* that the scores' spread is taken from */
#define PASSES_IDLE  6    /* without a more even pass, then the step is halved */
#define STEP_HALVES  7    /* then it is too small to help */

static double spread_of(const float *value, int32_t n)
{
    double sum = 0, squares = 0;
    for (int32_t e = 0; e < n; e++)
        sum += (double)value[e];
    for (int32_t e = 0; e < n; e++)
        squares += ((double)value[e] - sum / n) * ((double)value[e] - sum / n);
    return sqrt(squares / n);
}

static const float *choose_row(ek_tuner *t, int32_t row)
{
    const ek_route_gate *gate = &t->problem->gate;
    return ek_route_gate_choose(gate, t->scores + (int64_t)row * gate->n_experts, t->narrow_bias,
                                &t->gate_scratch, t->ids, t->chosen);
}

void ek_tune_bias_begin(ek_tuner *t)
{
    const ek_gate_problem *p = t->problem;
    int32_t n = p->gate.n_experts, d = p->d_model;
    /* A batch's buffers are at least as long as what is multiplied at once. */
    for (int32_t beg = 0; beg < p->n_train; beg += ROWS_AT_ONCE) {
        int32_t m = p->n_train - beg < ROWS_AT_ONCE ? p->n_train - beg : ROWS_AT_ONCE;
        ek_tune_logits(p, p->train + (int64_t)beg * d, m, t->weight, t->wide, t->logits);
        for (int64_t i = 0; i < (int64_t)m * n; i++)
            t->scores[(int64_t)beg * n + i] = (float)t->logits[i];
    }
    if (t->state.bias_step > 0) return; /* it goes on from a checkpoint */
    int32_t n_rows = p->n_train < SPREAD_ROWS ? p->n_train : SPREAD_ROWS;
    double sum = 0;
    for (int32_t e = 0; e < n; e++)
        t->narrow_bias[e] = 0;
    for (int32_t i = 0; i < n_rows; i++)
        sum += spread_of(choose_row(t, i), n);
    t->state.bias_step = t->params.bias_rate * sum / n_rows;
    t->state.bias_best = INFINITY;
}

bool ek_tune_bias_pass(ek_tuner *t)
{
    const ek_gate_problem *p = t->problem;
    int32_t n = p->gate.n_experts, top_k = p->gate.top_k;
    for (int32_t e = 0; e < n; e++) {
        t->counts[e] = 0;
        t->narrow_bias[e] = (float)t->bias[e];
    }
    for (int32_t i = 0; i < p->n_train; i++) {
        choose_row(t, i);
        for (int32_t k = 0; k < top_k; k++)
            t->counts[t->ids[k]]++;
    }
    double mean = (double)p->n_train * top_k / n, most = 0;
    for (int32_t e = 0; e < n; e++)
        most = fmax(most, (double)t->counts[e] / mean);
    if (most < t->state.bias_best) {
        t->state.bias_best = most;
        t->state.n_idle = 0;
    } else if (++t->state.n_idle % PASSES_IDLE == 0) {
        t->state.bias_step /= 2;
    }
    for (int32_t e = 0; e < n; e++) {
        double off = mean - (double)t->counts[e];
        t->bias[e] += off > 0 ? t->state.bias_step : off < 0 ? -t->state.bias_step : 0;
    }
    t->state.n_passes++;
    return t->state.n_idle < PASSES_IDLE * STEP_HALVES;
}
