/*
 * Goal: nothing that arrives is used before it was found to be what it has to be, and nothing that
 * this program sends is refused. Method: a well-formed dispatch is read back; then each of its
 * numbers in turn is made wrong, and each kind of header.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "base/rng.h"
#include "link/wire.h"

#define D 6

static const ek_wire_shape shape = {
    .n_layers = 3, .n_experts = 8, .d_model = D, .top_k = 2, .tokens_max = 5};

typedef struct message {
    ek_wire_header header;
    ek_wire_dispatch_layout lay;
    EK_ALIGNED(64) uint8_t body[1024];
} message;

/* Three tokens, experts 1 and 6, four rows. */
static message make(uint8_t form)
{
    message m = {.header = ek_link_wire_header(EK_WIRE_DISPATCH, 7)};
    m.header.form = form;
    m.header.layer = 2;
    m.header.n_tokens = 3;
    m.header.n_shares = 2;
    m.header.n_rows = 4;
    assert_int_equal(ek_link_wire_dispatch_lay(&shape, &m.header, &m.lay), EK_OK);
    m.header.body_bytes = (uint32_t)m.lay.bytes;
    const int32_t share_expert[] = {1, 6}, share_beg[] = {0, 3, 4}, row_token[] = {0, 1, 2, 1};
    memcpy(m.body + m.lay.share_expert, share_expert, sizeof share_expert);
    memcpy(m.body + m.lay.share_beg, share_beg, sizeof share_beg);
    memcpy(m.body + m.lay.row_token, row_token, sizeof row_token);
    return m;
}

static ek_status read_it(const message *m, ek_err *err)
{
    ek_wire_dispatch dispatch;
    return ek_link_wire_dispatch_read(&shape, &m->header, m->body, &dispatch, err);
}

static void reads_what_it_lays_out(void **state EK_UNUSED)
{
    for (uint8_t form = 0; form <= EK_WIRE_FORM_ALL; form++) {
        message m = make(form);
        ek_wire_dispatch d;
        ek_err err = {0};
        assert_int_equal(ek_link_wire_check(&m.header, sizeof m.body, &err), EK_OK);
        assert_int_equal(ek_link_wire_dispatch_read(&shape, &m.header, m.body, &d, &err), EK_OK);
        assert_int_equal(d.share_expert[1], 6);
        assert_int_equal(d.row_token[3], 1);
        assert_int_equal(d.weight != NULL, (form & EK_WIRE_FORM_SUMMED) != 0);
        assert_true(m.lay.bytes <= ek_link_wire_dispatch_bytes_max(&shape));
        ek_wire_combine_layout answer;
        assert_int_equal(ek_link_wire_combine_lay(&shape, &m.header, &answer), EK_OK);
        assert_true(answer.bytes <= ek_link_wire_combine_bytes_max(&shape));
        size_t number = form & EK_WIRE_FORM_BF16 ? 2 : 4;
        size_t n = form & EK_WIRE_FORM_SUMMED ? 3 : 4;
        assert_int_equal(answer.busy_us, n * D * number);
    }
}

static void refuses_headers(void **state EK_UNUSED)
{
    const ek_wire_header good = make(0).header;
    ek_err err = {0};
    ek_wire_header h = good;
    h.magic++;
    assert_int_equal(ek_link_wire_check(&h, 1024, &err), EK_EFORMAT);
    h = good;
    h.version = 2;
    h.kind = 99; /* of another version nothing else is known */
    assert_int_equal(ek_link_wire_check(&h, 1024, &err), EK_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "version 2"));
    h = good;
    h.kind = 0;
    assert_int_equal(ek_link_wire_check(&h, 1024, &err), EK_EFORMAT);
    h.kind = EK_WIRE_KIND_END;
    assert_int_equal(ek_link_wire_check(&h, 1024, &err), EK_EFORMAT);
    h = good;
    h.form = 4;
    assert_int_equal(ek_link_wire_check(&h, 1024, &err), EK_EFORMAT);
    h = good;
    h.body_bytes = 1025;
    assert_int_equal(ek_link_wire_check(&h, 1024, &err), EK_EFORMAT);
    h.body_bytes = UINT32_MAX;
    assert_int_equal(ek_link_wire_check(&h, EK_WIRE_BODY_BYTES_MAX, &err), EK_EFORMAT);
}

