/*
 * evenkeel logits: what a model computes for a prompt, for people and programs that check it.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "cli/args.h"
#include "cli/exit.h"
#include "cli/text.h"
#include "cli/tokens.h"
#include "config/config.h"
#include "engine/engine.h"
#include "expert/model_file.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/mem.h"

#define GREEDY_MAX   65536
#define TOP_SHOWN    10
#define NEWS_WAIT_US 200000

enum {
    OPTION_MODEL,
    OPTION_GATE_OVERLAY,
    OPTION_PROMPT_FILE,
    OPTION_GREEDY,
    OPTION_KERNELS,
    OPTION_THREADS,
    OPTION_JSON,
};

static const ek_cli_option options[] = {
    {OPTION_MODEL, "model", "PATH", "GGUF file to compute with", NULL},
    {OPTION_GATE_OVERLAY, "gate-overlay", "FILE", "calibrated gates in place of the model's", NULL},
    {OPTION_PROMPT_FILE, "prompt-file", "FILE", "prompt; - is standard input", NULL},
    {OPTION_GREEDY, "greedy", "N", "also the N most likely tokens that follow (default 0)", NULL},
    {OPTION_KERNELS, "kernels", "NAME", "auto, reference, avx2 or avx512 (default auto)", NULL},
    {OPTION_THREADS, "threads", "N", "compute threads (default: one per CPU)", NULL},
    {OPTION_JSON, "json", NULL, "print tokens, greedy and logits as one JSON object", NULL},
};

typedef struct wanted {
    const char *model_path;
    const char *overlay_path;
    const char *prompt_path;
    ek_kernels_choice kernels;
    int64_t n_greedy;
    int64_t n_threads;
    bool json;
} wanted;

/* What one run found out. */
typedef struct findings {
    ek_cli_tokens prompt;
    float *logits; /* (n_vocab) owned */
    int32_t n_vocab;
    int32_t *greedy; /* (n_greedy) owned */
    int64_t n_greedy;
} findings;

/* Generate greedily past the prompt; the token that ends the answer is the last one kept. */
static ek_status continue_greedily(ek_engine *engine, const ek_tokenizer *tokenizer,
                                   int64_t n_wanted, findings *found, ek_err *err)
{
    const ek_request_params params = {
        .prompt = found->prompt.id,
        .n_prompt = (int32_t)found->prompt.n,
        .max_tokens = (int32_t)n_wanted,
        .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = -1},
        .ignore_eos = true,
    };
    ek_request *request;
    const ek_status status = ek_engine_submit(engine, &params, &request, err);
    if (status < 0) return status;

    ek_finish finish = EK_FINISH_NONE;
    bool ended = false;
    while (finish == EK_FINISH_NONE && !ended) {
        void *tag;
        ek_output output;
        (void)ek_engine_wait(engine, &tag, 1, NEWS_WAIT_US);
        ek_engine_read(engine, request, &output);
        for (int32_t i = 0; i < output.n_tokens && !ended; i++) {
            found->greedy[found->n_greedy++] = output.token[i].id;
            ended = ek_model_tokenizer_is_end(tokenizer, output.token[i].id);
        }
        finish = output.finish;
    }
    ek_engine_release(engine, request);
    if (!ended && finish != EK_FINISH_LENGTH)
        return ek_err_set(err, EK_EINTERNAL, "the engine gave up after %" PRId64 " tokens",
                          found->n_greedy);
    return EK_OK;
}

