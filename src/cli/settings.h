/*
 * Where a command's configuration comes from: flags > environment > file > defaults.
 *
 * A command takes the options below into its own table, hands each of them to ek_cli_settings_take
 * while it walks its arguments, and then loads, possibly several times (a reload reads the file
 * again). What a load gave lives until the next close; flags are kept, so that a reload cannot undo
 * them.
 */
#ifndef EK_CLI_SETTINGS_H
#define EK_CLI_SETTINGS_H

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "cli/args.h"
#include "config/config.h"
#include "sys/mem.h"

#define EK_CLI_SETTINGS_MAX 64 /* flags of one command line that set a key */

/* Ids of the options that every table with settings has; a command's own ids start behind them. */
enum {
    EK_CLI_OPTION_CONFIG,  /* --config FILE */
    EK_CLI_OPTION_SET,     /* --set section.key=value */
    EK_CLI_OPTION_SETTING, /* any option with a key */
    EK_CLI_OPTION_OWN,
};

/** The first rows of such a table. */
#define EK_CLI_SETTINGS_ROWS                                                               \
    {EK_CLI_OPTION_CONFIG, "config", "FILE", "read settings from this YAML file", NULL},   \
    {                                                                                      \
        EK_CLI_OPTION_SET, "set", "KEY=VALUE", "set any key: --set engine.threads=4", NULL \
    }

typedef struct ek_cli_setting {
    char key[64];
    const char *value;
    char origin[64]; /* as errors name it: "--listen" */
} ek_cli_setting;

typedef struct ek_cli_settings {
    const char *config_path; /* NULL: no file */
    ek_cli_setting set[EK_CLI_SETTINGS_MAX];
    size_t n_set;
} ek_cli_settings;

/** Everything one load gave. */
typedef struct ek_cli_loaded {
    ek_config config;
    ek_sys_region region; /* owned: strings of config */
} ek_cli_loaded;

/** No settings but the file that $EVENKEEL_CONFIG names, if it does. */
ek_cli_settings ek_cli_settings_start(void);

/**
 * Take the option of args' last step. @return EK_EXIT_OK, or the exit code of a mistake that has
 * been said
 */
EK_MUST int ek_cli_settings_take(ek_cli_settings *settings, const ek_cli_args *args);

/**
 * Put the configuration together, with this process's environment.
 * @return EK_OK; EK_ECONFIG and what reading the file gave; the text names file and line, variable
 *         or flag
 */
EK_MUST ek_status ek_cli_settings_load(const ek_cli_settings *settings, ek_cli_loaded *out_loaded,
                                       ek_err *err);

/** Accepts a zeroed object. */
void ek_cli_loaded_close(ek_cli_loaded *loaded);

#endif
