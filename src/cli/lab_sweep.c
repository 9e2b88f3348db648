/* The sweep: more and more traffic on one cluster, a step after the other, for each policy. */
#include <stdio.h>
#include <string.h>

#include "cli/lab_sweep.h"
#include "sys/mem.h"

#define LOAD_FIRST    0.3 /* of the capacity that a closed loop finds */
#define LOAD_STEP     0.1
#define POINTS        9 /* up to 1.1: past what leaves */
#define POINT_LIMIT   5 /* 80 %: how near the edge a careful operator goes */
#define WARM_REQUESTS 16
#define WARM_STREAMS  8
#define PERIOD_US     INT64_C(500000)
#define SAMPLES_EXTRA 600

/* ---- running ---- */

static ek_status send_step(const ek_cli_lab *lab, const ek_cli_lab_cluster *c,
                           const ek_lab_plan *plan, const ek_lab_request *requests, int32_t n,
                           ek_cli_lab_sweep *sweep, ek_lab_figures *out, ek_err *err)
{
    const ek_lab_phase phase = sweep->phase;
    ek_cli_lab_watch watch = {0};
    char what[64];
    ek_lab_answer *answers = ek_sys_calloc((size_t)n, sizeof *answers);
    double *scratch = ek_sys_calloc((size_t)n, sizeof *scratch);
    snprintf(what, sizeof what, "%.1f requests a second", plan->rate[phase]);
    ek_status status = EK_OK;
    if (!answers || !scratch) status = ek_err_set(err, EK_ENOMEM, "no memory for answers");
    if (status == EK_OK)
        status = ek_cli_lab_watch_start(c, lab->file->model->params.n_layers, PERIOD_US,
                                        (int32_t)(4 * plan->seconds[phase]) + SAMPLES_EXTRA, &watch,
                                        err);
    if (status == EK_OK)
        status = ek_cli_lab_send(lab, c, requests, n, what, answers, sweep->problem, err);
    ek_cli_lab_watch_end(&watch);
    if (status == EK_OK && watch.n < 2)
        status = ek_err_set(err, EK_EPEER, "the front did not answer what it was asked about");
    if (status == EK_OK)
        ek_lab_figures_of(plan, phase, answers, n, watch.samples, watch.n, watch.n_workers, scratch,
                          out);
    ek_cli_lab_watch_free(&watch);
    ek_sys_free(answers);
    ek_sys_free(scratch);
    return status;
}

static ek_status run_step(const ek_cli_lab *lab, const ek_cli_lab_cluster *c, int32_t i,
                          ek_cli_lab_sweep *sweep, ek_cli_lab_curve *curve, ek_err *err)
{
    ek_cli_lab_point *p = &curve->point[i];
    ek_lab_plan plan;
    int32_t n = 0;
    p->load = LOAD_FIRST + LOAD_STEP * i;
    p->rate = p->load * curve->capacity;
    ek_lab_plan_incident(1, p->rate, (uint64_t)lab->seed + (uint64_t)i, &plan);
    memset(plan.seconds, 0, sizeof plan.seconds);
    plan.seconds[sweep->phase] = 60 * lab->minutes / POINTS;
    const int64_t room = ek_lab_plan_requests_max(&plan);
    ek_lab_request *requests = ek_sys_calloc((size_t)room, sizeof *requests);
    ek_status status = requests ? EK_OK : EK_ENOMEM;
    if (status == EK_OK) status = ek_lab_schedule(&plan, (int32_t)room, requests, &n);
    if (status == EK_OK && n == 0) status = EK_ERANGE;
    if (status < 0)
        ek_err_set(err, status, "%.3g s of %.3g requests a second are too many or none",
                   plan.seconds[sweep->phase], p->rate);
    else
        status = send_step(lab, c, &plan, requests, n, sweep, &p->figures, err);
    ek_sys_free(requests);
    return status;
}

static ek_status run_policy(ek_cli_lab *lab, ek_cli_lab_sweep *sweep, ek_cli_lab_curve *curve,
                            ek_err *err)
{
    ek_cli_lab_cluster c;
    double seconds;
    ek_status status = ek_cli_lab_measure_capacity(lab, curve->policy, sweep->phase, err);
    curve->capacity = lab->capacity;
    if (status == EK_OK) status = ek_cli_lab_cluster_start(lab, curve->policy, true, &c, err);
    if (status < 0) return status;
    status = ek_cli_lab_send_closed(lab, &c, sweep->phase, WARM_REQUESTS, WARM_STREAMS,
                                    curve->policy->name, &seconds, err);
    for (int32_t i = 0; i < POINTS && status == EK_OK; i++) {
        status = run_step(lab, &c, i, sweep, curve, err);
        if (status == EK_OK) curve->n++;
    }
    ek_err why = {0};
    const ek_status stopped = ek_cli_lab_cluster_stop(&c, &why);
    if (status == EK_OK && stopped < 0) status = ek_err_set(err, stopped, "%s", why.text);
    return status;
}

/*
 * Knee, and the rate within the limit. The first curve says what the limit is, if nobody else did.
 */
