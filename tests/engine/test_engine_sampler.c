/*
 * Goal: every parameter of sampling does what its definition says, on numbers worked out by hand.
 * Method: small logit rows; penalties and logprobs are compared with values from the formulas,
 * edge values (NaN, infinities, everything banned, ties) with the answer that the header
 * promises.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "engine/sampler.h"

#define VOCAB_MAX  64
#define SCRATCH(n) ((size_t)(n)*EK_SAMPLER_SCRATCH_PER_TOKEN + EK_CACHE_LINE)

typedef struct fixture {
    uint8_t perm[8192];
    uint8_t scratch[SCRATCH(VOCAB_MAX)];
    ek_sampling sampling;
    ek_sampler *sampler;
} fixture;

static const ek_sampling greedy = {
    .temperature = 0.0f,
    .top_p = 1.0f,
    .repetition_penalty = 1.0f,
    .n_logprobs = -1,
};

static void start(fixture *f, int32_t n_vocab, const ek_sampling *sampling)
{
    f->sampling = *sampling;
    ek_arena perm = ek_arena_over(f->perm, sizeof f->perm);
    size_t bytes = ek_engine_sampler_bytes(n_vocab, 100, &f->sampling);
    assert_true(bytes <= sizeof f->perm);
    perm.end = perm.beg + bytes; /* what it says it needs is enough */
    f->sampler = ek_engine_sampler_init(&perm, n_vocab, 100, &f->sampling);
}

static ek_sampled draw(fixture *f, const float *logits, int32_t n_vocab)
{
    float changed[VOCAB_MAX];
    memcpy(changed, logits, (size_t)n_vocab * sizeof *logits);
    ek_sampled sampled;
    ek_arena scratch = ek_arena_over(f->scratch, SCRATCH(n_vocab));
    ek_engine_sampler_draw(f->sampler, changed, scratch, &sampled);
    return sampled;
}

static int32_t draw_once(const ek_sampling *sampling, const float *logits, int32_t n_vocab)
{
    fixture f;
    start(&f, n_vocab, sampling);
    return draw(&f, logits, n_vocab).id;
}

/* ---- greedy ---- */

static void temperature_zero_takes_the_highest_and_the_lowest_id_of_equals(void **state)
{
    (void)state;
    assert_int_equal(draw_once(&greedy, (float[]){1, 3, 2, 3, -1}, 5), 1);
    assert_int_equal(draw_once(&greedy, (float[]){-0.0f, 0.0f}, 2), 0);
    assert_int_equal(draw_once(&greedy, (float[]){-9, -8, -7}, 3), 2);
    assert_int_equal(draw_once(&greedy, (float[]){5}, 1), 0);
}

static void broken_logits_have_an_answer(void **state)
{
    (void)state;
    ek_sampling hot = greedy;
    hot.temperature = 1.0f;
    const ek_sampling *both[] = {&greedy, &hot};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(draw_once(both[i], (float[]){NAN, -1, NAN}, 3), 1);
        assert_int_equal(draw_once(both[i], (float[]){NAN, NAN}, 2), 0);
        assert_int_equal(draw_once(both[i], (float[]){-INFINITY, -INFINITY}, 2), 0);
        assert_int_equal(draw_once(both[i], (float[]){-INFINITY, -3e38f, NAN}, 3), 1);
        assert_int_equal(draw_once(both[i], (float[]){3e38f, INFINITY, 1}, 3), 1);
    }
}

static void a_tiny_temperature_is_greedy_and_does_not_overflow(void **state)
{
    (void)state;
    ek_sampling cold = greedy;
    cold.temperature = 1e-30f;
    assert_int_equal(draw_once(&cold, (float[]){1e30f, 2e30f, -1e30f}, 3), 1);
    assert_int_equal(draw_once(&cold, (float[]){-5, -4, -3}, 3), 2);
}

/* ---- bias ---- */

