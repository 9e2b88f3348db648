#include "tune/tuner.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "tune/tuner_internal.h"

#define ROWS_MIN    256 /* of a batch's buffers: what is multiplied at once elsewhere */
#define LOOKS       40  /* at what is kept back, unless told otherwise */
#define LOOK_PASSES 5   /* bias passes between two looks */

/* A gate that is judged to be even enough has this part of the way left, so that it stays so. */
static const double target_margin = 0.2;

static const char *const method_names[] = {"bias", "router", "both"};

void ek_tune_params_default(ek_tune_params *out_params)
{
    *out_params = (ek_tune_params){
        .method = EK_TUNE_BOTH,
        .target = 1.2,
        .seed = 1,
        .n_steps = 2000,
        .batch = 1024,
        .patience = 12,
        .rate = 0.01,
        .balance_weight = 0.1,
        .z_weight = 1e-4,
        .noise = 0.1,
        .clip = 1,
        .decay = 0.01,
        .n_passes = 400,
        .bias_rate = 0.02,
        .guard = ek_tune_guard_default(),
    };
}

bool ek_tune_method_parse(const char *name, ek_tune_method *out_method)
{
    for (int i = 0; i < (int)EK_COUNT_OF(method_names); i++) {
        if (strcmp(name, method_names[i]) != 0) continue;
        *out_method = (ek_tune_method)i;
        return true;
    }
    return false;
}

const char *ek_tune_method_name(ek_tune_method method)
{
    return method_names[method];
}

/* ---- life ---- */

static int32_t batch_rows(const ek_tune_params *params)
{
    return params->batch > ROWS_MIN ? params->batch : ROWS_MIN;
}

size_t ek_tune_tuner_bytes(const ek_gate_problem *p, const ek_tune_params *params)
{
    size_t n = (size_t)p->gate.n_experts, d = (size_t)p->d_model;
    size_t rows = (size_t)batch_rows(params), n_train = (size_t)p->n_train;
    return sizeof(ek_tuner) + 6 * n * d * sizeof(double) + rows * (d + 4 * n) * sizeof(double) +
           n_train * (sizeof(int32_t) + n * sizeof(float)) + 32 * n * sizeof(double) +
           ek_tune_figures_bytes(p) + 64 * (size_t)EK_CACHE_LINE;
}

static ek_status check(const ek_tune_params *p, ek_err *err)
{
    const struct {
        const char *name;
        double value, low, high;
    } ranges[] = {
        {"target", p->target, 1.001, EK_ROUTE_EXPERTS_MAX},
        {"steps", (double)p->n_steps, 1, 1e9},
        {"batch", p->batch, 1, 1 << 20},
        {"look_steps", p->look_steps, 0, 1e9},
        {"patience", p->patience, 1, 1e9},
        {"rate", p->rate, 1e-9, 1e9},
        {"balance weight", p->balance_weight, 0, 1e6},
        {"z weight", p->z_weight, 0, 1e6},
        {"noise", p->noise, 0, 100},
        {"clip", p->clip, 1e-9, 1e9},
        {"decay", p->decay, 0, 1e3},
        {"passes", p->n_passes, 1, 1e9},
        {"bias rate", p->bias_rate, 1e-9, 1e3},
    };
    for (size_t i = 0; i < EK_COUNT_OF(ranges); i++)
        if (!(ranges[i].value >= ranges[i].low && ranges[i].value <= ranges[i].high))
            return ek_err_set(err, EK_EINVAL, "%s is %g; it must be from %g to %g", ranges[i].name,
                              ranges[i].value, ranges[i].low, ranges[i].high);
    return EK_OK;
}

