/*
 * Goal: the limit of open descriptors is raised as far as is allowed, and never lowered. Method:
 * real limits, each case in a process of its own, since a hard limit cannot be taken back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "sys/limit.h"

/* Set both limits in a child, ask for n there. */
static void assert_allows(rlim_t soft, rlim_t hard, uint64_t n, uint64_t expected)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit before = {soft, hard};
        struct rlimit after;
        if (setrlimit(RLIMIT_NOFILE, &before) != 0) _exit(2);
        uint64_t allowed = ek_sys_descriptors_allow(n);
        if (getrlimit(RLIMIT_NOFILE, &after) != 0) _exit(3);
        if (allowed != expected) _exit(4);
        if (after.rlim_cur != expected || after.rlim_max != hard) _exit(5);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void raises_as_far_as_is_needed(void **state)
{
    (void)state;
    assert_allows(64, 256, 200, 200);
    assert_allows(64, 256, 256, 256);
}

static void stops_at_the_hard_limit(void **state)
{
    (void)state;
    assert_allows(64, 256, 257, 256);
    assert_allows(64, 256, UINT64_MAX, 256);
    assert_allows(256, 256, 1000, 256);
}

static void never_lowers(void **state)
{
    (void)state;
    assert_allows(200, 256, 100, 200);
    assert_allows(200, 256, 0, 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(raises_as_far_as_is_needed),
        cmocka_unit_test(stops_at_the_hard_limit),
        cmocka_unit_test(never_lowers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
