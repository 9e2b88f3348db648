/*
 * Goal: every event is one well-formed line of at most 2,048 bytes, whatever its values hold;
 * floods are cut to the limit and counted; reopening moves on to a new file. Method: lines are
 * written to a file and read back; the grammar is checked by a small reader of its own.
 */
#include <limits.h>
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

#include "base/attr.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/logfmt.h"
#include "sys/thread.h"
#include "temp_dir.h"

static char dir[TEMP_DIR_MAX], path[128], moved[128];

static int make_dir(void **state)
{
    (void)state;
    if (!temp_dir_make(dir)) return -1;
    snprintf(path, sizeof path, "%s/log", dir);
    snprintf(moved, sizeof moved, "%s/log.1", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    return temp_dir_remove(dir) ? 0 : -1;
}

/* Starts an empty log at info. */
static int open_log(void **state)
{
    (void)state;
    unlink(path);
    return ek_sys_log_open(path, EK_LOG_INFO) == EK_OK ? 0 : -1;
}

static int close_log(void **state)
{
    (void)state;
    return ek_sys_log_open(NULL, EK_LOG_INFO) == EK_OK ? 0 : -1;
}

/* The file's content; the last one read stays valid until the next. */
static const char *content_of(const char *name)
{
    static char text[1 << 20];
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    return text;
}

static int count_lines(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static void test_shape_of_a_line(void **state)
{
    (void)state;
    int64_t before_s = ek_sys_wall_s();
    ek_log(EK_LOG_WARN, "gateway", "listening", "addr=%s port=%d", "127.0.0.1", 8080);
    const char *line = content_of(path);
    int year, month, day, hour, minute, second, ms, end = 0;
    assert_int_equal(sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &year, &month, &day, &hour,
                            &minute, &second, &ms, &end),
                     7);
    assert_int_equal(end, 24);
    bool same_hour = hour == before_s / 3600 % 24 || hour == ek_sys_wall_s() / 3600 % 24;
    assert_true(same_hour); /* UTC, not the machine's zone */
    assert_string_equal(line + end,
                        " level=warn room=gateway event=listening addr=127.0.0.1 port=8080\n");
}

static void test_levels(void **state)
{
    (void)state;
    ek_log(EK_LOG_DEBUG, "cli", "quiet", "n=%d", 1);
    ek_log(EK_LOG_INFO, "cli", "said", "n=%d", 2);
    ek_sys_log_set_level(EK_LOG_ERROR);
    ek_log(EK_LOG_WARN, "cli", "quiet", "n=%d", 3);
    ek_log(EK_LOG_ERROR, "cli", "said", "n=%d", 4);
    ek_sys_log_set_level(EK_LOG_DEBUG);
    ek_log(EK_LOG_DEBUG, "cli", "said", "%s", "");
    const char *text = content_of(path);
    assert_int_equal(count_lines(text), 3);
    assert_null(strstr(text, "quiet"));
    assert_non_null(strstr(text, "level=info"));
    assert_non_null(strstr(text, "level=error"));
    assert_non_null(strstr(text, "level=debug"));
}

static void test_flood_is_cut_and_counted(void **state)
{
    (void)state;
    enum { N = 5000 };
    int64_t start_us = ek_sys_now_us();
    ek_log_site site = {0};
    for (int i = 0; i < N; i++)
        ek_sys_log_write(&site, EK_LOG_INFO, "cli", "flood", "i=%d", i);
    int64_t seconds = (ek_sys_now_us() - start_us) / 1000000 + 2; /* windows that may have begun */
    int n_written = count_lines(content_of(path));
    assert_true(n_written >= 100 && n_written <= 100 * seconds);
    ek_sys_sleep_us(1100000); /* a new window */
    ek_sys_log_write(&site, EK_LOG_INFO, "cli", "after", "i=%d", N);
    /* What was left out in this and earlier windows adds up to what is missing. */
    const char *text = content_of(path);
    int n_dropped = 0;
    for (const char *at = text; (at = strstr(at, " dropped=")); at++)
        n_dropped += (int)strtol(at + 9, NULL, 10);
    assert_int_equal(count_lines(text) + n_dropped, N + 1);
    /* Another site is not affected by this one's flood. */
    ek_log(EK_LOG_INFO, "cli", "other", "x=%d", 1);
    assert_non_null(strstr(content_of(path), "event=other"));
}

static void test_long_lines_are_cut(void **state)
{
    (void)state;
    char value[4000];
    for (size_t i = 0; i < sizeof value; i += 2) /* two-byte characters, which must not be split */
        memcpy(value + i, "\xc3\xa9", 2);
    for (int shift = 0; shift < 3; shift++) {
        unlink(path);
        ek_sys_log_reopen();
        ek_log_site site = {0};
        ek_sys_log_write(&site, EK_LOG_INFO, "cli", "long", "%.*s=1 err=\"%.*s\"", shift, "abc",
                         (int)sizeof value, value);
        const char *text = content_of(path);
        size_t len = strlen(text);
        assert_true(len <= 2048 && len > 1900);
        assert_int_equal(count_lines(text), 1);
        static const char tail[] = "\xc3\xa9\" cut=true\n";
        assert_string_equal(text + len - (sizeof tail - 1), tail);
    }
}

static void test_reopen_after_rotation(void **state)
{
    (void)state;
    ek_log(EK_LOG_INFO, "cli", "first", "n=%d", 1);
    assert_int_equal(rename(path, moved), 0);
    ek_log(EK_LOG_INFO, "cli", "second", "n=%d", 2);
    ek_sys_log_reopen();
    ek_log(EK_LOG_INFO, "cli", "third", "n=%d", 3);
    assert_int_equal(count_lines(content_of(moved)), 2);
    const char *text = content_of(path);
    assert_int_equal(count_lines(text), 1);
    assert_non_null(strstr(text, "event=third"));
}

static void test_places_that_cannot_be_logged_to(void **state)
{
    (void)state;
    assert_int_equal(ek_sys_log_open("/nonexistent/dir/log", EK_LOG_INFO), EK_EIO);
    char name[2000];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    assert_int_equal(ek_sys_log_open(name, EK_LOG_INFO), EK_EINVAL);
    ek_log(EK_LOG_INFO, "cli", "still", "n=%d", 1); /* the old place is still in use */
    assert_non_null(strstr(content_of(path), "event=still"));
}

enum { THREADS = 4, LINES = 90 };

static void log_lines(void *ctx)
{
    ek_log_site site = {0};
    for (int i = 0; i < LINES; i++)
        ek_sys_log_write(&site, EK_LOG_INFO, "cli", "thread", "id=%d text=\"%s\"", *(int *)ctx,
                         "some words to make the line longer than a few bytes");
}

static void test_lines_of_threads_do_not_mix(void **state)
{
    (void)state;
    ek_sys_thread threads[THREADS] = {0};
    int ids[THREADS];
    for (int i = 0; i < THREADS; i++) {
        ids[i] = i;
        assert_int_equal(ek_sys_thread_start(&threads[i], "log", log_lines, &ids[i]), EK_OK);
    }
    for (int i = 0; i < THREADS; i++)
        ek_sys_thread_join(&threads[i]);
    const char *text = content_of(path);
    assert_int_equal(count_lines(text), THREADS * LINES);
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        int id = -1, end = 0;
        assert_int_equal(sscanf(line + 24, " level=info room=cli event=thread id=%d%n", &id, &end),
                         1);
        assert_true(id >= 0 && id < THREADS);
        static const char rest[] =
            " text=\"some words to make the line longer than a few bytes\"\n";
        assert_memory_equal(line + 24 + end, rest, sizeof rest - 1);
    }
}

