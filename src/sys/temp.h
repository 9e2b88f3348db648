/*
 * Directories of our own below $TMPDIR, for what a command needs while it runs.
 */
#ifndef EK_SYS_TEMP_H
#define EK_SYS_TEMP_H

#include <stddef.h>

#include "base/attr.h"
#include "base/err.h"

/**
 * Make one that nobody else may look into.
 * @param name  how its name begins
 * @return EK_OK; EK_EIO it cannot be made, the text says where; EK_ERANGE out_path is too small
 */
EK_MUST ek_status ek_sys_temp_make(const char *name, char *out_path, size_t bytes, ek_err *err);

/**
 * Remove a directory with all that is in it; links are removed, not followed.
 * @return EK_OK; EK_EIO something is left
 */
EK_MUST ek_status ek_sys_temp_remove(const char *path, ek_err *err);

#endif
