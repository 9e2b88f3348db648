/* Weights: one step of distillation with a balance loss. */
#include <math.h>

#include "tune/tuner_internal.h"

/* The next `batch` rows of a shuffled epoch, in double. */
static void draw_batch(ek_tuner *t)
{
    const ek_gate_problem *p = t->problem;
    ek_tuner_state *s = &t->state;
    for (int32_t i = 0; i < t->params.batch; i++) {
        if (s->epoch_pos == 0)
            for (int32_t n = p->n_train; n > 1; n--) {
                int32_t other = (int32_t)ek_rng_below(&s->rng, (uint64_t)n), held = t->order[n - 1];
                t->order[n - 1] = t->order[other];
                t->order[other] = held;
            }
        const float *row = p->train + (int64_t)t->order[s->epoch_pos] * p->d_model;
        for (int32_t c = 0; c < p->d_model; c++)
            t->wide[(int64_t)i * p->d_model + c] = (double)row[c];
        s->epoch_pos = (s->epoch_pos + 1) % p->n_train;
    }
}

static void multiply(const ek_tuner *t, const double *weight, double *out)
{
    int32_t n = t->problem->gate.n_experts, d = t->problem->d_model;
    t->problem->gemm(CblasRowMajor, CblasNoTrans, CblasTrans, t->params.batch, n, d, 1.0, t->wide,
                     d, weight, d, 0.0, out, n);
}

/* Exploration, less and less of it until half of the steps are taken. */
static void add_noise(ek_tuner *t)
{
    double part = 1 - 2 * (double)t->state.n_steps / (double)t->params.n_steps;
    double deviation = t->params.noise * t->noise_unit * part;
    int64_t n = (int64_t)t->params.batch * t->problem->gate.n_experts;
    for (int64_t i = 0; deviation > 0 && i < n; i++)
        t->logits[i] += deviation * ek_tune_normal(&t->state.rng);
}

static void share_out(ek_tuner *t)
{
    int32_t n = t->problem->gate.n_experts, top_k = t->problem->gate.top_k;
    for (int32_t e = 0; e < n; e++)
        t->share[e] = 0;
    for (int32_t i = 0; i < t->params.batch; i++) {
        ek_tune_choose(t, t->logits + (int64_t)i * n);
        for (int32_t k = 0; k < top_k; k++)
            t->share[t->ids[k]] += 1.0 / ((double)t->params.batch * top_k);
    }
}

bool ek_tune_router_step(ek_tuner *t)
{
    const ek_gate_problem *p = t->problem;
    ek_tune_report *report = &t->state.report;
    int32_t n = p->gate.n_experts, d = p->d_model;
    draw_batch(t);
    multiply(t, t->weight, t->logits);
    multiply(t, p->teacher, t->teacher);
    add_noise(t);
    share_out(t);
    const ek_loss_batch batch = {
        .score = p->gate.score,
        .n_tokens = t->params.batch,
        .n_experts = n,
        .logits = t->logits,
        .teacher = t->teacher,
        .share = t->share,
        .choice = t->choice,
        .mean_choice = t->mean_choice,
    };
    const ek_loss_weights weights = {report->balance_weight, t->params.z_weight};
    ek_tune_loss(&batch, &weights, t->d_logits, &report->losses);
    p->gemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, d, t->params.batch, 1.0, t->d_logits, n,
            t->wide, d, 0.0, t->gradient, d);
    report->gradient_norm = ek_tune_norm(t->gradient, t->n_weights);
    if (report->gradient_norm > report->gradient_norm_max)
        report->gradient_norm_max = report->gradient_norm;
    if (ek_tune_guard_exploded(&t->params.guard, t->gradient, t->weight, n, d, t->row_start,
                               report->why))
        return false;
    ek_tune_clip(t->gradient, t->n_weights, t->params.clip);
    double rate = ek_tune_rate(t->params.rate, t->state.n_steps, t->params.n_steps);
    ek_tune_adam_step(&t->adam, t->weight, t->gradient, p->teacher, rate * t->rate_unit,
                      t->params.decay);
    t->state.n_steps++;
    return true;
}
