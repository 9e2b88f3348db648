/*
 * Goal: every row of the table is sound; each type takes what it should, at its very borders, and
 * refuses the rest with the key's name, the value and the remedy. Method: walks over the whole
 * table; values at both sides of each border.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "config/config.h"
#include "config/schema.h"
#include "config/value.h"

static uint8_t memory[1 << 16];
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

static ek_status set(const char *key, const char *value)
{
    return ek_config_set(key, value, "--set", &perm, &config, &err);
}

/* Refused, with all of these in the text. */
static void assert_refused(const char *key, const char *value, const char *what)
{
    ek_config before = config;
    assert_int_equal(set(key, value), EK_ECONFIG);
    if (!strstr(err.text, what)) fail_msg("\"%s\" is not in: %s", what, err.text);
    assert_non_null(strstr(err.text, "--set: "));
    assert_memory_equal(&config, &before, sizeof config);
}

static void test_defaults(void **state)
{
    (void)state;
    assert_null(config.model_path);
    assert_null(config.model_alias);
    assert_null(config.chat_format);
    assert_null(config.log_path);
    assert_int_equal(config.log_level, EK_LOG_INFO);
    assert_int_equal(config.engine.n_threads, 0);
    assert_false(config.engine.pin_threads);
    assert_int_equal(config.engine.kernels, EK_KERNELS_AUTO);
    assert_true(config.engine.pack_weights);
    assert_int_equal(config.engine.kv_bytes, 0);
    assert_int_equal(config.engine.context_tokens, 0);
    assert_int_equal(config.engine.running_max, 64);
    assert_int_equal(config.engine.queue_max, 256);
    assert_int_equal(config.engine.queue_timeout_us, 60000000);
    assert_int_equal(config.engine.kv_block_tokens, 32);
    assert_int_equal(config.engine.prefill_chunk_tokens, 256);
    assert_true(config.engine.prefix_cache);
    assert_int_equal(config.engine.prefix_ttl_us, 600000000);
    assert_int_equal(config.engine.step_watchdog_us, 30000000);
    assert_int_equal(config.engine.route.policy, EK_ROUTE_POLICY_STATIC);
    assert_string_equal(config.gateway.listen, "127.0.0.1:8080");
    assert_null(config.gateway.health_listen);
    assert_int_equal(config.gateway.workers, 2);
    assert_int_equal(config.gateway.body_bytes_max, 8 << 20);
    assert_int_equal(config.gateway.header_bytes_max, 32 << 10);
    assert_int_equal(config.gateway.json_depth_max, 64);
    assert_int_equal(config.gateway.messages_max, 1024);
    assert_int_equal(config.gateway.choices_max, 8);
    assert_int_equal(config.gateway.header_timeout_us, 10000000);
    assert_int_equal(config.gateway.body_timeout_us, 30000000);
    assert_int_equal(config.gateway.idle_timeout_us, 75000000);
    assert_int_equal(config.gateway.ping_us, 15000000);
    assert_int_equal(config.gateway.request_timeout_us, 0);
    assert_int_equal(config.gateway.drain_settle_us, 5000000);
    assert_int_equal(config.gateway.drain_timeout_us, 30000000);
    assert_false(config.gateway.strict);
    assert_true(config.gateway.web_page);
}

/* Each field of the configuration has at most one key, and each key is complete. */
static void test_rows_are_sound(void **state)
{
    (void)state;
    for (int32_t i = 0; i < ek_config_n_keys; i++) {
        const ek_config_key *key = &ek_config_keys[i];
        assert_true(ek_config_section_find(ek_str_from(key->section)) >= 0);
        assert_int_equal(ek_config_key_find(ek_str_from(key->section), ek_str_from(key->name)), i);
        assert_true(strlen(key->help) > 10);
        assert_int_equal(key->help[strlen(key->help) - 1], '.');
        assert_null(strpbrk(key->help, "|\n")); /* it stands in a Markdown table */
        assert_true(key->min <= key->max || key->type == EK_CONFIG_TEXT);
        assert_true((key->type == EK_CONFIG_CHOICE) == (key->choices != NULL));
        /* A text has a default or says what its absence means. */
        assert_true(key->default_value || (key->type == EK_CONFIG_TEXT && key->unset));
        for (int32_t j = 0; j < i; j++)
            assert_int_not_equal(ek_config_keys[j].offset, key->offset);
    }
    assert_int_equal(ek_config_section_find(EK_STR("nonsense")), -1);
    assert_int_equal(ek_config_key_find(EK_STR("engine"), EK_STR("listen")), -1);
}