static void read_curve(ek_cli_lab_sweep *sweep, ek_cli_lab_curve *curve)
{
    double load[EK_CLI_LAB_POINTS_MAX], rate[EK_CLI_LAB_POINTS_MAX], ms[EK_CLI_LAB_POINTS_MAX];
    for (int32_t i = 0; i < curve->n; i++) {
        load[i] = curve->point[i].load;
        rate[i] = curve->point[i].rate;
        ms[i] = curve->point[i].figures.p99_ms;
    }
    curve->knee = ek_lab_knee(load, ms, curve->n);
    if (sweep->limit_ms <= 0) sweep->limit_ms = ms[curve->n > POINT_LIMIT ? POINT_LIMIT : 0];
    curve->rate_limited = ek_lab_rate_at(rate, ms, curve->n, sweep->limit_ms, &curve->passed_limit);
}

ek_status ek_cli_lab_sweep_run(ek_cli_lab *lab, ek_lab_phase phase, double limit_ms,
                               ek_cli_lab_sweep *out_sweep, ek_err *err)
{
    out_sweep->phase = phase;
    out_sweep->limit_ms = limit_ms;
    ek_status status = ek_cli_lab_warm_up(lab, err);
    for (int32_t i = 0; i < lab->n_policies && status == EK_OK; i++) {
        ek_cli_lab_curve *curve = &out_sweep->curve[i];
        curve->policy = &lab->policy[i];
        status = run_policy(lab, out_sweep, curve, err);
        if (curve->n == 0) break;
        read_curve(out_sweep, curve);
        out_sweep->n++;
    }
    return status;
}

/* ---- telling ---- */

static void print_curve(const ek_cli_lab_curve *curve, ek_lab_phase phase)
{
    printf("%s: %.1f requests/s of %s traffic leave without contention\n%6s %9s %9s %9s %9s %9s "
           "%8s\n",
           curve->policy->name, curve->capacity, ek_lab_phase_names[phase], "load", "offered/s",
           "left/s", "p50 ms", "p99 ms", "util mean", "busiest");
    for (int32_t i = 0; i < curve->n; i++) {
        const ek_cli_lab_point *p = &curve->point[i];
        printf("%5.0f%% %9.2f %9.2f %9.0f %9.0f %9.2f %8.2f%s\n", 100 * p->load, p->rate,
               p->figures.qps, p->figures.p50_ms, p->figures.p99_ms, p->figures.utilisation,
               p->figures.hottest_utilisation, i == curve->knee ? "  knee" : "");
    }
    printf("%s\n", curve->knee < 0 ? "no knee was seen\n" : "");
}

void ek_cli_lab_sweep_print(const ek_cli_lab *lab, const ek_cli_lab_sweep *sweep)
{
    printf("%s, %lld workers\n\n", lab->model_path, (long long)lab->n_workers);
    for (int32_t i = 0; i < sweep->n; i++)
        print_curve(&sweep->curve[i], sweep->phase);
    if (sweep->n == 0) return;
    const double base = sweep->curve[0].rate_limited;
    printf("requests/s with a P99 of at most %.0f ms\n", sweep->limit_ms);
    for (int32_t i = 0; i < sweep->n; i++) {
        const ek_cli_lab_curve *c = &sweep->curve[i];
        printf("%-18s %s%.2f", c->policy->name, c->passed_limit ? "" : "at least ",
               c->rate_limited);
        if (i > 0 && base > 0) printf(" (%+.0f %%)", 100 * (c->rate_limited / base - 1));
        putchar('\n');
    }
}

static json_t *curve_json(const ek_cli_lab_curve *curve)
{
    json_t *points = json_array();
    for (int32_t i = 0; i < curve->n; i++) {
        const ek_cli_lab_point *p = &curve->point[i];
        const ek_lab_figures *f = &p->figures;
        json_array_append_new(
            points, json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i}", "load", p->load,
                              "offered_qps", p->rate, "qps", f->qps, "p50_ms", f->p50_ms, "p99_ms",
                              f->p99_ms, "utilisation_mean", f->utilisation, "utilisation_max",
                              f->hottest_utilisation, "failed", (int)f->n_failed));
    }
    json_t *knee = curve->knee < 0 ? json_null() : json_real(curve->point[curve->knee].load);
    return json_pack("{s:s, s:f, s:o, s:f, s:b, s:o}", "policy", curve->policy->name, "capacity",
                     curve->capacity, "knee_load", knee, "qps_within_limit", curve->rate_limited,
                     "limit_passed", (int)curve->passed_limit, "points", points);
}

ek_status ek_cli_lab_sweep_write_json(const ek_cli_lab *lab, const ek_cli_lab_sweep *sweep,
                                      const char *path, ek_err *err)
{
    ek_buf text = {0};
    json_t *policies = json_array();
    for (int32_t i = 0; i < sweep->n; i++)
        json_array_append_new(policies, curve_json(&sweep->curve[i]));
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:o}", "version", EK_VERSION, "experiment",
                  "sweep", "model", lab->model_path, "traffic", ek_lab_phase_names[sweep->phase],
                  "workers", (json_int_t)lab->n_workers, "seed", (json_int_t)lab->seed,
                  "p99_limit_ms", sweep->limit_ms, "policies", policies);
    ek_cli_lab_add_json(&text, root);
    const ek_status status = ek_cli_lab_write(&text, path, err);
    ek_http_buf_fini(&text);
    return status;
}
