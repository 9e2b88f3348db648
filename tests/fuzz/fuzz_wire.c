/*
 * Any bytes as a message of the wire format: a header, and what follows as its body. Whatever is
 * accepted is read to its last index, so that the sanitizers see a step beyond; that experts
 * ascend, shares are rows once and layouts stay within their bounds is checked here. The same bytes
 * are a set of experts, as a text and as bits, and messages by which experts move. Seeds:
 * dispatches of each form, orders, outcomes, reads, and small breaches.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "link/expert_set.h"
#include "link/wire_moves.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ek_wire_shape shape = {
    .n_layers = 4, .n_experts = 70, .d_model = 8, .top_k = 3, .tokens_max = 16};

static void walk(const ek_wire_header *h, const ek_wire_dispatch *d)
{
    size_t number = h->form & EK_WIRE_FORM_BF16 ? 2 : 4;
    float wide[8];
    int32_t n_visits[16] = {0}, n_rows = 0;
    ek_assert(h->n_tokens <= shape.tokens_max && h->layer < shape.n_layers);
    for (int32_t t = 0; t < h->n_tokens; t++) {
        const uint8_t *x = (const uint8_t *)d->x + (size_t)t * 8 * number;
        if (number == 2)
            ek_link_wire_from_bf16((const uint16_t *)(const void *)x, 8, wide);
        else
            memcpy(wide, x, sizeof wide);
    }
    for (int32_t s = 0; s < h->n_shares; s++) {
        ek_assert(d->share_expert[s] >= 0 && d->share_expert[s] < shape.n_experts);
        ek_assert(s == 0 || d->share_expert[s] > d->share_expert[s - 1]);
        for (int32_t r = d->share_beg[s]; r < d->share_beg[s + 1]; r++, n_rows++) {
            ek_assert(d->row_token[r] >= 0 && d->row_token[r] < h->n_tokens);
            n_visits[d->row_token[r]]++;
            if (d->weight) memcpy(wide, d->weight + r, sizeof *wide);
        }
    }
    ek_assert(n_rows == h->n_rows);
    for (int32_t t = 0; t < h->n_tokens; t++)
        ek_assert(n_visits[t] <= h->n_shares);
}

static void read_message(const uint8_t *data, size_t size)
{
    ek_wire_header header;
    ek_wire_dispatch dispatch;
    ek_wire_combine_layout answer;
    ek_err err = {0};
    if (size < sizeof header) return;
    memcpy(&header, data, sizeof header);
    if (ek_link_wire_check(&header, size - sizeof header, &err) != EK_OK) return;
    /* As large as it says, aligned as buffers are. */
    uint8_t *body = aligned_alloc(64, ((size_t)header.body_bytes + 64) / 64 * 64);
    ek_assert(body != NULL);
    memcpy(body, data + sizeof header, header.body_bytes);
    if (ek_link_wire_dispatch_read(&shape, &header, body, &dispatch, &err) == EK_OK) {
        walk(&header, &dispatch);
        ek_assert(header.body_bytes <= ek_link_wire_dispatch_bytes_max(&shape));
        ek_assert(ek_link_wire_combine_lay(&shape, &header, &answer) == EK_OK);
        ek_assert(answer.bytes <= ek_link_wire_combine_bytes_max(&shape));
    } else {
        ek_assert(err.text[0] != '\0');
    }
    free(body);
}

/* An order that is accepted can be sent again, and is the same bytes. */
static void read_order(const ek_wire_header *header, const uint8_t *body)
{
    ek_wire_order order;
    ek_err err = {0};
    if (ek_link_wire_order_read(&shape, header, body, &order, &err) != EK_OK) {
        ek_assert(err.text[0] != '\0');
        return;
    }
    ek_assert(order.layer >= 0 && order.layer < shape.n_layers);
    for (int32_t i = 0; i < order.n_experts; i++)
        ek_assert(order.expert[i] >= 0 && order.expert[i] < shape.n_experts);
    for (int32_t i = 0; i < order.n_peers; i++)
        ek_assert(strlen(order.peer[i]) < EK_WIRE_PEER_BYTES);
    uint8_t again[sizeof order];
    ek_assert(ek_link_wire_order_write(&order, again) == header->body_bytes);
    ek_assert(memcmp(again, body, header->body_bytes) == 0);
}

static void read_moves(const uint8_t *data, size_t size)
{
    ek_wire_header header;
    ek_wire_outcome outcome;
    ek_wire_read part;
    ek_str why;
    ek_err err = {0};
    if (size < sizeof header) return;
    memcpy(&header, data, sizeof header);
    if (ek_link_wire_check(&header, size - sizeof header, &err) != EK_OK) return;
    /* No byte more than it says. */
    uint8_t *body = malloc(header.body_bytes ? header.body_bytes : 1);
    ek_assert(body != NULL);
    memcpy(body, data + sizeof header, header.body_bytes);
    read_order(&header, body);
    if (ek_link_wire_outcome_read(&header, body, &outcome, &why, &err) == EK_OK) {
        ek_assert(outcome.store_bytes + outcome.peer_bytes <= outcome.bytes);
        ek_assert((const uint8_t *)why.data + why.len == body + header.body_bytes);
    }
    if (ek_link_wire_read_read(&shape, &header, body, &part, &err) == EK_OK)
        ek_assert(part.bytes > 0 && part.bytes <= EK_WIRE_PIECE_BYTES_MAX && part.mat < 3);
    free(body);
}

static void read_sets(const uint8_t *data, size_t size)
{
    uint64_t bits[8] = {0};
    ek_expert_set set = {.n_layers = 4, .n_experts = 70, .bits = bits};
    char text[256];
    if (size >= sizeof bits) {
        memcpy(bits, data, sizeof bits);
        if (ek_link_set_is_valid(&set)) {
            int64_t n = 0;
            for (int32_t l = 0; l < 4; l++)
                for (int32_t e = 0; e < 70; e++)
                    n += ek_link_set_has(&set, l, e);
            ek_assert(n == ek_link_set_count(&set));
        }
    }
    size_t n = size < sizeof text ? size : sizeof text - 1;
    memcpy(text, data, n);
    text[n] = '\0';
    memset(bits, 0, sizeof bits);
    ek_err err = {0};
    if (ek_link_set_parse(text, &set, &err) != EK_OK) {
        ek_assert(ek_link_set_count(&set) == 0 && err.text[0] != '\0');
        return;
    }
    ek_assert(ek_link_set_count(&set) > 0 && ek_link_set_is_valid(&set));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_message(data, size);
    read_moves(data, size);
    read_sets(data, size);
    return 0;
}
