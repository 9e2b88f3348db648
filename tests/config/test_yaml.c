/*
 * Goal: a file says what it means, or is refused with name, line, the word at fault and the remedy;
 * nothing of a refused file takes effect. What is printed reads back as the same configuration.
 * Method: one small file per fault, each text and line written out; every row printed and read
 * again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/attr.h"
#include "config/config.h"
#include "config/schema.h"
#include "config/value.h"
#include "config/yaml.h"

static uint8_t memory[1 << 20];
static ek_arena perm;
static ek_config config;
static ek_err err;

static int setup(void **state)
{
    (void)state;
    perm = ek_arena_over(memory, sizeof memory);
    ek_config_defaults(&config);
    memset(&err, 0, sizeof err);
    return 0;
}

static ek_status parse(ek_str text)
{
    return ek_config_parse(text, "f.yaml", &perm, &config, &err);
}

static void assert_refused(ek_str text, const char *message)
{
    ek_config before = config;
    ek_status status = parse(text);
    if (status != EK_ECONFIG)
        fail_msg("accepted (%s): %.*s", ek_status_name(status), EK_STR_ARG(text));
    if (strncmp(err.text, message, strlen(message)) != 0)
        fail_msg("expected: %s\n     got: %s", message, err.text);
    assert_memory_equal(&config, &before, sizeof config);
    assert_int_equal(ek_config_parse(text, "f.yaml", &perm, &config, NULL), EK_ECONFIG);
}

static void test_a_whole_file(void **state)
{
    (void)state;
    static const char text[] = "# evenkeel\n"
                               "version: 1\n"
                               "model:\n"
                               "  path: models/demo.gguf   # a comment\n"
                               "  alias: \"demo: the \\\"first\\\"\"\n"
                               "log: {level: debug}\n"
                               "engine:\n"
                               "  threads: 4\n"
                               "  kv_cache: 512MiB\n"
                               "  prefix_cache: false\n"
                               "  kernels: 'reference'\n"
                               "  kv_block_tokens: 16\n"
                               "routing:\n"
                               "gateway:\n"
                               "  listen: \"[::1]:9000\"\n"
                               "  ping: 500ms\n";
    assert_int_equal(parse(ek_str_from(text)), EK_OK);
    assert_string_equal(config.model_path, "models/demo.gguf");
    assert_string_equal(config.model_alias, "demo: the \"first\"");
    assert_int_equal(config.log_level, EK_LOG_DEBUG);
    assert_int_equal(config.engine.n_threads, 4);
    assert_int_equal(config.engine.kv_bytes, 512 << 20);
    assert_false(config.engine.prefix_cache);
    assert_int_equal(config.engine.kernels, EK_KERNELS_REFERENCE);
    assert_int_equal(config.engine.kv_block_tokens, 16);
    assert_string_equal(config.gateway.listen, "[::1]:9000");
    assert_int_equal(config.gateway.ping_us, 500000);
    assert_int_equal(config.engine.running_max, 64); /* what the file does not name stays */
}

static void test_files_that_change_nothing(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "\n\n",
                                        "# only a comment\n",
                                        "---\n",
                                        "---\n...\n",
                                        "engine:\n",
                                        "engine: {}\n",
                                        "version: 1\n",
                                        "\xef\xbb\xbf# a mark\n",
                                        "~\n",
                                        "%YAML 1.1\n---\nversion: 1\n"};
    ek_config before = config;
    for (size_t i = 0; i < EK_COUNT_OF(texts); i++) {
        if (parse(ek_str_from(texts[i])) != EK_OK) fail_msg("%s: %s", texts[i], err.text);
        assert_memory_equal(&config, &before, sizeof config);
    }
}

static void test_later_sources_win(void **state)
{
    (void)state;
    char *variables[] = {"EVENKEEL_ENGINE_THREADS=5", "EVENKEEL_ENGINE_QUEUE_MAX=6", NULL};
    assert_int_equal(parse(EK_STR("engine: {threads: 4, queue_max: 4, running_max: 4}")), EK_OK);
    assert_int_equal(ek_config_env(variables, &perm, &config, &err), EK_OK);
    assert_int_equal(ek_config_set("engine.threads", "7", "--threads", &perm, &config, &err),
                     EK_OK);
    assert_int_equal(config.engine.n_threads, 7);
    assert_int_equal(config.engine.queue_max, 6);
    assert_int_equal(config.engine.running_max, 4);
}

typedef struct fault {
    const char *text, *message;
} fault;

