/*
 * evenkeel tokenize: a text's token ids, as the model's own tokenizer gives them.
 */
#include <inttypes.h>
#include <stdio.h>

#include "cli/args.h"
#include "cli/exit.h"
#include "cli/tokens.h"
#include "expert/model_file.h"
#include "sys/file.h"
#include "sys/mem.h"

enum { OPTION_MODEL, OPTION_TEXT_FILE, OPTION_SPECIAL };

static const ek_cli_option options[] = {
    {OPTION_MODEL, "model", "PATH", "GGUF file whose tokenizer is used", NULL},
    {OPTION_TEXT_FILE, "text-file", "FILE", "text to encode; - is standard input", NULL},
    {OPTION_SPECIAL, "special", NULL, "text that spells a special token becomes that token", NULL},
};

static int print_ids(const ek_tokenizer *tokenizer, ek_str text, bool special)
{
    ek_cli_tokens tokens;
    ek_err err = {0};
    if (ek_cli_tokens_encode(tokenizer, text, special, false, &tokens, &err) < 0)
        return ek_cli_fail_err(&err);
    for (int64_t i = 0; i < tokens.n; i++)
        printf("%s%" PRId32, i ? " " : "", tokens.id[i]);
    putchar('\n');
    ek_cli_tokens_free(&tokens);
    return EK_EXIT_OK;
}

static int run(int argc, char **argv)
{
    const char *model_path = NULL, *text_path = NULL;
    bool special = false;
    ek_cli_args args = ek_cli_args_start(&ek_cli_tokenize, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        switch (id) {
        case OPTION_MODEL: model_path = args.value; break;
        case OPTION_TEXT_FILE: text_path = args.value; break;
        case OPTION_SPECIAL: special = true; break;
        default: return ek_cli_args_exit(&args, id);
        }
    }
    if (!model_path || !text_path)
        return ek_cli_fail(EK_EXIT_USAGE, "tokenize: --model PATH and --text-file FILE are needed");

    ek_err err = {0};
    ek_str text;
    if (ek_sys_file_read(text_path, EK_CLI_TEXT_MAX, &text, &err) < 0) return ek_cli_fail_err(&err);
    ek_model_file *file;
    if (ek_expert_model_open(model_path, NULL, &file, &err) < 0) {
        ek_sys_free((void *)text.data);
        return ek_cli_fail_err(&err);
    }
    const int code = print_ids(file->tokenizer, text, special);
    ek_expert_model_close(file);
    ek_sys_free((void *)text.data);
    return code;
}

const ek_cli_command ek_cli_tokenize = {
    .name = "tokenize",
    .operands = "",
    .summary = "print a text's token ids",
    .about = "Prints the ids of a file's text on one line, without a BOS in front or an end token "
             "behind.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
