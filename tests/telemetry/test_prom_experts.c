/*
 * Goal: the experts' text says what the counters say, is well-formed, and stays small for big
 * models. Method: a small model's whole text, written out; a big one's size and line grammar; the
 * hottest and coldest few against a full search.
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

#include "base/rng.h"
#include "telemetry/prom_experts.h"

#define S INT64_C(1000000)

static void *memory;

static ek_expert_stats *open_stats(int32_t n_layers, int32_t n_experts)
{
    size_t bytes = ek_telemetry_experts_bytes(n_layers, n_experts);
    memory = malloc(bytes);
    assert_non_null(memory);
    ek_arena arena = ek_arena_over(memory, bytes);
    ek_expert_stats *stats = NULL;
    assert_int_equal(ek_telemetry_experts_create(n_layers, n_experts, &arena, &stats), EK_OK);
    return stats;
}

static char *render(const ek_expert_stats *stats, int32_t top_k)
{
    size_t len = ek_telemetry_experts_render(stats, 10 * S, top_k, EK_PROM_TEXT, NULL, 0);
    char *text = malloc(len + 1);
    assert_non_null(text);
    assert_int_equal(ek_telemetry_experts_render(stats, 10 * S, top_k, EK_PROM_TEXT, text, len),
                     len);
    text[len] = '\0';
    return text;
}

/* What test_whole_text begins with. */
static const char whole_head[] =
    "# HELP evenkeel_layer_expert_load_max_over_mean_ratio Tokens of the layer's hottest "
    "expert "
    "over the mean of its experts; 1 is even.\n"
    "# TYPE evenkeel_layer_expert_load_max_over_mean_ratio gauge\n"
    "evenkeel_layer_expert_load_max_over_mean_ratio{layer=\"0\"} 4\n"
    "evenkeel_layer_expert_load_max_over_mean_ratio{layer=\"1\"} 1\n"
    "# HELP evenkeel_layer_expert_load_cv_ratio Standard deviation of the layer's tokens per "
    "expert over their mean; 0 is even.\n"
    "# TYPE evenkeel_layer_expert_load_cv_ratio gauge\n"
    "evenkeel_layer_expert_load_cv_ratio{layer=\"0\"} 1.73205080756888\n"
    "evenkeel_layer_expert_load_cv_ratio{layer=\"1\"} 0\n"
    "# HELP evenkeel_layer_expert_load_gini_ratio Gini coefficient of the layer's tokens per "
    "expert; 0 is even.\n"
    "# TYPE evenkeel_layer_expert_load_gini_ratio gauge\n"
    "evenkeel_layer_expert_load_gini_ratio{layer=\"0\"} 0.75\n"
    "evenkeel_layer_expert_load_gini_ratio{layer=\"1\"} 0\n"
    "# HELP evenkeel_layer_experts_effective How many experts do the layer's work: exp of the "
    "entropy of their shares.\n"
    "# TYPE evenkeel_layer_experts_effective gauge\n"
    "evenkeel_layer_experts_effective{layer=\"0\"} 1\n"
    "evenkeel_layer_experts_effective{layer=\"1\"} 4\n"
    "# HELP evenkeel_layer_experts_idle Experts of the layer that got no token in the window.\n"
    "# TYPE evenkeel_layer_experts_idle gauge\n"
    "evenkeel_layer_experts_idle{layer=\"0\"} 3\n"
    "evenkeel_layer_experts_idle{layer=\"1\"} 0\n"
    "# HELP evenkeel_hot_expert_load_ratio Tokens over the layer's mean, of the few experts "
    "where this is highest.\n"
    "# TYPE evenkeel_hot_expert_load_ratio gauge\n"
    "evenkeel_hot_expert_load_ratio{layer=\"0\",expert=\"2\"} 4\n"
    "evenkeel_hot_expert_load_ratio{layer=\"1\",expert=\"0\"} 1\n"
    "# HELP evenkeel_cold_expert_load_ratio Tokens over the layer's mean, of the few experts "
    "where this is lowest.\n"
    "# TYPE evenkeel_cold_expert_load_ratio gauge\n"
    "evenkeel_cold_expert_load_ratio{layer=\"0\",expert=\"0\"} 0\n"
    "evenkeel_cold_expert_load_ratio{layer=\"0\",expert=\"1\"} 0\n"
    "# HELP evenkeel_layer_expert_tokens_total Tokens times experts per token that the layer's "
    "experts computed.\n"
    "# TYPE evenkeel_layer_expert_tokens_total counter\n"
    "evenkeel_layer_expert_tokens_total{layer=\"0\"} 12\n"
    "evenkeel_layer_expert_tokens_total{layer=\"1\"} 1008\n"
    "# HELP evenkeel_layer_expert_busy_seconds_total Compute time that the layer's experts "
    "took, "
    "over all threads.\n"
    "# TYPE evenkeel_layer_expert_busy_seconds_total counter\n"
    "evenkeel_layer_expert_busy_seconds_total{layer=\"0\"} 0.003\n"
    "evenkeel_layer_expert_busy_seconds_total{layer=\"1\"} 0\n";

