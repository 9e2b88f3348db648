/* For mkdtemp, nftw and the S_IF* names beside POSIX. */
#define _XOPEN_SOURCE 700

#include "fixtures.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <openssl/evp.h>

#define PYTHON "/usr/bin/python3"

extern char **environ;

static const char *env_or_fail(const char *name)
{
    const char *value = getenv(name);
    if (!value) fail_msg("%s is not set: run tests through meson test", name);
    return value;
}

static void path_format(ek_fixture_path *path, const char *fmt, ...) EK_PRINTF(2, 3);

static void path_format(ek_fixture_path *path, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(path->text, sizeof path->text, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof path->text) fail_msg("path too long: %s", path->text);
}

static bool exists(const char *path)
{
    return access(path, R_OK) == 0;
}

void ek_fixture_build(const char *name, ek_fixture_path *out_path)
{
    path_format(out_path, "%s/%s", env_or_fail("EK_BUILD_ROOT"), name);
    if (!exists(out_path->text)) fail_msg("%s: not built", out_path->text);
}

void ek_fixture_source(const char *name, ek_fixture_path *out_path)
{
    path_format(out_path, "%s/%s", env_or_fail("EK_SOURCE_ROOT"), name);
}

bool ek_fixture_shared(const char *name, ek_fixture_path *out_path)
{
    const char *shared = getenv("EK_SHARED");
    if (shared)
        path_format(out_path, "%s/%s", shared, name);
    else
        path_format(out_path, "%s/../shared/%s", env_or_fail("EK_SOURCE_ROOT"), name);
    if (exists(out_path->text)) return true;
    print_message("skipping: %s is absent (EK_SHARED names another place)\n", out_path->text);
    return false;
}

void ek_fixture_join(const ek_fixture_path *dir, const char *name, ek_fixture_path *out_path)
{
    path_format(out_path, "%s/%s", dir->text, name);
}

/* ../shared's generator needs some seconds of one core; its prints are of no interest here. */
static void run_generator(const char *script, const char *preset, const char *quant,
                          const char *path)
{
    char *argv[] = {(char[]){PYTHON}, (char *)script, (char *)preset, (char[]){"--quant"},
                    (char *)quant,    (char[]){"-o"}, (char *)path,   NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    pid_t pid;
    int failed = posix_spawn(&pid, PYTHON, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) fail_msg("cannot start %s: %s", PYTHON, strerror(failed));
    int state = 0;
    while (waitpid(pid, &state, 0) < 0)
        if (errno != EINTR) fail_msg("waiting for %s: %s", script, strerror(errno));
    if (!WIFEXITED(state) || WEXITSTATUS(state) != 0)
        fail_msg("%s %s --quant %s failed (it needs python3-numpy)", script, preset, quant);
}

static void make_once(const char *preset, const char *quant, const ek_fixture_path *script,
                      const ek_fixture_path *path)
{
    ek_fixture_path lock_path;
    ek_fixture_path half;
    path_format(&lock_path, "%s.lock", path->text);
    path_format(&half, "%s.half", path->text);
    int lock_fd = open(lock_path.text, O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (lock_fd < 0) fail_msg("%s: %s", lock_path.text, strerror(errno));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    while (fcntl(lock_fd, F_SETLKW, &lock) < 0)
        if (errno != EINTR) fail_msg("%s: %s", lock_path.text, strerror(errno));
    if (!exists(path->text)) {
        run_generator(script->text, preset, quant, half.text);
        if (rename(half.text, path->text) < 0) fail_msg("%s: %s", path->text, strerror(errno));
    }
    close(lock_fd); /* which ends the lock */
}

static void sha256_hex(const char *path, char out_hex[65])
{
    ek_span file = ek_fixture_read(path);
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int n = 0;
    if (EVP_Digest(file.data, file.len, digest, &n, EVP_sha256(), NULL) != 1 || n != 32)
        fail_msg("SHA-256 is not available");
    ek_fixture_free(file);
    for (unsigned int i = 0; i < n; i++)
        snprintf(out_hex + 2 * (size_t)i, 3, "%02x", digest[i]);
}

bool ek_fixture_shared_gguf(const char *preset, const char *quant, ek_fixture_path *out_path)
{
    ek_fixture_path script;
    ek_fixture_path file;
    ek_fixture_path dir;
    char name[128];
    ek_fixture_golden golden;
    if (!ek_fixture_shared("tools/make_gguf.py", &script)) return false;
    snprintf(name, sizeof name, "%s-%s.gguf", preset, quant);
    if (!ek_fixture_golden_load(name, &golden)) return false;

    path_format(&dir, "%s/fixtures", env_or_fail("EK_BUILD_ROOT"));
    if (mkdir(dir.text, 0755) < 0 && errno != EEXIST) fail_msg("%s: %s", dir.text, strerror(errno));
    ek_fixture_join(&dir, name, &file);
    make_once(preset, quant, &script, &file);

    char sha256[65] = "";
    sha256_hex(file.text, sha256);
    bool same = ek_str_eqz(golden.sha256, sha256);
    if (!same)
        print_message("skipping: %s has SHA-256 %s, expected %.*s (the generator needs "
                      "/usr/share/common-licenses as Debian 12 has it)\n",
                      file.text, sha256, EK_STR_ARG(golden.sha256));
    ek_fixture_golden_free(&golden);
    if (same) *out_path = file;
    return same;
}

void ek_fixture_tempdir(ek_fixture_path *out_path)
{
    path_format(out_path, "%s/tmp-XXXXXX", env_or_fail("EK_BUILD_ROOT"));
    if (!mkdtemp(out_path->text)) fail_msg("%s: %s", out_path->text, strerror(errno));
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

void ek_fixture_tempdir_remove(const ek_fixture_path *path)
{
    if (nftw(path->text, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
        fail_msg("%s: cannot be removed: %s", path->text, strerror(errno));
}

ek_span ek_fixture_read(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s: %s", path, strerror(errno));
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    if (size < 0) fail_msg("%s: has no size", path);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    if (!data || fread(data, 1, (size_t)size, file) != (size_t)size)
        fail_msg("%s: cannot read %ld bytes", path, size);
    fclose(file);
    return (ek_span){data, (size_t)size};
}

void ek_fixture_write(const char *path, ek_span bytes)
{
    FILE *file = fopen(path, "wb");
    if (!file) fail_msg("%s: %s", path, strerror(errno));
    if (bytes.len && fwrite(bytes.data, 1, bytes.len, file) != bytes.len)
        fail_msg("%s: cannot write %zu bytes", path, bytes.len);
    if (fclose(file) != 0) fail_msg("%s: %s", path, strerror(errno));
}

void ek_fixture_free(ek_span bytes)
{
    free((void *)(uintptr_t)bytes.data);
}

ek_arena ek_fixture_arena(size_t bytes)
{
    void *mem = malloc(bytes);
    if (!mem) fail_msg("no memory for an arena of %zu bytes", bytes);
    return ek_arena_over(mem, bytes);
}

void ek_fixture_arena_free(void *base)
{
    free(base);
}