static void assert_all_refused(const fault *faults, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_refused(ek_str_from(faults[i].text), faults[i].message);
}

static void test_wrong_names(void **state)
{
    (void)state;
    static const fault faults[] = {
        {"version: 1\nengine:\n  threads: 4\n\n\n  treads: 5\n",
         "f.yaml:6: unknown key \"treads\" in engine; did you mean threads?"},
        {"enigne:\n  threads: 5\n", "f.yaml:1: unknown key \"enigne\"; did you mean engine?"},
        {"\nthreads: 3\n", "f.yaml:2: unknown key \"threads\"; did you mean engine.threads?"},
        {"engine:\n  listen: x\n",
         "f.yaml:2: unknown key \"listen\" in engine; did you mean gateway.listen?"},
        {"vrsion: 1\n", "f.yaml:1: unknown key \"vrsion\"; did you mean version?"},
        {"nonsense: 1\n",
         "f.yaml:1: unknown key \"nonsense\"; known are model, log, engine, routing, experts, "
         "gateway"},
        {"log:\n  colour: red\n", "f.yaml:2: unknown key \"colour\" in log; known are path, level"},
        {"log:\n  Level: info\n", "f.yaml:2: unknown key \"Level\" in log; did you mean level?"},
        {"log:\n  \"\": info\n", "f.yaml:2: unknown key \"\" in log; known are path, level"},
        {"engine:\n  <<: {threads: 1}\n",
         "f.yaml:2: unknown key \"<<\" in engine; known are threads"},
    };
    assert_all_refused(faults, EK_COUNT_OF(faults));
}

static void test_duplicates(void **state)
{
    (void)state;
    static const fault faults[] = {
        {"engine:\n  threads: 1\n  threads: 2\n",
         "f.yaml:3: engine.threads stands here again; it is in line 2 already"},
        {"engine:\n  threads: 1\nlog:\nengine:\n  queue_max: 2\n",
         "f.yaml:4: engine stands here again; it is in line 1 already"},
        {"version: 1\nversion: 1\n",
         "f.yaml:2: version stands here again; it is in line 1 already"},
        {"engine: {threads: 1, \"threads\": 1}\n", "f.yaml:1: engine.threads stands here again"},
    };
    assert_all_refused(faults, EK_COUNT_OF(faults));
}

static void test_wrong_values(void **state)
{
    (void)state;
    static const fault faults[] = {
        {"engine:\n  threads: many\n",
         "f.yaml:2: engine.threads is \"many\"; write a whole number, or auto"},
        {"engine:\n\n  threads:\n    many\n", "f.yaml:4: engine.threads is \"many\""},
        {"engine:\n  threads: [1, 2]\n", "f.yaml:2: engine.threads is a list; it takes one value"},
        {"engine:\n  threads:\n    max: 1\n",
         "f.yaml:3: engine.threads is a group of keys; it takes one value"},
        {"engine:\n  threads:\n",
         "f.yaml:2: engine.threads has no value; give it one or leave the key out"},
        {"model:\n  path: ~\n", "f.yaml:2: model.path has no value"},
        {"model:\n  path: null\n", "f.yaml:2: model.path has no value"},
        {"engine:\n  running_max: 300\n",
         "f.yaml:2: engine.running_max is \"300\"; allowed are 1 to 256"},
        {"engine:\n  running_max: 0x10\n",
         "f.yaml:2: engine.running_max is \"0x10\"; write a whole number"},
        {"engine:\n  running_max: 010\n",
         "f.yaml:2: engine.running_max is \"010\"; write a whole number"},
        {"engine:\n  prefix_cache: yes\n",
         "f.yaml:2: engine.prefix_cache is \"yes\"; write true or false"},
        {"engine:\n  queue_timeout: 30\n", "f.yaml:2: engine.queue_timeout is \"30\"; write a "
                                           "whole number with its unit: 250ms, 30s, 5m or 1h"},
        {"gateway:\n  body_max: 4MB\n",
         "f.yaml:2: gateway.body_max is \"4MB\"; write a whole number with its unit: 512B, 64KiB"},
        {"engine:\n  kernels: avx3\n", "f.yaml:2: engine.kernels is \"avx3\"; allowed are auto, "
                                       "reference, avx2, avx512; did you mean avx2?"},
        {"model:\n  path: \"a\\0b\"\n", "f.yaml:2: model.path is \"a\"; control characters"},
        {"model:\n  path: \"a\\nb\"\n", "f.yaml:2: model.path is \"a?b\"; control characters"},
        {"gateway:\n  listen: \"\"\n", "f.yaml:2: gateway.listen is empty"},
        {"version: 2\n", "f.yaml:1: version is not 1"},
        {"version: [1]\n", "f.yaml:1: version is not 1"},
        {"version:\n", "f.yaml:1: version is not 1"},
    };
    assert_all_refused(faults, EK_COUNT_OF(faults));
}