static void refuses_counts(void **state EK_UNUSED)
{
    static const struct {
        size_t at;
        int32_t value;
    } wrong[] = {
        {offsetof(ek_wire_header, layer), 3},      {offsetof(ek_wire_header, layer), -1},
        {offsetof(ek_wire_header, n_tokens), 0},   {offsetof(ek_wire_header, n_tokens), 6},
        {offsetof(ek_wire_header, n_tokens), -3},  {offsetof(ek_wire_header, n_shares), 0},
        {offsetof(ek_wire_header, n_shares), 9},   {offsetof(ek_wire_header, n_shares), INT32_MIN},
        {offsetof(ek_wire_header, n_rows), 0},     {offsetof(ek_wire_header, n_rows), 7},
        {offsetof(ek_wire_header, n_rows), 2},     {offsetof(ek_wire_header, n_rows), INT32_MAX},
        {offsetof(ek_wire_header, body_bytes), 0}, {offsetof(ek_wire_header, body_bytes), 8},
    };
    for (size_t i = 0; i < EK_COUNT_OF(wrong); i++) {
        message m = make(0);
        ek_err err = {0};
        memcpy((uint8_t *)&m.header + wrong[i].at, &wrong[i].value, sizeof wrong[i].value);
        assert_int_equal(read_it(&m, &err), EK_EFORMAT);
        assert_true(err.text[0] != '\0');
    }
    message m = make(0);
    ek_err err = {0};
    m.header.kind = EK_WIRE_COMBINE;
    assert_int_equal(read_it(&m, &err), EK_EFORMAT);
}

static void refuses_lists(void **state EK_UNUSED)
{
    const message good = make(EK_WIRE_FORM_SUMMED);
    const struct {
        size_t at;
        int32_t value;
    } wrong[] = {
        {good.lay.share_expert, -1},    {good.lay.share_expert, 6}, /* twice the same */
        {good.lay.share_expert, 7},                                 /* not ascending */
        {good.lay.share_expert + 4, 8}, {good.lay.share_beg, 1},
        {good.lay.share_beg + 4, 0},    {good.lay.share_beg + 4, 4},
        {good.lay.share_beg + 4, 5},    {good.lay.share_beg + 4, -1},
        {good.lay.share_beg + 8, 3},    {good.lay.row_token, -1},
        {good.lay.row_token, 1},        {good.lay.row_token + 8, 3},
        {good.lay.row_token + 8, 1},    {good.lay.row_token + 12, 1000},
    };
    for (size_t i = 0; i < EK_COUNT_OF(wrong); i++) {
        message m = good;
        ek_err err = {0};
        memcpy(m.body + wrong[i].at, &wrong[i].value, sizeof wrong[i].value);
        if (read_it(&m, &err) != EK_EFORMAT) fail_msg("list %zu was taken", i);
        assert_true(err.text[0] != '\0');
    }
}

static void refuses_shapes(void **state EK_UNUSED)
{
    for (int i = 0; i < 5; i++) {
        static const int32_t values[] = {0, -1, INT32_MAX};
        for (size_t k = 0; k < EK_COUNT_OF(values); k++) {
            ek_wire_shape s = shape;
            int32_t *field[] = {&s.n_layers, &s.n_experts, &s.d_model, &s.top_k, &s.tokens_max};
            *field[i] = values[k];
            assert_int_equal(ek_link_wire_shape_check(&s, NULL), EK_EFORMAT);
        }
    }
    assert_int_equal(ek_link_wire_shape_check(&shape, NULL), EK_OK);
    /* A body beyond what a message may have. */
    const ek_wire_shape large = {
        .n_layers = 1, .n_experts = 64, .d_model = 1 << 20, .top_k = 8, .tokens_max = 65536};
    ek_wire_header h = ek_link_wire_header(EK_WIRE_DISPATCH, 1);
    ek_wire_combine_layout answer;
    h.n_tokens = 65536;
    h.n_shares = 64;
    h.n_rows = 65536;
    assert_int_equal(ek_link_wire_combine_lay(&large, &h, &answer), EK_EFORMAT);
}

static void rounds_to_nearest_even(void **state EK_UNUSED)
{
    const float exact[] = {0.0f, -0.0f, 1.0f, -2.5f, INFINITY, -INFINITY, 0x1p-126f};
    uint16_t half[8];
    float back[8];
    ek_link_wire_to_bf16(exact, EK_COUNT_OF(exact), half);
    ek_link_wire_from_bf16(half, EK_COUNT_OF(exact), back);
    assert_memory_equal(exact, back, sizeof exact);
    /* Half way between two: to the even one; beyond: away. */
    const float between[] = {0x1.01p0f, 0x1.03p0f, 0x1.010002p0f, NAN};
    ek_link_wire_to_bf16(between, 4, half);
    ek_link_wire_from_bf16(half, 4, back);
    assert_true(back[0] == 0x1.00p0f);
    assert_true(back[1] == 0x1.04p0f);
    assert_true(back[2] == 0x1.02p0f);
    assert_true(isnan(back[3]));
    ek_rng rng;
    ek_rng_init(&rng, 3);
    for (int i = 0; i < 10000; i++) {
        float x = (float)(ek_rng_unit(&rng) - 0.5) * 100, y;
        ek_link_wire_to_bf16(&x, 1, half);
        ek_link_wire_from_bf16(half, 1, &y);
        assert_true(fabsf(x - y) <= fabsf(x) * 0x1p-8f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_it_lays_out), cmocka_unit_test(refuses_headers),
        cmocka_unit_test(refuses_counts),         cmocka_unit_test(refuses_lists),
        cmocka_unit_test(refuses_shapes),         cmocka_unit_test(rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
