/*
 * Goal: of the messages by which experts move nothing is used before it was found to be what it has
 * to be. Method: well-formed ones are read back; then each of their numbers in turn is made wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "link/wire_moves.h"

static const ek_wire_shape shape = {
    .n_layers = 3, .n_experts = 70, .d_model = 6, .top_k = 2, .tokens_max = 5};

static ek_wire_order order_of(void)
{
    ek_wire_order order = {
        .verb = EK_WIRE_ACQUIRE, .layer = 2, .n_experts = 3, .n_peers = 2, .expert = {0, 5, 69}};
    snprintf(order.peer[0], EK_WIRE_PEER_BYTES, "w1.lan:7070");
    snprintf(order.peer[1], EK_WIRE_PEER_BYTES, "[::1]:7071");
    return order;
}

static ek_status send_order(const ek_wire_order *order, ek_wire_order *out, ek_err *err)
{
    uint8_t body[sizeof *order];
    ek_wire_header header = ek_link_wire_header(EK_WIRE_ORDER, 3);
    header.body_bytes = (uint32_t)ek_link_wire_order_write(order, body);
    assert_int_equal(ek_link_wire_check(&header, sizeof body, err), EK_OK);
    return ek_link_wire_order_read(&shape, &header, body, out, err);
}

static void orders_come_as_they_went(void **state EK_UNUSED)
{
    ek_wire_order order = order_of(), got;
    ek_err err = {0};
    assert_int_equal(send_order(&order, &got, &err), EK_OK);
    assert_int_equal(got.layer, 2);
    assert_int_equal(got.n_experts, 3);
    assert_int_equal(got.expert[2], 69);
    assert_string_equal(got.peer[0], "w1.lan:7070");
    assert_string_equal(got.peer[1], "[::1]:7071");
    /* The largest one there is. */
    order.n_experts = EK_WIRE_ORDER_EXPERTS_MAX;
    for (int32_t i = 0; i < order.n_experts; i++)
        order.expert[i] = i;
    order.n_peers = EK_WIRE_ORDER_PEERS_MAX;
    for (int32_t i = 0; i < order.n_peers; i++)
        memset(order.peer[i], 'x', EK_WIRE_PEER_BYTES - 1);
    assert_int_equal(send_order(&order, &got, &err), EK_OK);
    assert_memory_equal(&order, &got, sizeof order);
}

static void assert_order_refused(const ek_wire_order *order)
{
    ek_wire_order got = {.verb = 77};
    ek_err err = {0};
    assert_int_equal(send_order(order, &got, &err), EK_EFORMAT);
    assert_true(err.text[0] != '\0');
    assert_int_equal(got.verb, 77); /* written on success only */
}

static void refuses_orders(void **state EK_UNUSED)
{
    const struct {
        size_t at;
        int32_t value;
    } breaches[] = {
        {offsetof(ek_wire_order, verb), 0},        {offsetof(ek_wire_order, verb), 3},
        {offsetof(ek_wire_order, layer), -1},      {offsetof(ek_wire_order, layer), 3},
        {offsetof(ek_wire_order, expert), -1},     {offsetof(ek_wire_order, expert), 5},
        {offsetof(ek_wire_order, expert) + 8, 70}, {offsetof(ek_wire_order, expert) + 8, 5},
    };
    for (size_t i = 0; i < EK_COUNT_OF(breaches); i++) {
        ek_wire_order order = order_of();
        memcpy((uint8_t *)&order + breaches[i].at, &breaches[i].value, sizeof(int32_t));
        assert_order_refused(&order);
    }
    ek_wire_order order = order_of();
    order.peer[1][0] = '\0';
    assert_order_refused(&order);
    order = order_of();
    memset(order.peer[0], 'x', EK_WIRE_PEER_BYTES); /* without an end */
    assert_order_refused(&order);
    /* Counts that its length does not bear out, or that are beyond bounds. */
    const int32_t counts[][2] = {{0, 0}, {-1, 0}, {65, 0}, {3, -1}, {3, 5}, {4, 2}, {3, 1}};
    for (size_t i = 0; i < EK_COUNT_OF(counts); i++) {
        uint8_t body[2048] = {0};
        ek_wire_order got;
        ek_err err = {0};
        ek_wire_header header = ek_link_wire_header(EK_WIRE_ORDER, 3);
        order = order_of();
        header.body_bytes = (uint32_t)ek_link_wire_order_write(&order, body);
        memcpy(body + offsetof(ek_wire_order, n_experts), counts[i], sizeof counts[i]);
        assert_int_equal(ek_link_wire_order_read(&shape, &header, body, &got, &err), EK_EFORMAT);
    }
}

