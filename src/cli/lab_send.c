/* Requests of a lab on their way: in a closed loop, or when their schedule says. */
#include <stdio.h>

#include "cli/lab.h"
#include "cli/load.h"
#include "cli/progress.h"
#include "sys/mem.h"

#define STREAMS_MAX    900
#define RECORDED_DRAWS (1 << 20)

typedef struct sender {
    const ek_cli_lab *lab;
    const ek_lab_request *requests;
    ek_lab_answer *answers; /* (n); NULL: they are not kept */
    char *problem;          /* of the first that failed; NULL: not asked for */
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

/*
 * Each kind of traffic follows sequences of its own: of its own file, as far as there are several.
 */
static uint64_t recorded_key(void *ctx, int32_t request)
{
    const sender *s = ctx;
    const ek_lab_request *r = &s->requests[request];
    const uint64_t n = (uint64_t)s->lab->n_recorded, kind = (uint64_t)r->kind;
    const uint64_t sequence = r->draw % RECORDED_DRAWS * EK_LAB_N_KINDS + kind;
    return kind % n + n * sequence;
}

static void take_answer(void *ctx, const ek_cli_load_answer *a)
{
    sender *s = ctx;
    const ek_lab_request *r = &s->requests[a->request];
    s->n_ended++;
    ek_cli_progress_say(s->progress, (double)s->n_ended / s->n, "%s", s->what);
    if (!s->answers) return;
    const double due_s = 1e-6 * (double)r->due_us;
    s->answers[a->request] = (ek_lab_answer){
        .due_s = due_s,
        .first_s = a->first_us ? due_s + 1e-6 * (double)(a->first_us - a->due_us) : -1,
        .end_s = due_s + 1e-6 * (double)(a->end_us - a->due_us),
        .n_output = (int32_t)a->n_output,
        .phase = r->phase,
        .ok = !a->problem,
    };
    if (a->problem && !s->problem[0])
        snprintf(s->problem, EK_CLI_LAB_PROBLEM_BYTES, "%s", a->problem);
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
        .request_seed = s->lab->recorded ? recorded_key : NULL,
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

ek_status ek_cli_lab_send_closed(const ek_cli_lab *lab, const ek_cli_lab_cluster *c,
                                 ek_lab_phase phase, int32_t n, int32_t n_streams, const char *what,
                                 double *out_seconds, ek_err *err)
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

ek_status ek_cli_lab_send(const ek_cli_lab *lab, const ek_cli_lab_cluster *c,
                          const ek_lab_request *requests, int32_t n, const char *what,
                          ek_lab_answer *out_answers, char *out_problem, ek_err *err)
{
    ek_cli_progress progress = ek_cli_progress_start();
    double seconds;
    int64_t *due_us = ek_sys_calloc((size_t)n, sizeof *due_us);
    if (!due_us) return ek_err_set(err, EK_ENOMEM, "no memory for %d requests", (int)n);
    for (int32_t i = 0; i < n; i++)
        due_us[i] = requests[i].due_us;
    sender s = {.lab = lab,
                .requests = requests,
                .answers = out_answers,
                .problem = out_problem,
                .progress = &progress,
                .n = n,
                .what = what};
    ek_status status = send_all(&s, c, n < STREAMS_MAX ? n : STREAMS_MAX, due_us, &seconds, err);
    ek_sys_free(due_us);
    return status;
}
