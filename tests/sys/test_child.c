/*
 * Goal: a child says when it is ready, ends when it is told to, leaves nothing behind, and every
 * way of failing has a status; directories for the time being come and go whole. Method: real
 * shells as children.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "sys/child.h"
#include "sys/clock.h"
#include "sys/file.h"
#include "sys/temp.h"

#define PATIENCE_US INT64_C(30000000)

static ek_sys_child start(const char *script, const char *log)
{
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    ek_sys_child child = {0};
    ek_err err = {0};
    assert_int_equal(ek_sys_child_start(argv, log, &child, &err), EK_OK);
    assert_true(child.pid > 0);
    return child;
}

static void assert_gone(int64_t pid)
{
    assert_int_equal(kill((pid_t)pid, 0), -1);
    assert_int_equal(errno, ESRCH);
}

/* It was about to end by itself: whether TERM comes before that is chance. */
static void assert_ended(ek_sys_child *child)
{
    ek_err err = {0};
    const ek_status status = ek_sys_child_stop(child, PATIENCE_US, &err);
    assert_true(status == EK_OK || status == EK_EPEER);
    assert_int_equal(child->pid, 0);
}

static void test_lines_and_end(void **state)
{
    (void)state;
    char line[16];
    ek_err err = {0};
    ek_sys_child child =
        start("echo one; echo a-line-that-is-too-long; read x; echo $x; exit 0", NULL);
    const int64_t pid = child.pid;
    assert_int_equal(ek_sys_child_line(&child, PATIENCE_US, line, sizeof line), EK_OK);
    assert_string_equal(line, "one");
    assert_int_equal(ek_sys_child_line(&child, EK_SYS_CHILD_FOR_EVER, line, sizeof line), EK_OK);
    assert_string_equal(line, "a-line-that-is-"); /* cut */
    /* Its input is empty, so read comes back at once. */
    assert_int_equal(ek_sys_child_line(&child, PATIENCE_US, line, sizeof line), EK_OK);
    assert_string_equal(line, "");
    assert_int_equal(ek_sys_child_line(&child, PATIENCE_US, line, sizeof line), EK_END);
    assert_ended(&child);
    assert_gone(pid);
    assert_int_equal(ek_sys_child_stop(&child, PATIENCE_US, &err), EK_OK); /* there is none */
}

static void test_patience(void **state)
{
    (void)state;
    char line[16];
    ek_err err = {0};
    ek_sys_child child = start("trap '' TERM; echo up; while :; do sleep 0.05; done", NULL);
    const int64_t pid = child.pid;
    assert_int_equal(ek_sys_child_line(&child, PATIENCE_US, line, sizeof line), EK_OK);
    assert_int_equal(ek_sys_child_line(&child, 50000, line, sizeof line), EK_ETIMEOUT);
    /* It does not listen to TERM, so it is killed. */
    assert_int_equal(ek_sys_child_stop(&child, 100000, &err), EK_EPEER);
    assert_non_null(strstr(err.text, "signal 9"));
    assert_gone(pid);
}

/* Whoever looks in short intervals whether it is ready loses nothing of the line. */
static void test_a_line_in_pieces(void **state)
{
    (void)state;
    char line[16];
    ek_sys_child child = start("for x in a b c d; do printf $x; sleep 0.1; done; echo", NULL);
    int32_t looks = 0;
    ek_status status;
    while ((status = ek_sys_child_line(&child, 20000, line, sizeof line)) == EK_ETIMEOUT)
        looks++;
    assert_int_equal(status, EK_OK);
    assert_string_equal(line, "abcd");
    assert_true(looks > 0);
    assert_ended(&child);
}

static void test_it_ends_well(void **state)
{
    (void)state;
    char line[16];
    ek_err err = {0};
    ek_sys_child child = start("trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done", NULL);
    assert_int_equal(ek_sys_child_line(&child, PATIENCE_US, line, sizeof line), EK_OK);
    assert_true(ek_sys_child_rss_mib(&child) >= 0);
    ek_sys_child_ask_to_end(&child);
    assert_int_equal(ek_sys_child_stop(&child, PATIENCE_US, &err), EK_OK);
}

static void test_failures(void **state)
{
    (void)state;
    ek_err err = {0};
    ek_sys_child child = {0};
    const char *const argv[] = {"/no/such/program", NULL};
    assert_int_equal(ek_sys_child_start(argv, NULL, &child, &err), EK_ENOTFOUND);
    assert_non_null(strstr(err.text, "/no/such/program"));
    assert_int_equal(child.pid, 0);
    child = start("exit 3", NULL);
    char line[16];
    assert_int_equal(ek_sys_child_line(&child, PATIENCE_US, line, sizeof line), EK_END);
    assert_ended(&child);
}

static void test_log_and_temp(void **state)
{
    (void)state;
    char dir[256], path[512], line[16];
    ek_err err = {0};
    assert_int_equal(ek_sys_temp_make("ek-test", dir, sizeof dir, &err), EK_OK);
    struct stat about;
    assert_int_equal(stat(dir, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0700);
    snprintf(path, sizeof path, "%s/sub", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/sub/log", dir);
    ek_sys_child child = start("echo problem >&2; echo done", path);
    assert_int_equal(ek_sys_child_line(&child, PATIENCE_US, line, sizeof line), EK_OK);
    assert_int_equal(ek_sys_child_line(&child, PATIENCE_US, line, sizeof line), EK_END);
    assert_ended(&child);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_size, strlen("problem\n"));
    assert_int_equal(ek_sys_temp_remove(dir, &err), EK_OK);
    assert_int_equal(stat(dir, &about), -1);
    assert_int_equal(ek_sys_temp_remove(dir, &err), EK_EIO);
    assert_int_equal(ek_sys_temp_make("ek-test", dir, 4, &err), EK_ERANGE);
}

static void test_program_path(void **state)
{
    (void)state;
    char path[4096];
    assert_int_equal(ek_sys_program_path(path, sizeof path), EK_OK);
    assert_non_null(strstr(path, "test_sys_child"));
    assert_int_equal(ek_sys_program_path(path, 4), EK_ERANGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_and_end),    cmocka_unit_test(test_patience),
        cmocka_unit_test(test_a_line_in_pieces), cmocka_unit_test(test_it_ends_well),
        cmocka_unit_test(test_failures),         cmocka_unit_test(test_log_and_temp),
        cmocka_unit_test(test_program_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
