/*
 * evenkeel lab: experiments on a real cluster of this machine. `incident` makes the overload happen
 * that policies are there for, and shows what each of them does about it; `sweep` finds the load
 * from which latency grows steeply.
 */
#include "cli/lab.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/exit.h"
#include "cli/lab_sweep.h"
#include "route/policy.h"
#include "sys/file.h"
#include "sys/limit.h"
#include "sys/mem.h"
#include "sys/signal.h"
#include "sys/temp.h"

#define REPLICAS         "+replicas"
#define POLICIES         "static,discount,breaker,breaker" REPLICAS
#define MODEL            "models/evenkeel-demo.gguf"
#define PROMPTS          "../shared/data/traces/prompts/"
#define DESCRIPTORS      4096
#define PROMPT_TOKENS    96
#define NEW_TOKENS       16
#define RATE             14.0
#define INCIDENT_MINUTES 1
#define SWEEP_MINUTES    3

enum {
    OPTION_MODEL,
    OPTION_POLICY,
    OPTION_WORKERS,
    OPTION_MINUTES,
    OPTION_SEED,
    OPTION_RATE,
    OPTION_PROMPTS,
    OPTION_ROUTING,
    OPTION_PROMPT_TOKENS,
    OPTION_NEW_TOKENS,
    OPTION_REPLICAS,
    OPTION_TRAFFIC,
    OPTION_LIMIT,
    OPTION_OUT,
    OPTION_JSON,
};

static const ek_cli_option options[] = {
    {OPTION_MODEL, "model", "FILE", "GGUF file (default " MODEL ")", NULL},
    {OPTION_POLICY, "policy", "NAME,...",
     "policies, also with " REPLICAS " (default: four; sweep: static)", NULL},
    {OPTION_WORKERS, "workers", "N", "worker processes, 2 to 64 (default 8)", NULL},
    {OPTION_MINUTES, "minutes", "M", "of traffic for each policy (default 1; sweep: 3)", NULL},
    {OPTION_SEED, "seed", "N", "of arrivals and prompts (default 1)", NULL},
    {OPTION_RATE, "rate", "R", "requests a second to set workers' speed for (default 14)", NULL},
    {OPTION_PROMPTS, "prompts", "FILE", "JSON lines to take prompts from; may be given again",
     NULL},
    {OPTION_ROUTING, "routing", "FILE,...",
     "recorded routing (MRT1) instead of the gate, a file for each kind", NULL},
    {OPTION_PROMPT_TOKENS, "prompt-tokens", "N", "of each request (default 96)", NULL},
    {OPTION_NEW_TOKENS, "new-tokens", "N", "of each answer (default 16)", NULL},
    {OPTION_REPLICAS, "replicas", "N",
     "experts of a layer that " REPLICAS " has twice (default half of them)", NULL},
    {OPTION_TRAFFIC, "traffic", "mixed|promotion", "what a sweep sends (default mixed)", NULL},
    {OPTION_LIMIT, "p99-limit", "MS",
     "of a sweep (default: the first policy's P99 at 80 % of its capacity)", NULL},
    {OPTION_OUT, "out", "FILE", "write a report with plots, one HTML file", NULL},
    {OPTION_JSON, "json", "FILE", "write the figures of each policy as JSON", NULL},
};

bool ek_cli_lab_interrupted(void *ctx)
{
    (void)ctx;
    const int number = ek_sys_signal_wait(0);
    return number != 0 && number != SIGUSR1;
}

/* ---- what is asked for ---- */

static bool is_policy(const char *name)
{
    for (int i = 0; i < EK_ROUTE_N_POLICIES; i++)
        if (strcmp(ek_route_policies[i].name, name) == 0) return true;
    return false;
}

