#include "sys/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_MAX 8192 /* memory.stat is the longest of them, some 2 KiB */
#define PATH_LEN 1024

bool ek_sys_proc_read(const char *path, char *out_text, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t len = 0;
    ssize_t n = 0;
    while (len + 1 < bytes) {
        n = read(fd, out_text + len, bytes - 1 - len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        len += (size_t)n;
    }
    close(fd);
    out_text[len] = '\0';
    return n >= 0;
}

static bool parse_u64(const char *text, uint64_t *out_value)
{
    while (*text == ' ' || *text == '\t')
        text++;
    if (*text < '0' || *text > '9') return false; /* strtoull would take a sign, too */
    errno = 0;
    uint64_t value = strtoull(text, NULL, 10);
    if (errno != 0) return false;
    *out_value = value;
    return true;
}

bool ek_sys_proc_field(const char *text, const char *key, uint64_t *out_value)
{
    size_t len = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, key, len) == 0) return parse_u64(line + len, out_value);
    }
    return false;
}

static bool read_number(const char *dir, const char *file, uint64_t *out_value)
{
    char path[PATH_LEN + 64], text[64];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return ek_sys_proc_read(path, text, sizeof text) && parse_u64(text, out_value);
}

static bool read_stat(const char *dir, const char *key, uint64_t *out_value)
{
    char path[PATH_LEN + 64], text[TEXT_MAX];
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    return ek_sys_proc_read(path, text, sizeof text) && ek_sys_proc_field(text, key, out_value);
}

/* Names of one cgroup version's files. */
typedef struct memory_files {
    const char *limit, *usage, *reclaimable;
} memory_files;

static uint64_t memory_left_at(const char *dir, const memory_files *files)
{
    uint64_t limit, usage, reclaimable;
    if (!read_number(dir, files->limit, &limit)) return UINT64_MAX; /* "max" is no number */
    if (!read_number(dir, files->usage, &usage)) return UINT64_MAX;
    if (limit >= UINT64_C(1) << 60) return UINT64_MAX; /* how v1 says "no limit" */
    /*
     * A mapped model's pages count as usage, but the kernel drops clean ones before it kills
     * anybody.
     */
    if (!read_stat(dir, files->reclaimable, &reclaimable)) reclaimable = 0;
    uint64_t used = usage > reclaimable ? usage - reclaimable : 0;
    return limit > used ? limit - used : 0;
}

static int32_t cpus_of(uint64_t quota_us, uint64_t period_us)
{
    if (period_us == 0) return 0;
    uint64_t cpus = quota_us / period_us + (quota_us % period_us != 0);
    return cpus > INT32_MAX ? INT32_MAX : cpus < 1 ? 1 : (int32_t)cpus;
}

static int32_t cpus_at_v2(const char *dir)
{
    char path[PATH_LEN + 64], text[64];
    uint64_t quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (!ek_sys_proc_read(path, text, sizeof text)) return 0;
    const char *space = strchr(text, ' ');
    if (!space || !parse_u64(text, &quota) || !parse_u64(space, &period)) return 0;
    return cpus_of(quota, period);
}

static int32_t cpus_at_v1(const char *dir)
{
    uint64_t quota, period;
    if (!read_number(dir, "cpu.cfs_quota_us", &quota)) return 0; /* -1: no quota */
    if (!read_number(dir, "cpu.cfs_period_us", &period)) return 0;
    return cpus_of(quota, period);
}

/* True when the comma-separated list of controllers has this one. */
static bool has_controller(const char *list, size_t len, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i + n <= len; i++)
        if ((i == 0 || list[i - 1] == ',') && memcmp(list + i, name, n) == 0 &&
            (i + n == len || list[i + n] == ','))
            return true;
    return false;
}

/*
 * Path of our group in the hierarchy that has the controller ("" = v2's one hierarchy), from lines
 * like "4:memory:/user.slice" and "0::/system.slice/evenkeel.service".
 */
static bool group_path(const char *self, const char *controller, char out_path[PATH_LEN])
{
    for (const char *line = self; *line;) {
        const char *end = strchr(line, '\n');
        if (!end) end = line + strlen(line);
        const char *list = memchr(line, ':', (size_t)(end - line));
        const char *path = list ? memchr(list + 1, ':', (size_t)(end - list - 1)) : NULL;
        if (path) {
            size_t list_len = (size_t)(path - list - 1), len = (size_t)(end - path - 1);
            bool match = *controller ? has_controller(list + 1, list_len, controller)
                                     : list_len == 0 && line[0] == '0';
            if (match && len < PATH_LEN) {
                memcpy(out_path, path + 1, len);
                out_path[len] = '\0';
                return true;
            }
        }
        line = *end ? end + 1 : end;
    }
    return false;
}

/* Cuts the last component off; false when nothing is left to cut. */
static bool parent(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash || path[0] == '\0') return false;
    *slash = '\0';
    return true;
}

static uint64_t memory_left_up(const char *root, char *path, const memory_files *files)
{
    uint64_t least = UINT64_MAX;
    do {
        char dir[PATH_LEN];
        if (snprintf(dir, sizeof dir, "%s%s", root, path) >= (int)sizeof dir) continue;
        uint64_t left = memory_left_at(dir, files);
        least = left < least ? left : least;
    } while (parent(path));
    return least;
}

static int32_t cpus_up(const char *root, char *path, int32_t (*cpus_at)(const char *))
{
    int32_t least = 0;
    do {
        char dir[PATH_LEN];
        if (snprintf(dir, sizeof dir, "%s%s", root, path) >= (int)sizeof dir) continue;
        int32_t cpus = cpus_at(dir);
        if (cpus > 0 && (least == 0 || cpus < least)) least = cpus;
    } while (parent(path));
    return least;
}

uint64_t ek_sys_cgroup_memory_left(const char *self_path, const char *mount)
{
    static const memory_files v2 = {"memory.max", "memory.current", "inactive_file "};
    static const memory_files v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                    "total_inactive_file "};
    char self[TEXT_MAX], path[PATH_LEN], root[PATH_LEN];
    if (!ek_sys_proc_read(self_path, self, sizeof self)) return UINT64_MAX;
    if (group_path(self, "memory", path)) {
        snprintf(root, sizeof root, "%s/memory", mount);
        return memory_left_up(root, path, &v1);
    }
    if (group_path(self, "", path)) return memory_left_up(mount, path, &v2);
    return UINT64_MAX;
}

int32_t ek_sys_cgroup_cpus(const char *self_path, const char *mount)
{
    char self[TEXT_MAX], path[PATH_LEN], root[PATH_LEN];
    if (!ek_sys_proc_read(self_path, self, sizeof self)) return 0;
    if (group_path(self, "cpu", path)) {
        snprintf(root, sizeof root, "%s/cpu", mount);
        return cpus_up(root, path, cpus_at_v1);
    }
    if (group_path(self, "", path)) return cpus_up(mount, path, cpus_at_v2);
    return 0;
}
