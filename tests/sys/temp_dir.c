#include "temp_dir.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool temp_dir_make(char out_path[TEMP_DIR_MAX])
{
    snprintf(out_path, TEMP_DIR_MAX, "/tmp/ek-test-XXXXXX");
    return mkdtemp(out_path) != NULL;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *place)
{
    (void)st, (void)type, (void)place;
    return remove(path);
}

bool temp_dir_remove(const char *path)
{
    return nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS) == 0;
}

int temp_dir_count(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir) return -1;
    int n = 0;
    for (const struct dirent *entry; (entry = readdir(dir));)
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return n;
}
