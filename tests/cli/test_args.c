/*
 * Goal: the option parser reads every spelling that the manual promises and refuses the rest with
 * one line that helps. Method: walks over made-up tables; standard error is caught in a file and
 * compared.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/args.h"
#include "cli/exit.h"

enum { OPTION_MODEL, OPTION_N, OPTION_JSON };

static const ek_cli_option options[] = {
    {OPTION_MODEL, "model", "PATH", "a file", "model.path"},
    {OPTION_N, "number", "N", "a number", NULL},
    {OPTION_JSON, "json", NULL, "a switch", NULL},
};

static const ek_cli_command command = {
    .name = "try",
    .operands = "FILE",
    .summary = "nothing",
    .about = "Does nothing.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
};

static ek_cli_args walk(char **argv)
{
    int argc = 0;
    while (argv[argc])
        argc++;
    return ek_cli_args_start(&command, argc, argv);
}

/* What is printed between begin and end, on standard output or standard error. */
typedef struct caught {
    FILE *stream;
    FILE *file;
    int saved;
    char text[4096];
} caught;

static void catch_begin(caught *c, FILE *stream)
{
    fflush(stream);
    c->stream = stream;
    c->file = tmpfile();
    assert_non_null(c->file);
    c->saved = dup(fileno(stream));
    assert_true(dup2(fileno(c->file), fileno(stream)) >= 0);
}

static void catch_end(caught *c)
{
    fflush(c->stream);
    assert_true(dup2(c->saved, fileno(c->stream)) >= 0);
    close(c->saved);
    rewind(c->file);
    c->text[fread(c->text, 1, sizeof c->text - 1, c->file)] = '\0';
    fclose(c->file);
}

static void test_values_and_switches(void **state)
{
    (void)state;
    char *argv[] = {"try",      "--model", "a.gguf", "first",  "--json", "--model=b=c",
                    "--number", "-7",      "--",     "--json", "-",      NULL};
    ek_cli_args args = walk(argv);
    assert_int_equal(ek_cli_args_next(&args), OPTION_MODEL);
    assert_string_equal(args.value, "a.gguf");
    assert_string_equal(args.option->key, "model.path");
    assert_int_equal(ek_cli_args_next(&args), EK_CLI_ARGS_OPERAND);
    assert_string_equal(args.value, "first");
    assert_null(args.option);
    assert_int_equal(ek_cli_args_next(&args), OPTION_JSON);
    assert_null(args.value);
    assert_int_equal(ek_cli_args_next(&args), OPTION_MODEL);
    assert_string_equal(args.value, "b=c");
    assert_int_equal(ek_cli_args_next(&args), OPTION_N);
    int64_t n = 0;
    assert_true(ek_cli_args_int(&args, -10, 10, &n));
    assert_int_equal(n, -7);
    assert_int_equal(ek_cli_args_next(&args), EK_CLI_ARGS_OPERAND);
    assert_string_equal(args.value, "--json");
    assert_int_equal(ek_cli_args_next(&args), EK_CLI_ARGS_OPERAND);
    assert_string_equal(args.value, "-");
    assert_int_equal(ek_cli_args_next(&args), EK_CLI_ARGS_END);
    assert_int_equal(ek_cli_args_next(&args), EK_CLI_ARGS_END);
}

static void test_a_dash_alone_is_an_operand(void **state)
{
    (void)state;
    char *argv[] = {"try", "-", "--model=", NULL};
    ek_cli_args args = walk(argv);
    assert_int_equal(ek_cli_args_next(&args), EK_CLI_ARGS_OPERAND);
    assert_string_equal(args.value, "-");
    assert_int_equal(ek_cli_args_next(&args), OPTION_MODEL);
    assert_string_equal(args.value, "");
}