static void test_wrong_shapes(void **state)
{
    (void)state;
    static const fault faults[] = {
        {"engine: 5\n", "f.yaml:1: engine is a section; write its keys below it, indented"},
        {"engine:\n- threads\n", "f.yaml:2: engine is a section"},
        {"engine:\nthreads: 4\n",
         "f.yaml:2: unknown key \"threads\"; did you mean engine.threads?"},
        {"hello\n", "f.yaml:1: a configuration consists of sections"},
        {"- a\n", "f.yaml:1: a configuration consists of sections"},
        {"? [a, b]\n: c\n", "f.yaml:1: a key has to be one plain word"},
        {"engine:\n  ? {a: b}\n  : c\n", "f.yaml:2: a key has to be one plain word"},
        {"engine: {threads: 3}\n---\nengine: {threads: 9}\n",
         "f.yaml:2: a second document begins here; a configuration is one"},
    };
    assert_all_refused(faults, EK_COUNT_OF(faults));
}

static void test_what_yaml_could_do_besides(void **state)
{
    (void)state;
    static const fault faults[] = {
        {"engine: &a\n  threads: 1\n", "f.yaml:1: anchors (&name) are not used here"},
        {"engine:\n  threads: &n 1\n  queue_max: *n\n",
         "f.yaml:2: anchors (&name) are not used here"},
        {"engine: *a\n", "f.yaml:1: aliases (*name) are not used here"},
        {"&a engine:\n", "f.yaml:1: anchors (&name) are not used here"},
        {"engine: &a [x]\n", "f.yaml:1: anchors (&name) are not used here"},
        {"engine:\n  threads: !!int 3\n", "f.yaml:2: tags (!name) are not used here"},
        {"engine: !x {}\n", "f.yaml:1: tags (!name) are not used here"},
        {"engine: !x []\n", "f.yaml:1: tags (!name) are not used here"},
    };
    assert_all_refused(faults, EK_COUNT_OF(faults));
}

static void test_lists(void **state)
{
    (void)state;
    static const char *const same[] = {
        "cluster: {workers: [\"a:1\", 'b:2', c.lan:3]}\n",
        "cluster:\n  workers:\n    - a:1\n    - b:2\n    - c.lan:3\n",
        "cluster:\n  workers: a:1,b:2,c.lan:3\n",
    };
    for (size_t i = 0; i < EK_COUNT_OF(same); i++) {
        setup(state);
        if (parse(ek_str_from(same[i])) != EK_OK) fail_msg("%s", err.text);
        assert_string_equal(config.cluster.workers, "a:1,b:2,c.lan:3");
    }
    setup(state);
    assert_int_equal(parse(EK_STR("cluster: {workers: []}")), EK_OK);
    assert_null(config.cluster.workers);
    static const fault faults[] = {
        {"cluster:\n  workers: [a:1, [b:2]]\n",
         "f.yaml:2: cluster.workers is a list of plain words"},
        {"cluster:\n  workers:\n  - a:1\n  - 'b:2,c:3'\n",
         "f.yaml:4: cluster.workers is a list of plain words"},
        {"cluster:\n  workers: [a:1, '']\n", "f.yaml:2: cluster.workers is a list of plain words"},
        {"cluster:\n  workers: {a: 1}\n",
         "f.yaml:2: cluster.workers is a group of keys; it takes one value"},
        {"cluster:\n  workers: [a:1\n", "f.yaml:"},
    };
    setup(state);
    assert_all_refused(faults, EK_COUNT_OF(faults));
    /* As long as a text may be, and no longer. */
    char text[2 * EK_CONFIG_TEXT_BYTES_MAX];
    size_t n = (size_t)snprintf(text, sizeof text, "cluster:\n  workers:\n");
    while (n < sizeof text - 16)
        n += (size_t)snprintf(text + n, sizeof text - n, "  - host:1234\n");
    assert_refused((ek_str){text, n}, "f.yaml:");
    assert_non_null(strstr(err.text, "cluster.workers is too long"));
}

