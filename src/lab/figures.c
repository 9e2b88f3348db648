#include "lab/figures.h"

#include <math.h>
#include <stdlib.h>

#define LATE_TIMES 2.0 /* the mixed phase's P99 */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double ek_lab_quantile(double *values, int64_t n, double q)
{
    if (n <= 0) return 0;
    qsort(values, (size_t)n, sizeof *values, compare);
    int64_t rank = (int64_t)ceil(q * (double)n);
    if (rank < 1) rank = 1;
    return values[rank > n ? n - 1 : rank - 1];
}

void ek_lab_balance(const double *busy, int32_t n, double *out_max_over_mean, double *out_cv)
{
    double sum = 0, most = 0, squares = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += busy[i];
        if (busy[i] > most) most = busy[i];
    }
    *out_max_over_mean = *out_cv = 0;
    if (n < 1 || sum <= 0) return;
    const double mean = sum / n;
    for (int32_t i = 0; i < n; i++)
        squares += (busy[i] - mean) * (busy[i] - mean);
    *out_max_over_mean = most / mean;
    *out_cv = sqrt(squares / n) / mean;
}

int32_t ek_lab_knee(const double *x, const double *y, int32_t n)
{
    int32_t best = -1;
    double most = 0;
    if (n < 3) return -1;
    const double width = x[n - 1] - x[0], height = y[n - 1] - y[0];
    if (width <= 0 || height <= 0) return -1;
    for (int32_t i = 1; i < n - 1; i++) {
        const double below = (x[i] - x[0]) / width - (y[i] - y[0]) / height;
        if (below <= most) continue;
        most = below;
        best = i;
    }
    return best;
}

double ek_lab_rate_at(const double *rate, const double *ms, int32_t n, double limit_ms,
                      bool *out_passed)
{
    int32_t i = 0;
    while (i < n && ms[i] <= limit_ms)
        i++;
    *out_passed = i < n;
    if (i == 0) return 0;
    if (i == n) return rate[n - 1];
    const double part = (limit_ms - ms[i - 1]) / (ms[i] - ms[i - 1]);
    return rate[i - 1] + part * (rate[i] - rate[i - 1]);
}

double ek_lab_utilisation(const ek_lab_sample *before, const ek_lab_sample *after, int32_t worker)
{
    const double seconds = after->at_s - before->at_s;
    if (seconds <= 0) return 0;
    const double part = (after->busy_s[worker] - before->busy_s[worker]) / seconds;
    return part < 0 ? 0 : part > 1 ? 1 : part;
}

const ek_lab_sample *ek_lab_sample_at(const ek_lab_sample *samples, int32_t n, double at_s)
{
    const ek_lab_sample *found = &samples[0];
    for (int32_t i = 1; i < n && samples[i].at_s <= at_s; i++)
        found = &samples[i];
    return found;
}

/* ---- a phase ---- */

typedef enum time_of { WHOLE, FIRST, TOKEN } time_of;

static double ms_of(const ek_lab_answer *a, time_of what)
{
    switch (what) {
    case WHOLE: return 1e3 * (a->end_s - a->due_s);
    case FIRST: return 1e3 * (a->first_s - a->due_s);
    case TOKEN: return 1e3 * (a->end_s - a->first_s) / (a->n_output - 1);
    }
    return 0;
}

static int64_t collect(const ek_lab_answer *answers, int32_t n_answers, ek_lab_phase phase,
                       time_of what, double *out_ms)
{
    int64_t n = 0;
    for (int32_t i = 0; i < n_answers; i++) {
        const ek_lab_answer *a = &answers[i];
        if (a->phase != phase || !a->ok) continue;
        if (what == TOKEN && a->n_output < 2) continue;
        out_ms[n++] = ms_of(a, what);
    }
    return n;
}

