/*
 * The incident: a warm-up that chooses placement and rates, then every policy on the same schedule,
 * each with processes of its own.
 */
#include <stdio.h>
#include <string.h>

#include "cli/lab.h"
#include "cli/load.h"
#include "cli/progress.h"
#include "sys/clock.h"
#include "sys/mem.h"

#define STUDY_REQUESTS   48 /* of each kind of traffic, to see which experts it visits */
#define STUDY_STREAMS    8
#define CAPACITY_S       6.0 /* about so long it is measured */
#define CAPACITY_STREAMS 32
#define WARM_REQUESTS    16   /* before each policy's run: connections, caches, weights packed */
#define LOAD_OF_CAPACITY 0.95 /* of what the promotion's traffic leaves: nearly all */
#define STREAMS_MAX      900
#define PERIOD_US        INT64_C(1000000)
#define SAMPLES_EXTRA    600 /* while what has queued up is answered */

/* ---- requests ---- */

typedef struct sender {
    const ek_cli_lab *lab;
    const ek_lab_request *requests;
    ek_cli_lab_run *run; /* NULL: answers are not kept */
    ek_cli_progress *progress;
    int32_t n, n_ended;
    const char *what;
} sender;

static const int32_t *prompt_of(void *ctx, int32_t request)
{
    const sender *s = ctx;
    const ek_lab_request *r = &s->requests[request];
    return ek_cli_lab_prompt(&s->lab->prompts, r->kind, r->draw);
}

static void take_answer(void *ctx, const ek_cli_load_answer *a)
{
    sender *s = ctx;
    const ek_lab_request *r = &s->requests[a->request];
    s->n_ended++;
    ek_cli_progress_say(s->progress, (double)s->n_ended / s->n, "%s", s->what);
    if (!s->run) return;
    const double due_s = 1e-6 * (double)r->due_us;
    s->run->answers[a->request] = (ek_lab_answer){
        .due_s = due_s,
        .first_s = a->first_us ? due_s + 1e-6 * (double)(a->first_us - a->due_us) : -1,
        .end_s = due_s + 1e-6 * (double)(a->end_us - a->due_us),
        .n_output = (int32_t)a->n_output,
        .phase = r->phase,
        .ok = !a->problem,
    };
    if (a->problem && !s->run->problem[0])
        snprintf(s->run->problem, sizeof s->run->problem, "%s", a->problem);
}

/* Closed loop with n_streams, or, with due_us, open. */
static ek_status send_all(sender *s, const ek_cli_lab_cluster *c, int32_t n_streams,
                          const int64_t *due_us, double *out_seconds, ek_err *err)
{
    char model[512];
    int32_t n_vocab;
    ek_cli_load_result result = {0};
    ek_status status = ek_cli_load_model(c->url, model, sizeof model, &n_vocab, err);
    if (status < 0) return status;
    const ek_cli_load_params params = {
        .url = c->url,
        .model_id = model,
        .n_streams = n_streams,
        .n_requests = s->n,
        .n_prompt = (int32_t)s->lab->n_prompt,
        .n_new = (int32_t)s->lab->n_new,
        .n_vocab = n_vocab,
        .due_us = due_us,
        .prompt = prompt_of,
        .on_answer = take_answer,
        .stop = ek_cli_lab_interrupted,
        .ctx = s,
    };
    status = ek_cli_load_run(&params, &result, err);
    ek_cli_progress_clear(s->progress);
    if (status == EK_OK && result.n_ok == 0)
        status = ek_err_set(err, EK_EPEER, "no request went well: %s", result.problem);
    *out_seconds = result.seconds;
    ek_cli_load_free(&result);
    return status;
}

/* n requests of one phase's traffic. */
static ek_status draw_traffic(const ek_cli_lab *lab, ek_lab_phase phase, int32_t n,
                              ek_lab_request **out, ek_err *err)
{
    ek_lab_plan plan;
    int32_t got = 0;
    ek_lab_plan_incident(1, 1, (uint64_t)lab->seed + 1, &plan);
    for (int p = 0; p < EK_LAB_N_PHASES; p++) {
        plan.seconds[p] = p == (int)phase ? 1 : 0;
        plan.rate[p] = p == (int)phase ? 2.0 * n + 50 : 0; /* far more than n, always */
    }
    const int32_t room = (int32_t)ek_lab_plan_requests_max(&plan);
    *out = ek_sys_calloc((size_t)room, sizeof **out);
    if (!*out || ek_lab_schedule(&plan, room, *out, &got) < 0 || got < n)
        return ek_err_set(err, EK_ENOMEM, "no memory for %d requests", (int)n);
    return EK_OK;
}

static ek_status send_closed(const ek_cli_lab *lab, const ek_cli_lab_cluster *c, ek_lab_phase phase,
                             int32_t n, int32_t n_streams, const char *what, double *out_seconds,
                             ek_err *err)
{
    ek_cli_progress progress = ek_cli_progress_start();
    ek_lab_request *requests = NULL;
    ek_status status = draw_traffic(lab, phase, n, &requests, err);
    sender s = {.lab = lab, .requests = requests, .progress = &progress, .n = n, .what = what};
    if (status == EK_OK)
        status = send_all(&s, c, n < n_streams ? n : n_streams, NULL, out_seconds, err);
    ek_sys_free(requests);
    return status;
}