static void EK_PRINTF(2, 3) append_to(ek_sys_line *line, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    ek_sys_logfmt_append(line, fmt, args);
    va_end(args);
}

/* What logfmt makes of one format. */
static const char *EK_PRINTF(1, 2) logfmt(const char *fmt, ...)
{
    static char text[256];
    ek_sys_line line = {.data = text, .room = sizeof text - 1};
    va_list args;
    va_start(args, fmt);
    ek_sys_logfmt_append(&line, fmt, args);
    va_end(args);
    text[line.len] = '\0';
    return text;
}

static void test_values_cannot_break_out(void **state)
{
    (void)state;
    assert_string_equal(logfmt("err=\"%s\"", "a\" level=error x=\""),
                        "err=\"a\\\" level=error x=\\\"\"");
    assert_string_equal(logfmt("err=\"%s\"", "line\nline\r\ttab\x1b[0m\\"),
                        "err=\"line\\nline\\r\\ttab\\x1b[0m\\\\\"");
    assert_string_equal(logfmt("err=\"%s\"", "\xff\xc3(\xe4\xb8\xad\xe4\xb8"),
                        "err=\"\\xff\\xc3(\xe4\xb8\xad\\xe4\\xb8\"");
    /* Without quotes in the format, a value that needs them gets them. */
    assert_string_equal(logfmt("a=%s b=%s c=%s", "plain", "two words", ""),
                        "a=plain b=\"two words\" c=\"\"");
    assert_string_equal(logfmt("a=%s b=%s", "x=y", "q\"q"), "a=\"x=y\" b=\"q\\\"q\"");
    assert_string_equal(logfmt("a=%s", "\xe4\xb8\xad"), "a=\"\xe4\xb8\xad\"");
    assert_string_equal(logfmt("a=%c b=%c", 'x', '\n'), "a=x b=\"\\n\"");
    const char *volatile null = NULL;
    assert_string_equal(logfmt("a=%s", null), "a=(null)");
    assert_string_equal(logfmt("a=%.3s b=%.*s", "abcdef", 2, "xyz"), "a=abc b=xy");
}

