/*
 * evenkeel models: what is in a model file, and what serving it takes.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/exit.h"
#include "config/config.h"
#include "engine/engine.h"
#include "expert/model_file.h"
#include "quant/types.h"

enum { OPTION_CONTEXT, OPTION_RUNNING_MAX, OPTION_JSON };

static const ek_cli_option options[] = {
    {OPTION_CONTEXT, "context", "N", "memory for this context (default: the model's own)", NULL},
    {OPTION_RUNNING_MAX, "running-max", "N", "memory for this many full sequences (default 1)",
     NULL},
    {OPTION_JSON, "json", NULL, "print one JSON object", NULL},
};

/* How much of a model is stored as one element type. */
typedef struct type_share {
    int64_t n_tensors;
    int64_t bytes;
} type_share;

typedef struct facts {
    const char *path;
    const ek_model_file *file;
    type_share share[EK_TYPE_MAX];
    int64_t n_tensors;
    ek_engine_memory memory;
    int64_t context_tokens;
    int64_t running_max;
} facts;

static void count_types(facts *f)
{
    const ek_gguf *gguf = f->file->model->gguf;
    f->n_tensors = ek_model_gguf_tensor_count(gguf);
    for (int64_t i = 0; i < f->n_tensors; i++) {
        const ek_tensor *tensor = ek_model_gguf_tensor_at(gguf, i);
        f->share[tensor->type].n_tensors++;
        f->share[tensor->type].bytes += (int64_t)tensor->bytes;
    }
}

static ek_status estimate(facts *f, ek_err *err)
{
    ek_config config;
    ek_config_defaults(&config);
    config.engine.context_tokens = (int32_t)f->context_tokens;
    config.engine.running_max = (int32_t)f->running_max;
    return ek_engine_estimate(&config.engine, f->path, &f->memory, err);
}

static const char *chat_name(const ek_model_file *file)
{
    return file->chat ? ek_model_chat_name(file->chat) : NULL;
}

static json_t *types_json(const facts *f)
{
    json_t *types = json_object();
    for (uint32_t type = 0; type < EK_TYPE_MAX; type++)
        if (f->share[type].n_tensors > 0)
            json_object_set_new(types, ek_quant_type_info(type)->name,
                                json_pack("{s:I, s:I}", "tensors",
                                          (json_int_t)f->share[type].n_tensors, "bytes",
                                          (json_int_t)f->share[type].bytes));
    return types;
}

static int print_json(const facts *f)
{
    const ek_model_params *p = &f->file->model->params;
    json_t *memory = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I}", "context", (json_int_t)f->context_tokens, "running_max",
        (json_int_t)f->running_max, "weights_bytes", (json_int_t)f->memory.weight_bytes,
        "kv_cache_bytes", (json_int_t)f->memory.kv_bytes, "buffers_bytes",
        (json_int_t)f->memory.buffer_bytes, "needed_bytes", (json_int_t)f->memory.need_bytes);
    json_t *root = json_pack(
        "{s:s, s:s, s:s%, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s?, s:I, s:o, s:o}",
        "file", f->path, "architecture", p->arch, "name", p->name.data, p->name.len,
        "parameters_total", (json_int_t)p->n_params_total, "parameters_active",
        (json_int_t)p->n_params_active, "layers", p->n_layers, "width", p->d_model, "experts",
        p->n_experts, "experts_used", p->top_k, "shared_expert_width", p->shared_ff, "context",
        p->context_tokens, "vocabulary", p->n_vocab, "tokenizer",
        ek_model_tokenizer_kind(f->file->tokenizer), "chat_format", chat_name(f->file), "tensors",
        (json_int_t)f->n_tensors, "types", types_json(f), "memory", memory);
    if (!root)
        return ek_cli_fail(EK_EXIT_DATA, "%s: a name in the file is not valid UTF-8", f->path);
    json_dumpf(root, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(root);
    return EK_EXIT_OK;
}

