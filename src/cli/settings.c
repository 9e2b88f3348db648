#include "cli/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/exit.h"

extern char **environ; /* POSIX leaves its declaration to the program */

/* Strings of a configuration: a file of at most 1 MiB, the environment and the flags. */
#define SETTINGS_BYTES ((size_t)4 << 20)

/* Variables that belong to the program as a whole and are no configuration keys. */
static const char *const own_variables[] = {
    "EVENKEEL_CONFIG=", "EVENKEEL_URL=", "EVENKEEL_ADMIN_KEY="};

ek_cli_settings ek_cli_settings_start(void)
{
    const char *path = getenv("EVENKEEL_CONFIG");
    return (ek_cli_settings){.config_path = path && path[0] ? path : NULL};
}

int ek_cli_settings_take(ek_cli_settings *settings, const ek_cli_args *args)
{
    if (args->option->id == EK_CLI_OPTION_CONFIG) {
        settings->config_path = args->value;
        return EK_EXIT_OK;
    }
    if (settings->n_set == EK_CLI_SETTINGS_MAX)
        return ek_cli_fail(EK_EXIT_USAGE,
                           "%s: more than %d settings; write them into a --config file",
                           args->command->name, EK_CLI_SETTINGS_MAX);
    ek_cli_setting *setting = &settings->set[settings->n_set];
    if (args->option->id == EK_CLI_OPTION_SET) {
        const char *equals = strchr(args->value, '=');
        if (!equals || equals == args->value ||
            (size_t)(equals - args->value) >= sizeof setting->key)
            return ek_cli_fail(EK_EXIT_USAGE, "%s: --set %s: write it as --set section.key=value",
                               args->command->name, args->value);
        snprintf(setting->key, sizeof setting->key, "%.*s", (int)(equals - args->value),
                 args->value);
        snprintf(setting->origin, sizeof setting->origin, "--set %.*s", (int)(equals - args->value),
                 args->value);
        setting->value = equals + 1;
    } else {
        snprintf(setting->key, sizeof setting->key, "%s", args->option->key);
        snprintf(setting->origin, sizeof setting->origin, "--%s", args->option->name);
        setting->value = args->value;
    }
    settings->n_set++;
    return EK_EXIT_OK;
}

static bool is_own_variable(const char *variable)
{
    for (size_t i = 0; i < EK_COUNT_OF(own_variables); i++)
        if (strncmp(variable, own_variables[i], strlen(own_variables[i])) == 0) return true;
    return false;
}

static ek_status load_into(const ek_cli_settings *settings, ek_arena *perm, ek_config *config,
                           ek_err *err)
{
    ek_config_defaults(config);
    if (settings->config_path) {
        const ek_status status = ek_config_load(settings->config_path, perm, config, err);
        if (status < 0) return status;
    }
    size_t n = 0;
    while (environ[n])
        n++;
    char **variables = ek_try_new(perm, char *, n + 1);
    if (!variables) return ek_err_set(err, EK_ENOMEM, "the environment has too many variables");
    for (size_t i = 0, kept = 0; i < n; i++)
        if (!is_own_variable(environ[i])) variables[kept++] = environ[i];
    ek_status status = ek_config_env(variables, perm, config, err);
    for (size_t i = 0; i < settings->n_set && status >= 0; i++) {
        const ek_cli_setting *setting = &settings->set[i];
        status = ek_config_set(setting->key, setting->value, setting->origin, perm, config, err);
    }
    return status;
}

ek_status ek_cli_settings_load(const ek_cli_settings *settings, ek_cli_loaded *out_loaded,
                               ek_err *err)
{
    ek_cli_loaded loaded = {0};
    ek_status status = ek_sys_region_open(SETTINGS_BYTES, 0, &loaded.region);
    if (status < 0) return ek_err_set(err, status, "no memory for the configuration");
    ek_arena perm = ek_sys_region_arena(&loaded.region);
    status = load_into(settings, &perm, &loaded.config, err);
    if (status < 0) {
        ek_sys_region_close(&loaded.region);
        return status;
    }
    *out_loaded = loaded;
    return EK_OK;
}

void ek_cli_loaded_close(ek_cli_loaded *loaded)
{
    ek_sys_region_close(&loaded->region);
    *loaded = (ek_cli_loaded){0};
}
