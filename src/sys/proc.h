/*
 * What the kernel says in small text files: memory figures and the limits of our control group (v1
 * or v2).
 *
 * A limit may stand at any level above the process, so every level up to the mount point is looked
 * at and the tightest one counts. Inside a container the path that /proc/self/cgroup names often
 * does not exist below the mount point; levels that cannot be read are passed over. The places are
 * parameters so that tests can show a made-up tree. Used inside this room only.
 */
#ifndef EK_SYS_PROC_H
#define EK_SYS_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EK_SYS_SELF_CGROUP  "/proc/self/cgroup"
#define EK_SYS_CGROUP_MOUNT "/sys/fs/cgroup"

/** Read at most bytes - 1 bytes of a file, NUL-terminated. @return false when it cannot be read */
bool ek_sys_proc_read(const char *path, char *out_text, size_t bytes);

/**
 * Number after `key` at the start of a line ("MemAvailable:"), times the unit. @return false when
 * absent
 */
bool ek_sys_proc_field(const char *text, const char *key, uint64_t *out_value);

/**
 * Bytes the control groups still allow: limit - (usage - page cache that can go at once);
 * UINT64_MAX: no limit.
 * @param self_path like EK_SYS_SELF_CGROUP; @param mount like EK_SYS_CGROUP_MOUNT
 */
uint64_t ek_sys_cgroup_memory_left(const char *self_path, const char *mount);

/** CPUs the control groups' time quota is worth, rounded up; 0: no quota. */
int32_t ek_sys_cgroup_cpus(const char *self_path, const char *mount);

#endif