/* Every number is taken at its borders, refused one step beyond, and printed as it is read. */
static void test_borders_of_every_number(void **state)
{
    (void)state;
    for (int32_t i = 0; i < ek_config_n_keys; i++) {
        const ek_config_key *key = &ek_config_keys[i];
        bool is_number = key->type == EK_CONFIG_INT || key->type == EK_CONFIG_DURATION ||
                         key->type == EK_CONFIG_SIZE;
        if (!is_number) continue;
        char name[64], text[64], printed[EK_CONFIG_VALUE_TEXT_MAX];
        const char *unit = key->type == EK_CONFIG_DURATION ? "us"
                           : key->type == EK_CONFIG_SIZE   ? "B"
                                                           : "";
        snprintf(name, sizeof name, "%s.%s", key->section, key->name);
        const int64_t good[] = {key->min, key->max};
        for (size_t j = 0; j < EK_COUNT_OF(good); j++) {
            snprintf(text, sizeof text, "%lld%s", (long long)good[j], unit);
            assert_int_equal(set(name, text), EK_OK);
            ek_config_value_print(key, &config, printed);
            ek_config before = config;
            assert_int_equal(set(name, printed), EK_OK); /* the printed form is the same value */
            assert_memory_equal(&config, &before, sizeof config);
        }
        snprintf(text, sizeof text, "%lld%s", (long long)key->max + 1, unit);
        assert_refused(name, text, "allowed are ");
        assert_non_null(strstr(err.text, name));
        if (key->min > 0) {
            snprintf(text, sizeof text, "%lld%s", (long long)key->min - 1, unit);
            assert_refused(name, text, "allowed are ");
        }
        assert_refused(name, "", "write a whole number");
        assert_refused(name, "x", "write a whole number");
        if (key->zero) {
            assert_int_equal(set(name, key->zero), EK_OK);
            ek_config_value_print(key, &config, printed);
            assert_string_equal(printed, key->zero);
            assert_refused(name, "x", key->zero); /* the remedy names the word */
        }
    }
}

static void test_numbers_are_plain(void **state)
{
    (void)state;
    static const char *const bad[] = {"0x10", "010", "1e3", "+4", "4.0",   "4,000", "4 ",
                                      " 4",   "--4", "-",   "4k", "1_000", "four",  "\xd9\xa4"};
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++)
        assert_refused("engine.running_max", bad[i], "write a whole number");
    assert_refused("engine.running_max", "-4", "allowed are 1 to 256");
    assert_refused("engine.running_max", "0", "allowed are 1 to 256");
    assert_refused("engine.running_max", "99999999999999999999999", "allowed are 1 to 256");
    assert_refused("engine.running_max", "9223372036854775807", "allowed are 1 to 256");
    assert_refused("engine.running_max", "9223372036854775808", "allowed are 1 to 256");
    assert_refused("engine.running_max", "18446744073709551617", "allowed are 1 to 256");
    assert_refused("engine.threads", "-1", "allowed are 1 to 1024, or auto");
    assert_int_equal(set("engine.threads", "0"), EK_OK); /* the same as auto */
    assert_int_equal(config.engine.n_threads, 0);
}

