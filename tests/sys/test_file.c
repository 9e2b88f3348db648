/*
 * Goal: files are mapped, read within their limit and replaced whole, and every failure has a
 * status, the path and the reason in its text. Method: real files, directories, pipes and missing
 * places in a temporary directory.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "sys/file.h"
#include "sys/mem.h"
#include "sys/thread.h"
#include "temp_dir.h"

static char dir[TEMP_DIR_MAX];

static int make_dir(void **state)
{
    (void)state;
    return temp_dir_make(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    return temp_dir_remove(dir) ? 0 : -1;
}

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_file(const char *name, const char *text)
{
    ek_err err = {0};
    ek_span bytes = {(const uint8_t *)text, strlen(text)};
    assert_int_equal(ek_sys_file_write(path_of(name), bytes, &err), EK_OK);
}

static void assert_fails(ek_status got, ek_status expected, const ek_err *err, const char *reason)
{
    assert_int_equal(got, expected);
    assert_non_null(strstr(err->text, dir));
    assert_non_null(strstr(err->text, reason));
}

static void test_map(void **state)
{
    (void)state;
    write_file("model", "weights");
    ek_sys_map map = {0};
    ek_err err = {0};
    assert_int_equal(ek_sys_map_open(path_of("model"), &map, &err), EK_OK);
    assert_int_equal(map.bytes.len, 7);
    assert_memory_equal(map.bytes.data, "weights", 7);
    ek_sys_map_prefetch(&map);
    ek_sys_map_close(&map);
    assert_null(map.bytes.data);
    ek_sys_map_close(&map);
    ek_sys_map_prefetch(&map);
}

static void test_what_cannot_be_mapped(void **state)
{
    (void)state;
    ek_sys_map map = {0};
    ek_err err = {0};
    assert_fails(ek_sys_map_open(path_of("none"), &map, &err), EK_ENOTFOUND, &err, "no such file");
    write_file("plain", "x");
    assert_fails(ek_sys_map_open(path_of("plain/below"), &map, &err), EK_ENOTFOUND, &err,
                 "no such file");
    assert_fails(ek_sys_map_open(path_of(""), &map, &err), EK_EIO, &err, "is a directory");
    write_file("empty", "");
    assert_fails(ek_sys_map_open(path_of("empty"), &map, &err), EK_EIO, &err, "is empty");
    /* A pipe that nobody writes to must not hold the program up. */
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    assert_fails(ek_sys_map_open(path_of("pipe"), &map, &err), EK_EIO, &err, "not a regular file");
    assert_null(map.bytes.data);
}

static void test_no_permission(void **state)
{
    (void)state;
    if (geteuid() == 0) {
        print_message("root may read everything: permission is not tested\n");
        skip();
    }
    write_file("secret", "x");
    assert_int_equal(chmod(path_of("secret"), 0), 0);
    ek_sys_map map = {0};
    ek_str text = {0};
    ek_err err = {0};
    assert_fails(ek_sys_map_open(path_of("secret"), &map, &err), EK_EACCESS, &err,
                 "permission denied");
    assert_fails(ek_sys_file_read(path_of("secret"), 9, &text, &err), EK_EACCESS, &err,
                 "permission denied");
}

static void test_read_within_the_limit(void **state)
{
    (void)state;
    write_file("text", "12345678");
    ek_str text = {0};
    ek_err err = {0};
    assert_int_equal(ek_sys_file_read(path_of("text"), 8, &text, &err), EK_OK);
    assert_int_equal(text.len, 8);
    assert_string_equal(text.data, "12345678");
    ek_sys_free((void *)(uintptr_t)text.data);
    text = (ek_str){0};
    assert_fails(ek_sys_file_read(path_of("text"), 7, &text, &err), EK_ERANGE, &err,
                 "longer than the 7 bytes");
    assert_fails(ek_sys_file_read(path_of("none"), 7, &text, &err), EK_ENOTFOUND, &err,
                 "no such file");
    assert_fails(ek_sys_file_read(path_of(""), 7, &text, &err), EK_EIO, &err, "is a directory");
    assert_null(text.data);
    write_file("empty", "");
    assert_int_equal(ek_sys_file_read(path_of("empty"), 0, &text, NULL), EK_OK);
    assert_string_equal(text.data, "");
    ek_sys_free((void *)(uintptr_t)text.data);
}

