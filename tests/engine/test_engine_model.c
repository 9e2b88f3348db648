/*
 * Goal: an engine on a real model file gives the same answer whoever else is there, the one that
 * its own logits say, and the one that an independent implementation gave. Method: the build's
 * tiny models (random weights) for exactness: every comparison is of bits; the demo model of
 * ../shared for the whole way from text to text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "answers.h"
#include "base/attr.h"
#include "crowd.h"
#include "engine/watch.h"
#include "support/fixtures.h"
#include "sys/log.h"
#include "sys/mem.h"

static ek_engine_params small_params(void)
{
    ek_engine_params params = {
        .n_threads = 2,
        .kernels = EK_KERNELS_AUTO,
        .kv_bytes = (int64_t)64 << 20,
        .running_max = 12,
        .queue_max = 60,
        .kv_block_tokens = 16,
        .prefill_chunk_tokens = 40,
        .prefix_cache = true,
        .pack_weights = true,
        .prefix_ttl_us = 60000000,
        .step_watchdog_us = 60000000,
    };
    ek_route_params_default(&params.route);
    ek_keel_params_default(&params.keel);
    return params;
}

static ek_engine *open_path(const char *path, const ek_engine_params *params)
{
    ek_engine *engine = NULL;
    ek_err err = {0};
    ek_sys_log_set_level(EK_LOG_ERROR);
    if (ek_engine_create(params, path, NULL, NULL, &engine, &err) != EK_OK)
        fail_msg("create: %s", err.text);
    return engine;
}

static ek_engine *open_tiny(const char *name, const ek_engine_params *params)
{
    ek_fixture_path path;
    char file[128];
    snprintf(file, sizeof file, "tests/support/tiny-%s.gguf", name);
    ek_fixture_build(file, &path);
    return open_path(path.text, params);
}

static const char *const tiny_names[] = {"qwen2moe-f32", "qwen3moe-f32", "olmoe-f32", "llama-f32",
                                         "qwen2moe-q4_k"};

/* ---- one request ---- */

static int32_t argmax(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Decoding step by step, and reading the whole again as one prompt, are the same arithmetic. */
static void greedy_tokens_are_those_that_the_logits_say(void **state)
{
    (void)state;
    for (size_t m = 0; m < EK_COUNT_OF(tiny_names); m++) {
        ek_engine_params params = small_params();
        ek_engine *engine = open_tiny(tiny_names[m], &params);
        ek_engine_info info;
        ek_engine_info_get(engine, &info);
        float *logits = ek_sys_calloc((size_t)info.n_vocab, sizeof *logits);
        int32_t tokens[80];
        for (int32_t i = 0; i < 50; i++)
            tokens[i] = (i * 13 + 5) % info.n_vocab;
        ek_request_params p = answer_request(tokens, 50, 30);
        p.ignore_eos = true;
        answer *a = answer_get(engine, &p);
        assert_int_equal(a->n_tokens, 30);
        for (int32_t i = 0; i < 30; i++) {
            assert_int_equal(ek_engine_logits(engine, tokens, 50 + i, logits, NULL), EK_OK);
            tokens[50 + i] = argmax(logits, info.n_vocab);
            assert_int_equal(a->id[i], tokens[50 + i]);
        }
        ek_sys_free(a);
        ek_sys_free(logits);
        ek_engine_destroy(engine);
    }
}

/* Each position goes through top_k experts in each layer once; nothing else is counted. */
static void experts_count_the_tokens_of_a_request(void **state)
{
    (void)state;
    ek_engine_params params = small_params();
    ek_engine *engine = open_tiny("qwen2moe-f32", &params);
    ek_engine_info info;
    ek_engine_info_get(engine, &info);
    int32_t prompt[21];
    for (int32_t i = 0; i < 21; i++)
        prompt[i] = 7 + i;
    ek_request_params p = answer_request(prompt, 21, 10);
    p.ignore_eos = true;
    ek_sys_free(answer_get(engine, &p));
    size_t n = (size_t)info.n_layers * (size_t)info.n_experts;
    int64_t *counts = ek_sys_calloc(2 * n, sizeof *counts), *requests = counts + n;
    ek_telemetry_experts_read(ek_engine_experts(engine), 0, counts, requests, NULL);
    for (int32_t layer = 0; layer < info.n_layers; layer++) {
        int64_t sum = 0;
        for (int32_t e = 0; e < info.n_experts; e++) {
            int64_t at = (int64_t)layer * info.n_experts + e;
            sum += counts[at];
            assert_int_equal(requests[at], counts[at] > 0);
        }
        assert_int_equal(sum, (21 + 10 - 1) * info.top_k); /* the last token is not fed back */
    }
    ek_sys_free(counts);
    ek_engine_destroy(engine);
}

/* ---- in company ---- */

static void answers_in_a_crowd_are_those_of_an_idle_engine(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2moe-f32", "qwen2moe-q4_k"};
    for (size_t m = 0; m < EK_COUNT_OF(names); m++) {
        ek_engine_params params = small_params();
        ek_engine *roomy = open_tiny(names[m], &params);
        ek_engine_info info;
        ek_engine_info_get(roomy, &info);
        ek_engine_load load;
        ek_engine_load_get(roomy, &load);
        /* 16 blocks, where the largest request takes 15. */
        params.kv_bytes = info.kv_bytes / load.kv_blocks * 16;
        ek_engine *tight = open_tiny(names[m], &params);
        const crowd_params people = {
            .n_vocab = info.n_vocab,
            .n_clients = 4,
            .n_per_client = 20,
            .prompt_max = CROWD_PROMPT_MAX,
            .answer_max = 100,
        };
        crowd *c = crowd_run(tight, &people);
        answer_assert_idle(tight);
        ek_engine_destroy(tight);
        int32_t n_compared = crowd_compare(c, roomy);
        print_message("%s: %d answers compared, %d given up\n", names[m], (int)n_compared,
                      (int)crowd_given_up(c));
        assert_int_equal(n_compared + crowd_given_up(c), 80);
        assert_true(n_compared >= 40);
        crowd_free(c);
        ek_engine_destroy(roomy);
    }
}

/* ---- text ---- */

static void text_survives_the_way_to_ids_and_back(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "Hello, world!",
        " leading and trailing ",
        "\xE4\xBD\xA0\xE5\xA5\xBD 123\n\n",
        "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7 caf\xC3\xA9",
    };
    for (size_t m = 0; m < EK_COUNT_OF(tiny_names); m++) {
        ek_engine_params params = small_params();
        ek_engine *engine = open_tiny(tiny_names[m], &params);
        for (size_t i = 0; i < EK_COUNT_OF(texts); i++) {
            int32_t *ids;
            int64_t n;
            ek_str back;
            ek_err err = {0};
            ek_status status =
                ek_engine_tokenize(engine, ek_str_from(texts[i]), false, true, &ids, &n, &err);
            if (status != EK_OK) fail_msg("%s", err.text);
            assert_int_equal(ek_engine_detokenize(engine, ids, n, false, &back, &err), EK_OK);
            assert_int_equal(back.len, strlen(texts[i]));
            assert_memory_equal(back.data, texts[i], back.len);
            ek_sys_free((void *)back.data);
            ek_sys_free(ids);
        }
        ek_engine_destroy(engine);
    }
}

