/*
 * Reading the configuration again while serving. What can change under way changes; what cannot is
 * named, so that nobody believes it did. A configuration with a mistake changes nothing.
 */
#ifndef EK_CLI_RELOAD_H
#define EK_CLI_RELOAD_H

#include <stddef.h>

#include "base/attr.h"
#include "base/err.h"
#include "cli/settings.h"
#include "config/config.h"
#include "engine/watch.h"

/**
 * Load the settings again and apply them to a running server.
 * @param running      in force; its live keys take their new values
 * @param engine  that serves; NULL: none yet
 * @param out_restart names of changed keys that need a restart, comma-separated, cut at `bytes`; ""
 *         for none
 * @return EK_OK; as ek_cli_settings_load; EK_EINVAL routing keys that do not go together
 */
EK_MUST ek_status ek_cli_reload(const ek_cli_settings *settings, ek_config *running,
                                ek_engine *engine, char *out_restart, size_t bytes, ek_err *err);

#endif