static void print_text(const facts *f)
{
    const ek_model_params *p = &f->file->model->params;
    const double mib = 1024.0 * 1024.0;
    printf("file          %s (%.1f MiB)\n", f->path, (double)f->file->file_bytes / mib);
    printf("name          %.*s\n", EK_STR_ARG(p->name));
    printf("architecture  %s, %" PRId32 " layers of width %" PRId32 "\n", p->arch, p->n_layers,
           p->d_model);
    printf("parameters    %.2f M total, %.2f M active per token\n", (double)p->n_params_total / 1e6,
           (double)p->n_params_active / 1e6);
    printf("experts       %" PRId32 " per layer, %" PRId32 " used per token%s\n", p->n_experts,
           p->top_k, p->shared_ff > 0 ? ", and a shared one" : "");
    printf("context       %" PRId32 " tokens\n", p->context_tokens);
    printf("tokenizer     %s, %" PRId32 " tokens\n", ek_model_tokenizer_kind(f->file->tokenizer),
           p->n_vocab);
    if (f->file->chat)
        printf("chat format   %s\n", chat_name(f->file));
    else
        printf("chat format   none: %s\n", f->file->chat_problem);
    printf("types        ");
    for (uint32_t type = 0; type < EK_TYPE_MAX; type++)
        if (f->share[type].n_tensors > 0)
            printf(" %s (%" PRId64 " tensors, %.1f MiB)", ek_quant_type_info(type)->name,
                   f->share[type].n_tensors, (double)f->share[type].bytes / mib);
    printf("\nmemory        %.1f MiB: weights %.1f, KV cache %.1f (%" PRId64 " x %" PRId64
           " tokens), buffers %.1f, and 20 %%\n",
           (double)f->memory.need_bytes / mib, (double)f->memory.weight_bytes / mib,
           (double)f->memory.kv_bytes / mib, f->running_max, f->context_tokens,
           (double)f->memory.buffer_bytes / mib);
}

static int describe(facts *f, bool json)
{
    ek_err err = {0};
    ek_model_file *file;
    if (ek_expert_model_open(f->path, NULL, &file, &err) < 0) return ek_cli_fail_err(&err);
    f->file = file;
    if (f->context_tokens == 0) f->context_tokens = file->model->params.context_tokens;
    count_types(f);
    int code = EK_EXIT_OK;
    if (estimate(f, &err) < 0)
        code = ek_cli_fail_err(&err);
    else if (json)
        code = print_json(f);
    else
        print_text(f);
    ek_expert_model_close(file);
    return code;
}

static int run(int argc, char **argv)
{
    facts f = {.running_max = 1};
    bool json = false;
    ek_cli_args args = ek_cli_args_start(&ek_cli_models, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        bool good = true;
        switch (id) {
        case OPTION_CONTEXT: good = ek_cli_args_int(&args, 1, INT32_MAX, &f.context_tokens); break;
        case OPTION_RUNNING_MAX: good = ek_cli_args_int(&args, 1, 256, &f.running_max); break;
        case OPTION_JSON: json = true; break;
        case EK_CLI_ARGS_OPERAND:
            if (f.path) return ek_cli_args_exit(&args, id);
            f.path = args.value;
            break;
        default: return ek_cli_args_exit(&args, id);
        }
        if (!good) return EK_EXIT_USAGE;
    }
    if (!f.path) return ek_cli_fail(EK_EXIT_USAGE, "models: name the file: evenkeel models FILE");
    return describe(&f, json);
}

const ek_cli_command ek_cli_models = {
    .name = "models",
    .operands = "FILE",
    .summary = "describe a model file",
    .about =
        "Says what is in a GGUF file: architecture, parameters in total and active per token,\n"
        "experts, context, tokenizer, chat format, tensor types, and the memory that serving\n"
        "it needs, 20 % margin included.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