static void test_read_grows(void **state)
{
    (void)state;
    enum { N = 100001 };
    char *big = malloc(N + 1);
    assert_non_null(big);
    for (size_t i = 0; i < N; i++)
        big[i] = (char)('a' + i % 26);
    big[N] = '\0';
    write_file("big", big);
    ek_str text = {0};
    assert_int_equal(ek_sys_file_read(path_of("big"), SIZE_MAX, &text, NULL), EK_OK);
    assert_int_equal(text.len, N);
    assert_memory_equal(text.data, big, N + 1);
    ek_sys_free((void *)(uintptr_t)text.data);
    assert_int_equal(ek_sys_file_read(path_of("big"), N - 1, &text, NULL), EK_ERANGE);
    free(big);
}

static void feed_pipe(void *ctx)
{
    int fd = open(ctx, O_WRONLY);
    if (fd < 0) return;
    for (int i = 0; i < 3; i++)
        if (write(fd, "piece ", 6) != 6) break;
    close(fd);
}

static void test_read_a_pipe(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s", path_of("fed"));
    assert_int_equal(mkfifo(path, 0600), 0);
    ek_sys_thread thread = {0};
    ek_str text = {0};
    assert_int_equal(ek_sys_thread_start(&thread, "feed", feed_pipe, path), EK_OK);
    assert_int_equal(ek_sys_file_read(path, 100, &text, NULL), EK_OK);
    ek_sys_thread_join(&thread);
    assert_string_equal(text.data, "piece piece piece ");
    ek_sys_free((void *)(uintptr_t)text.data);
}

static void test_write_replaces_whole(void **state)
{
    (void)state;
    write_file("state", "old");
    assert_int_equal(chmod(path_of("state"), 0640), 0);
    int n_before = temp_dir_count(dir);
    /* Who has the old file open goes on reading the old content. */
    FILE *reader = fopen(path_of("state"), "r");
    assert_non_null(reader);
    write_file("state", "new, longer");
    char text[32] = "";
    assert_non_null(fgets(text, sizeof text, reader));
    assert_string_equal(text, "old");
    fclose(reader);
    struct stat st;
    assert_int_equal(stat(path_of("state"), &st), 0);
    assert_int_equal(st.st_size, 11);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(temp_dir_count(dir), n_before); /* no temporary stays behind */
}

static void test_write_fails_cleanly(void **state)
{
    (void)state;
    ek_err err = {0};
    ek_span bytes = {(const uint8_t *)"x", 1};
    assert_fails(ek_sys_file_write(path_of("no/such/dir"), bytes, &err), EK_ENOTFOUND, &err,
                 "no such file");
    assert_int_equal(mkdir(path_of("taken"), 0755), 0);
    int n_before = temp_dir_count(dir);
    assert_fails(ek_sys_file_write(path_of("taken"), bytes, &err), EK_EIO, &err, "is a directory");
    assert_int_equal(temp_dir_count(dir), n_before);
    char name[5000];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    assert_int_equal(ek_sys_file_write(name, bytes, &err), EK_EIO);
}

static void test_exists(void **state)
{
    (void)state;
    write_file("here", "x");
    assert_true(ek_sys_file_exists(path_of("here")));
    assert_true(ek_sys_file_exists(path_of("")));
    assert_false(ek_sys_file_exists(path_of("not-here")));
}

static void test_same(void **state)
{
    (void)state;
    char here[4096];
    write_file("one", "x");
    write_file("two", "x");
    snprintf(here, sizeof here, "%s", path_of("one"));
    assert_true(ek_sys_file_same(here, path_of("./one")));
    assert_false(ek_sys_file_same(here, path_of("two")));
    assert_false(ek_sys_file_same(here, path_of("not-here")));
    assert_false(ek_sys_file_same(path_of("not-here"), path_of("not-here")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_what_cannot_be_mapped),
        cmocka_unit_test(test_no_permission),
        cmocka_unit_test(test_read_within_the_limit),
        cmocka_unit_test(test_read_grows),
        cmocka_unit_test(test_read_a_pipe),
        cmocka_unit_test(test_write_replaces_whole),
        cmocka_unit_test(test_write_fails_cleanly),
        cmocka_unit_test(test_exists),
        cmocka_unit_test(test_same),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
