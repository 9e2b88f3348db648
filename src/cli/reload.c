#include "cli/reload.h"

#include <stdio.h>
#include <string.h>

#include "config/schema.h"
#include "config/value.h"
#include "sys/log.h"

static bool same_value(const ek_config_key *key, const ek_config *a, const ek_config *b)
{
    if (key->type == EK_CONFIG_TEXT) {
        const char *text_a = ek_config_value_text(key, a), *text_b = ek_config_value_text(key, b);
        return strcmp(text_a ? text_a : "", text_b ? text_b : "") == 0;
    }
    char text_a[EK_CONFIG_VALUE_TEXT_MAX], text_b[EK_CONFIG_VALUE_TEXT_MAX];
    ek_config_value_print(key, a, text_a);
    ek_config_value_print(key, b, text_b);
    return strcmp(text_a, text_b) == 0;
}

static void list_differences(const ek_config *running, const ek_config *wanted, char *out_names,
                             size_t bytes)
{
    size_t n = 0;
    out_names[0] = '\0';
    for (int32_t i = 0; i < ek_config_n_keys && n < bytes; i++) {
        const ek_config_key *key = &ek_config_keys[i];
        if (same_value(key, running, wanted)) continue;
        const int added =
            snprintf(out_names + n, bytes - n, "%s%s.%s", n ? ", " : "", key->section, key->name);
        if (added < 0) break;
        n += (size_t)added;
    }
}

ek_status ek_cli_reload(const ek_cli_settings *settings, ek_config *running, ek_engine *engine,
                        char *out_restart, size_t bytes, ek_err *err)
{
    ek_cli_loaded loaded;
    ek_status status = ek_cli_settings_load(settings, &loaded, err);
    if (status < 0) return status;
    /* What is live: the log's level, and how tokens are routed. */
    if (engine) {
        ek_route_params route = loaded.config.engine.route;
        route.sample_us = running->engine.route.sample_us; /* what samples was made for it */
        status = ek_engine_route_switch(engine, &route, err);
        if (status < 0) {
            ek_cli_loaded_close(&loaded);
            return status;
        }
        running->engine.route = route;
    }
    running->log_level = loaded.config.log_level;
    ek_sys_log_set_level(running->log_level);
    list_differences(running, &loaded.config, out_restart, bytes);
    ek_cli_loaded_close(&loaded);
    return EK_OK;
}
