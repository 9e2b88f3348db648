/*
 * evenkeel help: the commands, or one command's options.
 */
#include <stdio.h>

#include "cli/args.h"
#include "cli/exit.h"

static int run(int argc, char **argv)
{
    const char *topic = NULL;
    ek_cli_args args = ek_cli_args_start(&ek_cli_help, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        if (id != EK_CLI_ARGS_OPERAND || topic) return ek_cli_args_exit(&args, id);
        topic = args.value;
    }
    if (!topic) {
        ek_cli_command_print_all();
        return EK_EXIT_OK;
    }
    const ek_cli_command *command = ek_cli_command_find(topic);
    if (!command) return ek_cli_command_unknown(topic);
    ek_cli_args_print_help(command);
    return EK_EXIT_OK;
}

const ek_cli_command ek_cli_help = {
    .name = "help",
    .operands = "[COMMAND]",
    .summary = "list the commands, or explain one",
    .about = "Lists the commands, or prints what COMMAND --help prints.",
    .run = run,
};
