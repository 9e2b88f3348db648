#include "cli/args.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"
#include "cli/exit.h"

ek_cli_args ek_cli_args_start(const ek_cli_command *command, int argc, char **argv)
{
    return (ek_cli_args){.command = command, .argc = argc, .argv = argv, .next = 1};
}

static const ek_cli_option *option_find(const ek_cli_command *command, ek_str name)
{
    for (size_t i = 0; i < command->n_options; i++)
        if (ek_str_eqz(name, command->options[i].name)) return &command->options[i];
    return NULL;
}

static int unknown_option(const ek_cli_command *command, ek_str word, ek_str name)
{
    ek_nearest nearest = ek_nearest_start(name);
    for (size_t i = 0; i < command->n_options; i++)
        ek_nearest_offer(&nearest, command->options[i].name);
    ek_nearest_offer(&nearest, "help");
    if (nearest.name)
        ek_cli_fail(EK_EXIT_USAGE, "%s: unknown option %.*s; did you mean --%s?", command->name,
                    EK_STR_ARG(word), nearest.name);
    else
        ek_cli_fail(EK_EXIT_USAGE, "%s: unknown option %.*s; see evenkeel %s --help", command->name,
                    EK_STR_ARG(word), command->name);
    return EK_CLI_ARGS_USAGE;
}

/* A long option's word, with "--" in front: its value is behind "=" or is the next word. */
static int take_option(ek_cli_args *args, const char *word)
{
    const char *equals = strchr(word, '=');
    const ek_str whole = {word, equals ? (size_t)(equals - word) : strlen(word)};
    const ek_str name = {whole.data + 2, whole.len - 2};
    if (ek_str_eqz(name, "help") && !equals) {
        ek_cli_args_print_help(args->command);
        return EK_CLI_ARGS_HELP;
    }
    const ek_cli_option *option = option_find(args->command, name);
    if (!option) return unknown_option(args->command, whole, name);

    args->option = option;
    args->value = NULL;
    if (!option->value && equals) {
        ek_cli_fail(EK_EXIT_USAGE, "%s: --%s takes no value", args->command->name, option->name);
        return EK_CLI_ARGS_USAGE;
    }
    if (option->value && equals) {
        args->value = equals + 1;
    } else if (option->value) {
        if (args->next >= args->argc) {
            ek_cli_fail(EK_EXIT_USAGE, "%s: --%s needs a value: --%s %s", args->command->name,
                        option->name, option->name, option->value);
            return EK_CLI_ARGS_USAGE;
        }
        args->value = args->argv[args->next++];
    }
    return option->id;
}

int ek_cli_args_next(ek_cli_args *args)
{
    if (args->next >= args->argc) return EK_CLI_ARGS_END;
    const char *word = args->argv[args->next++];
    if (!args->only_operands && strcmp(word, "--") == 0) {
        args->only_operands = true;
        if (args->next >= args->argc) return EK_CLI_ARGS_END;
        word = args->argv[args->next++];
    }
    if (!args->only_operands && strncmp(word, "--", 2) == 0) return take_option(args, word);
    if (!args->only_operands && strcmp(word, "-h") == 0) {
        ek_cli_args_print_help(args->command);
        return EK_CLI_ARGS_HELP;
    }
    /* A single "-" is an operand: standard input. */
    if (!args->only_operands && word[0] == '-' && word[1] != '\0')
        return unknown_option(args->command, ek_str_from(word), ek_str_from(word + 1));
    args->option = NULL;
    args->value = word;
    return EK_CLI_ARGS_OPERAND;
}

int ek_cli_args_exit(const ek_cli_args *args, int result)
{
    if (result == EK_CLI_ARGS_HELP) return EK_EXIT_OK;
    if (result == EK_CLI_ARGS_OPERAND)
        return ek_cli_fail(EK_EXIT_USAGE,
                           "%s: '%s' is one operand too many; see evenkeel %s --help",
                           args->command->name, args->value, args->command->name);
    return EK_EXIT_USAGE;
}

bool ek_cli_args_int(const ek_cli_args *args, int64_t min, int64_t max, int64_t *out_value)
{
    char *end;
    errno = 0;
    const long long value = strtoll(args->value, &end, 10);
    if (end == args->value || *end != '\0' || errno != 0 || value < min || value > max) {
        ek_cli_fail(EK_EXIT_USAGE,
                    "%s: --%s is '%s'; it must be a whole number from %" PRId64 " to %" PRId64,
                    args->command->name, args->option->name, args->value, min, max);
        return false;
    }
    *out_value = value;
    return true;
}

bool ek_cli_args_number(const ek_cli_args *args, double min, double max, double *out_value)
{
    char *end;
    const double value = strtod(args->value, &end);
    if (end == args->value || *end != '\0' || !isfinite(value) || value < min || value > max) {
        ek_cli_fail(EK_EXIT_USAGE, "%s: --%s is '%s'; it must be a number from %g to %g",
                    args->command->name, args->option->name, args->value, min, max);
        return false;
    }
    *out_value = value;
    return true;
}

void ek_cli_args_print_help(const ek_cli_command *command)
{
    printf("Usage: evenkeel %s%s%s%s\n\n%s\n", command->name,
           command->n_options ? " [OPTION]..." : "", command->operands[0] ? " " : "",
           command->operands, command->about);
    if (command->n_options) printf("\nOptions:\n");
    for (size_t i = 0; i < command->n_options; i++) {
        const ek_cli_option *option = &command->options[i];
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", option->name, option->value ? " " : "",
                 option->value ? option->value : "");
        printf("  %-26s %s", left, option->help);
        if (option->key) printf(" [%s]", option->key);
        putchar('\n');
    }
    printf("%s  %-26s %s\n", command->n_options ? "" : "\nOptions:\n", "-h, --help",
           "print this help");
}