static bool take(ek_tuner *t, ek_arena *arena)
{
    const ek_gate_problem *p = t->problem;
    size_t n = (size_t)p->gate.n_experts, nd = (size_t)t->n_weights;
    size_t rows = (size_t)batch_rows(&t->params), scratch = ek_tune_figures_bytes(p);
    double *weights = ek_try_new(arena, double, 6 * nd);
    double *experts = ek_try_new(arena, double, 5 * n);
    double *batch = ek_try_new(arena, double, 4 * rows * n);
    t->wide = ek_try_new(arena, double, rows *(size_t)p->d_model);
    t->order = ek_try_new(arena, int32_t, p->n_train);
    t->scores = ek_arena_try_raw(arena, (size_t)p->n_train * n, sizeof(float), EK_CACHE_LINE);
    t->narrow = ek_try_new(arena, float, 2 * n);
    t->counts = ek_try_new(arena, int64_t, n);
    t->ids = ek_try_new(arena, int32_t, p->gate.top_k);
    t->chosen = ek_try_new(arena, float, p->gate.top_k);
    void *look = ek_arena_try_raw(arena, scratch, 1, EK_CACHE_LINE);
    if (!weights || !experts || !batch || !t->wide || !t->order || !t->scores || !t->narrow ||
        !t->counts || !t->ids || !t->chosen || !look ||
        !ek_tune_gate_scratch(&p->gate, arena, &t->gate_scratch))
        return false;
    double **of_weights[] = {&t->weight,   &t->best_weight, &t->good_weight,
                             &t->gradient, &t->adam.m,      &t->adam.v};
    for (size_t i = 0; i < EK_COUNT_OF(of_weights); i++)
        *of_weights[i] = weights + i * nd;
    double **of_experts[] = {&t->bias, &t->best_bias, &t->good_bias, &t->share, &t->mean_choice};
    for (size_t i = 0; i < EK_COUNT_OF(of_experts); i++)
        *of_experts[i] = experts + i * n;
    double **of_batch[] = {&t->logits, &t->teacher, &t->choice, &t->d_logits};
    for (size_t i = 0; i < EK_COUNT_OF(of_batch); i++)
        *of_batch[i] = batch + i * rows * n;
    t->narrow_bias = t->narrow + n;
    t->look_scratch = ek_arena_over(look, scratch);
    return true;
}

static double longest_row(const double *weight, int32_t n, int32_t d)
{
    double most = 0;
    for (int32_t e = 0; e < n; e++)
        most = fmax(most, ek_tune_norm(weight + (int64_t)e * d, d));
    return most;
}

static ek_gate_weights gate_of(const ek_tuner *t, const double *weight, const double *bias)
{
    return (ek_gate_weights){weight, t->has_bias ? bias : NULL};
}

static void look_at(ek_tuner *t, const double *weight, const double *bias, ek_gate_figures *out)
{
    const ek_gate_weights gate = gate_of(t, weight, bias);
    ek_status status = ek_tune_figures(t->problem, &gate, true, t->look_scratch, NULL, out);
    ek_assert(status == EK_OK); /* the scratch is as long as it says */
}

static void copy_gate(const ek_tuner *t, double *weight, double *bias, const double *from_weight,
                      const double *from_bias)
{
    memcpy(weight, from_weight, (size_t)t->n_weights * sizeof *weight);
    memcpy(bias, from_bias, (size_t)t->problem->gate.n_experts * sizeof *bias);
}

/* The gate that was looked at last is the best so far. */
static void keep_best(ek_tuner *t)
{
    t->state.has_best = true;
    t->state.report.best = t->state.report.now;
    copy_gate(t, t->best_weight, t->best_bias, t->weight, t->bias);
}

