/* What a lab found: a table for people, JSON for programs. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/lab.h"
#include "sys/file.h"

#define FORMAT (JSON_INDENT(1) | JSON_REAL_PRECISION(6))

static double change(double from, double to)
{
    return from > 0 ? 100 * (to / from - 1) : 0;
}

static void print_choices(const ek_cli_lab *lab)
{
    const ek_model_params *m = &lab->file->model->params;
    printf(
        "%s: %d layers of %d experts, top-%d; %lld workers; prompts of %lld tokens (%s), answers "
        "of %lld\n",
        lab->model_path, (int)m->n_layers, (int)m->n_experts, (int)m->top_k,
        (long long)lab->n_workers, (long long)lab->n_prompt,
        lab->prompts.bundled ? "bundled texts" : "texts from files", (long long)lab->n_new);
    printf("placement: side by side as traffic uses them; busiest worker over mean %.2f in mixed "
           "traffic, %.2f in the promotion\n",
           lab->hottest_ordinary, lab->hottest_promotion);
    printf("workers: paced to %.4f Gop/s, 200 us a dispatch, 35 %% slower from 85 %% utilisation; "
           "the promotion leaves %.1f requests/s without that\n",
           lab->gops, lab->capacity);
    printf("traffic: %d requests, %.2f a second, the same for every policy (seed %lld): %.0f s "
           "mixed, %.0f s promotion, %.0f s after it\n\n",
           (int)lab->n_requests, lab->plan.rate[0], (long long)lab->seed, lab->plan.seconds[0],
           lab->plan.seconds[1], lab->plan.seconds[2]);
}

static void print_phase(const ek_cli_lab_result *result, ek_lab_phase phase)
{
    printf("%s\n%-18s %7s %8s %8s %8s %8s %6s %6s %6s %7s %8s\n", ek_lab_phase_names[phase], "",
           "req/s", "p50 ms", "p99 ms", "ttft p99", "token p99", "util", "max/m", "cv", "router",
           "loss");
    for (int32_t i = 0; i < result->n_runs; i++) {
        const ek_lab_figures *f = &result->run[i].figures[phase];
        printf("%-18s %7.2f %8.0f %8.0f %8.0f %9.1f %6.2f %6.2f %6.3f %6.2f%% %8.4f\n",
               result->run[i].policy->name, f->qps, f->p50_ms, f->p99_ms, f->ttft_p99_ms,
               f->token_p99_ms, f->hottest_utilisation, f->max_over_mean, f->cv,
               100 * f->router_share, f->score_loss);
    }
    putchar('\n');
}

static void print_at(double seconds)
{
    if (seconds < 0)
        printf(" %9s", "-");
    else
        printf(" %8.0fs", seconds);
}

static void print_chains(const ek_cli_lab_result *result)
{
    printf("the chain\n%-18s %9s %9s %9s %9s %9s %9s %10s\n", "", "hot", "overload", "late",
           "alert", "breaker", "recovered", "overloaded");
    for (int32_t i = 0; i < result->n_runs; i++) {
        const ek_lab_chain *c = &result->run[i].chain;
        printf("%-18s", result->run[i].policy->name);
        print_at(c->hot_expert_s);
        print_at(c->overload_s);
        print_at(c->late_s);
        print_at(c->alert_s);
        print_at(c->breaker_s);
        print_at(c->recovery_s);
        printf(" %8.0f s\n", c->overloaded_s);
    }
    putchar('\n');
}

static void print_tokens(const ek_cli_lab_result *result)
{
    printf("what it cost in the promotion (tokens in a layer each)\n%-18s %10s %9s %9s %7s %12s "
           "%11s\n",
           "", "rerouted", "deferred", "degraded", "failed", "divergence", "perplexity");
    for (int32_t i = 0; i < result->n_runs; i++) {
        const ek_cli_lab_run *run = &result->run[i];
        const ek_lab_figures *f = &run->figures[EK_LAB_PROMOTION];
        printf("%-18s %10.0f %9.0f %9.0f %7d %7.4f nats ", run->policy->name, f->rerouted,
               f->deferred, f->degraded, (int)f->n_failed, run->watch.divergence);
        if (isnan(run->perplexity_change))
            printf("%11s\n", "-");
        else
            printf("%+10.2f%%\n", 100 * run->perplexity_change);
    }
}

static void print_verdicts(const ek_cli_lab_result *result)
{
    const ek_lab_figures *base = NULL;
    for (int32_t i = 0; i < result->n_runs; i++)
        if (strcmp(result->run[i].policy->name, "static") == 0)
            base = &result->run[i].figures[EK_LAB_PROMOTION];
    if (!base) return;
    printf("\nagainst static, in the promotion (aims: P99 -70 %%, cv -85 %%, router 1 %%, "
           "perplexity +1 %%)\n");
    for (int32_t i = 0; i < result->n_runs; i++) {
        const ek_lab_figures *f = &result->run[i].figures[EK_LAB_PROMOTION];
        if (f == base) continue;
        printf("%-18s P99 %+.0f %%, requests/s %+.0f %%, cv %+.0f %%, router %.2f %%\n",
               result->run[i].policy->name, change(base->p99_ms, f->p99_ms),
               change(base->qps, f->qps), change(base->cv, f->cv), 100 * f->router_share);
    }
}

void ek_cli_lab_print(const ek_cli_lab *lab, const ek_cli_lab_result *result)
{
    print_choices(lab);
    for (int p = 0; p < EK_LAB_N_PHASES; p++)
        print_phase(result, (ek_lab_phase)p);
    print_chains(result);
    print_tokens(result);
    print_verdicts(result);
}

/* ---- JSON ---- */

