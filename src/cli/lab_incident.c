/* The incident: every policy on the same schedule, each with processes of its own. */
#include <math.h>
#include <stdio.h>

#include "cli/lab.h"
#include "cli/load.h"
#include "sys/mem.h"

#define WARM_REQUESTS 16 /* before each policy's run: connections, caches, weights packed */
#define WARM_STREAMS  8
#define PERIOD_US     INT64_C(1000000)
#define SAMPLES_EXTRA 600 /* while what has queued up is answered */

static ek_status draw_schedule(ek_cli_lab *lab, ek_err *err)
{
    ek_lab_plan_incident(60 * lab->minutes, EK_CLI_LAB_LOAD * lab->capacity, (uint64_t)lab->seed,
                         &lab->plan);
    const int64_t room = ek_lab_plan_requests_max(&lab->plan);
    ek_status status = room > EK_CLI_LOAD_REQUESTS_MAX ? EK_ERANGE : EK_OK;
    if (status == EK_OK) lab->requests = ek_sys_calloc((size_t)room, sizeof *lab->requests);
    if (status == EK_OK && !lab->requests) status = EK_ENOMEM;
    if (status == EK_OK)
        status = ek_lab_schedule(&lab->plan, (int32_t)room, lab->requests, &lab->n_requests);
    if (status == EK_OK && lab->n_requests == 0) status = EK_ERANGE;
    return status < 0 ? ek_err_set(err, status,
                                   "%.3g minutes of %.3g requests a second are too many or none",
                                   lab->minutes, lab->capacity)
                      : EK_OK;
}

/* ---- one policy ---- */

static void count_up(const ek_cli_lab *lab, double *scratch, ek_cli_lab_run *run)
{
    const ek_cli_lab_watch *w = &run->watch;
    for (int p = 0; p < EK_LAB_N_PHASES; p++)
        ek_lab_figures_of(&lab->plan, (ek_lab_phase)p, run->answers, run->n_answers, w->samples,
                          w->n, w->n_workers, scratch, &run->figures[p]);
    ek_lab_chain_of(&lab->plan, run->answers, run->n_answers, w->samples, w->n, w->n_workers,
                    scratch, &run->chain);
}

static ek_status drive(const ek_cli_lab *lab, const ek_cli_lab_cluster *c, ek_cli_lab_run *run,
                       ek_err *err)
{
    const int32_t samples_max = (int32_t)(60 * lab->minutes * 2) + SAMPLES_EXTRA;
    ek_status status = ek_cli_lab_watch_start(c, lab->file->model->params.n_layers, PERIOD_US,
                                              samples_max, &run->watch, err);
    if (status == EK_OK)
        status = ek_cli_lab_send(lab, c, lab->requests, lab->n_requests, run->policy->name,
                                 run->answers, run->problem, err);
    ek_cli_lab_watch_end(&run->watch);
    if (status == EK_OK && run->watch.n < 2)
        status = ek_err_set(err, EK_EPEER, "the front did not answer what it was asked about");
    return status;
}

static ek_status run_policy(const ek_cli_lab *lab, ek_cli_lab_run *run, ek_err *err)
{
    const size_t n = (size_t)lab->n_requests;
    ek_cli_lab_cluster c;
    run->n_answers = lab->n_requests;
    run->answers = ek_sys_calloc(n, sizeof *run->answers);
    double *scratch = ek_sys_calloc(n, sizeof *scratch);
    ek_status status = EK_OK;
    if (!run->answers || !scratch)
        status = ek_err_set(err, EK_ENOMEM, "no memory for %d answers", (int)lab->n_requests);
    if (status == EK_OK) status = ek_cli_lab_cluster_start(lab, run->policy, true, &c, err);
    if (status == EK_OK) {
        double seconds;
        status = ek_cli_lab_send_closed(lab, &c, EK_LAB_MIXED, WARM_REQUESTS, WARM_STREAMS,
                                        run->policy->name, &seconds, err);
        if (status == EK_OK) status = drive(lab, &c, run, err);
        ek_err why = {0};
        const ek_status stopped = ek_cli_lab_cluster_stop(&c, &why);
        if (status == EK_OK && stopped < 0) status = ek_err_set(err, stopped, "%s", why.text);
    }
    if (status == EK_OK) count_up(lab, scratch, run);
    run->perplexity_change = NAN;
    if (status == EK_OK && !lab->recorded)
        status = ek_cli_lab_quality(lab, run, &run->perplexity_change, err);
    ek_sys_free(scratch);
    return status;
}

ek_status ek_cli_lab_incident(ek_cli_lab *lab, ek_cli_lab_result *out_result, ek_err *err)
{
    static const ek_cli_lab_policy plain = {.name = "static", .policy = "static"};
    ek_status status = ek_cli_lab_warm_up(lab, err);
    if (status == EK_OK) status = ek_cli_lab_measure_capacity(lab, &plain, EK_LAB_PROMOTION, err);
    if (status == EK_OK) status = draw_schedule(lab, err);
    for (int32_t i = 0; i < lab->n_policies && status == EK_OK; i++) {
        ek_cli_lab_run *run = &out_result->run[i];
        run->policy = &lab->policy[i];
        status = run_policy(lab, run, err);
        if (status == EK_OK)
            out_result->n_runs++;
        else
            ek_err_prefix(err, "%s", run->policy->name);
    }
    return status;
}

void ek_cli_lab_result_free(ek_cli_lab_result *result)
{
    for (int i = 0; i < EK_CLI_LAB_POLICIES_MAX; i++) {
        ek_sys_free(result->run[i].answers);
        ek_cli_lab_watch_free(&result->run[i].watch);
    }
    *result = (ek_cli_lab_result){0};
}