/* Where to begin: the teacher, a gate that has learned nothing, or, for biases alone, as found. */
static void start(ek_tuner *t)
{
    const ek_gate_problem *p = t->problem;
    int32_t n = p->gate.n_experts, d = p->d_model;
    ek_rng_init(&t->state.rng, t->params.seed);
    for (int64_t i = 0; i < t->n_weights; i++)
        t->best_weight[i] = p->begin_weight ? p->begin_weight[i] : (double)p->weight[i];
    for (int32_t e = 0; e < n; e++) {
        double bias = p->begin_bias ? p->begin_bias[e] : p->bias ? (double)p->bias[e] : 0;
        t->bias[e] = t->best_bias[e] = t->good_bias[e] = bias;
    }
    look_at(t, t->best_weight, t->best_bias, &t->state.report.start);
    const double *from = p->begin_weight ? p->begin_weight : p->teacher;
    if (t->params.reset)
        ek_tune_problem_reset(p, &t->state.rng, t->weight);
    else
        memcpy(t->weight, from, (size_t)t->n_weights * sizeof *t->weight);
    memcpy(t->good_weight, t->weight, (size_t)t->n_weights * sizeof *t->weight);
    for (int32_t i = 0; i < p->n_train; i++)
        t->order[i] = i;
    double length = ek_tune_norm(p->teacher, t->n_weights);
    t->row_start = fmax(longest_row(p->teacher, n, d), longest_row(t->weight, n, d));
    t->rate_unit = length / sqrt((double)t->n_weights);
    if (t->rate_unit == 0) t->rate_unit = 1;
    t->state.report.best = t->state.report.start;
    look_at(t, t->weight, t->bias, &t->state.report.now);
    t->state.report.balance_weight = t->params.balance_weight;
}

/* How far apart a token's logits lie under the teacher, on average. */
static double logit_deviation(ek_tuner *t)
{
    const ek_gate_problem *p = t->problem;
    int32_t n = p->gate.n_experts, m = p->n_train < ROWS_MIN ? p->n_train : ROWS_MIN;
    double total = 0;
    ek_tune_logits(p, p->train, m, p->teacher, t->wide, t->logits);
    for (int32_t i = 0; i < m; i++) {
        const double *z = t->logits + (int64_t)i * n;
        double sum = 0, squares = 0;
        for (int32_t e = 0; e < n; e++)
            sum += z[e];
        for (int32_t e = 0; e < n; e++)
            squares += (z[e] - sum / n) * (z[e] - sum / n);
        total += sqrt(squares / n);
    }
    return total / m;
}

ek_status ek_tune_tuner_create(const ek_gate_problem *problem, const ek_tune_params *params,
                               ek_arena *perm, ek_tuner **out_tuner, ek_err *err)
{
    ek_status status = check(params, err);
    if (status != EK_OK) return status;
    ek_tuner *t = ek_try_new(perm, ek_tuner, 1);
    if (!t) return ek_err_set(err, EK_ENOMEM, "no memory for a tuner");
    t->problem = problem;
    t->params = *params;
    if (t->params.look_steps == 0)
        t->params.look_steps = params->n_steps > LOOKS ? (int32_t)(params->n_steps / LOOKS) : 1;
    t->n_weights = (int64_t)problem->gate.n_experts * problem->d_model;
    t->adam.n = t->n_weights;
    t->has_bias = problem->bias || problem->begin_bias || params->method != EK_TUNE_ROUTER;
    if (!take(t, perm)) return ek_err_set(err, EK_ENOMEM, "no memory for a tuner");
    start(t);
    t->noise_unit = logit_deviation(t);
    t->state.report.in_bias = params->method == EK_TUNE_BIAS;
    t->state.report.n_planned = params->method == EK_TUNE_BIAS ? params->n_passes : params->n_steps;
    if (t->state.report.in_bias) ek_tune_bias_begin(t);
    /* What it begins with is the first candidate, unless it has learned nothing yet. */
    if (!params->reset) keep_best(t);
    *out_tuner = t;
    return EK_OK;
}

/* ---- work ---- */

const float *ek_tune_choose(ek_tuner *t, const double *logits)
{
    const ek_route_gate *gate = &t->problem->gate;
    for (int32_t e = 0; e < gate->n_experts; e++) {
        t->narrow[e] = (float)logits[e];
        t->narrow_bias[e] = (float)t->bias[e];
    }
    return ek_route_gate_choose(gate, t->narrow, t->has_bias ? t->narrow_bias : NULL,
                                &t->gate_scratch, t->ids, t->chosen);
}