static void test_whole_text(void **state)
{
    (void)state;
    ek_expert_stats *stats = open_stats(2, 4);
    /* Layer 1 has tokens of before the window, which only the totals show. */
    ek_telemetry_experts_add_tokens(stats, 1, 3, 1000);
    ek_telemetry_experts_sample(stats, 1 * S);
    for (int64_t i = 1; i <= 11; i++)
        ek_telemetry_experts_sample(stats, (1 + i) * S);
    ek_telemetry_experts_add_tokens(stats, 0, 2, 12);
    ek_telemetry_experts_add_tokens(stats, 1, 0, 2);
    ek_telemetry_experts_add_tokens(stats, 1, 1, 2);
    ek_telemetry_experts_add_tokens(stats, 1, 2, 2);
    ek_telemetry_experts_add_tokens(stats, 1, 3, 2);
    ek_telemetry_experts_add_busy(stats, 0, 2, 2500000, 100);
    ek_telemetry_experts_add_busy(stats, 0, 3, 500000, 2000000);
    char *text = render(stats, 2);
    assert_memory_equal(text, whole_head, sizeof whole_head - 1);
    const char *rest = text + sizeof whole_head - 1;
    assert_non_null(strstr(rest, "service_seconds_bucket{layer=\"0\",le=\"5e-05\"} 0\n"));
    assert_non_null(strstr(rest, "service_seconds_bucket{layer=\"0\",le=\"0.0001\"} 1\n"));
    assert_non_null(strstr(rest, "service_seconds_bucket{layer=\"0\",le=\"1\"} 1\n"));
    assert_non_null(strstr(rest, "service_seconds_bucket{layer=\"0\",le=\"+Inf\"} 2\n"));
    assert_non_null(strstr(rest, "service_seconds_sum{layer=\"0\"} 2.0001\n"));
    assert_non_null(strstr(rest, "service_seconds_count{layer=\"0\"} 2\n"));
    assert_non_null(strstr(rest, "service_seconds_count{layer=\"1\"} 0\n"));
    free(text);
    free(memory);
}

static void test_idle_model(void **state)
{
    (void)state;
    ek_expert_stats *stats = open_stats(1, 2);
    char *text = render(stats, 4);
    assert_non_null(strstr(text, "load_max_over_mean_ratio{layer=\"0\"} 0\n"));
    assert_non_null(strstr(text, "experts_idle{layer=\"0\"} 2\n"));
    assert_null(strstr(text, "hot_expert")); /* no expert is hot, so there is no family either */
    assert_null(strstr(text, "cold_expert"));
    free(text);
    free(memory);
}

/* Every line is a comment or "name{labels} number", and families do not come twice. */
static void assert_well_formed(const char *text)
{
    char family[128] = "";
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        char name[128], value[64];
        if (sscanf(line, "# TYPE %127s", name) == 1) {
            char again[160];
            snprintf(again, sizeof again, "\n# TYPE %s ", name);
            assert_null(strstr(line + 1, again));
            snprintf(family, sizeof family, "%s", name);
            continue;
        }
        if (line[0] == '#') continue;
        assert_int_equal(sscanf(line, "%127[a-z_]{%*[^}]} %63[-+.0-9eInfNa]", name, value), 2);
        assert_memory_equal(name, family, strlen(family));
        char *end;
        strtod(value, &end);
        assert_int_equal(*end, '\0');
    }
}

static void test_big_model_stays_small(void **state)
{
    (void)state;
    ek_expert_stats *stats = open_stats(48, 128);
    ek_rng rng;
    ek_rng_init(&rng, 5);
    for (int32_t l = 0; l < 48; l++)
        for (int32_t e = 0; e < 128; e++) { /* long numbers everywhere */
            ek_telemetry_experts_add_tokens(stats, l, e, (int64_t)ek_rng_below(&rng, 1u << 31));
            for (int i = 0; i < 20; i++)
                ek_telemetry_experts_add_busy(stats, l, e, (int64_t)ek_rng_below(&rng, 1u << 31),
                                              (int64_t)ek_rng_below(&rng, 1u << 24));
        }
    char *text = render(stats, EK_PROM_EXPERTS_TOP_MAX);
    assert_true(strlen(text) < 200000);
    assert_well_formed(text);
    free(text);
    free(memory);
}

