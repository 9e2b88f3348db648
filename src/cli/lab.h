/*
 * What the files of `evenkeel lab` share: what was asked for, the prompts, a cluster of real
 * processes, and what a run of one policy came to.
 *
 * lab.c reads the command line; lab_warmup.c finds out what has to be known, lab_incident.c runs
 * policies; lab_prompts.c, lab_cluster.c, lab_send.c and lab_watch.c are their means; lab_report.c
 * and lab_html.c say what came of it. The main thread does all of it but for watching, which has a
 * thread of its own (lab_watch.c).
 */
#ifndef EK_CLI_LAB_H
#define EK_CLI_LAB_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "cli/http.h"
#include "cli/lab_prompts.h"
#include "expert/model_file.h"
#include "http/buf.h"
#include "lab/figures.h"
#include "lab/schedule.h"
#include "lab/spread.h"
#include "sys/child.h"
#include "sys/thread.h"

#define EK_CLI_LAB_POLICIES_MAX  12
#define EK_CLI_LAB_FILES_MAX     16
#define EK_CLI_LAB_PATH_BYTES    4096
#define EK_CLI_LAB_PROBLEM_BYTES 256
#define EK_CLI_LAB_LOAD          0.95 /* of the capacity that is sent: nearly all */

/* ---- what is asked for, and chosen ---- */

typedef struct ek_cli_lab_policy {
    char name[48];   /* "breaker+replicas" */
    char policy[32]; /* routing.policy */
    bool replicas;
} ek_cli_lab_policy;

typedef struct ek_cli_lab {
    const char *model_path, *out_path, *json_path; /* borrowed; NULL: none */
    const char *prompt_path[EK_CLI_LAB_FILES_MAX];
    int32_t n_prompt_paths;
    const char
        *recorded;      /* borrowed: MRT1 files with commas between them; NULL: the model's gate */
    int32_t n_recorded; /* how many */
    ek_cli_lab_policy policy[EK_CLI_LAB_POLICIES_MAX];
    int32_t n_policies;
    int64_t n_workers, n_prompt, n_new, n_replicas; /* n_replicas -1: half of the experts */
    int64_t seed;
    double minutes;       /* of each policy */
    double limit_ms;      /* a sweep's, of P99; 0: the first policy's at 80 % of its capacity */
    ek_lab_phase traffic; /* a sweep's */
    double rate;          /* requests per second to aim at */

    char program[EK_CLI_LAB_PATH_BYTES];
    char dir[256]; /* of certificates and logs; "": none yet */
    ek_model_file *file;
    ek_cli_lab_prompts prompts;

    /* Chosen by the warm-up. */
    int32_t *worker;  /* (n_layers, n_experts) owned */
    int32_t *replica; /* (n_layers, n_experts) owned; -1: none */
    double gops;      /* of each worker */
    double capacity;  /* requests per second that the promotion's traffic leaves with `static` */
    double hottest_ordinary, hottest_promotion; /* busiest worker over mean, mean of layers */
    ek_lab_plan plan;
    ek_lab_request *requests; /* (n_requests) owned: the same for every policy */
    int32_t n_requests;
} ek_cli_lab;

/** Asked between all steps: has INT, TERM, QUIT or HUP come? Then everything ends. ctx: any. */
bool ek_cli_lab_interrupted(void *ctx);

/* ---- a cluster ---- */

typedef struct ek_cli_lab_cluster {
    ek_sys_child worker[EK_LAB_WORKERS_MAX];
    ek_sys_child front;
    int32_t n_workers;
    char address[EK_LAB_WORKERS_MAX][64];
    char url[128];
} ek_cli_lab_cluster;

/** Certificates and an empty directory for logs. @return EK_OK; the text says what failed */
EK_MUST ek_status ek_cli_lab_cluster_prepare(ek_cli_lab *lab, ek_err *err);

/**
 * Start workers and their front, and wait until it is ready. Nothing is left behind on failure.
 * @param policy     NULL: a front alone, with all experts inside
 * @param contention workers slow down when they are busy nearly always
 * @return EK_OK; EK_EPEER one ended before it was ready, the text has what it said; EK_ETIMEOUT;
 *         EK_ECANCELED; EK_ENOTFOUND; EK_ENOMEM
 */
EK_MUST ek_status ek_cli_lab_cluster_start(const ek_cli_lab *lab, const ek_cli_lab_policy *policy,
                                           bool contention, ek_cli_lab_cluster *out_cluster,
                                           ek_err *err);

/** End all of its processes, the front first. Accepts a zeroed one. @return EK_OK; EK_EPEER */
EK_MUST ek_status ek_cli_lab_cluster_stop(ek_cli_lab_cluster *cluster, ek_err *err);

/* ---- watching ---- */

typedef struct ek_cli_lab_watch {
    char url[128];
    int32_t n_workers;
    int64_t start_us, period_us;
    ek_lab_sample *samples; /* (n) owned */
    int32_t n, room;
    int32_t n_missed;  /* looks that brought nothing */
    double divergence; /* nats, of sampled tokens, at the last look */
    float *loads;      /* (room, n_layers, n_workers) owned: of workers, as the router sees them */
    int32_t n_layers;
    ek_cli_http *http; /* owned */
    ek_sys_thread thread;
    atomic_bool stop; /* release by whoever ends it, acquire by the thread */
} ek_cli_lab_watch;

