/*
 * Goal: blocked signals are waited for in turn, time limits pass, and systemd's socket gets the
 * word. Method: signals sent to this process; a datagram socket of the test's own, by path and by
 * abstract name.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "sys/clock.h"
#include "sys/signal.h"

static void test_signals_wait_their_turn(void **state)
{
    (void)state;
    assert_int_equal(ek_sys_signal_block(), EK_OK);
    static const int signals[] = {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1};
    for (size_t i = 0; i < EK_COUNT_OF(signals); i++) {
        assert_int_equal(kill(getpid(), signals[i]), 0);
        assert_int_equal(ek_sys_signal_wait(i % 2 ? -1 : 1000000), signals[i]);
    }
    assert_int_equal(kill(getpid(), SIGPIPE), 0); /* ignored: nothing comes, nothing dies */
    int64_t start_us = ek_sys_now_us();
    assert_int_equal(ek_sys_signal_wait(10000), 0);
    assert_true(ek_sys_now_us() - start_us >= 10000);
    assert_int_equal(ek_sys_signal_wait(0), 0);
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    assert_int_equal(ek_sys_signal_wait(INT64_MAX), SIGTERM);
}

/* A socket like systemd's, bound to a path ("/...") or an abstract name ("@..."). */
static int bind_socket(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(name);
    assert_true(len < sizeof address.sun_path);
    memcpy(address.sun_path, name, len);
    if (name[0] == '@') address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    return fd;
}

static void assert_notified(const char *name)
{
    int fd = bind_socket(name);
    char text[64] = "";
    assert_int_equal(setenv("NOTIFY_SOCKET", name, 1), 0);
    ek_sys_notify("READY=1\nSTATUS=serving");
    ssize_t n = recv(fd, text, sizeof text - 1, 0);
    assert_int_equal(n, strlen("READY=1\nSTATUS=serving"));
    assert_string_equal(text, "READY=1\nSTATUS=serving");
    close(fd);
}

static void test_systemd_gets_the_word(void **state)
{
    (void)state;
    char path[64], abstract[64];
    snprintf(path, sizeof path, "/tmp/ek-notify-%ld", (long)getpid());
    snprintf(abstract, sizeof abstract, "@ek-notify-%ld", (long)getpid());
    assert_notified(path);
    unlink(path);
    assert_notified(abstract);
}

static void test_no_socket_is_no_error(void **state)
{
    (void)state;
    char name[300];
    unsetenv("NOTIFY_SOCKET");
    ek_sys_notify("READY=1");
    memset(name, '/', sizeof name);
    name[sizeof name - 1] = '\0';
    setenv("NOTIFY_SOCKET", name, 1); /* longer than an address */
    ek_sys_notify("READY=1");
    setenv("NOTIFY_SOCKET", "relative", 1);
    ek_sys_notify("READY=1");
    setenv("NOTIFY_SOCKET", "/nonexistent/socket", 1);
    ek_sys_notify("READY=1");
    setenv("NOTIFY_SOCKET", "", 1);
    ek_sys_notify("READY=1");
    assert_int_equal(ek_sys_signal_wait(0), 0); /* still here, and nothing was raised */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signals_wait_their_turn),
        cmocka_unit_test(test_systemd_gets_the_word),
        cmocka_unit_test(test_no_socket_is_no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
