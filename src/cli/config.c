/*
 * evenkeel config: the configuration in force, and the reference of all keys.
 */
#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/exit.h"
#include "cli/settings.h"

static const ek_cli_option options[] = {EK_CLI_SETTINGS_ROWS};

static int show(const ek_cli_settings *settings)
{
    ek_cli_loaded loaded;
    ek_err err = {0};
    if (ek_cli_settings_load(settings, &loaded, &err) < 0) return ek_cli_fail_err(&err);
    ek_config_print(&loaded.config, stdout);
    ek_cli_loaded_close(&loaded);
    return EK_EXIT_OK;
}

static int run(int argc, char **argv)
{
    ek_cli_settings settings = ek_cli_settings_start();
    const char *verb = NULL;
    ek_cli_args args = ek_cli_args_start(&ek_cli_config, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        if (id == EK_CLI_ARGS_OPERAND && !verb) {
            verb = args.value;
        } else if (id == EK_CLI_OPTION_CONFIG || id == EK_CLI_OPTION_SET) {
            const int code = ek_cli_settings_take(&settings, &args);
            if (code != EK_EXIT_OK) return code;
        } else {
            return ek_cli_args_exit(&args, id);
        }
    }
    if (verb && strcmp(verb, "show") == 0) return show(&settings);
    if (verb && strcmp(verb, "reference") == 0) {
        ek_config_print_reference(stdout);
        return EK_EXIT_OK;
    }
    return ek_cli_fail(EK_EXIT_USAGE,
                       "config: say what: evenkeel config show, or config reference");
}

const ek_cli_command ek_cli_config = {
    .name = "config",
    .operands = "show|reference",
    .summary = "print the configuration in force, or all keys",
    .about = "show prints what serve would run with, as YAML that --config accepts: flags over\n"
             "environment over file over defaults. reference prints every key with its type,\n"
             "range, default and meaning, as Markdown.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