static void test_no_yaml(void **state)
{
    (void)state;
    static const fault faults[] = {
        {"engine:\n\tthreads: 3\n",
         "f.yaml:2: while scanning for the next token: found character that cannot "
         "start any token; indent with spaces, not tabs"},
        {"model:\n  path: \"unclosed\n\n",
         "f.yaml:2: while scanning a quoted scalar: found unexpected end of stream"},
        {"engine:\n  threads: 1\noops", "f.yaml:3: while scanning a simple key"},
        {"engine: {threads: 1\n", "f.yaml:2: while parsing a flow mapping that begins in line 1"},
        {"engine:\n  threads: 1\n queue_max: 2\n", "f.yaml:3: "},
        {"engine:\n  threads: \xff\n",
         "f.yaml:2: invalid leading UTF-8 octet; write plain UTF-8 text"},
        {"engine:\n  threads: \x01\n", "f.yaml:2: control characters are not allowed"},
        {"@\n", "f.yaml:1: "},
        {"%YAML 9.9\n---\nversion: 1\n", "f.yaml:1: "},
    };
    assert_all_refused(faults, EK_COUNT_OF(faults));
    /* A NUL ends no file early. */
    assert_refused(EK_STR("engine:\n  threads: 1\n\0nonsense: 2\n"),
                   "f.yaml:3: control characters are not allowed");
    /* UTF-16 is refused, not guessed at. */
    assert_refused(EK_STR("\xff\xfe"
                          "a\0:\0 \0b\0"),
                   "f.yaml:1: ");
}

static void test_hostile_depth_and_bulk(void **state)
{
    (void)state;
    enum { N = 200000 };
    static char text[N + 64];
    memset(text, '[', N);
    assert_refused((ek_str){text, N}, "f.yaml:1: a configuration consists of sections");
    size_t head = (size_t)snprintf(text, sizeof text, "engine: ");
    for (size_t i = head; i < N; i++)
        text[i] = '{';
    assert_refused((ek_str){text, N}, "f.yaml:1: ");
    /* Ten levels of ten aliases each would expand to ten thousand million nodes. */
    size_t len = (size_t)snprintf(text, sizeof text, "a0: &a0 [x]\n");
    for (int i = 1; i < 10; i++)
        len += (size_t)snprintf(text + len, sizeof text - len,
                                "a%d: &a%d [*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d]\n",
                                i, i, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1,
                                i - 1);
    assert_refused((ek_str){text, len}, "f.yaml:1: unknown key \"a0\"");
    char *big = malloc(EK_CONFIG_FILE_BYTES_MAX + 1);
    assert_non_null(big);
    memset(big, '\n', EK_CONFIG_FILE_BYTES_MAX + 1);
    assert_int_equal(parse((ek_str){big, EK_CONFIG_FILE_BYTES_MAX}), EK_OK);
    assert_refused((ek_str){big, EK_CONFIG_FILE_BYTES_MAX + 1},
                   "f.yaml:1: longer than the 1048576 bytes");
    free(big);
}

static void test_small_arena(void **state)
{
    (void)state;
    ek_arena tiny = ek_arena_over(memory, 8);
    assert_int_equal(
        ek_config_parse(EK_STR("model:\n  path: /a/longer/path\n"), "f.yaml", &tiny, &config, &err),
        EK_ENOMEM);
    assert_non_null(strstr(err.text, "f.yaml:2: "));
    assert_null(config.model_path);
}

static void test_load(void **state)
{
    (void)state;
    char path[] = "/tmp/ek-config-XXXXXX", expected[64];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char good[] = "engine:\n  threads: 9\n";
    assert_int_equal(write(fd, good, strlen(good)), strlen(good));
    assert_int_equal(ek_config_load(path, &perm, &config, &err), EK_OK);
    assert_int_equal(config.engine.n_threads, 9);
    assert_int_equal(write(fd, "oops", 4), 4);
    assert_int_equal(ek_config_load(path, &perm, &config, &err), EK_ECONFIG);
    snprintf(expected, sizeof expected, "%s:3: ", path);
    assert_memory_equal(err.text, expected, strlen(expected));
    assert_int_equal(ftruncate(fd, EK_CONFIG_FILE_BYTES_MAX + 1), 0);
    assert_int_equal(ek_config_load(path, &perm, &config, &err), EK_ECONFIG);
    assert_non_null(strstr(err.text, "longer than"));
    close(fd);
    unlink(path);
    assert_int_equal(ek_config_load(path, &perm, &config, &err), EK_ENOTFOUND);
    assert_int_equal(ek_config_load("/tmp", &perm, &config, &err), EK_EIO);
}