static void test_durations(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t us;
        const char *printed;
    } good[] = {
        {"250ms", 250000, "250ms"}, {"1500us", 1500, "1500us"}, {"90s", 90000000, "90s"},
        {"60s", 60000000, "1m"},    {"5m", 300000000, "5m"},    {"1h", 3600000000, "1h"},
        {"24h", 86400000000, "1d"}, {"1000ms", 1000000, "1s"},  {"never", 0, "never"},
        {"0", 0, "never"},          {"0s", 0, "never"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(good); i++) {
        char printed[EK_CONFIG_VALUE_TEXT_MAX];
        assert_int_equal(set("engine.queue_timeout", good[i].text), EK_OK);
        assert_int_equal(config.engine.queue_timeout_us, good[i].us);
        int32_t row = ek_config_key_find(EK_STR("engine"), EK_STR("queue_timeout"));
        ek_config_value_print(&ek_config_keys[row], &config, printed);
        assert_string_equal(printed, good[i].printed);
    }
    static const char *const bad[] = {"30",    "1.5s", "s",   "5 m", "5min",
                                      "1h30m", "-5s",  "30S", "05s", "5sec"};
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++)
        assert_refused("engine.queue_timeout", bad[i], "250ms, 30s, 5m or 1h, or never");
    assert_refused("engine.queue_timeout", "25h", "allowed are 1us to 1d, or never");
    assert_refused("engine.queue_timeout", "9223372036854775807d",
                   "allowed are 1us to 1d, or never");
    assert_int_equal(set("gateway.drain_settle", "0"), EK_OK);
    assert_int_equal(config.gateway.drain_settle_us, 0);
}

static void test_real_numbers(void **state)
{
    (void)state;
    int32_t row = ek_config_key_find(EK_STR("routing"), EK_STR("breaker_trip"));
    const ek_config_key *key = &ek_config_keys[row];
    static const struct {
        const char *text;
        double value;
        const char *printed;
    } good[] = {{"0.85", 0.85, "0.85"},       {"1", 1, "1"},          {"1.5", 1.5, "1.5"},
                {"0.900000", 0.9, "0.9"},     {"2.0", 2, "2"},        {"0.051", 0.051, "0.051"},
                {"0.123456", 0.123456, NULL}, {"4.000000", 4.0, "4"}, {"0.05", 0.05, "0.05"}};
    for (size_t i = 0; i < EK_COUNT_OF(good); i++) {
        char printed[EK_CONFIG_VALUE_TEXT_MAX];
        assert_int_equal(set("routing.breaker_trip", good[i].text), EK_OK);
        assert_true(config.engine.route.breaker.trip_load == good[i].value);
        ek_config_value_print(key, &config, printed);
        assert_string_equal(printed, good[i].printed ? good[i].printed : good[i].text);
    }
    static const char *const bad[] = {"",     ".5",   "5.",   "0x1",  "1e-1",      "-0.5",
                                      "00.5", "0,5",  "0.5 ", " 0.5", "0.1234567", "nan",
                                      "inf",  "0.5.", "0.-5", "+1"};
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++)
        assert_refused("routing.breaker_trip", bad[i], "write a number such as 0.85");
    static const char *const outside[] = {"0.049999", "4.000001", "0", "99999999999999999999",
                                          "9223372036854.9"};
    for (size_t i = 0; i < EK_COUNT_OF(outside); i++)
        assert_refused("routing.breaker_trip", outside[i], "allowed are 0.05 to 4");
    /* Where 0 has a word, it is allowed besides the range. */
    assert_int_equal(set("routing.capacity_factor", "unlimited"), EK_OK);
    assert_true(config.engine.route.capacity_factor == 0);
    assert_int_equal(set("routing.capacity_factor", "0.0"), EK_OK);
    assert_int_equal(set("routing.capacity_factor", "0.1"), EK_OK);
    assert_refused("routing.capacity_factor", "0.05", "allowed are 0.1 to 1024, or unlimited");
    assert_refused("routing.capacity_factor", "x", "decimals, or unlimited");
}

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(set("engine.kv_cache", "2GiB"), EK_OK);
    assert_int_equal(config.engine.kv_bytes, INT64_C(2) << 30);
    assert_int_equal(set("engine.kv_cache", "auto"), EK_OK);
    assert_int_equal(config.engine.kv_bytes, 0);
    assert_int_equal(set("gateway.body_max", "1024B"), EK_OK);
    assert_int_equal(config.gateway.body_bytes_max, 1024);
    static const char *const bad[] = {"65536",  "64KB", "64K",    "64kib",
                                      "1.5MiB", "MiB",  "64 KiB", "64KiBs"};
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++)
        assert_refused("gateway.body_max", bad[i], "512B, 64KiB, 4MiB or 2GiB");
    assert_refused("gateway.body_max", "2GiB", "allowed are 1KiB to 1GiB");
    assert_refused("gateway.header_max", "4095B", "allowed are 4KiB to 1MiB");
    assert_refused("gateway.body_max", "99999999999TiB", "allowed are 1KiB to 1GiB");
}