static int take_policy(ek_cli_lab *lab, ek_str word)
{
    ek_cli_lab_policy p = {0};
    const size_t suffix = sizeof REPLICAS - 1;
    if (lab->n_policies == EK_CLI_LAB_POLICIES_MAX)
        return ek_cli_fail(EK_EXIT_USAGE, "lab: at most %d policies", EK_CLI_LAB_POLICIES_MAX);
    snprintf(p.name, sizeof p.name, "%.*s", EK_STR_ARG(word));
    p.replicas = word.len > suffix && memcmp(word.data + word.len - suffix, REPLICAS, suffix) == 0;
    const size_t len = p.replicas ? word.len - suffix : word.len;
    snprintf(p.policy, sizeof p.policy, "%.*s", (int)len, word.data);
    if (word.len >= sizeof p.name || !is_policy(p.policy))
        return ek_cli_fail(EK_EXIT_USAGE,
                           "lab: '%.*s' is none of static, least-load, discount, breaker and "
                           "adaptive, nor one of these with " REPLICAS,
                           EK_STR_ARG(word));
    for (int32_t i = 0; i < lab->n_policies; i++)
        if (strcmp(lab->policy[i].name, p.name) == 0)
            return ek_cli_fail(EK_EXIT_USAGE, "lab: policy %s is there twice", p.name);
    lab->policy[lab->n_policies++] = p;
    return EK_EXIT_OK;
}

static int take_policies(ek_cli_lab *lab, const char *list)
{
    int code = EK_EXIT_OK;
    lab->n_policies = 0;
    for (const char *at = list; code == EK_EXIT_OK; at += strcspn(at, ",") + 1) {
        code = take_policy(lab, (ek_str){at, strcspn(at, ",")});
        if (at[strcspn(at, ",")] == '\0') break;
    }
    return code;
}

static int take_prompts(ek_cli_lab *lab, const char *path)
{
    if (lab->n_prompt_paths == EK_CLI_LAB_FILES_MAX)
        return ek_cli_fail(EK_EXIT_USAGE, "lab: at most %d files of prompts", EK_CLI_LAB_FILES_MAX);
    lab->prompt_path[lab->n_prompt_paths++] = path;
    return EK_EXIT_OK;
}

static int take_routing(ek_cli_lab *lab, const char *list)
{
    if (strlen(list) >= EK_CLI_LAB_PATH_BYTES)
        return ek_cli_fail(EK_EXIT_USAGE, "lab: --routing is longer than %d bytes",
                           EK_CLI_LAB_PATH_BYTES - 1);
    lab->recorded = list;
    lab->n_recorded = 1;
    for (const char *at = list; (at = strchr(at, ',')); at++)
        lab->n_recorded++;
    return EK_EXIT_OK;
}

static int take_traffic(ek_cli_lab *lab, const char *name)
{
    if (strcmp(name, ek_lab_phase_names[EK_LAB_MIXED]) == 0)
        lab->traffic = EK_LAB_MIXED;
    else if (strcmp(name, ek_lab_phase_names[EK_LAB_PROMOTION]) == 0)
        lab->traffic = EK_LAB_PROMOTION;
    else
        return ek_cli_fail(EK_EXIT_USAGE, "lab: --traffic '%s' is neither mixed nor promotion",
                           name);
    return EK_EXIT_OK;
}

/* A checkout has a collection of prompts beside it, or it has not. */
static void find_prompts(ek_cli_lab *lab)
{
    static const char *const known[] = {
        PROMPTS "zh_general_plexpt.jsonl",
        PROMPTS "zh_service_dialogues_crosswoz.jsonl",
        PROMPTS "en_mtbench.jsonl",
        PROMPTS "en_retail_tasks_tau.jsonl",
        PROMPTS "en_math_gsm8k_test300.jsonl",
        PROMPTS "code_humaneval.jsonl",
    };
    for (size_t i = 0; i < EK_COUNT_OF(known) && lab->n_prompt_paths < EK_CLI_LAB_FILES_MAX; i++)
        if (ek_sys_file_exists(known[i])) lab->prompt_path[lab->n_prompt_paths++] = known[i];
}

/* ---- doing it ---- */

