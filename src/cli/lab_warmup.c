/*
 * What a lab finds out before it begins: which experts which traffic visits, who has them, how fast
 * workers are to be, and what then leaves.
 */
#include <stdio.h>

#include "cli/lab.h"
#include "sys/mem.h"

#define STUDY_REQUESTS   48 /* of each kind of traffic, to see which experts it visits */
#define STUDY_STREAMS    8
#define CAPACITY_S       6.0 /* about so long it is measured */
#define CAPACITY_STREAMS 32

/* ---- which experts which traffic visits ---- */

static ek_status study(const ek_cli_lab *lab, int64_t *ordinary, int64_t *promotion, ek_err *err)
{
    const ek_model_params *m = &lab->file->model->params;
    ek_cli_lab_cluster c;
    double seconds;
    ek_status status = ek_cli_lab_cluster_start(lab, NULL, false, &c, err);
    if (status < 0) return status;
    status = ek_cli_lab_send_closed(lab, &c, EK_LAB_MIXED, STUDY_REQUESTS, STUDY_STREAMS,
                                    "which experts ordinary traffic visits", &seconds, err);
    if (status == EK_OK)
        status = ek_cli_lab_expert_tokens(c.url, m->n_layers, m->n_experts, ordinary, err);
    if (status == EK_OK)
        status = ek_cli_lab_send_closed(lab, &c, EK_LAB_PROMOTION, STUDY_REQUESTS, STUDY_STREAMS,
                                        "which experts the promotion visits", &seconds, err);
    if (status == EK_OK)
        status = ek_cli_lab_expert_tokens(c.url, m->n_layers, m->n_experts, promotion, err);
    ek_err why = {0};
    const ek_status stopped = ek_cli_lab_cluster_stop(&c, &why);
    if (status == EK_OK && stopped < 0) status = ek_err_set(err, stopped, "%s", why.text);
    for (int64_t i = 0; i < (int64_t)m->n_layers * m->n_experts; i++)
        promotion[i] -= ordinary[i];
    return status;
}

/* Busiest worker over mean, as a mean of the layers: how much longer a step takes than it could. */
static double hottest_worker(const ek_cli_lab *lab, const int64_t *tokens)
{
    const ek_model_params *m = &lab->file->model->params;
    double sum = 0;
    for (int32_t l = 0; l < m->n_layers; l++) {
        double busy[EK_LAB_WORKERS_MAX] = {0}, ratio, cv;
        for (int32_t e = 0; e < m->n_experts; e++) {
            const int64_t i = (int64_t)l * m->n_experts + e;
            busy[lab->worker[i]] += (double)tokens[i];
        }
        ek_lab_balance(busy, (int32_t)lab->n_workers, &ratio, &cv);
        sum += ratio;
    }
    return sum / m->n_layers;
}

static ek_status place(ek_cli_lab *lab, const int64_t *ordinary, const int64_t *promotion,
                       ek_err *err)
{
    const ek_model_params *m = &lab->file->model->params;
    const int32_t n_workers = (int32_t)lab->n_workers;
    const int32_t n_replicas = lab->n_replicas < 0 ? m->n_experts / 2 : (int32_t)lab->n_replicas;
    for (int32_t l = 0; l < m->n_layers; l++) {
        const int64_t at = (int64_t)l * m->n_experts;
        ek_status status = ek_lab_together(ordinary + at, promotion + at, m->n_experts, n_workers,
                                           lab->worker + at);
        if (status == EK_OK)
            status = ek_lab_replicas(ordinary + at, lab->worker + at, m->n_experts, n_workers,
                                     n_replicas, lab->replica + at);
        if (status < 0)
            return ek_err_set(err, status,
                              "%d experts of a layer cannot be placed on %d workers with %d "
                              "replicas",
                              (int)m->n_experts, (int)n_workers, (int)n_replicas);
    }
    lab->hottest_ordinary = hottest_worker(lab, ordinary);
    lab->hottest_promotion = hottest_worker(lab, promotion);
    return EK_OK;
}

/* ---- rates ---- */

/*
 * A layer takes as long as its busiest worker. Workers get the speed with which the promotion's
 * traffic, routed by the model alone, leaves at the rate that is aimed at.
 */
static void choose_pace(ek_cli_lab *lab)
{
    const ek_model_params *m = &lab->file->model->params;
    const double tokens = (double)(lab->n_prompt + lab->n_new - 1);
    const double operations = 6.0 * m->d_model * m->expert_ff; /* as worker/resident.c counts */
    const double busiest = lab->hottest_promotion / (double)lab->n_workers;
    lab->gops =
        lab->rate / EK_CLI_LAB_LOAD * tokens * m->top_k * m->n_layers * busiest * operations * 1e-9;
}

/* What really comes out, with the work of the front and of this machine in it. */
ek_status ek_cli_lab_measure_capacity(ek_cli_lab *lab, const ek_cli_lab_policy *policy,
                                      ek_lab_phase phase, ek_err *err)
{
    ek_cli_lab_cluster c;
    double seconds = 0;
    const int32_t n = (int32_t)(lab->rate * CAPACITY_S) + CAPACITY_STREAMS;
    ek_status status = ek_cli_lab_cluster_start(lab, policy, false, &c, err);
    if (status < 0) return status;
    status = ek_cli_lab_send_closed(lab, &c, phase, n, CAPACITY_STREAMS, "how many requests leave",
                                    &seconds, err);
    ek_err why = {0};
    const ek_status stopped = ek_cli_lab_cluster_stop(&c, &why);
    if (status == EK_OK && stopped < 0) status = ek_err_set(err, stopped, "%s", why.text);
    if (status == EK_OK) lab->capacity = n / seconds;
    return status;
}

ek_status ek_cli_lab_warm_up(ek_cli_lab *lab, ek_err *err)
{
    const ek_model_params *m = &lab->file->model->params;
    const size_t n = (size_t)m->n_layers * (size_t)m->n_experts;
    int64_t *ordinary = ek_sys_calloc(2 * n, sizeof *ordinary);
    lab->worker = ek_sys_calloc(n, sizeof *lab->worker);
    lab->replica = ek_sys_calloc(n, sizeof *lab->replica);
    ek_status status = EK_OK;
    if (!ordinary || !lab->worker || !lab->replica)
        status = ek_err_set(err, EK_ENOMEM, "no memory for a placement");
    if (status == EK_OK) status = study(lab, ordinary, ordinary + n, err);
    if (status == EK_OK) status = place(lab, ordinary, ordinary + n, err);
    ek_sys_free(ordinary);
    if (status == EK_OK) choose_pace(lab);
    return status;
}