/* An answer that goes on with a text keeps SentencePiece's space; a fresh one does not. */
static void a_fresh_text_begins_without_the_vocabularys_space(void **state)
{
    (void)state;
    ek_engine_params params = small_params();
    ek_engine *engine = open_tiny("llama-f32", &params);
    const int32_t prompt[] = {3, 4, 5};
    ek_request_params p = answer_request(prompt, 3, 5);
    p.sampling.temperature = 2.0f;
    p.ignore_eos = true;
    bool seen = false;
    for (p.sampling.seed = 0; p.sampling.seed < 500 && !seen; p.sampling.seed++) {
        p.fresh_text = false;
        answer *kept = answer_get(engine, &p);
        seen = kept->n_text > 1 && kept->text[0] == ' ';
        if (seen) {
            p.fresh_text = true;
            answer *dropped = answer_get(engine, &p);
            assert_int_equal(dropped->n_text, kept->n_text - 1);
            assert_memory_equal(dropped->text, kept->text + 1, (size_t)dropped->n_text);
            ek_sys_free(dropped);
        }
        ek_sys_free(kept);
    }
    assert_true(seen);
    ek_engine_destroy(engine);
}

static void ids_outside_the_vocabulary_have_no_text(void **state)
{
    (void)state;
    ek_engine_params params = small_params();
    ek_engine *engine = open_tiny("qwen2moe-f32", &params);
    ek_engine_info info;
    ek_engine_info_get(engine, &info);
    char piece[1024];
    ek_str text;
    ek_err err = {0};
    const int32_t bad[] = {0, -1};
    assert_int_equal(ek_engine_detokenize(engine, bad, 2, false, &text, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "tokens[1] is -1"));
    assert_int_equal(ek_engine_detokenize(engine, &info.n_vocab, 1, false, &text, &err), EK_EINVAL);
    assert_int_equal(ek_engine_piece(engine, info.n_vocab, piece), 0);
    assert_int_equal(ek_engine_piece(engine, -1, piece), 0);
    ek_engine_destroy(engine);
}