static void test_mistakes_are_explained(void **state)
{
    (void)state;
    static const struct {
        char *words[4];
        const char *line;
    } cases[] = {
        {{"try", "--modle", "x", NULL},
         "evenkeel: try: unknown option --modle; did you mean --model?\n"},
        {{"try", "--jsno=1", NULL}, "evenkeel: try: unknown option --jsno; did you mean --json?\n"},
        {{"try", "--hlep", NULL}, "evenkeel: try: unknown option --hlep; did you mean --help?\n"},
        {{"try", "--frobnicate", NULL},
         "evenkeel: try: unknown option --frobnicate; see evenkeel try --help\n"},
        {{"try", "-x", NULL}, "evenkeel: try: unknown option -x; see evenkeel try --help\n"},
        {{"try", "--model", NULL}, "evenkeel: try: --model needs a value: --model PATH\n"},
        {{"try", "--json=yes", NULL}, "evenkeel: try: --json takes no value\n"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        char *argv[4];
        memcpy(argv, cases[i].words, sizeof argv);
        ek_cli_args args = walk(argv);
        caught c;
        catch_begin(&c, stderr);
        const int result = ek_cli_args_next(&args);
        catch_end(&c);
        assert_int_equal(result, EK_CLI_ARGS_USAGE);
        assert_string_equal(c.text, cases[i].line);
        assert_int_equal(ek_cli_args_exit(&args, result), EK_EXIT_USAGE);
    }
}

static void test_numbers_are_checked(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "x", "1x", "11", "-1", "1.5", "99999999999999999999"};
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++) {
        char word[32];
        snprintf(word, sizeof word, "%s", bad[i]);
        char *argv[] = {"try", "--number", word, NULL};
        ek_cli_args args = walk(argv);
        assert_int_equal(ek_cli_args_next(&args), OPTION_N);
        int64_t n = 42;
        caught c;
        catch_begin(&c, stderr);
        const bool good = ek_cli_args_int(&args, 0, 10, &n);
        catch_end(&c);
        assert_false(good);
        assert_int_equal(n, 42);
        assert_non_null(strstr(c.text, "it must be a whole number from 0 to 10"));
    }
    static const char *const not_numbers[] = {"", "nan", "inf", "2.1", "1e", "0x"};
    for (size_t i = 0; i < EK_COUNT_OF(not_numbers); i++) {
        char word[32];
        snprintf(word, sizeof word, "%s", not_numbers[i]);
        char *argv[] = {"try", "--number", word, NULL};
        ek_cli_args args = walk(argv);
        assert_int_equal(ek_cli_args_next(&args), OPTION_N);
        double x = 42;
        caught c;
        catch_begin(&c, stderr);
        const bool good = ek_cli_args_number(&args, 0, 2, &x);
        catch_end(&c);
        assert_false(good);
        assert_true(x == 42);
    }
    char *argv[] = {"try", "--number", "0.75", NULL};
    ek_cli_args args = walk(argv);
    assert_int_equal(ek_cli_args_next(&args), OPTION_N);
    double x = 0;
    assert_true(ek_cli_args_number(&args, 0, 2, &x));
    assert_true(x == 0.75);
}

static void test_help_shows_the_table(void **state)
{
    (void)state;
    char *argv[] = {"try", "--help", NULL};
    ek_cli_args args = walk(argv);
    caught c;
    catch_begin(&c, stdout);
    const int result = ek_cli_args_next(&args);
    catch_end(&c);
    assert_int_equal(result, EK_CLI_ARGS_HELP);
    assert_int_equal(ek_cli_args_exit(&args, result), EK_EXIT_OK);
    assert_string_equal(c.text,
                        "Usage: evenkeel try [OPTION]... FILE\n\nDoes nothing.\n\nOptions:\n"
                        "  --model PATH               a file [model.path]\n"
                        "  --number N                 a number\n"
                        "  --json                     a switch\n"
                        "  -h, --help                 print this help\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_and_switches),
        cmocka_unit_test(test_a_dash_alone_is_an_operand),
        cmocka_unit_test(test_mistakes_are_explained),
        cmocka_unit_test(test_numbers_are_checked),
        cmocka_unit_test(test_help_shows_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
