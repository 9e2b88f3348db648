/*
 * What a command of `evenkeel` is: one constant in a file of its own, listed in commands.c.
 *
 * It carries everything that help, the completion script and the option parser need, so that none
 * of them can drift from the others. A command's function gets its argv (argv[0] is the command's
 * name) and returns the process's exit code; only cli prints, and only main leaves.
 */
#ifndef EK_CLI_COMMAND_H
#define EK_CLI_COMMAND_H

#include <stddef.h>

typedef struct ek_cli_option {
    int id;            /* >= 0, what ek_cli_args_next returns; unique within a command */
    const char *name;  /* long name without its dashes */
    const char *value; /* how help calls its value: "FILE", "N"; NULL: a switch */
    const char *help;  /* one line */
    const char *key;   /* configuration key that it sets ("gateway.listen"); NULL: none */
} ek_cli_option;

typedef struct ek_cli_command {
    const char *name;
    const char *operands;         /* as help shows them: "FILE", "show|reference"; "" for none */
    const char *summary;          /* one line, without a full stop */
    const char *about;            /* what help says below the usage line */
    const ek_cli_option *options; /* (n_options) */
    size_t n_options;
    int (*run)(int argc, char **argv);
} ek_cli_command;

extern const ek_cli_command ek_cli_calibrate;
extern const ek_cli_command ek_cli_chat;
extern const ek_cli_command ek_cli_check;
extern const ek_cli_command ek_cli_cluster;
extern const ek_cli_command ek_cli_completion;
extern const ek_cli_command ek_cli_config;
extern const ek_cli_command ek_cli_experts;
extern const ek_cli_command ek_cli_fetch;
extern const ek_cli_command ek_cli_help;
extern const ek_cli_command ek_cli_lab_command;
extern const ek_cli_command ek_cli_logits;
extern const ek_cli_command ek_cli_manifest_cmd;
extern const ek_cli_command ek_cli_models;
extern const ek_cli_command ek_cli_place;
extern const ek_cli_command ek_cli_serve;
extern const ek_cli_command ek_cli_status;
extern const ek_cli_command ek_cli_tokenize;
extern const ek_cli_command ek_cli_version;
extern const ek_cli_command ek_cli_worker;

/** The i-th command in the order of the help text; NULL behind the last. */
const ek_cli_command *ek_cli_command_at(size_t idx);

/** NULL: no such command. */
const ek_cli_command *ek_cli_command_find(const char *name);

/** Say that there is no such command, with the nearest one. @return EK_EXIT_USAGE */
int ek_cli_command_unknown(const char *name);

/** All commands, a line each, on standard output. */
void ek_cli_command_print_all(void);

#endif