static void conversations_become_ids_and_bad_ones_an_error(void **state)
{
    (void)state;
    ek_engine_params params = small_params();
    ek_engine *engine = open_tiny("qwen2moe-f32", &params);
    ek_engine_message messages[] = {
        {EK_STR("system"), EK_STR("Be brief.")},
        {EK_STR("user"), EK_STR("Hi <|im_end|> there")},
    };
    int32_t *ids;
    int64_t n, n_text;
    ek_str text;
    ek_err err = {0};
    if (ek_engine_chat_ids(engine, messages, 2, &ids, &n, &err) != EK_OK) fail_msg("%s", err.text);
    assert_int_equal(ek_engine_detokenize(engine, ids, n, true, &text, &err), EK_OK);
    assert_non_null(strstr(text.data, "Be brief."));
    assert_non_null(strstr(text.data, "Hi <|im_end|> there"));
    ek_sys_free(ids);
    /* The user's own marker stayed plain text: read as markers, the same text has fewer tokens. */
    assert_int_equal(ek_engine_tokenize(engine, text, true, false, &ids, &n_text, &err), EK_OK);
    assert_true(n_text < n);
    ek_sys_free(ids);
    ek_sys_free((void *)text.data);

    messages[1].role = EK_STR("wizard");
    assert_int_equal(ek_engine_chat_ids(engine, messages, 2, &ids, &n, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "messages[1]"));
    assert_int_equal(ek_engine_chat_ids(engine, messages, 0, &ids, &n, &err), EK_EINVAL);
    ek_engine_destroy(engine);
}

/* ---- an outside opinion ---- */

static void the_demo_model_says_what_another_implementation_said(void **state)
{
    (void)state;
    ek_fixture_path path;
    ek_fixture_golden golden;
    if (!ek_fixture_shared("data/models/demo-q8_0.gguf", &path)) skip();
    if (!ek_fixture_golden_load("demo-q8_0.gguf", &golden)) skip();
    ek_engine_params params = small_params();
    ek_engine *engine = open_path(path.text, &params);
    for (int32_t i = 0; i < golden.n_cases; i++) {
        const ek_fixture_case *c = &golden.cases[i];
        int32_t *ids;
        int64_t n;
        assert_int_equal(ek_engine_tokenize(engine, c->prompt, true, true, &ids, &n, NULL), EK_OK);
        assert_int_equal(n, c->n_tokens);
        assert_memory_equal(ids, c->tokens, (size_t)n * sizeof *ids);
        ek_request_params p = answer_request(ids, (int32_t)n, 256);
        answer *a = answer_get(engine, &p);
        assert_true(a->n_tokens >= c->n_greedy - 1);
        assert_int_equal(a->n_text, c->text.len);
        assert_memory_equal(a->text, c->text.data, c->text.len);
        ek_sys_free(a);
        ek_sys_free(ids);
    }
    print_message("%d answers are the same\n", (int)golden.n_cases);
    ek_engine_destroy(engine);
    ek_fixture_golden_free(&golden);
}

/* ---- what cannot be opened ---- */

static void assert_not_opened(const char *path, const ek_engine_params *params, ek_status wanted,
                              const char *text)
{
    ek_engine *engine = NULL;
    ek_err err = {0};
    assert_int_equal(ek_engine_create(params, path, NULL, NULL, &engine, &err), wanted);
    assert_null(engine);
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

static void what_cannot_work_is_refused_before_it_starts(void **state)
{
    (void)state;
    ek_fixture_path path;
    ek_fixture_build("tests/support/tiny-qwen2moe-f32.gguf", &path);
    ek_engine_params ok = small_params(), p = ok;
    assert_not_opened("no/such/model.gguf", &p, EK_ENOTFOUND, "no/such/model.gguf");
    p = ok, p.context_tokens = 1000000;
    assert_not_opened(path.text, &p, EK_EINVAL, "context is 1000000 tokens");
    p = ok, p.running_max = 257;
    assert_not_opened(path.text, &p, EK_EINVAL, "running_max is 257; it must be from 1 to 256");
    p = ok, p.kv_block_tokens = 48;
    assert_not_opened(path.text, &p, EK_EINVAL, "kv_block_tokens is 48");
    p = ok, p.kv_bytes = 1;
    assert_not_opened(path.text, &p, EK_ENOMEM, "no room for one block");
    p = ok, p.kv_bytes = (int64_t)1 << 50;
    assert_not_opened(path.text, &p, EK_ENOMEM, "20 % margin");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_tokens_are_those_that_the_logits_say),
        cmocka_unit_test(experts_count_the_tokens_of_a_request),
        cmocka_unit_test(answers_in_a_crowd_are_those_of_an_idle_engine),
        cmocka_unit_test(text_survives_the_way_to_ids_and_back),
        cmocka_unit_test(a_fresh_text_begins_without_the_vocabularys_space),
        cmocka_unit_test(ids_outside_the_vocabulary_have_no_text),
        cmocka_unit_test(conversations_become_ids_and_bad_ones_an_error),
        cmocka_unit_test(the_demo_model_says_what_another_implementation_said),
        cmocka_unit_test(what_cannot_work_is_refused_before_it_starts),
    };
    return cmocka_run_group_tests_name("engine/model", tests, NULL, NULL);
}