static ek_status prepare(ek_cli_lab *lab, ek_err *err)
{
    ek_status status = ek_expert_model_open(lab->model_path, NULL, &lab->file, err);
    if (status < 0) return status;
    const ek_model_params *m = &lab->file->model->params;
    if (m->n_experts > EK_LAB_EXPERTS_MAX || lab->n_workers > m->n_experts)
        return ek_err_set(err, EK_EINVAL,
                          "%s has %d experts in a layer, which %lld workers cannot share; use "
                          "--workers",
                          lab->model_path, (int)m->n_experts, (long long)lab->n_workers);
    if (lab->n_replicas > m->n_experts)
        return ek_err_set(err, EK_EINVAL, "%s has %d experts in a layer: --replicas is too many",
                          lab->model_path, (int)m->n_experts);
    if (lab->n_prompt + lab->n_new > m->context_tokens)
        return ek_err_set(err, EK_EINVAL,
                          "%s takes %d tokens together: --prompt-tokens and --new-tokens are more",
                          lab->model_path, (int)m->context_tokens);
    status = ek_cli_lab_prompts_open(lab->file->tokenizer, lab->prompt_path, lab->n_prompt_paths,
                                     (int32_t)lab->n_prompt, &lab->prompts, err);
    return status == EK_OK ? ek_cli_lab_cluster_prepare(lab, err) : status;
}

static int report(const ek_cli_lab *lab, const ek_cli_lab_result *result)
{
    ek_err err = {0};
    ek_cli_lab_print(lab, result);
    ek_status status = EK_OK;
    if (lab->json_path) status = ek_cli_lab_write_json(lab, result, lab->json_path, &err);
    if (status == EK_OK && lab->out_path)
        status = ek_cli_lab_write_html(lab, result, lab->out_path, &err);
    if (status < 0) return ek_cli_fail(EK_EXIT_IO, "%s", err.text);
    for (int32_t i = 0; i < result->n_runs; i++)
        if (result->run[i].problem[0])
            return ek_cli_fail(EK_EXIT_FAILURE, "%s: requests failed, the first: %s",
                               result->run[i].policy->name, result->run[i].problem);
    return EK_EXIT_OK;
}

static int failed(const ek_err *err)
{
    switch ((int)err->status) {
    case EK_ECANCELED:
        return ek_cli_fail(EK_EXIT_INTERRUPTED, "lab: stopped; all processes have ended");
    case EK_EINVAL: return ek_cli_fail(EK_EXIT_USAGE, "lab: %s", err->text);
    case EK_EPEER:
    case EK_ETIMEOUT: return ek_cli_fail(EK_EXIT_UNAVAILABLE, "lab: %s", err->text);
    default: return ek_cli_fail_err(err);
    }
}

static int report_sweep(const ek_cli_lab *lab, const ek_cli_lab_sweep *sweep)
{
    ek_err err = {0};
    ek_cli_lab_sweep_print(lab, sweep);
    ek_status status = EK_OK;
    if (lab->json_path) status = ek_cli_lab_sweep_write_json(lab, sweep, lab->json_path, &err);
    if (status == EK_OK && lab->out_path)
        status = ek_cli_lab_sweep_write_html(lab, sweep, lab->out_path, &err);
    if (status < 0) return ek_cli_fail(EK_EXIT_IO, "%s", err.text);
    if (sweep->problem[0])
        return ek_cli_fail(EK_EXIT_FAILURE, "requests failed, the first: %s", sweep->problem);
    return EK_EXIT_OK;
}

static int experiment(ek_cli_lab *lab, bool is_sweep)
{
    ek_err err = {0}, why = {0};
    ek_cli_lab_result result = {0};
    ek_cli_lab_sweep sweep = {0};
    int code;
    if (ek_sys_signal_block() < 0) return ek_cli_fail(EK_EXIT_FAILURE, "signals cannot be blocked");
    (void)ek_sys_descriptors_allow(DESCRIPTORS);
    ek_status status = prepare(lab, &err);
    if (status == EK_OK)
        status = is_sweep ? ek_cli_lab_sweep_run(lab, lab->traffic, lab->limit_ms, &sweep, &err)
                          : ek_cli_lab_incident(lab, &result, &err);
    if (lab->dir[0] && ek_sys_temp_remove(lab->dir, &why) < 0 && status == EK_OK)
        status = ek_err_set(&err, EK_EIO, "%s", why.text);
    if (status < 0)
        code = failed(&err);
    else
        code = is_sweep ? report_sweep(lab, &sweep) : report(lab, &result);
    ek_cli_lab_result_free(&result);
    ek_cli_lab_prompts_close(&lab->prompts);
    ek_sys_free(lab->requests);
    ek_sys_free(lab->worker);
    ek_sys_free(lab->replica);
    ek_expert_model_close(lab->file);
    return code;
}

