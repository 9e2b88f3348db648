/*
 * evenkeel check: is this configuration file fit to be served?
 */
#include <stdio.h>

#include "cli/args.h"
#include "cli/exit.h"
#include "config/config.h"
#include "sys/mem.h"

#define CHECK_BYTES ((size_t)4 << 20) /* strings of one configuration */

static int run(int argc, char **argv)
{
    const char *path = NULL;
    ek_cli_args args = ek_cli_args_start(&ek_cli_check, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        if (id != EK_CLI_ARGS_OPERAND || path) return ek_cli_args_exit(&args, id);
        path = args.value;
    }
    if (!path) return ek_cli_fail(EK_EXIT_USAGE, "check: name the file: evenkeel check FILE");

    ek_sys_region region;
    if (ek_sys_region_open(CHECK_BYTES, 0, &region) < 0)
        return ek_cli_fail(EK_EXIT_MEMORY, "check: no memory for the configuration");
    ek_arena perm = ek_sys_region_arena(&region);
    ek_config config;
    ek_err err = {0};
    ek_config_defaults(&config);
    ek_status status = ek_config_load(path, &perm, &config, &err);
    /* What keys mean together; the model's part of it is not known here. */
    if (status >= 0) status = ek_route_params_check(&config.engine.route, &err);
    ek_sys_region_close(&region);
    if (status == EK_EINVAL) return ek_cli_fail(EK_EXIT_CONFIG, "%s: %s", path, err.text);
    if (status < 0) return ek_cli_fail_err(&err);
    printf("%s: ok\n", path);
    return EK_EXIT_OK;
}

const ek_cli_command ek_cli_check = {
    .name = "check",
    .operands = "FILE",
    .summary = "check a configuration file",
    .about =
        "Reads a configuration file as serve would and says what is wrong with it: file, line and\n"
        "the nearest known key, or which routing keys do not go together. Nothing is opened or\n"
        "started. Exit code 78 means invalid.",
    .run = run,
};
