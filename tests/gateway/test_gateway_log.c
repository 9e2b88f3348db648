/*
 * Goal: each request leaves one line in the log, which names it, its client and its trace, and
 * which no client can break. Method: the log in a file, requests of many kinds, the file read back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "house.h"
#include "http/client.h"
#include "sys/log.h"

#define TRACE   "4bf92f3577b34da6a3ce929d0e0e4736"
#define WAIT_MS 20000

static char log_path[] = "/tmp/ek-test-log-XXXXXX";
static house *shared;

static int open_log(void **state)
{
    (void)state;
    int fd = mkstemp(log_path);
    if (fd < 0) return -1;
    close(fd);
    if (ek_sys_log_open(log_path, EK_LOG_DEBUG) != EK_OK) return -1;
    shared = house_make();
    house_open_gateway(shared);
    return 0;
}

static int close_log(void **state)
{
    (void)state;
    house_end(shared);
    unlink(log_path);
    return ek_sys_log_open(NULL, EK_LOG_INFO) == EK_OK ? 0 : -1;
}

/* The line of a request that is over; free it. Fails when there are two, or none. */
static char *line_of(const char *id)
{
    char mark[160];
    snprintf(mark, sizeof mark, " event=request id=%s ", id);
    for (int64_t end = now_ms() + WAIT_MS; now_ms() < end; sleep_ms(2)) {
        char text[65536];
        FILE *file = fopen(log_path, "r");
        assert_non_null(file);
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
        const char *found = strstr(text, mark);
        if (!found || !strchr(found, '\n')) continue;
        assert_null(strstr(found + 1, mark));
        char *line = strdup(found);
        assert_non_null(line);
        line[strcspn(line, "\n")] = '\0';
        return line;
    }
    fail_msg("no line of %s", id);
    return NULL;
}

static void ask(const char *path, const char *id, const char *fields)
{
    char text[1024];
    snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: a\r\nx-request-id: %s\r\n%s\r\n", path,
             id, fields);
    reply r = request_raw(shared->address, text);
    assert_true(r.status != 0);
    /* A trace is taken over for the log; the standard has no answer to it in the reply. */
    assert_null(strstr(r.head, "traceparent"));
    reply_free(&r);
}

static void assert_logged(const char *id, const char *part)
{
    char *line = line_of(id);
    if (!strstr(line, part)) print_message("no %s in:\n%s\n", part, line);
    assert_non_null(strstr(line, part));
    free(line);
}

static void names_the_request(void **state)
{
    (void)state;
    ask("/livez?x=1", "one", "");
    assert_logged("one", " trace=- client=127.0.0.1 path=\"/livez\" status=200 code=- ");
    ask("/nope", "two", "");
    assert_logged("two", " path=\"/nope\" status=404 code=not_found ");
}

static void names_the_trace(void **state)
{
    (void)state;
    ask("/livez", "three", "traceparent: 00-" TRACE "-00f067aa0ba902b7-01\r\ntracestate: a=b\r\n");
    assert_logged("three", " trace=" TRACE " ");
    ask("/livez", "four", "traceparent: 00-" TRACE "-xyz-01\r\n");
    char *line = line_of("four");
    const char *trace = strstr(line, " trace=");
    assert_non_null(trace);
    assert_null(strstr(line, TRACE));
    assert_int_equal(strspn(trace + 7, "0123456789abcdef"), 32);
    free(line);
}

/* E7: nobody in front is trusted, so what a client says of its own address counts for nothing. */
static void names_the_peer(void **state)
{
    (void)state;
    ask("/livez", "seven", "X-Forwarded-For: 10.0.0.1\r\nForwarded: for=10.0.0.1\r\n");
    assert_logged("seven", " client=127.0.0.1 ");
}

static void cannot_be_broken(void **state)
{
    (void)state;
    ask("/a\"status=200\\", "five", "");
    assert_logged("five", " path=\"/a\\\"status=200\\\\\" status=404 ");
    char path[600] = "/";
    memset(path + 1, 'p', sizeof path - 2);
    ask(path, "six", "");
    char *line = line_of("six");
    assert_true(strlen(line) < 500);
    free(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_the_request),
        cmocka_unit_test(names_the_trace),
        cmocka_unit_test(names_the_peer),
        cmocka_unit_test(cannot_be_broken),
    };
    return cmocka_run_group_tests(tests, open_log, close_log);
}