enum { LAYERS = 7, EXPERTS = 30, TOP = 10 };

/*
 * The family has TOP lines in order, each with its expert's true load, and no expert that is
 * missing belongs before the last one. @param sign 1: highest first, -1: lowest first
 */
static void assert_ranked(const char *text, const char *name, const double *loads, double sign)
{
    char head[96], form[128];
    bool seen[LAYERS * EXPERTS] = {false};
    snprintf(head, sizeof head, "\n%s{", name);
    snprintf(form, sizeof form, "\n%s{layer=\"%%d\",expert=\"%%d\"} %%lf", name);
    const char *line = text;
    double last = sign * 1e9;
    for (int i = 0; i < TOP; i++) {
        int layer, expert;
        double load;
        line = strstr(line + 1, head);
        assert_non_null(line);
        assert_int_equal(sscanf(line, form, &layer, &expert, &load), 3);
        assert_in_range(layer, 0, LAYERS - 1);
        assert_in_range(expert, 0, EXPERTS - 1);
        int at = layer * EXPERTS + expert;
        assert_true(load > loads[at] - 1e-9 && load < loads[at] + 1e-9);
        assert_true(sign * load <= sign * last);
        assert_false(seen[at]);
        seen[at] = true;
        last = load;
    }
    assert_null(strstr(line + 1, head));
    for (int i = 0; i < LAYERS * EXPERTS; i++)
        assert_true(seen[i] || sign * loads[i] <= sign * last + 1e-9);
}

static void test_hottest_and_coldest(void **state)
{
    (void)state;
    ek_expert_stats *stats = open_stats(LAYERS, EXPERTS);
    double loads[LAYERS * EXPERTS];
    ek_rng rng;
    ek_rng_init(&rng, 6);
    for (int32_t l = 0; l < LAYERS; l++) {
        int64_t tokens[EXPERTS];
        double sum = 0.0;
        for (int32_t e = 0; e < EXPERTS; e++) {
            tokens[e] = (int64_t)ek_rng_below(&rng, 1000 * (1 + (uint64_t)l));
            if (l == 3 && e % 9 == 0) tokens[e] = 0; /* some that nobody asks for */
            sum += (double)tokens[e];
            ek_telemetry_experts_add_tokens(stats, l, e, tokens[e]);
        }
        for (int32_t e = 0; e < EXPERTS; e++)
            loads[l * EXPERTS + e] = (double)tokens[e] * EXPERTS / sum;
    }
    char *text = render(stats, TOP);
    assert_ranked(text, "evenkeel_hot_expert_load_ratio", loads, 1.0);
    assert_ranked(text, "evenkeel_cold_expert_load_ratio", loads, -1.0);
    char *none = render(stats, 0);
    assert_null(strstr(none, "hot_expert"));
    assert_null(strstr(none, "cold_expert"));
    free(none);
    free(text);
    free(memory);
}

/* A layer that nobody asked has no cold experts, however cold they look beside busy layers. */
static void test_quiet_layer_is_not_cold(void **state)
{
    (void)state;
    ek_expert_stats *stats = open_stats(2, 2);
    ek_telemetry_experts_add_tokens(stats, 1, 0, 3);
    ek_telemetry_experts_add_tokens(stats, 1, 1, 1);
    char *text = render(stats, 4);
    assert_non_null(strstr(text,
                           "cold_expert_load_ratio{layer=\"1\",expert=\"1\"} 0.5\n"
                           "evenkeel_cold_expert_load_ratio{layer=\"1\",expert=\"0\"} 1.5\n"));
    assert_null(strstr(text, "cold_expert_load_ratio{layer=\"0\""));
    free(text);
    free(memory);
}

static void test_too_little_room(void **state)
{
    (void)state;
    ek_expert_stats *stats = open_stats(1, 2);
    char *whole = render(stats, 1);
    size_t len = strlen(whole);
    char *text = malloc(len + 1);
    assert_non_null(text);
    for (size_t room = 0; room < len; room += 7) {
        memset(text, '#', len + 1);
        assert_int_equal(ek_telemetry_experts_render(stats, 10 * S, 1, EK_PROM_TEXT, text, room),
                         len);
        for (size_t i = room; i <= len; i++)
            assert_int_equal(text[i], '#');
    }
    free(text);
    free(whole);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_text),
        cmocka_unit_test(test_idle_model),
        cmocka_unit_test(test_big_model_stays_small),
        cmocka_unit_test(test_hottest_and_coldest),
        cmocka_unit_test(test_quiet_layer_is_not_cold),
        cmocka_unit_test(test_too_little_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