static void add_latencies(const ek_lab_answer *answers, int32_t n_answers, ek_lab_phase phase,
                          double *scratch, ek_lab_figures *f)
{
    int64_t n = collect(answers, n_answers, phase, WHOLE, scratch);
    f->p50_ms = ek_lab_quantile(scratch, n, 0.5);
    f->p99_ms = ek_lab_quantile(scratch, n, 0.99);
    n = collect(answers, n_answers, phase, FIRST, scratch);
    f->ttft_p50_ms = ek_lab_quantile(scratch, n, 0.5);
    f->ttft_p99_ms = ek_lab_quantile(scratch, n, 0.99);
    n = collect(answers, n_answers, phase, TOKEN, scratch);
    f->token_p50_ms = ek_lab_quantile(scratch, n, 0.5);
    f->token_p99_ms = ek_lab_quantile(scratch, n, 0.99);
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static void add_counters(const ek_lab_sample *b, const ek_lab_sample *e, int32_t n_workers,
                         ek_lab_figures *f)
{
    double busy[EK_LAB_WORKERS_MAX];
    for (int32_t w = 0; w < n_workers; w++) {
        const double utilisation = ek_lab_utilisation(b, e, w);
        busy[w] = e->busy_s[w] - b->busy_s[w];
        f->utilisation += utilisation / n_workers;
        if (utilisation > f->hottest_utilisation) f->hottest_utilisation = utilisation;
    }
    ek_lab_balance(busy, n_workers, &f->max_over_mean, &f->cv);
    f->router_share = ratio(e->plan_s - b->plan_s, e->forward_s - b->forward_s);
    f->score_loss = ratio(e->loss_sum - b->loss_sum, e->tokens - b->tokens);
    if (f->score_loss < 0) f->score_loss = 0; /* means are rounded on their way here */
    f->rerouted = e->rerouted - b->rerouted;
    f->deferred = e->deferred - b->deferred;
    f->degraded = e->degraded - b->degraded;
}

void ek_lab_figures_of(const ek_lab_plan *plan, ek_lab_phase phase, const ek_lab_answer *answers,
                       int32_t n_answers, const ek_lab_sample *samples, int32_t n_samples,
                       int32_t n_workers, double *scratch, ek_lab_figures *out_figures)
{
    const double beg_s = ek_lab_plan_begins(plan, (int)phase), end_s = beg_s + plan->seconds[phase];
    ek_lab_figures f = {0};
    int32_t n_within = 0;
    for (int32_t i = 0; i < n_answers; i++) {
        const ek_lab_answer *a = &answers[i];
        n_within += a->ok && a->end_s >= beg_s && a->end_s < end_s;
        if (a->phase != phase) continue;
        f.n_ok += a->ok;
        f.n_failed += !a->ok;
    }
    f.qps = ratio(n_within, plan->seconds[phase]);
    add_latencies(answers, n_answers, phase, scratch, &f);
    add_counters(ek_lab_sample_at(samples, n_samples, beg_s),
                 ek_lab_sample_at(samples, n_samples, end_s), n_workers, &f);
    *out_figures = f;
}

/* ---- the chain ---- */

double ek_lab_latency_ms(const ek_lab_answer *answers, int32_t n_answers, double beg_s,
                         double end_s, double q, double *scratch)
{
    int64_t n = 0;
    for (int32_t i = 0; i < n_answers; i++)
        if (answers[i].ok && answers[i].due_s >= beg_s && answers[i].due_s < end_s)
            scratch[n++] = ms_of(&answers[i], WHOLE);
    return n > 0 ? ek_lab_quantile(scratch, n, q) : -1;
}

static void note(double *at_s, bool happened, double now_s)
{
    if (*at_s < 0 && happened) *at_s = now_s;
}

/* Requests in seconds: when they became late, and since when they no longer are. */
static void add_lateness(const ek_lab_plan *plan, const ek_lab_answer *answers, int32_t n_answers,
                         double *scratch, ek_lab_chain *c)
{
    const double promotion_s = ek_lab_plan_begins(plan, EK_LAB_PROMOTION);
    const double end_s = ek_lab_plan_begins(plan, EK_LAB_N_PHASES);
    const double limit_ms =
        LATE_TIMES * ek_lab_latency_ms(answers, n_answers, 0, promotion_s, 0.99, scratch);
    if (limit_ms < 0) return;
    double last_late_s = -1;
    for (int32_t i = 0; promotion_s + i < end_s; i++) {
        const double s = promotion_s + i;
        const double ms = ek_lab_latency_ms(answers, n_answers, s, s + 1, 0.5, scratch);
        note(&c->late_s, ms > limit_ms, s);
        if (ms > limit_ms) last_late_s = s;
    }
    if (c->late_s >= 0 && last_late_s + 1 < end_s) c->recovery_s = last_late_s + 1;
}

void ek_lab_chain_of(const ek_lab_plan *plan, const ek_lab_answer *answers, int32_t n_answers,
                     const ek_lab_sample *samples, int32_t n_samples, int32_t n_workers,
                     double *scratch, ek_lab_chain *out_chain)
{
    ek_lab_chain c = {-1, -1, -1, -1, -1, -1, 0};
    const double promotion_s = ek_lab_plan_begins(plan, EK_LAB_PROMOTION);
    double hottest = 0;
    for (int32_t i = 1; i < n_samples; i++) {
        const ek_lab_sample *s = &samples[i];
        if (s->at_s <= promotion_s) {
            if (s->hottest > hottest) hottest = s->hottest;
            continue;
        }
        bool overload = false;
        for (int32_t w = 0; w < n_workers; w++)
            overload |= ek_lab_utilisation(s - 1, s, w) >= EK_LAB_OVERLOAD;
        note(&c.hot_expert_s, s->hottest > hottest, s->at_s);
        note(&c.overload_s, overload, s->at_s);
        note(&c.alert_s, s->alert, s->at_s);
        note(&c.breaker_s, s->tripped > 0, s->at_s);
        if (overload) c.overloaded_s += s->at_s - (s - 1)->at_s;
    }
    add_lateness(plan, answers, n_answers, scratch, &c);
    *out_chain = c;
}