static void bias_moves_forces_and_bans(void **state)
{
    (void)state;
    const float logits[] = {1, 2, 3, 4};
    ek_sampling s = greedy;
    ek_logit_bias bias[] = {{0, 3.5f}, {3, -100}};
    s.bias = bias;
    s.n_bias = 1;
    assert_int_equal(draw_once(&s, logits, 4), 0);
    s.n_bias = 2;
    bias[0].bias = -0.5f;
    assert_int_equal(draw_once(&s, logits, 4), 2);
    bias[0].bias = 100;
    s.temperature = 2.0f;
    for (s.seed = 0; s.seed < 50; s.seed++)
        assert_int_equal(draw_once(&s, logits, 4), 0);
}

static void a_banned_token_is_never_drawn_however_high(void **state)
{
    (void)state;
    ek_sampling s = greedy;
    s.temperature = 2.0f;
    s.bias = (ek_logit_bias[]){{1, -100}};
    s.n_bias = 1;
    for (s.seed = 0; s.seed < 100; s.seed++)
        assert_int_not_equal(draw_once(&s, (float[]){1, 500, 1}, 3), 1);
    s.bias = (ek_logit_bias[]){{0, -100}, {1, -100}, {2, -100}};
    s.n_bias = 3;
    assert_int_equal(draw_once(&s, (float[]){1, 500, 1}, 3), 0);
}

/*
 * ---- penalties: the sampler changes the logits in place, so its arithmetic can be read off ----
 */

static void penalised(fixture *f, const float *in, int32_t n, float *out)
{
    ek_sampled sampled;
    memcpy(out, in, (size_t)n * sizeof *in);
    ek_engine_sampler_draw(f->sampler, out, ek_arena_over(f->scratch, SCRATCH(n)), &sampled);
}

static void repetition_divides_positive_and_multiplies_negative_once(void **state)
{
    (void)state;
    ek_sampling s = greedy;
    s.repetition_penalty = 2.0f;
    fixture f;
    start(&f, 5, &s);
    ek_engine_sampler_prompt(f.sampler, (int32_t[]){0, 1, 1, 0, 2}, 5);
    float out[5];
    penalised(&f, (float[]){3, -3, 0, 8, -1}, 5, out);
    const float first[] = {1.5f, -6, 0, 8, -1};
    assert_memory_equal(out, first, sizeof first);
    /* 3 was drawn: a generated token counts as seen, too. */
    penalised(&f, (float[]){3, -3, 0, 8, -1}, 5, out);
    const float second[] = {1.5f, -6, 0, 4, -1};
    assert_memory_equal(out, second, sizeof second);
}

static void frequency_and_presence_look_at_generated_tokens_only(void **state)
{
    (void)state;
    ek_sampling s = greedy;
    s.frequency_penalty = 0.5f;
    s.presence_penalty = 0.25f;
    fixture f;
    start(&f, 3, &s);
    ek_engine_sampler_prompt(f.sampler, (int32_t[]){0, 0, 2}, 3);
    const float logits[] = {1, 10, 2};
    float out[3];
    penalised(&f, logits, 3, out); /* draws 1 */
    assert_memory_equal(out, logits, sizeof logits);
    penalised(&f, logits, 3, out); /* draws 1 again */
    assert_memory_equal(out, ((float[]){1, 10 - 0.5f - 0.25f, 2}), sizeof out);
    penalised(&f, logits, 3, out);
    assert_memory_equal(out, ((float[]){1, 10 - 2 * 0.5f - 0.25f, 2}), sizeof out);
}

static void penalties_come_after_bias_and_in_order(void **state)
{
    (void)state;
    ek_sampling s = greedy;
    s.repetition_penalty = 2.0f;
    s.frequency_penalty = 1.0f;
    s.presence_penalty = -2.0f;
    s.bias = (ek_logit_bias[]){{0, 4}};
    s.n_bias = 1;
    fixture f;
    start(&f, 3, &s);
    ek_engine_sampler_prompt(f.sampler, (int32_t[]){2}, 1);
    float out[3];
    penalised(&f, (float[]){6, 1, 4}, 3, out); /* draws 0 */
    penalised(&f, (float[]){6, 1, 4}, 3, out);
    /* (6 + 4) / 2 - 1 * 1 + 2; the prompt's token is repeated, but was not generated */
    assert_memory_equal(out, ((float[]){6, 1, 2}), sizeof out);
}

