/*
 * Goal: a broken contract ends the process at once, saying where; a kept one costs and prints
 * nothing. Method: the check runs in a child process whose standard error and exit are looked at.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/assert.h"

static void break_assert(void)
{
    volatile int two = 2;
    ek_assert(two == 2);
    ek_assert(two == 3);
}

static void overrun_arena(void)
{
    char memory[8];
    ek_arena arena = ek_arena_over(memory, sizeof memory);
    ek_arena_alloc(&arena, 9, 1, 1);
}

/* Runs fn in a child; returns its wait status and what it said. */
static int run_child(void (*fn)(void), char *out_text, size_t bytes)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        dup2(ends[1], STDERR_FILENO);
        fn();
        _exit(0);
    }
    close(ends[1]);
    size_t len = 0;
    for (ssize_t n; (n = read(ends[0], out_text + len, bytes - 1 - len)) > 0;)
        len += (size_t)n;
    out_text[len] = '\0';
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void test_broken_contract_aborts(void **state)
{
    (void)state;
    char text[2048];
    int status = run_child(break_assert, text, sizeof text);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_non_null(strstr(text, "test_assert.c:"));
    assert_non_null(strstr(text, "assertion failed: two == 3"));
    assert_null(strstr(text, "two == 2"));
}

static void test_own_sizes_must_fit(void **state)
{
    (void)state;
    char text[2048];
    int status = run_child(overrun_arena, text, sizeof text);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_non_null(strstr(text, "arena.c:"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broken_contract_aborts),
        cmocka_unit_test(test_own_sizes_must_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
