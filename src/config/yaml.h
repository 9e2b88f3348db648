/*
 * The file reader: YAML events against the table of keys.
 *
 * A configuration file is a mapping of sections, each a mapping of keys to single values.
 * Everything else that YAML can express (lists, deeper nesting, anchors, tags, several documents)
 * is refused where it begins, so nothing is expanded and nothing recurses, whatever the file holds.
 */
#ifndef EK_CONFIG_YAML_H
#define EK_CONFIG_YAML_H

#include "base/arena.h"
#include "base/err.h"
#include "config/config.h"

#define EK_CONFIG_FILE_BYTES_MAX (1 << 20)

/**
 * As ek_config_parse, but config may be half changed when this fails.
 * @return EK_OK; EK_ECONFIG; EK_ENOMEM
 */
EK_MUST ek_status ek_config_yaml_read(ek_str text, const char *name, ek_arena *perm,
                                      ek_config *config, ek_err *err);

#endif