static void many_distinct_tokens_are_all_remembered(void **state)
{
    (void)state;
    ek_sampling s = greedy;
    s.presence_penalty = 2.0f;
    fixture f;
    start(&f, VOCAB_MAX, &s);
    /* All logits lie within the penalty, so that each draw has to move on to a new token. */
    float logits[VOCAB_MAX];
    uint64_t drawn = 0;
    for (int32_t i = 0; i < VOCAB_MAX; i++)
        logits[i] = 0.01f * (float)((i * 37) % VOCAB_MAX);
    for (int32_t i = 0; i < VOCAB_MAX; i++)
        drawn |= 1ull << draw(&f, logits, VOCAB_MAX).id;
    assert_true(drawn == UINT64_MAX);
}

/* ---- logprobs ---- */

static void logprobs_are_the_models_own_before_bias_penalty_and_temperature(void **state)
{
    (void)state;
    ek_sampling s = greedy;
    s.n_logprobs = 3;
    s.bias = (ek_logit_bias[]){{2, 50}};
    s.n_bias = 1;
    s.presence_penalty = 1.0f;
    fixture f;
    start(&f, 4, &s);
    const float logits[] = {1, 2, 0, 2};
    double sum = exp(1) + 2 * exp(2) + exp(0);
    for (int round = 0; round < 2; round++) {
        ek_sampled sampled = draw(&f, logits, 4);
        assert_int_equal(sampled.id, 2);
        assert_float_equal(sampled.logprob, (float)(0 - log(sum)), 1e-6);
        assert_int_equal(sampled.n_top, 3);
        assert_int_equal(sampled.top[0].id, 1); /* lower id of equals first */
        assert_int_equal(sampled.top[1].id, 3);
        assert_int_equal(sampled.top[2].id, 0);
        assert_float_equal(sampled.top[0].logprob, (float)(2 - log(sum)), 1e-6);
        assert_float_equal(sampled.top[2].logprob, (float)(1 - log(sum)), 1e-6);
    }
}

static void logprobs_are_finite_whatever_comes(void **state)
{
    (void)state;
    const float rows[][3] = {
        {-INFINITY, 0, NAN},
        {INFINITY, 0, INFINITY},
        {-INFINITY, -INFINITY, -INFINITY},
        {3e38f, -3e38f, 0},
    };
    ek_sampling s = greedy;
    s.n_logprobs = 20;
    for (size_t i = 0; i < EK_COUNT_OF(rows); i++) {
        fixture f;
        start(&f, 3, &s);
        ek_sampled sampled = draw(&f, rows[i], 3);
        assert_int_equal(sampled.n_top, 3); /* no more than there are tokens */
        assert_true(isfinite(sampled.logprob) && sampled.logprob <= 0.0f);
        assert_true(sampled.logprob >= EK_SAMPLER_LOGPROB_MIN);
        for (int32_t k = 0; k < 3; k++)
            assert_true(isfinite(sampled.top[k].logprob) && sampled.top[k].logprob <= 0.0f &&
                        sampled.top[k].logprob >= EK_SAMPLER_LOGPROB_MIN);
        for (int32_t k = 1; k < 3; k++)
            assert_true(sampled.top[k].logprob <= sampled.top[k - 1].logprob);
    }
    fixture f;
    start(&f, 3, &s);
    assert_true(draw(&f, rows[0], 3).top[2].logprob == EK_SAMPLER_LOGPROB_MIN);
}

