/*
 * build/bench/server [--url URL | --spawn MODEL [--program FILE] [--set KEY=VALUE]...]
 *                    [--streams N] [--requests N] [--prompt-tokens N] [--new-tokens N]
 *                    [--open-loop RATE] [--warm-up N] [--vocab N] [--seed N] [--json]
 *
 * What a client of the server gets: requests and tokens per second, the time to the first token,
 * from one token to the next, and to the end. cli/load.h tells how requests are made; any server
 * with streaming /v1/completions that takes token ids will do. --spawn starts build/evenkeel serve
 * on a free port with that model and the settings given, and tells its peak memory and how long it
 * took to be ready. A few requests before the measurement warm caches up.
 *
 * The time between tokens is that between pieces of text: a token that ends within a character
 * shows together with the next one. The client takes its share of a small machine.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cli/load.h"
#include "expert/model_file.h"
#include "spawn.h"

enum { MODEL_ID_BYTES = 512, PATH_BYTES = 4096 };

typedef struct bench {
    ek_cli_load_params load;
    ek_bench_spawn_params spawn;
    int32_t n_warm_up;
    bool json, has_streams;
    char program[PATH_BYTES];
    char model_id[MODEL_ID_BYTES];

    ek_bench_child child;
    ek_cli_load_result result;
    int64_t rss_mib; /* of the child; 0: not ours, or unknown */
    double load_s;
} bench;

/* ---- running ---- */

static ek_status spawn(bench *b, ek_err *err)
{
    ek_model_file *file = NULL;
    if (b->load.n_vocab == 0) {
        const ek_status status = ek_expert_model_open(b->spawn.model_path, NULL, &file, err);
        if (status < 0) return status;
        b->load.n_vocab = file->model->params.n_vocab;
        ek_expert_model_close(file);
    }
    const ek_status status = ek_bench_spawn_start(&b->spawn, &b->child, err);
    b->load.url = b->child.url;
    b->load_s = b->child.load_s;
    return status;
}

static ek_status find_model(bench *b, ek_err *err)
{
    int32_t n_vocab = 0;
    const ek_status status =
        ek_cli_load_model(b->load.url, b->model_id, sizeof b->model_id, &n_vocab, err);
    if (status < 0) return status;
    b->load.model_id = b->model_id;
    if (b->load.n_vocab == 0) b->load.n_vocab = n_vocab;
    if (b->load.n_vocab == 0)
        return ek_err_set(err, EK_EINVAL,
                          "%s does not say how many tokens its model knows; use --vocab",
                          b->load.url);
    return EK_OK;
}

static ek_status warm_up(const bench *b, ek_err *err)
{
    ek_cli_load_result result = {0};
    ek_cli_load_params params = b->load;
    if (b->n_warm_up == 0) return EK_OK;
    params.n_requests = b->n_warm_up;
    params.n_streams = b->n_warm_up < params.n_streams ? b->n_warm_up : params.n_streams;
    params.rate = 0;
    params.seed = ~params.seed; /* other prompts: nothing of them may be in a prefix cache */
    ek_status status = ek_cli_load_run(&params, &result, err);
    if (status == EK_OK && result.n_ok == 0)
        status =
            ek_err_set(err, EK_EPEER, "no request of the warm-up went well: %s", result.problem);
    ek_cli_load_free(&result);
    return status;
}

static ek_status measure(bench *b, ek_err *err)
{
    ek_status status = b->spawn.model_path ? spawn(b, err) : EK_OK;
    if (status == EK_OK) status = find_model(b, err);
    if (status == EK_OK) status = warm_up(b, err);
    if (status == EK_OK) status = ek_cli_load_run(&b->load, &b->result, err);
    if (b->child.process.pid) b->rss_mib = ek_sys_child_rss_mib(&b->child.process);
    const ek_status stopped = ek_bench_spawn_stop(&b->child, status == EK_OK ? err : NULL);
    return status == EK_OK ? stopped : status;
}

/* ---- reporting ---- */

static void print_json_times(const char *name, ek_cli_times *times)
{
    printf(",\"%s\":{\"p50\":%.3f,\"p99\":%.3f,\"max\":%.3f}", name,
           ek_cli_times_quantile(times, 0.5), ek_cli_times_quantile(times, 0.99),
           ek_cli_times_quantile(times, 1));
}