static int take_option(ek_cli_lab *lab, const ek_cli_args *args, int id)
{
    bool good = true;
    switch (id) {
    case OPTION_MODEL: lab->model_path = args->value; break;
    case OPTION_POLICY: return take_policies(lab, args->value);
    case OPTION_PROMPTS: return take_prompts(lab, args->value);
    case OPTION_ROUTING: return take_routing(lab, args->value);
    case OPTION_TRAFFIC: return take_traffic(lab, args->value);
    case OPTION_LIMIT: good = ek_cli_args_number(args, 1, 1e7, &lab->limit_ms); break;
    case OPTION_OUT: lab->out_path = args->value; break;
    case OPTION_JSON: lab->json_path = args->value; break;
    case OPTION_WORKERS:
        good = ek_cli_args_int(args, 2, EK_LAB_WORKERS_MAX, &lab->n_workers);
        break;
    case OPTION_MINUTES: good = ek_cli_args_number(args, 0.1, 600, &lab->minutes); break;
    case OPTION_SEED: good = ek_cli_args_int(args, 0, INT32_MAX, &lab->seed); break;
    case OPTION_RATE: good = ek_cli_args_number(args, 0.1, 1000, &lab->rate); break;
    case OPTION_PROMPT_TOKENS: good = ek_cli_args_int(args, 2, 4096, &lab->n_prompt); break;
    case OPTION_NEW_TOKENS: good = ek_cli_args_int(args, 2, 4096, &lab->n_new); break;
    case OPTION_REPLICAS:
        good = ek_cli_args_int(args, 0, EK_LAB_EXPERTS_MAX, &lab->n_replicas);
        break;
    default: return ek_cli_args_exit(args, id);
    }
    return good ? EK_EXIT_OK : EK_EXIT_USAGE;
}

static int run(int argc, char **argv)
{
    ek_cli_lab lab = {.model_path = MODEL,
                      .n_workers = 8,
                      .seed = 1,
                      .rate = RATE,
                      .n_prompt = PROMPT_TOKENS,
                      .n_new = NEW_TOKENS,
                      .n_replicas = -1};
    const char *verb = NULL;
    int code = EK_EXIT_OK;
    ek_cli_args args = ek_cli_args_start(&ek_cli_lab_command, argc, argv);
    for (int id; code == EK_EXIT_OK && (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        if (id == EK_CLI_ARGS_HELP) return ek_cli_args_exit(&args, id);
        if (id == EK_CLI_ARGS_OPERAND && !verb)
            verb = args.value;
        else
            code = take_option(&lab, &args, id);
    }
    if (code != EK_EXIT_OK) return code;
    if (!verb) return ek_cli_fail(EK_EXIT_USAGE, "lab: say what: incident or sweep");
    const bool sweep = strcmp(verb, "sweep") == 0;
    if (!sweep && strcmp(verb, "incident") != 0)
        return ek_cli_fail(EK_EXIT_USAGE, "lab: '%s' is neither incident nor sweep", verb);
    if (lab.n_policies == 0) code = take_policies(&lab, sweep ? "static" : POLICIES);
    if (code != EK_EXIT_OK) return code;
    if (lab.minutes == 0) lab.minutes = sweep ? SWEEP_MINUTES : INCIDENT_MINUTES;
    if (lab.n_prompt_paths == 0) find_prompts(&lab);
    return experiment(&lab, sweep);
}

const ek_cli_command ek_cli_lab_command = {
    .name = "lab",
    .operands = "incident|sweep",
    .summary = "make an overload happen, and compare what policies do about it",
    .about =
        "Starts a front and paced workers on this machine, sends them mixed traffic and then a\n"
        "promotion in which nine of ten requests ask about parcels, and does so for each policy\n"
        "with the same requests at the same times. Prints latency, balance and cost, and when\n"
        "what happened; --out writes a report with plots. sweep offers more and more of one\n"
        "kind of traffic to each policy, and finds where latency turns steep and how much of it\n"
        "each takes within the same limit. Everything that was started is stopped at the end,\n"
        "also after Ctrl-C.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