static void test_bools_and_choices(void **state)
{
    (void)state;
    assert_int_equal(set("engine.prefix_cache", "false"), EK_OK);
    assert_false(config.engine.prefix_cache);
    assert_int_equal(set("engine.prefix_cache", "true"), EK_OK);
    assert_true(config.engine.prefix_cache);
    static const char *const bad[] = {"yes", "no", "1", "0", "True", "on", "", "truee"};
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++)
        assert_refused("engine.prefix_cache", bad[i], "write true or false");
    assert_int_equal(set("engine.kernels", "avx2"), EK_OK);
    assert_int_equal(config.engine.kernels, EK_KERNELS_AVX2);
    assert_refused("engine.kernels", "avx521",
                   "allowed are auto, reference, avx2, avx512; did you mean avx512?");
    assert_refused("engine.kernels", "fastest", "allowed are auto, reference, avx2, avx512");
    assert_null(strstr(err.text, "did you mean"));
    assert_refused("log.level", "INFO", "allowed are error, warn, info, debug");
    assert_int_equal(set("engine.kv_block_tokens", "64"), EK_OK);
    assert_int_equal(config.engine.kv_block_tokens, 64);
    assert_refused("engine.kv_block_tokens", "48", "allowed are 16, 32, 64");
}

static void test_texts(void **state)
{
    (void)state;
    char value[] = "/models/\xe4\xb8\xad.gguf";
    assert_int_equal(set("model.path", value), EK_OK);
    value[1] = '#'; /* a copy was taken */
    assert_string_equal(config.model_path, "/models/\xe4\xb8\xad.gguf");
    assert_int_equal(set("model.path", ""), EK_OK); /* the same as not set */
    assert_null(config.model_path);
    assert_refused("gateway.listen", "", "is empty");
    assert_refused("model.path", "a\nb", "control characters");
    assert_refused("model.path", "a\x7f", "control characters");
    assert_refused("model.path", "a\xff", "not UTF-8");
    assert_refused("model.path", "a\xe4\xb8", "not UTF-8");
    char big[EK_CONFIG_TEXT_BYTES_MAX + 2];
    memset(big, 'x', sizeof big);
    big[EK_CONFIG_TEXT_BYTES_MAX] = '\0';
    assert_int_equal(set("model.path", big), EK_OK);
    big[EK_CONFIG_TEXT_BYTES_MAX] = 'x';
    big[EK_CONFIG_TEXT_BYTES_MAX + 1] = '\0';
    assert_refused("model.path", big, "longer than 4096 bytes");
}

static void test_long_wrong_values_are_shortened(void **state)
{
    (void)state;
    char big[5000];
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = '\0';
    assert_refused("engine.threads", big, "xxx...\"; write a whole number");
    assert_true(strlen(err.text) < 200);
}

static void test_full_arena(void **state)
{
    (void)state;
    ek_arena tiny = ek_arena_over(memory, 4);
    ek_config before = config;
    assert_int_equal(ek_config_set("model.path", "a-longer-path", "--set", &tiny, &config, &err),
                     EK_ENOMEM);
    assert_memory_equal(&config, &before, sizeof config);
    assert_int_equal(ek_config_set("model.path", "x", "--set", &tiny, &config, NULL), EK_OK);
}