/**
 * Look at a server once in period_us, from now on until ek_cli_lab_watch_end.
 * @param out_watch zeroed; stays where it is until then
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_cli_lab_watch_start(const ek_cli_lab_cluster *cluster, int32_t n_layers,
                                         int64_t period_us, int32_t samples_max,
                                         ek_cli_lab_watch *out_watch, ek_err *err);
/** End the thread, after a last look where one is nearly due. Does nothing when none runs. */
void ek_cli_lab_watch_end(ek_cli_lab_watch *watch);
void ek_cli_lab_watch_free(ek_cli_lab_watch *watch);

/**
 * Tokens of each layer and expert since the server's start.
 * @param out_tokens (n_layers, n_experts)
 * @return EK_OK; EK_ENOMEM; EK_EPEER no answer, or not that one; EK_EFORMAT it is no JSON
 */
EK_MUST ek_status ek_cli_lab_expert_tokens(const char *url, int32_t n_layers, int32_t n_experts,
                                           int64_t *out_tokens, ek_err *err);

/* ---- requests ---- */

/**
 * n requests of one phase's traffic in a closed loop.
 * @param what        what progress says
 * @param out_seconds from the first request to the last answer
 * @return EK_OK; EK_EPEER none went well; EK_ECANCELED; EK_ENOMEM; EK_EINTERNAL
 */
EK_MUST ek_status ek_cli_lab_send_closed(const ek_cli_lab *lab, const ek_cli_lab_cluster *c,
                                         ek_lab_phase phase, int32_t n, int32_t n_streams,
                                         const char *what, double *out_seconds, ek_err *err);

/**
 * Requests when they are due, whatever becomes of those before.
 * @param requests    (n)
 * @param out_answers (n)
 * @param out_problem (EK_CLI_LAB_PROBLEM_BYTES) of the first that failed; "" before
 * @return as ek_cli_lab_send_closed; single failures are in the answers
 */
EK_MUST ek_status ek_cli_lab_send(const ek_cli_lab *lab, const ek_cli_lab_cluster *c,
                                  const ek_lab_request *requests, int32_t n, const char *what,
                                  ek_lab_answer *out_answers, char *out_problem, ek_err *err);

/* ---- the warm-up ---- */

/**
 * Study traffic, place experts, choose the workers' speed.
 * @return EK_OK; EK_EINVAL experts cannot be placed so; what starting and sending gave
 */
EK_MUST ek_status ek_cli_lab_warm_up(ek_cli_lab *lab, ek_err *err);

/** How much of a phase's traffic leaves, without contention. @return as ek_cli_lab_warm_up */
EK_MUST ek_status ek_cli_lab_measure_capacity(ek_cli_lab *lab, const ek_cli_lab_policy *policy,
                                              ek_lab_phase phase, ek_err *err);

/* ---- a run ---- */

typedef struct ek_cli_lab_run {
    const ek_cli_lab_policy *policy;
    ek_lab_answer *answers; /* (n_answers) owned */
    int32_t n_answers;
    char problem[EK_CLI_LAB_PROBLEM_BYTES]; /* of the first request that failed */
    ek_cli_lab_watch watch;
    ek_lab_figures figures[EK_LAB_N_PHASES];
    ek_lab_chain chain;
    double perplexity_change; /* of the promotion's prompts, against static; NAN: no model's gate */
} ek_cli_lab_run;

/**
 * What the policy does to the perplexity of the promotion's prompts: they are read again by this
 * process, with the policy and the loads that the watch saw in the promotion.
 * @param out_change perplexity over that with static, less 1
 * @return EK_OK; EK_ENOMEM; EK_ECANCELED; what the scan gave
 */
EK_MUST ek_status ek_cli_lab_quality(const ek_cli_lab *lab, const ek_cli_lab_run *run,
                                     double *out_change, ek_err *err);

typedef struct ek_cli_lab_result {
    ek_cli_lab_run run[EK_CLI_LAB_POLICIES_MAX];
    int32_t n_runs; /* that were carried through */
} ek_cli_lab_result;

/**
 * Warm up, choose, and run every policy.
 * @param out_result zeroed; ek_cli_lab_result_free, also after a failure
 * @return EK_OK; EK_ECANCELED a signal; what a step gave
 */
EK_MUST ek_status ek_cli_lab_incident(ek_cli_lab *lab, ek_cli_lab_result *out_result, ek_err *err);
void ek_cli_lab_result_free(ek_cli_lab_result *result);

/* ---- what came of it ---- */

/** Of policies in plots, by their place in the list. */
extern const char *const ek_cli_lab_colours[EK_CLI_LAB_POLICIES_MAX];
/** A page's beginning, with the style of all plots. */
void ek_cli_lab_html_head(ek_buf *out, const char *title);
/** Text with what HTML would read as its own escaped. */
void ek_cli_lab_html_escape(ek_buf *out, const char *text);
/** Write a text, if all of it was made. @return EK_OK; EK_ENOMEM; what writing gave */
EK_MUST ek_status ek_cli_lab_write(const ek_buf *text, const char *path, ek_err *err);
/** A JSON object as text. Takes the reference. */
void ek_cli_lab_add_json(ek_buf *out, json_t *root);

/** The table, on standard output. */
void ek_cli_lab_print(const ek_cli_lab *lab, const ek_cli_lab_result *result);
/** The figures of the promotion and the chain. @return EK_OK; EK_ENOMEM; what writing gave */
EK_MUST ek_status ek_cli_lab_write_json(const ek_cli_lab *lab, const ek_cli_lab_result *result,
                                        const char *path, ek_err *err);
/** The report with its plots. @return EK_OK; EK_ENOMEM; what writing gave */
EK_MUST ek_status ek_cli_lab_write_html(const ek_cli_lab *lab, const ek_cli_lab_result *result,
                                        const char *path, ek_err *err);

#endif
