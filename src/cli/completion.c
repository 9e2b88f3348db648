/*
 * evenkeel completion: a shell script made from the command table.
 */
#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/exit.h"

static void print_options(const ek_cli_command *command)
{
    for (size_t i = 0; i < command->n_options; i++)
        printf("--%s ", command->options[i].name);
    printf("--help");
}

/* Words that may stand as operand: "show|reference" lists them; capitals stand for anything. */
static void print_operands(const char *operands)
{
    for (const char *c = operands; *c; c++)
        if (*c >= 'a' && *c <= 'z')
            putchar(*c);
        else if (*c == '|')
            putchar(' ');
}

static void print_command_names(void)
{
    const ek_cli_command *command;
    for (size_t i = 0; (command = ek_cli_command_at(i)) != NULL; i++)
        printf("%s%s", i ? " " : "", command->name);
}

static void print_bash(void)
{
    printf("# bash completion for evenkeel %s; made by: evenkeel completion bash\n"
           "_evenkeel()\n"
           "{\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words=\n"
           "    if ((COMP_CWORD == 1)); then\n"
           "        words='",
           EK_VERSION);
    print_command_names();
    printf("'\n"
           "    else\n"
           "        case ${COMP_WORDS[1]} in\n"
           "        help) words='");
    print_command_names();
    printf("' ;;\n");
    const ek_cli_command *command;
    for (size_t i = 0; (command = ek_cli_command_at(i)) != NULL; i++) {
        if (command == &ek_cli_help) continue;
        printf("        %s) words='", command->name);
        print_options(command);
        putchar(' ');
        print_operands(command->operands);
        printf("' ;;\n");
    }
    printf("        esac\n"
           "        if [[ $cur != -* && $prev == --* ]]; then\n"
           "            case $prev in\n"
           "            --kernels) words='auto reference avx2 avx512' ;;\n"
           "            --log-level) words='error warn info debug' ;;\n"
           "            esac\n"
           "        fi\n"
           "    fi\n"
           "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
           "}\n"
           "complete -o default -F _evenkeel evenkeel\n");
}

static int run(int argc, char **argv)
{
    const char *shell = NULL;
    ek_cli_args args = ek_cli_args_start(&ek_cli_completion, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        if (id != EK_CLI_ARGS_OPERAND || shell) return ek_cli_args_exit(&args, id);
        shell = args.value;
    }
    if (!shell || strcmp(shell, "bash") != 0)
        return ek_cli_fail(EK_EXIT_USAGE,
                           "completion: the known shell is bash: evenkeel completion bash");
    print_bash();
    return EK_EXIT_OK;
}

const ek_cli_command ek_cli_completion = {
    .name = "completion",
    .operands = "bash",
    .summary = "print a completion script",
    .about = "Prints a completion script for bash. For one session:\n"
             "  source <(evenkeel completion bash)",
    .run = run,
};
