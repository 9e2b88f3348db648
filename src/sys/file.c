#include "sys/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "sys/mem.h"

#define PATH_LEN 4096

/* The status and text of errno for this path. */
static ek_status fail(const char *path, const char *doing, int code, ek_err *err)
{
    switch (code) {
    case ENOENT:
    case ENOTDIR: return ek_err_set(err, EK_ENOTFOUND, "%s: no such file", path);
    case EACCES:
    case EPERM: return ek_err_set(err, EK_EACCESS, "%s: permission denied", path);
    case EISDIR: return ek_err_set(err, EK_EIO, "%s: is a directory", path);
    case ENOMEM: return ek_err_set(err, EK_ENOMEM, "%s: %s: out of memory", path, doing);
    default: return ek_err_set(err, EK_EIO, "%s: %s: %s", path, doing, strerror(code));
    }
}

static ek_status map_fd(int fd, const char *path, ek_sys_map *out_map, ek_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return fail(path, "stat", errno, err);
    if (S_ISDIR(st.st_mode)) return fail(path, "open", EISDIR, err);
    if (!S_ISREG(st.st_mode)) return ek_err_set(err, EK_EIO, "%s: is not a regular file", path);
    if (st.st_size == 0) return ek_err_set(err, EK_EIO, "%s: is empty", path);
    void *base = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (base == MAP_FAILED)
        return ek_err_set(err, EK_EIO, "%s: cannot be mapped: %s", path, strerror(errno));
    *out_map = (ek_sys_map){.bytes = {base, (size_t)st.st_size}};
    return EK_OK;
}

ek_status ek_sys_map_open(const char *path, ek_sys_map *out_map, ek_err *err)
{
    /* Without O_NONBLOCK a named pipe would hold us here until somebody writes to it. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail(path, "open", errno, err);
    ek_status status = map_fd(fd, path, out_map, err);
    close(fd);
    return status;
}

void ek_sys_map_close(ek_sys_map *map)
{
    if (!map->bytes.data) return;
    int rc = munmap((void *)(uintptr_t)map->bytes.data, map->bytes.len);
    ek_assert(rc == 0);
    *map = (ek_sys_map){0};
}

void ek_sys_map_prefetch(const ek_sys_map *map)
{
    if (map->bytes.data) madvise((void *)(uintptr_t)map->bytes.data, map->bytes.len, MADV_WILLNEED);
}

/*
 * Reads to the end, growing the block, and one byte past max_bytes to tell "exactly" from "longer".
 * Sizes that stat gives are not relied on: pipes and /proc have none, and files grow.
 */
static ek_status read_fd(int fd, const char *path, size_t max_bytes, ek_str *out_text, ek_err *err)
{
    ek_status status = EK_OK;
    size_t limit = max_bytes < SIZE_MAX - 2 ? max_bytes + 1 : SIZE_MAX - 1;
    size_t room = limit < 4096 ? limit : 4096, len = 0;
    char *data = ek_sys_calloc(1, room + 1);
    if (!data) return fail(path, "read", ENOMEM, err);
    for (;;) {
        ssize_t n = read(fd, data + len, room - len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            status = fail(path, "read", errno, err);
            goto free_data;
        }
        len += (size_t)n;
        if (n == 0) break;
        if (len > max_bytes) {
            status = ek_err_set(err, EK_ERANGE, "%s: longer than the %zu bytes allowed", path,
                                max_bytes);
            goto free_data;
        }
        if (len < room) continue;
        room = room < limit / 2 ? room * 2 : limit;
        char *grown = ek_sys_realloc(data, room + 1);
        if (!grown) {
            status = fail(path, "read", ENOMEM, err);
            goto free_data;
        }
        data = grown;
    }
    data[len] = '\0';
    *out_text = (ek_str){data, len};
    return EK_OK;

free_data:
    ek_sys_free(data);
    return status;
}

ek_status ek_sys_file_read(const char *path, size_t max_bytes, ek_str *out_text, ek_err *err)
{
    bool is_stdin = strcmp(path, "-") == 0;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(path, "open", errno, err);
    ek_status status = read_fd(fd, is_stdin ? "standard input" : path, max_bytes, out_text, err);
    if (!is_stdin) close(fd);
    return status;
}

static bool write_all(int fd, ek_span bytes)
{
    while (bytes.len > 0) {
        ssize_t n = write(fd, bytes.data, bytes.len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        bytes.data += n;
        bytes.len -= (size_t)n;
    }
    return true;
}

/* The rename itself survives a power cut only when the directory is written, too. Best effort. */
static void sync_directory(const char *path)
{
    char dir[PATH_LEN];
    const char *slash = strrchr(path, '/');
    size_t len = !slash ? 0 : slash == path ? 1 : (size_t)(slash - path);
    memcpy(dir, path, len);
    snprintf(dir + len, sizeof dir - len, "%s", len ? "" : ".");
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

/*
 * Creates a temporary beside path (renames work only inside a file system), with the old file's
 * mode.
 */
static int open_temporary(const char *path, char out_temporary[PATH_LEN])
{
    struct stat st;
    int fd = -1;
    for (int i = 0; fd < 0 && i < 100; i++) {
        int n = snprintf(out_temporary, PATH_LEN, "%s.%ld-%d.tmp", path, (long)getpid(), i);
        if (n >= PATH_LEN) {
            errno = ENAMETOOLONG;
            return -1;
        }
        fd = open(out_temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST) return -1;
    }
    if (fd >= 0 && stat(path, &st) == 0 && fchmod(fd, st.st_mode & 07777) != 0) {
        close(fd);
        unlink(out_temporary);
        return -1;
    }
    return fd;
}

ek_status ek_sys_file_write(const char *path, ek_span bytes, ek_err *err)
{
    char temporary[PATH_LEN];
    int fd = open_temporary(path, temporary);
    if (fd < 0) return fail(path, "create", errno, err);
    bool written = write_all(fd, bytes) && fsync(fd) == 0;
    int code = errno;
    if (close(fd) != 0 && written) {
        written = false;
        code = errno;
    }
    if (written && rename(temporary, path) != 0) {
        written = false;
        code = errno;
    }
    if (!written) {
        unlink(temporary);
        return fail(path, "write", code, err);
    }
    sync_directory(path);
    return EK_OK;
}

bool ek_sys_file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool ek_sys_file_same(const char *path, const char *other)
{
    struct stat a, b;
    return stat(path, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}