static ek_status compute(const wanted *want, const ek_model_file *file, findings *found,
                         ek_err *err)
{
    ek_config config;
    ek_config_defaults(&config);
    ek_engine_params params = config.engine;
    params.kernels = want->kernels;
    params.n_threads = (int32_t)want->n_threads;
    params.running_max = 1;
    params.prefix_cache = false;
    params.gate_overlay = want->overlay_path;
    const int64_t context = found->prompt.n + want->n_greedy + 1;
    if (context > file->model->params.context_tokens)
        return ek_err_set(err, EK_ECONTEXT,
                          "%" PRId64 " prompt tokens and %" PRId64
                          " greedy ones exceed the model's context of %" PRId32,
                          found->prompt.n, want->n_greedy, file->model->params.context_tokens);
    params.context_tokens = (int32_t)context;

    ek_sys_log_set_level(EK_LOG_ERROR); /* nobody operates this engine */
    ek_sys_region region;
    ek_status status = ek_sys_region_open(EK_METRICS_BYTES_MAX, 0, &region);
    if (status < 0) return ek_err_set(err, status, "no memory for the metrics");
    ek_arena perm = ek_sys_region_arena(&region);
    ek_metrics *metrics;
    ek_engine *engine;
    status = ek_telemetry_metrics_create(&perm, &metrics);
    if (status >= 0)
        status = ek_engine_create(&params, want->model_path, NULL, metrics, &engine, err);
    if (status < 0) goto close_region;
    status =
        ek_engine_logits(engine, found->prompt.id, (int32_t)found->prompt.n, found->logits, err);
    if (status >= 0 && want->n_greedy > 0)
        status = continue_greedily(engine, file->tokenizer, want->n_greedy, found, err);
    ek_engine_destroy(engine);
close_region:
    ek_sys_region_close(&region);
    return status;
}

static void print_ids(const char *name, const int32_t *ids, int64_t n)
{
    printf("\"%s\":[", name);
    for (int64_t i = 0; i < n; i++)
        printf("%s%" PRId32, i ? "," : "", ids[i]);
    putchar(']');
}

static void print_json(const findings *found)
{
    putchar('{');
    print_ids("tokens", found->prompt.id, found->prompt.n);
    putchar(',');
    print_ids("greedy", found->greedy, found->n_greedy);
    printf(",\"logits\":[");
    for (int32_t i = 0; i < found->n_vocab; i++) {
        /* JSON has neither NaN nor infinity. */
        if (isfinite(found->logits[i]))
            printf("%s%.9g", i ? "," : "", (double)found->logits[i]);
        else
            printf("%snull", i ? "," : "");
    }
    printf("]}\n");
}

/* Text with everything spelled out that would disturb a terminal, or is no character. */
static void print_escaped(ek_str text)
{
    const char *end = text.data + text.len;
    for (const char *c = text.data; c < end;) {
        uint32_t code;
        const size_t n = ek_utf8_decode((ek_str){c, (size_t)(end - c)}, &code);
        if (n > 0 && code >= 0x20 && code != 0x7f)
            fwrite(c, 1, n, stdout);
        else if (*c == '\n')
            fputs("\\n", stdout);
        else
            printf("\\x%02x", (unsigned char)*c);
        c += n > 0 ? n : 1;
    }
    putchar('\n');
}

static ek_status append_piece(const ek_tokenizer *tokenizer, int32_t id, ek_cli_text *text)
{
    char piece[EK_TOKENIZER_PIECE_MAX];
    const size_t n = ek_model_tokenizer_piece(tokenizer, id, true, piece);
    return ek_cli_text_append(text, (ek_str){piece, n}, EK_CLI_TEXT_MAX);
}

/* Characters may be spread over tokens, so the text is put together before it is printed. */
static void print_greedy(const findings *found, const ek_tokenizer *tokenizer)
{
    ek_cli_text text = {0};
    ek_status status = EK_OK;
    for (int64_t i = 0; i < found->n_greedy && status == EK_OK; i++)
        status = append_piece(tokenizer, found->greedy[i], &text);
    printf("greedy: %" PRId64 " tokens\n", found->n_greedy);
    print_escaped(ek_cli_text_str(&text));
    ek_cli_text_free(&text);
}

static void print_table(const findings *found, const ek_tokenizer *tokenizer)
{
    printf("prompt: %" PRId64 " tokens\n%4s %8s %12s  %s\n", found->prompt.n, "rank", "id", "logit",
           "token");
    /* Each rank is the best among those behind the rank before it: id breaks ties. */
    float above = INFINITY;
    int32_t above_id = -1;
    for (int rank = 1; rank <= TOP_SHOWN && rank <= found->n_vocab; rank++) {
        int32_t best = -1;
        for (int32_t id = 0; id < found->n_vocab; id++) {
            const float logit = found->logits[id];
            const bool behind = logit < above || (logit == above && id > above_id);
            if (behind && (best < 0 || logit > found->logits[best])) best = id;
        }
        if (best < 0) break;
        above = found->logits[best];
        above_id = best;
        printf("%4d %8" PRId32 " %12.6f  ", rank, best, (double)above);
        char piece[EK_TOKENIZER_PIECE_MAX];
        print_escaped((ek_str){piece, ek_model_tokenizer_piece(tokenizer, best, true, piece)});
    }
    if (found->n_greedy > 0) print_greedy(found, tokenizer);
}