static void test_numbers_print_as_printf_does(void **state)
{
    (void)state;
    char expected[256];
#define SAME(...)                                           \
    do {                                                    \
        snprintf(expected, sizeof expected, __VA_ARGS__);   \
        assert_string_equal(logfmt(__VA_ARGS__), expected); \
    } while (0)
    SAME("%d %i %5d|%-5d|%05d %+d", -7, 8, 9, 10, 11, 12);
    SAME("%u %x %X %#x %o", 4000000000u, 255u, 255u, 255u, 8u);
    SAME("%ld %lld %zd %jd %td", LONG_MIN, LLONG_MIN, (ssize_t)-3, INTMAX_MIN, (ptrdiff_t)-4);
    SAME("%lu %llu %zu %ju", ULONG_MAX, ULLONG_MAX, SIZE_MAX, UINTMAX_MAX);
    SAME("%hd %hhd %hu", (short)-5, (signed char)-6, (unsigned short)65535);
    SAME("%f %.2f %8.3f %e %g %G", 1.5, 2.345, 3.14159, 1e10, 1e-10, 1e20);
    SAME("%*d %-*d| %.*f", 6, 42, 6, 43, 2, 2.71828);
    SAME("100%% %s", "done");
    SAME("%p", (void *)expected);
#undef SAME
}

static void test_room_is_respected(void **state)
{
    (void)state;
    char text[8];
    for (size_t room = 0; room < sizeof text; room++) {
        memset(text, '#', sizeof text);
        ek_sys_line cut = {.data = text, .room = room};
        append_to(&cut, "%s", "abcdefghij");
        assert_true(cut.cut);
        assert_int_equal(cut.len, room);
        assert_int_equal(text[room], '#');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_shape_of_a_line, open_log, close_log),
        cmocka_unit_test_setup_teardown(test_levels, open_log, close_log),
        cmocka_unit_test_setup_teardown(test_flood_is_cut_and_counted, open_log, close_log),
        cmocka_unit_test_setup_teardown(test_long_lines_are_cut, open_log, close_log),
        cmocka_unit_test_setup_teardown(test_reopen_after_rotation, open_log, close_log),
        cmocka_unit_test_setup_teardown(test_places_that_cannot_be_logged_to, open_log, close_log),
        cmocka_unit_test_setup_teardown(test_lines_of_threads_do_not_mix, open_log, close_log),
        cmocka_unit_test(test_values_cannot_break_out),
        cmocka_unit_test(test_numbers_print_as_printf_does),
        cmocka_unit_test(test_room_is_respected),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
