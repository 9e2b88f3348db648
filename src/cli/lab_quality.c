/*
 * What a policy does to a model's quality under the loads of a run: the promotion's prompts, read
 * again with the same router and the recorded loads, against the same prompts with static routing.
 *
 * A sample that was seen once a second stands for the ten that the front's router had in that
 * second: its breakers look at several in a row.
 */
#include <math.h>
#include <string.h>

#include "cli/lab.h"
#include "engine/scan.h"
#include "route/policy.h"
#include "sys/mem.h"
#include "sys/thread.h"

#define SAMPLE_US INT64_C(100000)
#define TEXTS_MAX 2000 /* more make the figure no better, and take their time */

typedef struct reader {
    const ek_cli_lab *lab;
    const ek_cli_lab_run *run;
    int32_t first, end; /* samples of the promotion */
    float *loads;       /* (n_layers, n_experts) owned */
} reader;

/* An expert is as busy as the least busy worker that has it. @return false: not known */
static bool spread_loads(const reader *r, int32_t sample)
{
    const ek_model_params *m = &r->lab->file->model->params;
    const int32_t n_workers = (int32_t)r->lab->n_workers;
    for (int32_t l = 0; l < m->n_layers; l++) {
        const float *worker = r->run->watch.loads + ((int64_t)sample * m->n_layers + l) * n_workers;
        for (int32_t e = 0; e < m->n_experts; e++) {
            const int64_t i = (int64_t)l * m->n_experts + e;
            const int32_t replica = r->run->policy->replicas ? r->lab->replica[i] : -1;
            float load = worker[r->lab->worker[i]];
            if (replica >= 0 && worker[replica] < load) load = worker[replica];
            if (load < 0) return false;
            r->loads[i] = load;
        }
    }
    return true;
}

/* Texts in the order of the schedule; the samples of the promotion are spread over them. */
static ek_status read_texts(const reader *r, ek_scan *scan, double *out_loss, ek_err *err)
{
    const ek_cli_lab *lab = r->lab;
    const int32_t n_needed = (int32_t)(10 * lab->plan.seconds[EK_LAB_PROMOTION]);
    const int32_t n = n_needed < TEXTS_MAX ? n_needed : TEXTS_MAX;
    int32_t beg = 0, n_texts = 0;
    while (beg < lab->n_requests && lab->requests[beg].phase != EK_LAB_PROMOTION)
        beg++;
    while (beg + n_texts < lab->n_requests &&
           lab->requests[beg + n_texts].phase == EK_LAB_PROMOTION)
        n_texts++;
    if (n < 1 || n_texts < 1 || r->end <= r->first)
        return ek_err_set(err, EK_ERANGE, "nothing was seen of the promotion");
    *out_loss = 0;
    for (int32_t i = 0; i < n; i++) {
        const ek_lab_request *request = &lab->requests[beg + i % n_texts];
        const int32_t *ids = ek_cli_lab_prompt(&lab->prompts, request->kind, request->draw);
        const int32_t sample = r->first + (int32_t)((int64_t)i * (r->end - r->first) / n);
        double loss;
        if (ek_cli_lab_interrupted(NULL)) return ek_err_set(err, EK_ECANCELED, "told to stop");
        ek_engine_scan_set_loads(scan, spread_loads(r, sample) ? r->loads : NULL,
                                 SAMPLE_US * (i + 1));
        const ek_status status = ek_engine_scan_run(scan, ids, (int32_t)lab->n_prompt, NULL, &loss);
        if (status < 0)
            return ek_err_set(err, status, "reading prompts: %s", ek_status_text(status));
        *out_loss += loss / n / (double)(lab->n_prompt - 1);
    }
    return EK_OK;
}

/* Mean loss of a token, in nats. */
static ek_status read_with(const reader *r, const char *policy, double *out_loss, ek_err *err)
{
    ek_route_params routing;
    ek_scan *scan;
    ek_route_params_default(&routing);
    for (int i = 0; i < EK_ROUTE_N_POLICIES; i++)
        if (strcmp(ek_route_policies[i].name, policy) == 0) routing.policy = (ek_route_policy)i;
    const ek_scan_params params = {
        .file = r->lab->file,
        .kernels = EK_KERNELS_AUTO,
        .n_threads = ek_sys_cpu_count(),
        .text_tokens = (int32_t)r->lab->n_prompt,
        .routing = &routing,
    };
    ek_status status = ek_engine_scan_open(&params, &scan, err);
    if (status < 0) return status;
    status = read_texts(r, scan, out_loss, err);
    ek_engine_scan_close(scan);
    return status;
}

ek_status ek_cli_lab_quality(const ek_cli_lab *lab, const ek_cli_lab_run *run, double *out_change,
                             ek_err *err)
{
    const ek_model_params *m = &lab->file->model->params;
    const double beg_s = ek_lab_plan_begins(&lab->plan, EK_LAB_PROMOTION);
    const double end_s = ek_lab_plan_begins(&lab->plan, EK_LAB_RECOVERY);
    reader r = {.lab = lab, .run = run};
    double plain, bent;
    if (strcmp(run->policy->policy, "static") == 0) { /* the model's choice, bit for bit */
        *out_change = 0;
        return EK_OK;
    }
    while (r.first < run->watch.n && run->watch.samples[r.first].at_s < beg_s)
        r.first++;
    for (r.end = r.first; r.end < run->watch.n && run->watch.samples[r.end].at_s < end_s;)
        r.end++;
    r.loads = ek_sys_calloc((size_t)m->n_layers * (size_t)m->n_experts, sizeof *r.loads);
    if (!r.loads) return ek_err_set(err, EK_ENOMEM, "no memory for loads");
    ek_status status = read_with(&r, "static", &plain, err);
    if (status == EK_OK) status = read_with(&r, run->policy->policy, &bent, err);
    ek_sys_free(r.loads);
    if (status == EK_OK) *out_change = exp(bent - plain) - 1;
    return status;
}