static void print_json(bench *b)
{
    const ek_cli_load_params *p = &b->load;
    ek_cli_load_result *r = &b->result;
    printf("{");
    ek_bench_print_machine_json();
    printf(",\"model\":");
    ek_bench_print_json_string(b->model_id);
    printf(",\"settings\":[");
    for (int32_t i = 0; i < b->spawn.n_settings; i++) {
        if (i > 0) printf(",");
        ek_bench_print_json_string(b->spawn.setting[i]);
    }
    printf("],\"streams\":%d,\"requests\":%d,\"prompt_tokens\":%d,\"new_tokens\":%d", p->n_streams,
           p->n_requests, p->n_prompt, p->n_new);
    if (p->rate > 0)
        printf(",\"open_loop\":%g", p->rate);
    else
        printf(",\"open_loop\":null");
    printf(",\"seed\":%llu,\"seconds\":%.3f,\"requests_per_s\":%.3f,\"output_tokens_per_s\":%.2f,"
           "\"total_tokens_per_s\":%.2f",
           (unsigned long long)p->seed, r->seconds, (double)r->n_ok / r->seconds,
           (double)r->n_output_tokens / r->seconds,
           (double)(r->n_output_tokens + r->n_prompt_tokens) / r->seconds);
    print_json_times("ttft_ms", &r->ttft);
    print_json_times("inter_token_ms", &r->gap);
    print_json_times("e2e_ms", &r->e2e);
    printf(",\"output_tokens\":%lld,\"pieces\":%lld,\"short\":%lld,\"errors\":%lld,\"error\":",
           (long long)r->n_output_tokens, (long long)r->n_pieces, (long long)r->n_short,
           (long long)r->n_failed);
    if (r->n_failed)
        ek_bench_print_json_string(r->problem);
    else
        printf("null");
    if (b->spawn.model_path)
        printf(",\"load_s\":%.2f,\"rss_mib\":%lld}\n", b->load_s, (long long)b->rss_mib);
    else
        printf(",\"load_s\":null,\"rss_mib\":null}\n");
}

static void print_times(const char *name, ek_cli_times *times)
{
    printf("%-18s %10.1f %10.1f %10.1f\n", name, ek_cli_times_quantile(times, 0.5),
           ek_cli_times_quantile(times, 0.99), ek_cli_times_quantile(times, 1));
}

static void print_text(bench *b)
{
    const ek_cli_load_params *p = &b->load;
    ek_cli_load_result *r = &b->result;
    ek_bench_print_machine();
    printf("server: %s, %s", b->spawn.model_path ? "started for this" : p->url, b->model_id);
    for (int32_t i = 0; i < b->spawn.n_settings; i++)
        printf(", %s", b->spawn.setting[i]);
    printf("\nload: %d requests of %d + %d tokens, ", p->n_requests, p->n_prompt, p->n_new);
    if (p->rate > 0)
        printf("open loop at %g a second", p->rate);
    else
        printf("closed loop of %d streams", p->n_streams);
    printf(", seed %llu\n\n", (unsigned long long)p->seed);
    printf("%.3f requests/s, %.1f output tokens/s, %.1f tokens/s with prompts\n",
           (double)r->n_ok / r->seconds, (double)r->n_output_tokens / r->seconds,
           (double)(r->n_output_tokens + r->n_prompt_tokens) / r->seconds);
    printf("%-18s %10s %10s %10s\n", "ms", "p50", "p99", "max");
    print_times("first token", &r->ttft);
    print_times("token to token", &r->gap);
    print_times("whole request", &r->e2e);
    printf("%lld tokens in %lld pieces of text; %lld answers too short; %lld errors",
           (long long)r->n_output_tokens, (long long)r->n_pieces, (long long)r->n_short,
           (long long)r->n_failed);
    if (r->n_failed) printf(", the first: %s", r->problem);
    if (b->spawn.model_path)
        printf("\nready after %.1f s, peak resident %lld MiB", b->load_s, (long long)b->rss_mib);
    printf("\n");
}

/* ---- arguments ---- */

typedef struct count_option {
    const char *name;
    int32_t *value;
    int32_t least, most;
} count_option;

