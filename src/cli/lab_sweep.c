/*
 * The sweep: more and more ordinary traffic on one cluster, a step after the other, and where the
 * curve of latency turns steep.
 */
#include <stdio.h>
#include <string.h>

#include "cli/lab_sweep.h"
#include "sys/mem.h"

#define LOAD_FIRST    0.3 /* of the capacity that a closed loop finds */
#define LOAD_STEP     0.1
#define POINTS        9 /* up to 1.1: past what leaves */
#define WARM_REQUESTS 16
#define WARM_STREAMS  8
#define PERIOD_US     INT64_C(500000)
#define SAMPLES_EXTRA 600

/* ---- running ---- */

static ek_status send_step(const ek_cli_lab *lab, const ek_cli_lab_cluster *c,
                           const ek_lab_plan *plan, const ek_lab_request *requests, int32_t n,
                           ek_cli_lab_curve *curve, ek_lab_figures *out, ek_err *err)
{
    ek_cli_lab_watch watch = {0};
    char what[64];
    ek_lab_answer *answers = ek_sys_calloc((size_t)n, sizeof *answers);
    double *scratch = ek_sys_calloc((size_t)n, sizeof *scratch);
    snprintf(what, sizeof what, "%.1f requests a second", plan->rate[EK_LAB_MIXED]);
    ek_status status = EK_OK;
    if (!answers || !scratch) status = ek_err_set(err, EK_ENOMEM, "no memory for answers");
    if (status == EK_OK)
        status = ek_cli_lab_watch_start(c, lab->file->model->params.n_layers, PERIOD_US,
                                        (int32_t)(4 * plan->seconds[EK_LAB_MIXED]) + SAMPLES_EXTRA,
                                        &watch, err);
    if (status == EK_OK)
        status = ek_cli_lab_send(lab, c, requests, n, what, answers, curve->problem, err);
    ek_cli_lab_watch_end(&watch);
    if (status == EK_OK && watch.n < 2)
        status = ek_err_set(err, EK_EPEER, "the front did not answer what it was asked about");
    if (status == EK_OK)
        ek_lab_figures_of(plan, EK_LAB_MIXED, answers, n, watch.samples, watch.n, watch.n_workers,
                          scratch, out);
    ek_cli_lab_watch_free(&watch);
    ek_sys_free(answers);
    ek_sys_free(scratch);
    return status;
}

static ek_status run_step(const ek_cli_lab *lab, const ek_cli_lab_cluster *c, int32_t i,
                          ek_cli_lab_curve *curve, ek_err *err)
{
    ek_cli_lab_point *p = &curve->point[i];
    ek_lab_plan plan;
    int32_t n = 0;
    p->load = LOAD_FIRST + LOAD_STEP * i;
    p->rate = p->load * lab->capacity;
    ek_lab_plan_incident(1, p->rate, (uint64_t)lab->seed + (uint64_t)i, &plan);
    memset(plan.seconds, 0, sizeof plan.seconds);
    plan.seconds[EK_LAB_MIXED] = 60 * lab->minutes / POINTS;
    const int64_t room = ek_lab_plan_requests_max(&plan);
    ek_lab_request *requests = ek_sys_calloc((size_t)room, sizeof *requests);
    ek_status status = requests ? EK_OK : EK_ENOMEM;
    if (status == EK_OK) status = ek_lab_schedule(&plan, (int32_t)room, requests, &n);
    if (status == EK_OK && n == 0) status = EK_ERANGE;
    if (status < 0)
        ek_err_set(err, status, "%.3g s of %.3g requests a second are too many or none",
                   plan.seconds[EK_LAB_MIXED], p->rate);
    else
        status = send_step(lab, c, &plan, requests, n, curve, &p->figures, err);
    ek_sys_free(requests);
    return status;
}

static void find_knee(ek_cli_lab_curve *curve)
{
    double x[EK_CLI_LAB_POINTS_MAX], y[EK_CLI_LAB_POINTS_MAX];
    for (int32_t i = 0; i < curve->n; i++) {
        x[i] = curve->point[i].load;
        y[i] = curve->point[i].figures.p99_ms;
    }
    curve->knee = ek_lab_knee(x, y, curve->n);
}

ek_status ek_cli_lab_sweep(ek_cli_lab *lab, ek_cli_lab_curve *out_curve, ek_err *err)
{
    const ek_cli_lab_policy *policy = &lab->policy[0];
    ek_cli_lab_cluster c;
    double seconds;
    ek_status status = ek_cli_lab_warm_up(lab, err);
    if (status == EK_OK) status = ek_cli_lab_measure_capacity(lab, policy, EK_LAB_MIXED, err);
    if (status == EK_OK) status = ek_cli_lab_cluster_start(lab, policy, true, &c, err);
    if (status < 0) return status;
    status = ek_cli_lab_send_closed(lab, &c, EK_LAB_MIXED, WARM_REQUESTS, WARM_STREAMS,
                                    policy->name, &seconds, err);
    for (int32_t i = 0; i < POINTS && status == EK_OK; i++) {
        status = run_step(lab, &c, i, out_curve, err);
        if (status == EK_OK) out_curve->n++;
    }
    ek_err why = {0};
    const ek_status stopped = ek_cli_lab_cluster_stop(&c, &why);
    if (status == EK_OK && stopped < 0) status = ek_err_set(err, stopped, "%s", why.text);
    find_knee(out_curve);
    return status;
}

/* ---- telling ---- */

void ek_cli_lab_curve_print(const ek_cli_lab *lab, const ek_cli_lab_curve *curve)
{
    printf("%s, %lld workers, policy %s: %.1f requests/s of ordinary traffic leave without "
           "contention\n\n",
           lab->model_path, (long long)lab->n_workers, lab->policy[0].name, lab->capacity);
    printf("%6s %9s %9s %9s %9s %9s %8s\n", "load", "offered/s", "left/s", "p50 ms", "p99 ms",
           "util mean", "busiest");
    for (int32_t i = 0; i < curve->n; i++) {
        const ek_cli_lab_point *p = &curve->point[i];
        printf("%5.0f%% %9.2f %9.2f %9.0f %9.0f %9.2f %8.2f%s\n", 100 * p->load, p->rate,
               p->figures.qps, p->figures.p50_ms, p->figures.p99_ms, p->figures.utilisation,
               p->figures.hottest_utilisation, i == curve->knee ? "  knee" : "");
    }
    if (curve->knee < 0) printf("\nno knee was seen\n");
}

ek_status ek_cli_lab_curve_write_json(const ek_cli_lab *lab, const ek_cli_lab_curve *curve,
                                      const char *path, ek_err *err)
{
    ek_buf text = {0};
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
    json_t *root = json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:o}", "version", EK_VERSION,
                             "experiment", "sweep", "model", lab->model_path, "policy",
                             lab->policy[0].name, "workers", (json_int_t)lab->n_workers, "seed",
                             (json_int_t)lab->seed, "capacity", lab->capacity, "points", points);
    if (root)
        json_object_set_new(root, "knee_load",
                            curve->knee < 0 ? json_null()
                                            : json_real(curve->point[curve->knee].load));
    ek_cli_lab_add_json(&text, root);
    const ek_status status = ek_cli_lab_write(&text, path, err);
    ek_http_buf_fini(&text);
    return status;
}