static double inner_target(const ek_tuner *t)
{
    double far = (1 - target_margin) * (t->params.target - 1);
    bool first_of_both = t->params.method == EK_TUNE_BOTH && !t->state.report.in_bias;
    return 1 + (first_of_both ? 2 * far : far);
}

/* Even enough comes first, then near to the teacher; among gates that are not, both count. */
static bool is_better(const ek_tuner *t, const ek_gate_figures *a, const ek_gate_figures *b)
{
    double target = inner_target(t);
    bool a_even = a->balance.max_over_mean <= target, b_even = b->balance.max_over_mean <= target;
    if (a_even != b_even) return a_even;
    double far_a = a->kl + a->score_loss, far_b = b->kl + b->score_loss;
    if (a_even) return far_a < far_b;
    return a->balance.max_over_mean + far_a < b->balance.max_over_mean + far_b;
}

static ek_status end(ek_tuner *t, ek_tune_end why)
{
    t->state.report.end = why;
    return EK_END;
}

/* Back to the last gate that was fine; what was best before stays best. */
static ek_status fail(ek_tuner *t, ek_tune_end why)
{
    copy_gate(t, t->weight, t->bias, t->good_weight, t->good_bias);
    look_at(t, t->weight, t->bias, &t->state.report.now);
    return end(t, why);
}

/* Look at the gate. @return false: it has collapsed */
static bool look(ek_tuner *t)
{
    ek_tune_report *r = &t->state.report;
    look_at(t, t->weight, t->bias, &r->now);
    if (ek_tune_guard_collapsed(&t->params.guard, &r->now, &r->start, r->why)) return false;
    copy_gate(t, t->good_weight, t->good_bias, t->weight, t->bias);
    if (!t->state.has_best || is_better(t, &r->now, &r->best)) {
        keep_best(t);
        if (!r->in_bias) t->state.n_idle = 0;
        return true;
    }
    /* A gate that is not even enough yet, or has just been reset, is given time. */
    bool settled = !t->params.reset || 2 * t->state.n_steps >= t->params.n_steps;
    bool even = r->best.balance.max_over_mean <= inner_target(t);
    t->state.n_idle += !r->in_bias && even && settled;
    return true;
}

/*
 * The weight of the balance loss follows what it is there for: far from the target in long steps.
 */
static void steer(ek_tuner *t)
{
    ek_tune_report *r = &t->state.report;
    double far = r->now.balance.max_over_mean / inner_target(t) - 1;
    double factor = far > 0 ? 1.05 + fmin(2 * far, 0.5) : 0.85;
    double least = t->params.balance_weight / 30, most = fmax(t->params.balance_weight, 1e-6) * 1e3;
    r->balance_weight = fmin(fmax(r->balance_weight * factor, least), most);
}

/* The second method begins with the best gate of the first. */
static void turn_to_bias(ek_tuner *t)
{
    copy_gate(t, t->weight, t->bias, t->best_weight, t->best_bias);
    t->state.report.in_bias = true;
    t->state.report.n_planned = t->params.n_passes;
    t->state.report.n_done = 0;
    t->state.n_idle = 0;
    ek_tune_bias_begin(t);
}