static int look(const wanted *want, const ek_model_file *file, ek_str prompt)
{
    ek_err err = {0};
    findings found = {.n_vocab = file->model->params.n_vocab};
    ek_status status =
        ek_cli_tokens_encode(file->tokenizer, prompt, true, true, &found.prompt, &err);
    if (status < 0) return ek_cli_fail_err(&err);
    int code = EK_EXIT_OK;
    found.logits = ek_sys_calloc((size_t)found.n_vocab, sizeof *found.logits);
    found.greedy = ek_sys_calloc((size_t)want->n_greedy + 1, sizeof *found.greedy);
    if (found.prompt.n == 0) {
        code = ek_cli_fail(EK_EXIT_DATA, "%s: the prompt has no tokens", want->prompt_path);
    } else if (!found.logits || !found.greedy) {
        code = ek_cli_fail(EK_EXIT_MEMORY, "no memory for %" PRId32 " logits", found.n_vocab);
    } else if (compute(want, file, &found, &err) < 0) {
        code = ek_cli_fail_err(&err);
    } else if (want->json) {
        print_json(&found);
    } else {
        print_table(&found, file->tokenizer);
    }
    ek_sys_free(found.logits);
    ek_sys_free(found.greedy);
    ek_cli_tokens_free(&found.prompt);
    return code;
}

/* @return EK_EXIT_OK, with everything in out_want; another code when the command is over already */
static int take_arguments(int argc, char **argv, wanted *out_want, bool *out_done)
{
    *out_done = true;
    ek_cli_args args = ek_cli_args_start(&ek_cli_logits, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        bool good = true;
        switch (id) {
        case OPTION_MODEL: out_want->model_path = args.value; break;
        case OPTION_GATE_OVERLAY: out_want->overlay_path = args.value; break;
        case OPTION_PROMPT_FILE: out_want->prompt_path = args.value; break;
        case OPTION_GREEDY:
            good = ek_cli_args_int(&args, 0, GREEDY_MAX, &out_want->n_greedy);
            break;
        case OPTION_THREADS: good = ek_cli_args_int(&args, 1, 1024, &out_want->n_threads); break;
        case OPTION_KERNELS:
            if (!ek_kernels_choice_parse(args.value, &out_want->kernels))
                return ek_cli_fail(EK_EXIT_USAGE,
                                   "logits: --kernels is '%s'; it must be auto, reference, avx2 or "
                                   "avx512",
                                   args.value);
            break;
        case OPTION_JSON: out_want->json = true; break;
        default: return ek_cli_args_exit(&args, id);
        }
        if (!good) return EK_EXIT_USAGE;
    }
    if (!out_want->model_path || !out_want->prompt_path)
        return ek_cli_fail(EK_EXIT_USAGE, "logits: --model PATH and --prompt-file FILE are needed");
    *out_done = false;
    return EK_EXIT_OK;
}

static int run(int argc, char **argv)
{
    wanted want = {.kernels = EK_KERNELS_AUTO};
    bool done;
    int code = take_arguments(argc, argv, &want, &done);
    if (done) return code;

    ek_err err = {0};
    ek_str prompt;
    if (ek_sys_file_read(want.prompt_path, EK_CLI_TEXT_MAX, &prompt, &err) < 0)
        return ek_cli_fail_err(&err);
    ek_model_file *file;
    if (ek_expert_model_open(want.model_path, NULL, &file, &err) < 0) {
        code = ek_cli_fail_err(&err);
    } else {
        code = look(&want, file, prompt);
        ek_expert_model_close(file);
    }
    ek_sys_free((void *)prompt.data);
    return code;
}

const ek_cli_command ek_cli_logits = {
    .name = "logits",
    .operands = "",
    .summary = "print what a model computes for a prompt",
    .about = "Prints the logits of the prompt's last position. Text that spells a special token\n"
             "becomes that token; BOS is added where the model file says so. --greedy N goes on\n"
             "with the most likely tokens, up to and including one that ends the answer.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
