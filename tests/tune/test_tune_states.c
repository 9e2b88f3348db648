/*
 * Goal: what is recorded is read back, and any breach is refused with its place. Method: a
 * recording with one number changed, cut at every length, or made longer.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "synthetic.h"

static ek_status reopen(const synthetic *s, ek_err *err)
{
    ek_states states;
    *err = (ek_err){0};
    ek_status status = ek_tune_states_open((ek_span){s->mem, s->bytes}, "x.states", &states, err);
    if (status != EK_OK) assert_int_equal(strncmp(err->text, "x.states: ", 10), 0);
    return status;
}

static void put_u32(const synthetic *s, size_t at, uint32_t value)
{
    memcpy(s->mem + at, &value, sizeof value);
}

static void test_round_trip(void **state)
{
    (void)state;
    synthetic s;
    synthetic_open(&s, 100, 1);
    assert_memory_equal(&s.states.shape, &s.shape, sizeof s.shape);
    assert_int_equal(strlen(s.states.model), 64);
    assert_int_equal(s.states.chunk[99], 3);
    assert_ptr_equal(ek_tune_states_hidden(&s.states, 0),
                     ek_tune_states_hidden_of(&s.shape, 0, s.mem));
    assert_ptr_equal(ek_tune_states_logits(&s.states, 0),
                     ek_tune_states_logits_of(&s.shape, 0, s.mem));
    synthetic_close(&s);
}

static void test_every_length_but_its_own_is_refused(void **state)
{
    (void)state;
    synthetic s;
    synthetic_open(&s, 40, 1);
    ek_states states;
    ek_err err;
    for (size_t n = 0; n < s.bytes; n++) {
        uint8_t *cut = malloc(n > 0 ? n : 1); /* exactly: a sanitizer sees what is read too far */
        memcpy(cut, s.mem, n);
        assert_int_equal(ek_tune_states_open((ek_span){cut, n}, "x", &states, &err), EK_ETRUNCATED);
        free(cut);
    }
    uint8_t *longer = calloc(1, s.bytes + 4);
    memcpy(longer, s.mem, s.bytes);
    assert_int_equal(ek_tune_states_open((ek_span){longer, s.bytes + 4}, "x", &states, &err),
                     EK_EFORMAT);
    free(longer);
    synthetic_close(&s);
}

static void test_breaches(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint32_t value;
    } heads[] = {{0, 0x31525447}, {4, 2},  {8, 0},   {12, 0},          {16, 0},    {20, 0},
                 {24, 9},         {24, 0}, {28, 0},  {28, 0xffffffff}, {12, 5000}, {16, 2000},
                 {20, 1u << 30},  {40, 0}, {104, 1}, {36, 0x80000000}};
    ek_err err;
    for (size_t i = 0; i < EK_COUNT_OF(heads); i++) {
        synthetic s;
        synthetic_open(&s, 40, 1);
        put_u32(&s, heads[i].at, heads[i].value);
        assert_true(reopen(&s, &err) < 0);
        synthetic_close(&s);
    }
    synthetic s;
    synthetic_open(&s, 40, 1);
    ek_tune_states_chunks(&s.shape, s.mem)[7] = 2;
    assert_int_equal(reopen(&s, &err), EK_EFORMAT);
    assert_non_null(strstr(err.text, "token 7: chunk 2 of 2"));
    ek_tune_states_chunks(&s.shape, s.mem)[7] = 0;
    ek_tune_states_hidden_of(&s.shape, 0, s.mem)[11 * SYN_WIDTH + 3] = NAN;
    assert_int_equal(reopen(&s, &err), EK_EFORMAT);
    assert_non_null(strstr(err.text, "layer 0, token 11: a state"));
    ek_tune_states_hidden_of(&s.shape, 0, s.mem)[11 * SYN_WIDTH + 3] = 0;
    ek_tune_states_logits_of(&s.shape, 0, s.mem)[12 * SYN_EXPERTS] = INFINITY;
    assert_int_equal(reopen(&s, &err), EK_EFORMAT);
    assert_non_null(strstr(err.text, "layer 0, token 12: a logit"));
    synthetic_close(&s);
}

static void test_sizes(void **state)
{
    (void)state;
    ek_states_shape shape = {1, 1, 2, 4, 1, 1, 1};
    assert_int_equal(ek_tune_states_bytes(&shape), 128 + 4 + 6 * 4);
    shape.n_seen = 0;
    assert_int_equal(ek_tune_states_bytes(&shape), 0);
    shape.n_seen = 1;
    shape.top_k = 3;
    assert_int_equal(ek_tune_states_bytes(&shape), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_every_length_but_its_own_is_refused),
        cmocka_unit_test(test_breaches),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