static json_t *policy_json(const ek_cli_lab_run *run)
{
    const ek_lab_figures *f = &run->figures[EK_LAB_PROMOTION];
    json_t *perplexity =
        isnan(run->perplexity_change) ? json_null() : json_real(run->perplexity_change);
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:I, s:I, s:I, s:i}", "policy",
                     run->policy->name, "qps", f->qps, "p50_ms", f->p50_ms, "p99_ms", f->p99_ms,
                     "balance_max_mean", f->max_over_mean, "balance_cv", f->cv, "router_cpu_share",
                     f->router_share, "score_loss", f->score_loss, "perplexity_change", perplexity,
                     "rerouted", (json_int_t)f->rerouted, "deferred", (json_int_t)f->deferred,
                     "degraded", (json_int_t)f->degraded, "failed", (int)f->n_failed);
}

static json_t *chain_json(const ek_lab_chain *c)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "hot_expert_s", c->hot_expert_s,
                     "overload_s", c->overload_s, "late_s", c->late_s, "alert_s", c->alert_s,
                     "breaker_s", c->breaker_s, "recovery_s", c->recovery_s, "overloaded_s",
                     c->overloaded_s);
}

static int append(const char *bytes, size_t n, void *ctx)
{
    ek_buf *text = ctx;
    ek_http_buf_add(text, (ek_str){bytes, n});
    return text->failed ? -1 : 0;
}

void ek_cli_lab_add_json(ek_buf *out, json_t *root)
{
    if (!root || json_dump_callback(root, append, out, FORMAT) != 0) out->failed = true;
    json_decref(root);
}

ek_status ek_cli_lab_write(const ek_buf *text, const char *path, ek_err *err)
{
    const ek_str str = ek_http_buf_str(text);
    if (text->failed) return ek_err_set(err, EK_ENOMEM, "%s: no memory", path);
    return ek_sys_file_write(path, (ek_span){(const uint8_t *)str.data, str.len}, err);
}

ek_status ek_cli_lab_write_json(const ek_cli_lab *lab, const ek_cli_lab_result *result,
                                const char *path, ek_err *err)
{
    json_t *policies = json_array(), *chains = json_object();
    for (int32_t i = 0; i < result->n_runs; i++) {
        const ek_cli_lab_run *run = &result->run[i];
        json_array_append_new(policies, policy_json(run));
        json_object_set_new(chains, run->policy->name, chain_json(&run->chain));
    }
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "version", EK_VERSION,
        "experiment", "incident", "model", lab->model_path, "workers", (json_int_t)lab->n_workers,
        "seed", (json_int_t)lab->seed, "minutes", lab->minutes, "rate", lab->plan.rate[0],
        "capacity", lab->capacity, "pace_gops", lab->gops, "busiest_mixed", lab->hottest_ordinary,
        "busiest_promotion", lab->hottest_promotion, "policies", policies, "chain", chains);
    ek_buf text = {0};
    ek_cli_lab_add_json(&text, root);
    const ek_status status = ek_cli_lab_write(&text, path, err);
    ek_http_buf_fini(&text);
    return status;
}
