#include "sys/temp.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPEN_DIRECTORIES 16

ek_status ek_sys_temp_make(const char *name, char *out_path, size_t bytes, ek_err *err)
{
    const char *parent = getenv("TMPDIR");
    if (!parent || !*parent) parent = "/tmp";
    const int n = snprintf(out_path, bytes, "%s/%s-XXXXXX", parent, name);
    if (n < 0 || (size_t)n >= bytes)
        return ek_err_set(err, EK_ERANGE, "%s: too long a path (TMPDIR)", parent);
    if (mkdtemp(out_path)) return EK_OK;
    return ek_err_set(err, EK_EIO, "%s: no directory can be made there: %s (TMPDIR says where)",
                      parent, strerror(errno));
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about;
    (void)kind;
    (void)where;
    return remove(path);
}

ek_status ek_sys_temp_remove(const char *path, ek_err *err)
{
    if (nftw(path, remove_one, OPEN_DIRECTORIES, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) == 0)
        return EK_OK;
    return ek_err_set(err, EK_EIO, "%s: cannot be removed: %s", path, strerror(errno));
}