/* ---- which experts which traffic visits ---- */

static ek_status study(const ek_cli_lab *lab, int64_t *ordinary, int64_t *promotion, ek_err *err)
{
    const ek_model_params *m = &lab->file->model->params;
    ek_cli_lab_cluster c;
    double seconds;
    ek_status status = ek_cli_lab_cluster_start(lab, NULL, false, &c, err);
    if (status < 0) return status;
    status = send_closed(lab, &c, EK_LAB_MIXED, STUDY_REQUESTS, STUDY_STREAMS,
                         "which experts ordinary traffic visits", &seconds, err);
    if (status == EK_OK)
        status = ek_cli_lab_expert_tokens(c.url, m->n_layers, m->n_experts, ordinary, err);
    if (status == EK_OK)
        status = send_closed(lab, &c, EK_LAB_PROMOTION, STUDY_REQUESTS, STUDY_STREAMS,
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
    const double operations = 6.0 * m->d_model * m->expert_ff; /* as cluster/resident.c counts */
    const double busiest = lab->hottest_promotion / (double)lab->n_workers;
    lab->gops = lab->rate / LOAD_OF_CAPACITY * tokens * m->top_k * m->n_layers * busiest *
                operations * 1e-9;
}

/* What really comes out, with the work of the front and of this machine in it. */
static ek_status measure_capacity(ek_cli_lab *lab, ek_err *err)
{
    static const ek_cli_lab_policy plain = {.name = "static", .policy = "static"};
    ek_cli_lab_cluster c;
    double seconds = 0;
    const int32_t n = (int32_t)(lab->rate * CAPACITY_S) + CAPACITY_STREAMS;
    ek_status status = ek_cli_lab_cluster_start(lab, &plain, false, &c, err);
    if (status < 0) return status;
    status = send_closed(lab, &c, EK_LAB_PROMOTION, n, CAPACITY_STREAMS,
                         "how many requests the promotion leaves", &seconds, err);
    ek_err why = {0};
    const ek_status stopped = ek_cli_lab_cluster_stop(&c, &why);
    if (status == EK_OK && stopped < 0) status = ek_err_set(err, stopped, "%s", why.text);
    if (status == EK_OK) lab->capacity = n / seconds;
    return status;
}

static ek_status draw_schedule(ek_cli_lab *lab, ek_err *err)
{
    ek_lab_plan_incident(60 * lab->minutes, LOAD_OF_CAPACITY * lab->capacity, (uint64_t)lab->seed,
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

static ek_status warm_up(ek_cli_lab *lab, ek_err *err)
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
    if (status < 0) return status;
    choose_pace(lab);
    status = measure_capacity(lab, err);
    return status == EK_OK ? draw_schedule(lab, err) : status;
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

static ek_status drive(const ek_cli_lab *lab, const ek_cli_lab_cluster *c, const int64_t *due_us,
                       ek_cli_lab_run *run, ek_err *err)
{
    ek_cli_progress progress = ek_cli_progress_start();
    sender s = {.lab = lab,
                .requests = lab->requests,
                .run = run,
                .progress = &progress,
                .n = lab->n_requests,
                .what = run->policy->name};
    double seconds;
    const int32_t samples_max = (int32_t)(60 * lab->minutes * 2) + SAMPLES_EXTRA;
    ek_status status = ek_cli_lab_watch_start(c, PERIOD_US, samples_max, &run->watch, err);
    if (status == EK_OK)
        status = send_all(&s, c, lab->n_requests < STREAMS_MAX ? lab->n_requests : STREAMS_MAX,
                          due_us, &seconds, err);
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
    int64_t *due_us = ek_sys_calloc(n, sizeof *due_us);
    double *scratch = ek_sys_calloc(n, sizeof *scratch);
    ek_status status = EK_OK;
    if (!run->answers || !due_us || !scratch)
        status = ek_err_set(err, EK_ENOMEM, "no memory for %d answers", (int)lab->n_requests);
    for (size_t i = 0; i < n && status == EK_OK; i++)
        due_us[i] = lab->requests[i].due_us;
    if (status == EK_OK) status = ek_cli_lab_cluster_start(lab, run->policy, true, &c, err);
    if (status == EK_OK) {
        double seconds;
        status = send_closed(lab, &c, EK_LAB_MIXED, WARM_REQUESTS, STUDY_STREAMS, run->policy->name,
                             &seconds, err);
        if (status == EK_OK) status = drive(lab, &c, due_us, run, err);
        ek_err why = {0};
        const ek_status stopped = ek_cli_lab_cluster_stop(&c, &why);
        if (status == EK_OK && stopped < 0) status = ek_err_set(err, stopped, "%s", why.text);
    }
    if (status == EK_OK) count_up(lab, scratch, run);
    ek_sys_free(due_us);
    ek_sys_free(scratch);
    return status;
}

ek_status ek_cli_lab_incident(ek_cli_lab *lab, ek_cli_lab_result *out_result, ek_err *err)
{
    ek_status status = warm_up(lab, err);
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