static void refuses_outcomes(void **state EK_UNUSED)
{
    uint8_t body[sizeof(ek_wire_outcome) + 4];
    ek_wire_outcome good = {.state = EK_WIRE_MOVE_FAILED,
                            .n_done = 2,
                            .bytes = 30,
                            .bytes_all = 50,
                            .store_bytes = 10,
                            .peer_bytes = 20},
                    got;
    ek_wire_header header = ek_link_wire_header(EK_WIRE_OUTCOME, 3);
    ek_err err = {0};
    ek_str why;
    header.body_bytes = sizeof body;
    memcpy(body, &good, sizeof good);
    memcpy(body + sizeof good, "full", 4);
    assert_int_equal(ek_link_wire_outcome_read(&header, body, &got, &why, &err), EK_OK);
    assert_memory_equal(&got, &good, sizeof got);
    assert_int_equal(why.len, 4);
    assert_memory_equal(why.data, "full", 4);
    ek_wire_outcome bad[] = {good, good, good, good, good};
    bad[0].state = 0;
    bad[1].state = EK_WIRE_MOVE_REFUSED + 1;
    bad[2].n_done = EK_WIRE_ORDER_EXPERTS_MAX + 1;
    bad[3].peer_bytes = 21; /* parts that are more than the whole */
    bad[4].bytes_all = UINT64_MAX;
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++) {
        memcpy(body, &bad[i], sizeof bad[i]);
        assert_int_equal(ek_link_wire_outcome_read(&header, body, &got, &why, &err), EK_EFORMAT);
    }
    header.body_bytes = sizeof(ek_wire_outcome) - 1;
    assert_int_equal(ek_link_wire_outcome_read(&header, body, &got, &why, &err), EK_EFORMAT);
    header.body_bytes = sizeof(ek_wire_outcome) + EK_WIRE_TEXT_MAX + 1;
    assert_int_equal(ek_link_wire_outcome_read(&header, body, &got, &why, &err), EK_EFORMAT);
}

static void refuses_reads(void **state EK_UNUSED)
{
    const ek_wire_read good = {.layer = 2, .expert = 69, .mat = 2, .bytes = 100, .offset = 12};
    ek_wire_read got, bad[] = {good, good, good, good, good, good, good};
    ek_wire_header header = ek_link_wire_header(EK_WIRE_READ, 0);
    ek_err err = {0};
    header.body_bytes = sizeof good;
    assert_int_equal(ek_link_wire_read_read(&shape, &header, &good, &got, &err), EK_OK);
    assert_memory_equal(&got, &good, sizeof got);
    bad[0].layer = 3;
    bad[1].layer = -1;
    bad[2].expert = 70;
    bad[3].mat = 3;
    bad[4].bytes = 0;
    bad[5].bytes = EK_WIRE_PIECE_BYTES_MAX + 1;
    bad[6].offset = UINT64_MAX;
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++)
        assert_int_equal(ek_link_wire_read_read(&shape, &header, &bad[i], &got, &err), EK_EFORMAT);
    header.body_bytes--;
    assert_int_equal(ek_link_wire_read_read(&shape, &header, &good, &got, &err), EK_EFORMAT);
}

static void kinds_between_are_none(void **state EK_UNUSED)
{
    ek_err err = {0};
    for (int kind = EK_WIRE_KIND_GAP; kind < EK_WIRE_HAVE; kind++) {
        ek_wire_header header = ek_link_wire_header((ek_wire_kind)kind, 1);
        assert_int_equal(ek_link_wire_check(&header, 0, &err), EK_EFORMAT);
    }
    ek_wire_header header = ek_link_wire_header(EK_WIRE_PIECE, 1);
    assert_int_equal(ek_link_wire_check(&header, 0, &err), EK_OK);
    /* Sets of 70 experts are two words a layer. */
    assert_int_equal(ek_link_wire_have_bytes(&shape), 16 + 2 * 3 * 2 * 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_come_as_they_went), cmocka_unit_test(refuses_orders),
        cmocka_unit_test(refuses_outcomes),         cmocka_unit_test(refuses_reads),
        cmocka_unit_test(kinds_between_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
