/*
 * A file that is written in any order: of its full size from the beginning, taking disk space only
 * for what has been written. One thread.
 */
#ifndef EK_SYS_SPARSE_H
#define EK_SYS_SPARSE_H

#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"

typedef struct ek_sys_sparse {
    int fd;           /* owned */
    const char *path; /* borrowed until close; for error texts */
} ek_sys_sparse;

/**
 * Open a file for writing, making it if it is not there, and give it its size.
 * @param path  borrowed until close
 * @param bytes its size; a file of another size is cut or grown
 * @return EK_OK; EK_ENOTFOUND; EK_EACCESS; EK_EIO
 */
EK_MUST ek_status ek_sys_sparse_open(const char *path, int64_t bytes, ek_sys_sparse *out_file,
                                     ek_err *err);
/** @return EK_OK; EK_EIO the text says why: no space, say */
EK_MUST ek_status ek_sys_sparse_write(const ek_sys_sparse *file, int64_t offset, ek_span bytes,
                                      ek_err *err);
/** What was written is on the disk when this returns. @return EK_OK; EK_EIO */
EK_MUST ek_status ek_sys_sparse_sync(const ek_sys_sparse *file, ek_err *err);
/** Accepts a zeroed one. */
void ek_sys_sparse_close(ek_sys_sparse *file);

/** Give a file its final name, for good. @return EK_OK; EK_ENOTFOUND; EK_EACCESS; EK_EIO */
EK_MUST ek_status ek_sys_file_rename(const char *from, const char *to, ek_err *err);
/** Take a file away, if it is there. Best effort. */
void ek_sys_file_remove(const char *path);
/** Make a directory where there is none yet. @return as ek_sys_file_rename */
EK_MUST ek_status ek_sys_directory_make(const char *path, ek_err *err);
/** Size of a regular file; below 0: there is none. */
int64_t ek_sys_file_bytes(const char *path);
/** Bytes that may still be written where `path` is; INT64_MAX: unknown. */
int64_t ek_sys_disk_free(const char *path);

/** A file that is read in any order. One thread. */
typedef struct ek_sys_reader {
    int fd; /* owned */
} ek_sys_reader;

/** @return EK_OK; EK_ENOTFOUND; EK_EACCESS; EK_EIO not a regular file */
EK_MUST ek_status ek_sys_reader_open(const char *path, ek_sys_reader *out_reader, ek_err *err);
/** @return bytes read, at most `bytes`; 0 at the end; below 0: cannot be read */
int64_t ek_sys_reader_at(const ek_sys_reader *reader, int64_t offset, void *data, size_t bytes);
void ek_sys_reader_close(ek_sys_reader *reader);

#endif
