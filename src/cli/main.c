/*
 * evenkeel: hands the command line to the command it names.
 */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/exit.h"

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "help";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) name = "help";
    if (strcmp(name, "--version") == 0) name = "version";

    const ek_cli_command *command = ek_cli_command_find(name);
    if (!command) return ek_cli_command_unknown(name);
    const int code = argc > 1 ? command->run(argc - 1, argv + 1) : command->run(argc, argv);

    /* Output that never arrived (a full disk, a closed pipe) must not look like success. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == EK_EXIT_OK)
        return ek_cli_fail(EK_EXIT_IO, "writing to standard output failed; is the disk full?");
    /* Called without any words, the list of commands was a reply to a mistake. */
    return argc > 1 ? code : EK_EXIT_USAGE;
}