static void zero_logprobs_give_the_chosen_one_only(void **state)
{
    (void)state;
    ek_sampling s = greedy;
    s.n_logprobs = 0;
    fixture f;
    start(&f, 2, &s);
    ek_sampled sampled = draw(&f, (float[]){0, 0}, 2);
    assert_int_equal(sampled.n_top, 0);
    assert_float_equal(sampled.logprob, (float)-log(2), 1e-6);
}

/* ---- what clients send ---- */

static void out_of_range_parameters_are_named(void **state)
{
    (void)state;
    struct {
        size_t offset;
        float value;
        const char *name;
    } cases[] = {
        {offsetof(ek_sampling, temperature), -0.1f, "temperature"},
        {offsetof(ek_sampling, temperature), 2.1f, "temperature"},
        {offsetof(ek_sampling, temperature), NAN, "temperature"},
        {offsetof(ek_sampling, top_p), 0.0f, "top_p"},
        {offsetof(ek_sampling, top_p), 1.5f, "top_p"},
        {offsetof(ek_sampling, top_p), NAN, "top_p"},
        {offsetof(ek_sampling, min_p), 1.0f, "min_p"},
        {offsetof(ek_sampling, min_p), -0.5f, "min_p"},
        {offsetof(ek_sampling, repetition_penalty), 0.0f, "repetition_penalty"},
        {offsetof(ek_sampling, repetition_penalty), INFINITY, "repetition_penalty"},
        {offsetof(ek_sampling, frequency_penalty), 2.5f, "frequency_penalty"},
        {offsetof(ek_sampling, frequency_penalty), NAN, "frequency_penalty"},
        {offsetof(ek_sampling, presence_penalty), -2.5f, "presence_penalty"},
    };
    ek_err err;
    assert_int_equal(ek_engine_sampling_check(&greedy, 10, &err), EK_OK);
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_sampling s = greedy;
        memcpy((char *)&s + cases[i].offset, &cases[i].value, sizeof(float));
        assert_int_equal(ek_engine_sampling_check(&s, 10, &err), EK_EINVAL);
        assert_non_null(strstr(err.text, cases[i].name));
    }
    ek_sampling s = greedy;
    s.top_k = -1;
    assert_int_equal(ek_engine_sampling_check(&s, 10, NULL), EK_EINVAL);
    s = greedy;
    s.n_logprobs = 21;
    assert_int_equal(ek_engine_sampling_check(&s, 10, NULL), EK_EINVAL);
    s = greedy;
    s.bias = (ek_logit_bias[]){{10, 0}};
    s.n_bias = 1;
    assert_int_equal(ek_engine_sampling_check(&s, 10, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "token 10"));
    s.bias = (ek_logit_bias[]){{9, 101}};
    assert_int_equal(ek_engine_sampling_check(&s, 10, NULL), EK_EINVAL);
    s.n_bias = EK_SAMPLER_BIAS_MAX + 1;
    assert_int_equal(ek_engine_sampling_check(&s, 10, NULL), EK_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(temperature_zero_takes_the_highest_and_the_lowest_id_of_equals),
        cmocka_unit_test(broken_logits_have_an_answer),
        cmocka_unit_test(a_tiny_temperature_is_greedy_and_does_not_overflow),
        cmocka_unit_test(bias_moves_forces_and_bans),
        cmocka_unit_test(a_banned_token_is_never_drawn_however_high),
        cmocka_unit_test(repetition_divides_positive_and_multiplies_negative_once),
        cmocka_unit_test(frequency_and_presence_look_at_generated_tokens_only),
        cmocka_unit_test(penalties_come_after_bias_and_in_order),
        cmocka_unit_test(many_distinct_tokens_are_all_remembered),
        cmocka_unit_test(logprobs_are_the_models_own_before_bias_penalty_and_temperature),
        cmocka_unit_test(logprobs_are_finite_whatever_comes),
        cmocka_unit_test(zero_logprobs_give_the_chosen_one_only),
        cmocka_unit_test(out_of_range_parameters_are_named),
    };
    return cmocka_run_group_tests_name("engine/sampler", tests, NULL, NULL);
}
