#include "sys/sparse.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static ek_status fail(const char *path, int code, ek_err *err)
{
    switch (code) {
    case ENOENT:
    case ENOTDIR: return ek_err_set(err, EK_ENOTFOUND, "%s: no such file or directory", path);
    case EACCES:
    case EPERM:
    case EROFS: return ek_err_set(err, EK_EACCESS, "%s: %s", path, strerror(code));
    default: return ek_err_set(err, EK_EIO, "%s: %s", path, strerror(code));
    }
}

ek_status ek_sys_sparse_open(const char *path, int64_t bytes, ek_sys_sparse *out_file, ek_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return fail(path, errno, err);
    struct stat st;
    if (fstat(fd, &st) != 0 || (st.st_size != bytes && ftruncate(fd, (off_t)bytes) != 0)) {
        int code = errno;
        close(fd);
        return fail(path, code, err);
    }
    *out_file = (ek_sys_sparse){.fd = fd, .path = path};
    return EK_OK;
}

ek_status ek_sys_sparse_write(const ek_sys_sparse *file, int64_t offset, ek_span bytes, ek_err *err)
{
    while (bytes.len > 0) {
        ssize_t n = pwrite(file->fd, bytes.data, bytes.len, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(file->path, errno, err);
        bytes.data += n;
        bytes.len -= (size_t)n;
        offset += n;
    }
    return EK_OK;
}

ek_status ek_sys_sparse_sync(const ek_sys_sparse *file, ek_err *err)
{
    return fsync(file->fd) == 0 ? EK_OK : fail(file->path, errno, err);
}

void ek_sys_sparse_close(ek_sys_sparse *file)
{
    if (!file->path) return;
    close(file->fd);
    *file = (ek_sys_sparse){0};
}

ek_status ek_sys_file_rename(const char *from, const char *to, ek_err *err)
{
    if (rename(from, to) != 0) return fail(to, errno, err);
    /* The new name survives a power cut only when its directory is written, too. Best effort. */
    char dir[4096];
    const char *slash = strrchr(to, '/');
    int n = slash ? (int)(slash - to) + 1 : 1;
    if ((size_t)n >= sizeof dir) return EK_OK;
    snprintf(dir, sizeof dir, "%.*s", n, slash ? to : ".");
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return EK_OK;
    fsync(fd);
    close(fd);
    return EK_OK;
}

void ek_sys_file_remove(const char *path)
{
    unlink(path);
}

ek_status ek_sys_directory_make(const char *path, ek_err *err)
{
    struct stat st;
    if (mkdir(path, 0777) == 0) return EK_OK;
    int code = errno;
    if (code != EEXIST) return fail(path, code, err);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return EK_OK;
    return ek_err_set(err, EK_EIO, "%s: is there, and no directory", path);
}

int64_t ek_sys_file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (int64_t)st.st_size : -1;
}

int64_t ek_sys_disk_free(const char *path)
{
    struct statvfs st;
    if (statvfs(path, &st) != 0 || st.f_frsize == 0) return INT64_MAX;
    uint64_t blocks = st.f_bavail, most = (uint64_t)INT64_MAX / st.f_frsize;
    return blocks < most ? (int64_t)(blocks * st.f_frsize) : INT64_MAX;
}

ek_status ek_sys_reader_open(const char *path, ek_sys_reader *out_reader, ek_err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail(path, errno, err);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return ek_err_set(err, EK_EIO, "%s: is not a regular file", path);
    }
    *out_reader = (ek_sys_reader){.fd = fd};
    return EK_OK;
}

int64_t ek_sys_reader_at(const ek_sys_reader *reader, int64_t offset, void *data, size_t bytes)
{
    ssize_t n;
    do
        n = pread(reader->fd, data, bytes, (off_t)offset);
    while (n < 0 && errno == EINTR);
    return n;
}

void ek_sys_reader_close(ek_sys_reader *reader)
{
    close(reader->fd);
}
