/*
 * Goal: what the writer wrote, the reader reads. Method: files of texts, numbers and tensors of odd
 * sizes, written and parsed again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/gguf.h"
#include "model/gguf_write.h"
#include "support/fixtures.h"

static void test_round_trip(void **state)
{
    (void)state;
    static const float a[15] = {1.5f, -2.0f, 3.25f}, b[3] = {7.0f, 8.0f, 9.0f};
    const ek_gguf_out_pair pairs[] = {{.key = "a.text", .text = "some words"},
                                      {.key = "a.number", .number = 4000000000u},
                                      {.key = "empty", .text = ""}};
    const ek_gguf_out_tensor tensors[] = {{.name = "t.matrix", .dim = {5, 3}, .data = a},
                                          {.name = "t.vector", .dim = {3}, .data = b}};
    const ek_gguf_out out = {pairs, 3, tensors, 2};
    size_t bytes = ek_model_gguf_write_bytes(&out);
    uint8_t *file = malloc(bytes);
    assert_non_null(file);
    ek_model_gguf_write(&out, file);

    size_t room = ek_model_gguf_perm_bytes_max(bytes);
    ek_arena perm = ek_fixture_arena(room);
    void *base = perm.beg;
    const ek_span span = {file, bytes};
    ek_gguf *gguf;
    ek_err err = {0};
    if (ek_model_gguf_parse(&span, 1, &perm, &gguf, &err) != EK_OK) fail_msg("%s", err.text);
    ek_str text;
    int64_t number;
    assert_int_equal(ek_model_gguf_str(gguf, "a.text", &text, &err), EK_OK);
    assert_true(ek_str_eqz(text, "some words"));
    assert_int_equal(ek_model_gguf_str(gguf, "empty", &text, &err), EK_OK);
    assert_int_equal(text.len, 0);
    assert_int_equal(ek_model_gguf_int(gguf, "a.number", 0, UINT32_MAX, &number, &err), EK_OK);
    assert_int_equal(number, 4000000000u);
    assert_int_equal(ek_model_gguf_tensor_count(gguf), 2);
    const ek_tensor *t = ek_model_gguf_tensor(gguf, EK_STR("t.matrix"));
    assert_non_null(t);
    assert_int_equal(t->type, EK_TYPE_F32);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dim[0], 5);
    assert_int_equal(t->dim[1], 3);
    assert_memory_equal(t->data, a, sizeof a);
    t = ek_model_gguf_tensor(gguf, EK_STR("t.vector"));
    assert_non_null(t);
    assert_int_equal(t->n_dims, 1);
    assert_memory_equal(t->data, b, sizeof b);
    ek_fixture_arena_free(base);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
