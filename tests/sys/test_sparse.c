/*
 * Goal: a file of its full size takes space only for what was written, at the places where it was
 * written, and each failure says which file. Method: files in a temporary directory, looked at by
 * stat and read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "sys/sparse.h"
#include "temp_dir.h"

#define SIZE ((int64_t)64 << 20)

static void test_holes(void **state)
{
    const char *dir = *state;
    char path[512], other[512];
    ek_sys_sparse file;
    ek_err err = {0};
    struct stat st;
    snprintf(path, sizeof path, "%s/a.part", dir);
    snprintf(other, sizeof other, "%s/a", dir);
    assert_int_equal(ek_sys_sparse_open(path, SIZE, &file, &err), EK_OK);
    const uint8_t bytes[] = {1, 2, 3, 4};
    assert_int_equal(ek_sys_sparse_write(&file, SIZE - 4, (ek_span){bytes, 4}, &err), EK_OK);
    assert_int_equal(ek_sys_sparse_write(&file, 70000, (ek_span){bytes, 4}, &err), EK_OK);
    assert_int_equal(ek_sys_sparse_sync(&file, &err), EK_OK);
    ek_sys_sparse_close(&file);
    ek_sys_sparse_close(&file); /* a closed one is left alone */
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, SIZE);
    assert_true(st.st_blocks * 512 < SIZE / 8);

    /* Opened again, nothing is lost. */
    assert_int_equal(ek_sys_sparse_open(path, SIZE, &file, &err), EK_OK);
    ek_sys_sparse_close(&file);
    assert_int_equal(ek_sys_file_rename(path, other, &err), EK_OK);
    assert_int_equal(ek_sys_file_bytes(path), -1);
    assert_int_equal(ek_sys_file_bytes(other), SIZE);
    ek_sys_reader reader;
    uint8_t read[8] = {9, 9, 9, 9, 9, 9, 9, 9};
    assert_int_equal(ek_sys_reader_open(other, &reader, &err), EK_OK);
    assert_int_equal(ek_sys_reader_at(&reader, 69998, read, 8), 8);
    const uint8_t wanted[] = {0, 0, 1, 2, 3, 4, 0, 0};
    assert_memory_equal(read, wanted, 8);
    assert_int_equal(ek_sys_reader_at(&reader, SIZE - 4, read, 8), 4);
    assert_int_equal(ek_sys_reader_at(&reader, SIZE, read, 8), 0);
    ek_sys_reader_close(&reader);
    assert_true(ek_sys_disk_free(dir) > 0);
    ek_sys_file_remove(other);
    ek_sys_file_remove(other);
    assert_int_equal(ek_sys_file_bytes(other), -1);
}

static void test_failures_name_the_file(void **state)
{
    const char *dir = *state;
    char path[512];
    ek_sys_sparse file;
    ek_sys_reader reader;
    ek_err err = {0};
    snprintf(path, sizeof path, "%s/no/such", dir);
    assert_int_equal(ek_sys_sparse_open(path, 1, &file, &err), EK_ENOTFOUND);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(ek_sys_directory_make(path, &err), EK_ENOTFOUND);
    assert_int_equal(ek_sys_file_rename(path, "/tmp/x", &err), EK_ENOTFOUND);
    assert_int_equal(ek_sys_reader_open(path, &reader, &err), EK_ENOTFOUND);
    assert_int_equal(ek_sys_reader_open(dir, &reader, &err), EK_EIO);
    assert_int_equal(ek_sys_sparse_open("/dev/full", 1, &file, &err), EK_EIO);

    snprintf(path, sizeof path, "%s/d", dir);
    assert_int_equal(ek_sys_directory_make(path, &err), EK_OK);
    assert_int_equal(ek_sys_directory_make(path, &err), EK_OK); /* there is one */
    assert_int_equal(ek_sys_file_bytes(path), -1);
    assert_int_equal(remove(path), 0);
    assert_int_equal(ek_sys_sparse_open(path, 1, &file, &err), EK_OK);
    ek_sys_sparse_close(&file);
    assert_int_equal(ek_sys_directory_make(path, &err), EK_EIO);
    assert_non_null(strstr(err.text, "no directory"));
}

static int make_dir(void **state)
{
    static char dir[TEMP_DIR_MAX];
    *state = dir;
    return temp_dir_make(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    return temp_dir_remove(*state) ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_holes),
        cmocka_unit_test(test_failures_name_the_file),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