static bool parse_count(const count_option *option, const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < option->least || value > option->most) return false;
    *option->value = (int32_t)value;
    return true;
}

static bool parse_text(bench *b, const char *name, const char *value)
{
    char *end;
    if (strcmp(name, "--url") == 0) {
        b->load.url = value;
    } else if (strcmp(name, "--spawn") == 0) {
        b->spawn.model_path = value;
    } else if (strcmp(name, "--program") == 0) {
        b->spawn.program = value;
    } else if (strcmp(name, "--set") == 0) {
        if (b->spawn.n_settings == EK_BENCH_SPAWN_SETTINGS_MAX) return false;
        b->spawn.setting[b->spawn.n_settings++] = value;
    } else if (strcmp(name, "--open-loop") == 0) {
        b->load.rate = strtod(value, &end);
        return end != value && !*end && isfinite(b->load.rate) && b->load.rate > 0;
    } else if (strcmp(name, "--seed") == 0) {
        b->load.seed = strtoull(value, &end, 10);
        return end != value && !*end;
    } else {
        return false;
    }
    return true;
}

static bool parse(int argc, char **argv, bench *b)
{
    ek_cli_load_params *p = &b->load;
    const count_option counts[] = {
        {"--streams", &p->n_streams, 1, EK_CLI_LOAD_STREAMS_MAX},
        {"--requests", &p->n_requests, 1, EK_CLI_LOAD_REQUESTS_MAX},
        {"--prompt-tokens", &p->n_prompt, 1, EK_CLI_LOAD_TOKENS_MAX},
        {"--new-tokens", &p->n_new, 1, EK_CLI_LOAD_TOKENS_MAX},
        {"--vocab", &p->n_vocab, 1, 1 << 24},
        {"--warm-up", &b->n_warm_up, 0, EK_CLI_LOAD_REQUESTS_MAX},
    };
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(name, "--json") == 0) {
            b->json = true;
            continue;
        }
        const count_option *count = NULL;
        for (size_t c = 0; c < EK_COUNT_OF(counts); c++)
            if (strcmp(name, counts[c].name) == 0) count = &counts[c];
        if (!value || !(count ? parse_count(count, value) : parse_text(b, name, value)))
            return false;
        b->has_streams |= strcmp(name, "--streams") == 0;
        i++;
    }
    /* An open loop is open as long as places are free: by default there are enough. */
    if (p->rate > 0 && !b->has_streams) p->n_streams = EK_CLI_LOAD_STREAMS_MAX;
    if (p->n_streams > p->n_requests) p->n_streams = p->n_requests;
    return !p->url != !b->spawn.model_path && (b->spawn.n_settings == 0 || b->spawn.model_path);
}

/* build/bench/server -> build/evenkeel */
static void find_program(bench *b, const char *own_path)
{
    if (b->spawn.program) return;
    const char *slash = strrchr(own_path, '/');
    const int n = slash ? (int)(slash - own_path) : 1;
    snprintf(b->program, sizeof b->program, "%.*s/../evenkeel", n, slash ? own_path : ".");
    b->spawn.program = b->program;
}

int main(int argc, char **argv)
{
    static bench b;
    ek_err err = {0};
    b.load = (ek_cli_load_params){
        .n_streams = 32, .n_requests = 64, .n_prompt = 64, .n_new = 32, .seed = 1};
    b.n_warm_up = 2;
    if (!parse(argc, argv, &b)) {
        fprintf(stderr,
                "usage: server --url URL | --spawn MODEL [--program FILE] [--set KEY=VALUE]...\n"
                "              [--streams 1..1024] [--requests N] [--prompt-tokens N] "
                "[--new-tokens N]\n"
                "              [--open-loop RATE] [--warm-up N] [--vocab N] [--seed N] [--json]\n");
        return 64;
    }
    find_program(&b, argv[0]);
    const ek_status status = measure(&b, &err);
    if (status == EK_OK) {
        if (b.json)
            print_json(&b);
        else
            print_text(&b);
    } else {
        fprintf(stderr, "server: %s\n", err.text);
    }
    const bool ok = status == EK_OK && b.result.n_failed == 0;
    ek_cli_load_free(&b.result);
    return ok ? 0 : 1;
}
