/*
 * The option parser: walks a command's argv along the command's own table.
 *
 *     ek_cli_args args = ek_cli_args_start(&command, argc, argv);
 *     for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;)
 *         switch (id) {
 *         case OPTION_MODEL: model = args.value; break;
 *         case EK_CLI_ARGS_OPERAND: file = args.value; break;
 *         default: return ek_cli_args_exit(&args, id);
 *         }
 *
 * Options are long, with their value after "=" or as the next word, in any order with operands;
 * "--" ends them. --help (or -h) is every command's. What is wrong is said on standard error here,
 * with the nearest known name, so that a command only hands the exit code on.
 */
#ifndef EK_CLI_ARGS_H
#define EK_CLI_ARGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "cli/command.h"

typedef struct ek_cli_args {
    const ek_cli_command *command; /* borrowed */
    int argc;
    char **argv;                 /* borrowed */
    int next;                    /* index of the next word */
    bool only_operands;          /* after "--" */
    const ek_cli_option *option; /* of the last step; NULL for an operand */
    const char *value;           /* of the last step; NULL for a switch */
} ek_cli_args;

enum {
    EK_CLI_ARGS_END = -1,
    EK_CLI_ARGS_OPERAND = -2,
    EK_CLI_ARGS_HELP = -3,  /* help was asked for and has been printed */
    EK_CLI_ARGS_USAGE = -4, /* a mistake, which has been said */
};

ek_cli_args ek_cli_args_start(const ek_cli_command *command, int argc, char **argv);

/** @return an option's id, or one of EK_CLI_ARGS_* */
int ek_cli_args_next(ek_cli_args *args);

/**
 * Exit code for a result that ends a command: help, a mistake, or an operand where none belongs.
 */
int ek_cli_args_exit(const ek_cli_args *args, int result);

/**
 * Read the last step's value as a whole number.
 * @return false after saying what was wanted: the command then ends with EK_EXIT_USAGE
 */
EK_MUST bool ek_cli_args_int(const ek_cli_args *args, int64_t min, int64_t max, int64_t *out_value);
/** As ek_cli_args_int for any finite decimal number. */
EK_MUST bool ek_cli_args_number(const ek_cli_args *args, double min, double max, double *out_value);

/** The usage line, what the command is for and its options, on standard output. */
void ek_cli_args_print_help(const ek_cli_command *command);

#endif
