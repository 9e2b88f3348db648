#include "link/wire_moves.h"

#include <string.h>

size_t ek_link_wire_have_bytes(const ek_wire_shape *shape)
{
    size_t words = ((size_t)shape->n_experts + 63) / 64;
    return sizeof(ek_wire_have) + 2 * (size_t)shape->n_layers * words * sizeof(uint64_t);
}

/* ---- orders ---- */

static size_t order_bytes(int32_t n_experts, int32_t n_peers)
{
    return offsetof(ek_wire_order, expert) + (size_t)n_experts * sizeof(int32_t) +
           (size_t)n_peers * EK_WIRE_PEER_BYTES;
}

size_t ek_link_wire_order_write(const ek_wire_order *order, uint8_t *out_body)
{
    size_t head = offsetof(ek_wire_order, expert);
    size_t experts = (size_t)order->n_experts * sizeof(int32_t);
    memcpy(out_body, order, head + experts);
    memcpy(out_body + head + experts, order->peer, (size_t)order->n_peers * EK_WIRE_PEER_BYTES);
    return order_bytes(order->n_experts, order->n_peers);
}

static ek_status check_order(const ek_wire_shape *shape, const ek_wire_order *o, ek_err *err)
{
    for (int32_t i = 0; i < o->n_experts; i++) {
        int32_t before = i ? o->expert[i - 1] : -1;
        if (o->expert[i] <= before || o->expert[i] >= shape->n_experts)
            return ek_err_set(err, EK_EFORMAT, "an order names expert %d after %d, of %d",
                              (int)o->expert[i], (int)before, (int)shape->n_experts);
    }
    for (int32_t i = 0; i < o->n_peers; i++)
        if (!memchr(o->peer[i], '\0', EK_WIRE_PEER_BYTES) || !o->peer[i][0])
            return ek_err_set(err, EK_EFORMAT, "an order's peer %d has no address", (int)i);
    return EK_OK;
}

ek_status ek_link_wire_order_read(const ek_wire_shape *shape, const ek_wire_header *header,
                                  const void *body, ek_wire_order *out_order, ek_err *err)
{
    ek_wire_order o = {0};
    size_t head = offsetof(ek_wire_order, expert);
    if (header->body_bytes < head)
        return ek_err_set(err, EK_EFORMAT, "an order of %u bytes", (unsigned)header->body_bytes);
    memcpy(&o, body, head);
    if ((o.verb != EK_WIRE_ACQUIRE && o.verb != EK_WIRE_RELEASE) || o.layer < 0 ||
        o.layer >= shape->n_layers || o.n_experts < 1 || o.n_experts > EK_WIRE_ORDER_EXPERTS_MAX ||
        o.n_peers < 0 || o.n_peers > EK_WIRE_ORDER_PEERS_MAX ||
        header->body_bytes != order_bytes(o.n_experts, o.n_peers))
        return ek_err_set(err, EK_EFORMAT,
                          "an order of %u bytes, verb %u, layer %d, for %d experts with %d peers",
                          (unsigned)header->body_bytes, (unsigned)o.verb, (int)o.layer,
                          (int)o.n_experts, (int)o.n_peers);
    size_t experts = (size_t)o.n_experts * sizeof(int32_t);
    memcpy(o.expert, (const uint8_t *)body + head, experts);
    memcpy(o.peer, (const uint8_t *)body + head + experts, (size_t)o.n_peers * EK_WIRE_PEER_BYTES);
    ek_status status = check_order(shape, &o, err);
    if (status == EK_OK) *out_order = o;
    return status;
}

/* ---- outcomes, reads ---- */

ek_status ek_link_wire_outcome_read(const ek_wire_header *header, const void *body,
                                    ek_wire_outcome *out_outcome, ek_str *out_why, ek_err *err)
{
    ek_wire_outcome o;
    if (header->body_bytes < sizeof o || header->body_bytes > sizeof o + EK_WIRE_TEXT_MAX)
        return ek_err_set(err, EK_EFORMAT, "an outcome of %u bytes", (unsigned)header->body_bytes);
    memcpy(&o, body, sizeof o);
    if (o.state < EK_WIRE_MOVE_WORKING || o.state > EK_WIRE_MOVE_REFUSED ||
        o.n_done > EK_WIRE_ORDER_EXPERTS_MAX || o.bytes > INT64_MAX || o.bytes_all > INT64_MAX ||
        o.store_bytes > o.bytes || o.peer_bytes > o.bytes - o.store_bytes)
        return ek_err_set(err, EK_EFORMAT, "an outcome of state %u, %u experts and %llu bytes",
                          (unsigned)o.state, (unsigned)o.n_done, (unsigned long long)o.bytes);
    *out_outcome = o;
    *out_why = (ek_str){(const char *)body + sizeof o, header->body_bytes - sizeof o};
    return EK_OK;
}

ek_status ek_link_wire_read_read(const ek_wire_shape *shape, const ek_wire_header *header,
                                 const void *body, ek_wire_read *out_read, ek_err *err)
{
    ek_wire_read r;
    if (header->body_bytes != sizeof r)
        return ek_err_set(err, EK_EFORMAT, "a READ of %u bytes", (unsigned)header->body_bytes);
    memcpy(&r, body, sizeof r);
    if (r.layer < 0 || r.layer >= shape->n_layers || r.expert < 0 || r.expert >= shape->n_experts ||
        r.mat > 2 || r.bytes < 1 || r.bytes > EK_WIRE_PIECE_BYTES_MAX || r.offset > INT64_MAX)
        return ek_err_set(err, EK_EFORMAT,
                          "a READ of %u bytes of matrix %u of expert %d of layer %d",
                          (unsigned)r.bytes, (unsigned)r.mat, (int)r.expert, (int)r.layer);
    *out_read = r;
    return EK_OK;
}
