/*
 * An expert's bytes from another worker: over TLS, to the address where it takes fronts, piece
 * after piece. Nothing it says is believed; its bytes are hashed by whoever asked.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "sys/clock.h"
#include "worker/acquire.h"

#define CONNECT_US 5000000
#define ANSWER_US  5000000

static ek_status read_piece(const ek_acquire_shard *a, ek_link *link, size_t at, size_t n,
                            ek_err *err)
{
    ek_wire_read read = {
        .layer = a->layer,
        .expert = a->expert,
        .mat = a->mat,
        .bytes = (uint32_t)n,
        .offset = a->offset + at,
    };
    memcpy(read.model, a->setup->identity, sizeof read.model);
    ek_wire_header header = ek_link_wire_header(EK_WIRE_READ, 0);
    header.body_bytes = sizeof read;
    int64_t until_us = ek_sys_now_us() + ANSWER_US;
    ek_status status =
        ek_link_send(link, &header, (ek_span){(const uint8_t *)&read, sizeof read}, until_us);
    /* A refusal has room, too: it is told, and the piece is not there. */
    uint8_t text[EK_WIRE_TEXT_MAX];
    bool is_small = n < sizeof text;
    if (status == EK_OK)
        status = ek_link_receive(link, &header, is_small ? text : a->buffer + at,
                                 is_small ? sizeof text : n, until_us);
    if (status == EK_AGAIN) return ek_err_set(err, EK_ETIMEOUT, "no answer in time");
    if (status != EK_OK) return ek_err_set(err, status, "%s", link->broken.text);
    if (header.kind == EK_WIRE_REFUSE)
        return ek_err_set(err, EK_EPEER, "refused: %.*s", (int)header.body_bytes,
                          is_small ? (const char *)text : (const char *)a->buffer + at);
    if (header.kind != EK_WIRE_PIECE || header.body_bytes != n)
        return ek_err_set(err, EK_EPEER, "it answers with %u bytes of kind %d instead of %zu",
                          (unsigned)header.body_bytes, (int)header.kind, n);
    if (is_small) memcpy(a->buffer + at, text, n);
    atomic_fetch_add_explicit(&a->progress->peer_bytes, n, memory_order_relaxed);
    return ek_worker_acquire_pace(a, n) ? EK_OK : ek_err_set(err, EK_ECANCELED, "ended meanwhile");
}

void ek_worker_acquire_hang_up(ek_acquire_line *line)
{
    ek_link_close(line->link);
    *line = (ek_acquire_line){0};
}

static ek_status call(const ek_acquire_shard *a, const char *address, ek_err *err)
{
    ek_acquire_line *line = a->setup->line;
    ek_fabric *tls = a->setup->tls;
    ek_worker_acquire_hang_up(line);
    ek_status status =
        tls->ops->connect(tls, address, ek_sys_now_us() + CONNECT_US, &line->link, err);
    if (status != EK_OK) return status == EK_ENOMEM ? status : (err->status = EK_EPEER);
    snprintf(line->address, sizeof line->address, "%s", address);
    return EK_OK;
}

static ek_status read_shard(const ek_acquire_shard *a, ek_err *err)
{
    ek_status status = EK_OK;
    for (size_t at = 0; at < a->bytes && status == EK_OK;) {
        size_t n = a->bytes - at;
        if (n > EK_WIRE_PIECE_BYTES_MAX) n = EK_WIRE_PIECE_BYTES_MAX;
        status = read_piece(a, a->setup->line->link, at, n, err);
        at += n;
    }
    return status;
}

ek_status ek_worker_acquire_from_peer(const ek_acquire_shard *a, const char *address, ek_err *err)
{
    ek_acquire_line *line = a->setup->line;
    ek_status status;
    if (line->link && strcmp(line->address, address) == 0) {
        status = read_shard(a, err);
        if (status == EK_OK || status == EK_ECANCELED) return status;
        /* It may have hung up meanwhile: once more, from the start. */
    }
    status = call(a, address, err);
    if (status != EK_OK) return status;
    status = read_shard(a, err);
    if (status == EK_OK) return EK_OK;
    ek_worker_acquire_hang_up(line);
    ek_err_prefix(err, "%s", address);
    return status;
}
