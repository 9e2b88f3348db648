#include "config/config.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/nearest.h"
#include "config/schema.h"
#include "config/suggest.h"
#include "config/value.h"
#include "config/yaml.h"
#include "sys/file.h"
#include "sys/mem.h"

#define ENV_PREFIX   "EVENKEEL_"
#define ENV_NAME_MAX 64

void ek_config_defaults(ek_config *out_config)
{
    ek_config config = {0};
    for (int32_t i = 0; i < ek_config_n_keys; i++) {
        const ek_config_key *key = &ek_config_keys[i];
        if (key->type == EK_CONFIG_TEXT) {
            /* Texts of the table live as long as the program: no copy is needed. */
            memcpy((char *)&config + key->offset, &key->default_value, sizeof key->default_value);
            continue;
        }
        ek_status status =
            ek_config_value_apply(key, ek_str_from(key->default_value), NULL, &config, NULL);
        ek_assert(status == EK_OK); /* a row whose default is outside its own range */
    }
    *out_config = config;
}

ek_status ek_config_parse(ek_str text, const char *name, ek_arena *perm, ek_config *config,
                          ek_err *err)
{
    ek_config changed = *config;
    ek_status status = ek_config_yaml_read(text, name, perm, &changed, err);
    if (status == EK_OK) *config = changed;
    return status;
}

ek_status ek_config_load(const char *path, ek_arena *perm, ek_config *config, ek_err *err)
{
    ek_str text;
    ek_status status = ek_sys_file_read(path, EK_CONFIG_FILE_BYTES_MAX, &text, err);
    if (status == EK_ERANGE)
        return ek_err_set(err, EK_ECONFIG,
                          "%s:1: longer than the %d bytes that a configuration has", path,
                          EK_CONFIG_FILE_BYTES_MAX);
    if (status != EK_OK) return status;
    status = ek_config_parse(text, path, perm, config, err);
    ek_sys_free((void *)(uintptr_t)text.data);
    return status;
}

/* EVENKEEL_GATEWAY_LISTEN for gateway.listen. */
static void env_name(const ek_config_key *key, char out_name[ENV_NAME_MAX])
{
    int n = snprintf(out_name, ENV_NAME_MAX, ENV_PREFIX "%s_%s", key->section, key->name);
    ek_assert(n > 0 && n < ENV_NAME_MAX);
    for (char *c = out_name; *c; c++)
        if (*c >= 'a' && *c <= 'z') *c = (char)(*c - 'a' + 'A');
}

static ek_status refuse_env(ek_str name, ek_err *err)
{
    char names[EK_CONFIG_KEYS_MAX][ENV_NAME_MAX];
    ek_nearest nearest = ek_nearest_start(name);
    for (int32_t i = 0; i < ek_config_n_keys; i++) {
        env_name(&ek_config_keys[i], names[i]);
        ek_nearest_offer(&nearest, names[i]);
    }
    return ek_err_set(err, EK_ECONFIG, "environment: unknown variable %.*s; %s%s%s",
                      EK_STR_ARG(name), nearest.name ? "did you mean " : "",
                      nearest.name ? nearest.name : "names are " ENV_PREFIX "<SECTION>_<KEY>",
                      nearest.name ? "?" : "");
}

/* Applies one "NAME=value" that begins with the prefix. */
static ek_status apply_env(const char *variable, ek_arena *perm, ek_config *config, ek_err *err)
{
    static const char *const others[] = {"EVENKEEL_CONFIG", "EVENKEEL_URL", "EVENKEEL_ADMIN_KEY"};
    const char *equals = strchr(variable, '=');
    ek_str name = {variable, equals ? (size_t)(equals - variable) : strlen(variable)};
    ek_str value = ek_str_from(equals ? equals + 1 : "");
    for (size_t i = 0; i < EK_COUNT_OF(others); i++)
        if (ek_str_eqz(name, others[i])) return EK_OK;
    for (int32_t i = 0; i < ek_config_n_keys; i++) {
        char known[ENV_NAME_MAX];
        env_name(&ek_config_keys[i], known);
        if (!ek_str_eqz(name, known)) continue;
        ek_status status = ek_config_value_apply(&ek_config_keys[i], value, perm, config, err);
        if (status != EK_OK) ek_err_prefix(err, "environment: %s", known);
        return status;
    }
    return refuse_env(name, err);
}

ek_status ek_config_env(char *const *environ_list, ek_arena *perm, ek_config *config, ek_err *err)
{
    ek_config changed = *config;
    for (; *environ_list; environ_list++) {
        if (strncmp(*environ_list, ENV_PREFIX, strlen(ENV_PREFIX)) != 0) continue;
        ek_status status = apply_env(*environ_list, perm, &changed, err);
        if (status != EK_OK) return status;
    }
    *config = changed;
    return EK_OK;
}

ek_status ek_config_set(const char *key, const char *value, const char *origin, ek_arena *perm,
                        ek_config *config, ek_err *err)
{
    const char *dot = strchr(key, '.');
    ek_str section = {key, dot ? (size_t)(dot - key) : 0};
    int32_t section_idx = dot ? ek_config_section_find(section) : -1;
    int32_t key_idx = dot ? ek_config_key_find(section, ek_str_from(dot + 1)) : -1;
    ek_status status =
        key_idx >= 0
            ? ek_config_value_apply(&ek_config_keys[key_idx], ek_str_from(value), perm, config, err)
        : section_idx >= 0 ? ek_config_refuse_name(section_idx, ek_str_from(dot + 1), err)
                           : ek_config_refuse_name(-1, ek_str_from(key), err);
    if (status != EK_OK) ek_err_prefix(err, "%s", origin);
    return status;
}
