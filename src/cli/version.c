/*
 * evenkeel version: what this binary is and what it can use on this processor.
 */
#include <stdio.h>

#include "cli/args.h"
#include "cli/exit.h"
#include "kernels/kernels.h"
#include "model/desc.h"
#include "sys/cpu.h"

enum { OPTION_JSON };

static const ek_cli_option options[] = {
    {OPTION_JSON, "json", NULL, "print one JSON object", NULL},
};

static int run(int argc, char **argv)
{
    bool json = false;
    ek_cli_args args = ek_cli_args_start(&ek_cli_version, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        if (id != OPTION_JSON) return ek_cli_args_exit(&args, id);
        json = true;
    }
    ek_kernels kernels;
    const char *best = "none";
    if (ek_kernels_select(EK_KERNELS_AUTO, ek_sys_cpu_flags(), &kernels) >= 0) best = kernels.name;
    if (json)
        printf("{\"version\":\"%s\",\"kernels\":\"%s\",\"architectures\":\"%s\"}\n", EK_VERSION,
               best, ek_model_arch_list());
    else
        printf("evenkeel %s\nkernels: %s\narchitectures: %s\n", EK_VERSION, best,
               ek_model_arch_list());
    return EK_EXIT_OK;
}

const ek_cli_command ek_cli_version = {
    .name = "version",
    .operands = "",
    .summary = "print version, kernels and architectures",
    .about = "Prints the version, the kernels that this processor would use, and the model\n"
             "architectures that this build knows.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