static ek_status run_router(ek_tuner *t)
{
    ek_tune_report *r = &t->state.report;
    for (int32_t i = 0; i < t->params.look_steps && t->state.n_steps < t->params.n_steps; i++)
        if (!ek_tune_router_step(t)) return fail(t, EK_TUNE_EXPLODED);
    r->n_done = t->state.n_steps;
    if (ek_tune_guard_exploded(&t->params.guard, t->gradient, t->weight, t->problem->gate.n_experts,
                               t->problem->d_model, t->row_start, r->why))
        return fail(t, EK_TUNE_EXPLODED);
    if (!look(t)) return fail(t, EK_TUNE_COLLAPSED);
    steer(t);
    bool idle = t->state.n_idle >= t->params.patience;
    if (!idle && t->state.n_steps < t->params.n_steps) return EK_AGAIN;
    bool even = r->best.balance.max_over_mean <= inner_target(t);
    if (t->params.method == EK_TUNE_ROUTER)
        return end(t, even ? EK_TUNE_REACHED : EK_TUNE_EXHAUSTED);
    turn_to_bias(t);
    return r->best.balance.max_over_mean <= inner_target(t) ? end(t, EK_TUNE_REACHED) : EK_AGAIN;
}

static ek_status run_bias(ek_tuner *t)
{
    ek_tune_report *r = &t->state.report;
    bool helps = true;
    for (int32_t i = 0; i < LOOK_PASSES && helps && t->state.n_passes < t->params.n_passes; i++)
        helps = ek_tune_bias_pass(t);
    r->n_done = t->state.n_passes;
    if (!look(t)) return fail(t, EK_TUNE_COLLAPSED);
    if (r->best.balance.max_over_mean <= inner_target(t)) return end(t, EK_TUNE_REACHED);
    if (!helps || t->state.n_passes >= t->params.n_passes) return end(t, EK_TUNE_EXHAUSTED);
    return EK_AGAIN;
}

ek_status ek_tune_tuner_run(ek_tuner *tuner)
{
    if (tuner->state.report.end != EK_TUNE_GOES_ON) return EK_END;
    return tuner->state.report.in_bias ? run_bias(tuner) : run_router(tuner);
}

const ek_tune_report *ek_tune_tuner_report(const ek_tuner *tuner)
{
    return &tuner->state.report;
}

ek_gate_weights ek_tune_tuner_best(const ek_tuner *tuner)
{
    return gate_of(tuner, tuner->best_weight, tuner->best_bias);
}

/* ---- checkpoints ---- */

/* Every array of the state in turn: to `out`, or from `in`. */
static size_t pass_arrays(const ek_tuner *t, uint8_t *out, const uint8_t *in)
{
    size_t nd = (size_t)t->n_weights * sizeof(double);
    size_t n = (size_t)t->problem->gate.n_experts * sizeof(double), at = 0;
    const struct {
        void *data;
        size_t bytes;
    } arrays[] = {{t->weight, nd},
                  {t->best_weight, nd},
                  {t->good_weight, nd},
                  {t->adam.m, nd},
                  {t->adam.v, nd},
                  {t->bias, n},
                  {t->best_bias, n},
                  {t->good_bias, n},
                  {t->order, (size_t)t->problem->n_train * sizeof(int32_t)}};
    for (size_t i = 0; i < EK_COUNT_OF(arrays); i++) {
        if (out) memcpy(out + at, arrays[i].data, arrays[i].bytes);
        if (in) memcpy(arrays[i].data, in + at, arrays[i].bytes);
        at += arrays[i].bytes;
    }
    return at;
}

size_t ek_tune_tuner_state_bytes(const ek_tuner *tuner)
{
    return sizeof tuner->state + pass_arrays(tuner, NULL, NULL);
}

void ek_tune_tuner_save(const ek_tuner *tuner, uint8_t *out_state)
{
    ek_tuner_state state = tuner->state;
    state.adam_steps = tuner->adam.n_steps;
    memcpy(out_state, &state, sizeof state);
    pass_arrays(tuner, out_state + sizeof state, NULL);
}

void ek_tune_tuner_load(ek_tuner *tuner, const uint8_t *state)
{
    memcpy(&tuner->state, state, sizeof tuner->state);
    pass_arrays(tuner, NULL, state + sizeof tuner->state);
    tuner->adam.n_steps = tuner->state.adam_steps;
    if (tuner->state.report.in_bias) ek_tune_bias_begin(tuner);
}
