/*
 * Configuration: one YAML file -> the params structs that the rooms declare.
 *
 * Precedence: command-line flag > environment (EVENKEEL_<SECTION>_<KEY>) > file > default. One
 * table (config/schema) has every key with its type, unit, range, default and help text; the file
 * reader, the environment, `--set`, `config show`, `check` and docs/CONFIG.md all read that table.
 * Strict: an unknown key, a wrong type or a value out of range is an error with file, line and the
 * nearest known name. Durations are written 250ms, 30s, 5m; sizes 64KiB, 4MiB, 2GiB. Only cli
 * includes this room.
 */
#ifndef EK_CONFIG_CONFIG_H
#define EK_CONFIG_CONFIG_H

#include <stdio.h>

#include "base/arena.h"
#include "base/err.h"
#include "cluster/params.h"
#include "engine/params.h"
#include "gateway/params.h"
#include "sys/log.h"
#include "worker/params.h"

typedef struct ek_config {
    const char *model_path;     /* NULL: not set anywhere */
    const char *model_alias;    /* id in the API; NULL: the file's name without .gguf */
    const char *chat_format;    /* NULL: recognise */
    const char *log_path;       /* NULL: standard error */
    const char *placement_path; /* NULL: none to begin with */
    ek_log_level log_level;
    ek_engine_params engine;
    ek_gateway_params gateway;
    ek_cluster_params cluster;
    ek_worker_params worker;
} ek_config;

/** All defaults. */
void ek_config_defaults(ek_config *out_config);

/**
 * Apply a file's settings. Nothing is changed when it fails; so for all of these.
 * @param text file content; @param name shown in errors ("evenkeel.yaml")
 * @param perm strings of the configuration live there
 * @return EK_OK; EK_ECONFIG (text: "name:line: ..."); EK_ENOMEM
 */
EK_MUST ek_status ek_config_parse(ek_str text, const char *name, ek_arena *perm, ek_config *config,
                                  ek_err *err);
/** Read a file and apply it. @return as parse; EK_ENOTFOUND; EK_EACCESS; EK_EIO */
EK_MUST ek_status ek_config_load(const char *path, ek_arena *perm, ek_config *config, ek_err *err);

/**
 * Apply the environment's EVENKEEL_<SECTION>_<KEY> variables; others of that prefix are errors, but
 * for EVENKEEL_CONFIG, EVENKEEL_URL and EVENKEEL_ADMIN_KEY, which are the commands' own.
 * @param environ_list NULL-terminated array of "NAME=value"
 * @return EK_OK; EK_ECONFIG (text: "environment: NAME: ..."); EK_ENOMEM
 */
EK_MUST ek_status ek_config_env(char *const *environ_list, ek_arena *perm, ek_config *config,
                                ek_err *err);

/**
 * Apply one "section.key" = value of the command line.
 * @param origin shown in errors ("--set engine.threads")
 * @return EK_OK; EK_ECONFIG (text: "origin: ..."); EK_ENOMEM
 */
EK_MUST ek_status ek_config_set(const char *key, const char *value, const char *origin,
                                ek_arena *perm, ek_config *config, ek_err *err);

/** Effective configuration as YAML that gives the same configuration when it is read again. */
void ek_config_print(const ek_config *config, FILE *out);
/** Every key with type, range, default and meaning, as Markdown (docs/CONFIG.md is made by it). */
void ek_config_print_reference(FILE *out);

#endif
