/*
 * Files: read-only maps for models, whole reads for small texts, atomic replacement for writing.
 */
#ifndef EK_SYS_FILE_H
#define EK_SYS_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"

typedef struct ek_sys_map {
    ek_span bytes; /* owned mapping, private and read-only */
} ek_sys_map;

/**
 * Map a regular file. The error text has the path and the reason ("no such file", "is a directory",
 * ...).
 * @return EK_OK; EK_ENOTFOUND; EK_EACCESS; EK_EIO (not a regular file, empty, mapping failed)
 */
EK_MUST ek_status ek_sys_map_open(const char *path, ek_sys_map *out_map, ek_err *err);
void ek_sys_map_close(ek_sys_map *map);

/** Ask the kernel to read the map ahead; returns at once. */
void ek_sys_map_prefetch(const ek_sys_map *map);

/**
 * Read a whole file (or "-" = standard input) of at most max_bytes into heap memory,
 * NUL-terminated.
 * @param out_text its data is owned by the caller, ek_sys_free
 * @return EK_OK; EK_ENOTFOUND; EK_EACCESS; EK_EIO; EK_ERANGE longer than max_bytes; EK_ENOMEM
 */
EK_MUST ek_status ek_sys_file_read(const char *path, size_t max_bytes, ek_str *out_text,
                                   ek_err *err);

/**
 * Write a file so that a reader sees the old or the new content, never half: temporary, fsync,
 * rename.
 * @return EK_OK; EK_ENOTFOUND no such directory; EK_EACCESS; EK_EIO; EK_ENOMEM
 */
EK_MUST ek_status ek_sys_file_write(const char *path, ek_span bytes, ek_err *err);

bool ek_sys_file_exists(const char *path);

/** Do two paths lead to one file? False where either is not there. */
bool ek_sys_file_same(const char *path, const char *other);

#endif
