/*
 * Goal: a gateway that is to hold many connections may open as many descriptors, and says so when
 * it may not. Method: processes of their own with a low limit, soft alone or hard as well, and what
 * they log.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "house.h"

#define CONNECTIONS 500

/* In a child: limits, a gateway, its end. The child's standard error comes back in out_log. */
static int run_limited(rlim_t hard, int32_t n_connections, rlim_t soft_at_least, char *out_log,
                       size_t bytes)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit before = {64, hard};
        struct rlimit after;
        if (dup2(ends[1], STDERR_FILENO) < 0) _exit(2);
        if (setrlimit(RLIMIT_NOFILE, &before) != 0) _exit(3);
        house *h = house_make();
        h->gateway_params.connections_max = n_connections;
        house_open_gateway(h);
        if (getrlimit(RLIMIT_NOFILE, &after) != 0) _exit(4);
        house_close(h);
        _exit(after.rlim_cur >= soft_at_least ? 0 : 5);
    }
    close(ends[1]);
    size_t len = 0;
    for (ssize_t n; (n = read(ends[0], out_log + len, bytes - 1 - len)) > 0;)
        len += (size_t)n;
    out_log[len] = '\0';
    close(ends[0]);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void raises_the_limit(void **state)
{
    (void)state;
    char log[8192];
    struct rlimit own;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &own), 0);
    assert_true(own.rlim_max >= 4 * CONNECTIONS);
    /* Both addresses may be full. */
    assert_int_equal(run_limited(own.rlim_max, CONNECTIONS, 2 * CONNECTIONS, log, sizeof log), 0);
    assert_null(strstr(log, "level=warn"));
}

static void warns_where_the_hard_limit_is_lower(void **state)
{
    (void)state;
    char log[8192];
    assert_int_equal(run_limited(CONNECTIONS, CONNECTIONS, CONNECTIONS, log, sizeof log), 0);
    assert_non_null(strstr(log, "level=warn room=gateway event=few_descriptors"));
    assert_non_null(strstr(log, "allowed=500"));
    assert_non_null(strstr(log, "connections_max=500"));
    assert_non_null(strstr(log, "remedy="));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(raises_the_limit),
        cmocka_unit_test(warns_where_the_hard_limit_is_lower),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