static void test_unknown_keys(void **state)
{
    (void)state;
    static const struct {
        const char *key, *what;
    } cases[] = {
        {"engine.treads", "unknown key \"treads\" in engine; did you mean threads?"},
        {"engin.threads", "unknown key \"engin.threads\"; did you mean engine.threads?"},
        {"threads", "unknown key \"threads\"; did you mean engine.threads?"},
        {"treads", "unknown key \"treads\"; did you mean engine.threads?"},
        {"gateway.threads", "unknown key \"threads\" in gateway; did you mean engine.threads?"},
        {"log", "log is a section; name one of its keys: path, level"},
        {"log.colour", "unknown key \"colour\" in log; known are path, level"},
        {"version",
         "unknown key \"version\"; known are model, log, engine, routing, experts, gateway"},
        {"", "known are model, log, engine, routing, experts, gateway"},
        {".", "known are model"},
        {"engine.", "known are threads"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++)
        assert_refused(cases[i].key, "1", cases[i].what);
    char big[300];
    memset(big, 'k', sizeof big);
    big[sizeof big - 1] = '\0';
    assert_refused(big, "1", "known are model");
}

static void test_environment(void **state)
{
    (void)state;
    char *good[] = {"PATH=/bin",
                    "EVENKEEL_ENGINE_THREADS=3",
                    "EVENKEEL_GATEWAY_LISTEN=:0",
                    "EVENKEEL_MODEL_PATH=/m.gguf",
                    "EVENKEEL_CONFIG=/etc/evenkeel.yaml",
                    "EVENKEEL_URL=http://127.0.0.1:1",
                    "EVENKEEL_ADMIN_KEY=0123456789abcdef",
                    "EVENKEELX=1",
                    "NOT_EVENKEEL_FOO=1",
                    "nonsense",
                    NULL};
    assert_int_equal(ek_config_env(good, &perm, &config, &err), EK_OK);
    assert_int_equal(config.engine.n_threads, 3);
    assert_string_equal(config.gateway.listen, ":0");
    assert_string_equal(config.model_path, "/m.gguf");
    static const struct {
        char *variable;
        const char *what;
    } bad[] = {
        {"EVENKEEL_ENGINE_TREADS=3", "environment: unknown variable EVENKEEL_ENGINE_TREADS; did "
                                     "you mean EVENKEEL_ENGINE_THREADS?"},
        {"EVENKEEL_FOO=3",
         "environment: unknown variable EVENKEEL_FOO; names are EVENKEEL_<SECTION>_<KEY>"},
        {"EVENKEEL_engine_threads=3", "unknown variable EVENKEEL_engine_threads"},
        {"EVENKEEL_ENGINE_THREADS=many",
         "environment: EVENKEEL_ENGINE_THREADS: engine.threads is \"many\"; write a whole number"},
        {"EVENKEEL_ENGINE_THREADS=", "engine.threads is \"\""},
        {"EVENKEEL_ENGINE_THREADS", "engine.threads is \"\""},
        {"EVENKEEL_", "unknown variable EVENKEEL_"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++) {
        char *list[] = {"EVENKEEL_ENGINE_RUNNING_MAX=7", bad[i].variable, NULL};
        ek_config before = config;
        assert_int_equal(ek_config_env(list, &perm, &config, &err), EK_ECONFIG);
        if (!strstr(err.text, bad[i].what)) fail_msg("\"%s\" is not in: %s", bad[i].what, err.text);
        assert_memory_equal(&config, &before,
                            sizeof config); /* the good one before it has no effect either */
    }
    char *none[] = {NULL};
    assert_int_equal(ek_config_env(none, &perm, &config, NULL), EK_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_defaults, setup),
        cmocka_unit_test_setup(test_rows_are_sound, setup),
        cmocka_unit_test_setup(test_borders_of_every_number, setup),
        cmocka_unit_test_setup(test_numbers_are_plain, setup),
        cmocka_unit_test_setup(test_durations, setup),
        cmocka_unit_test_setup(test_real_numbers, setup),
        cmocka_unit_test_setup(test_sizes, setup),
        cmocka_unit_test_setup(test_bools_and_choices, setup),
        cmocka_unit_test_setup(test_texts, setup),
        cmocka_unit_test_setup(test_long_wrong_values_are_shortened, setup),
        cmocka_unit_test_setup(test_full_arena, setup),
        cmocka_unit_test_setup(test_unknown_keys, setup),
        cmocka_unit_test_setup(test_environment, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