/* The configuration as config show prints it, in heap memory. */
static char *print(const ek_config *shown)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    ek_config_print(shown, out);
    fclose(out);
    return text;
}

static void assert_prints_and_reads_back(void)
{
    char *text = print(&config);
    ek_config again;
    ek_config_defaults(&again);
    if (ek_config_parse(ek_str_from(text), "printed", &perm, &again, &err) != EK_OK)
        fail_msg("%s in:\n%s", err.text, text);
    char *second = print(&again);
    assert_string_equal(second, text);
    free(second);
    free(text);
}

static void test_what_is_printed_reads_back(void **state)
{
    (void)state;
    assert_prints_and_reads_back();
    static const char *const texts[] = {
        "plain", "with \"quotes\" and \\",   "# no comment", "~",  "null", "a: b",
        "- x",   "\xe4\xb8\xad\xe6\x96\x87", "  blanks  ",   "*a", "!x",   "%"};
    for (int32_t i = 0; i < ek_config_n_keys; i++) {
        const ek_config_key *key = &ek_config_keys[i];
        char name[64];
        snprintf(name, sizeof name, "%s.%s", key->section, key->name);
        for (size_t j = 0; key->type == EK_CONFIG_TEXT && j < EK_COUNT_OF(texts); j++) {
            assert_int_equal(ek_config_set(name, texts[j], "x", &perm, &config, &err), EK_OK);
            assert_prints_and_reads_back();
        }
        for (const ek_config_choice *c = key->choices; c && c->name; c++) {
            assert_int_equal(ek_config_set(name, c->name, "x", &perm, &config, &err), EK_OK);
            assert_prints_and_reads_back();
        }
    }
    assert_int_equal(ek_config_set("engine.pin_threads", "true", "x", &perm, &config, &err), EK_OK);
    assert_int_equal(ek_config_set("engine.queue_timeout", "1234567us", "x", &perm, &config, &err),
                     EK_OK);
    assert_int_equal(ek_config_set("engine.kv_cache", "1234567B", "x", &perm, &config, &err),
                     EK_OK);
    assert_prints_and_reads_back();
    char *text = print(&config);
    assert_non_null(strstr(text, "\n  queue_timeout: 1234567us\n"));
    assert_non_null(strstr(text, "\n  pin_threads: true\n"));
    assert_non_null(strstr(text, "\n  path: \"%\"\n"));
    free(text);
}

/* docs/CONFIG.md is the reference as the program prints it. */
static void test_reference_is_current(void **state)
{
    (void)state;
    char *text = NULL, path[1024];
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    ek_config_print_reference(out);
    fclose(out);
    for (int32_t i = 0; i < ek_config_n_keys; i++) {
        char row[64];
        snprintf(row, sizeof row, "\n| `%s` | ", ek_config_keys[i].name);
        assert_non_null(strstr(text, row));
    }
    const char *root = getenv("EK_SOURCE_ROOT");
    assert_non_null(root);
    snprintf(path, sizeof path, "%s/docs/CONFIG.md", root);
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("%s is missing: evenkeel config reference > docs/CONFIG.md", path);
    char *stored = calloc(1, len + 2);
    assert_non_null(stored);
    size_t n = fread(stored, 1, len + 1, file);
    fclose(file);
    if (n != len || memcmp(stored, text, len) != 0)
        fail_msg("docs/CONFIG.md is out of date: evenkeel config reference > docs/CONFIG.md");
    free(stored);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_whole_file, setup),
        cmocka_unit_test_setup(test_files_that_change_nothing, setup),
        cmocka_unit_test_setup(test_later_sources_win, setup),
        cmocka_unit_test_setup(test_wrong_names, setup),
        cmocka_unit_test_setup(test_duplicates, setup),
        cmocka_unit_test_setup(test_wrong_values, setup),
        cmocka_unit_test_setup(test_wrong_shapes, setup),
        cmocka_unit_test_setup(test_what_yaml_could_do_besides, setup),
        cmocka_unit_test_setup(test_lists, setup),
        cmocka_unit_test_setup(test_no_yaml, setup),
        cmocka_unit_test_setup(test_hostile_depth_and_bulk, setup),
        cmocka_unit_test_setup(test_small_arena, setup),
        cmocka_unit_test_setup(test_load, setup),
        cmocka_unit_test_setup(test_what_is_printed_reads_back, setup),
        cmocka_unit_test_setup(test_reference_is_current, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
