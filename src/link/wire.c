#include "link/wire.h"

#include <string.h>

#include "base/size.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are used in place");

#define EXPERTS_MAX 4096
#define LAYERS_MAX  1024
#define DIM_MAX     (1 << 20)
#define TOP_K_MAX   64

ek_wire_header ek_link_wire_header(ek_wire_kind kind, uint32_t epoch)
{
    return (ek_wire_header){
        .magic = EK_WIRE_MAGIC,
        .version = EK_WIRE_VERSION,
        .kind = (uint8_t)kind,
        .epoch = epoch,
    };
}

ek_status ek_link_wire_check(const ek_wire_header *header, size_t body_bytes_max, ek_err *err)
{
    if (header->magic != EK_WIRE_MAGIC)
        return ek_err_set(err, EK_EFORMAT, "what came is no message of evenkeel's");
    if (header->version != EK_WIRE_VERSION)
        return ek_err_set(err, EK_EUNSUPPORTED,
                          "the peer speaks version %d of the wire format, this program %d",
                          (int)header->version, EK_WIRE_VERSION);
    if (header->kind < EK_WIRE_HELLO || header->kind >= EK_WIRE_KIND_END ||
        (header->kind >= EK_WIRE_KIND_GAP && header->kind < EK_WIRE_HAVE))
        return ek_err_set(err, EK_EFORMAT, "a message of kind %d", (int)header->kind);
    if (header->form & ~EK_WIRE_FORM_ALL)
        return ek_err_set(err, EK_EFORMAT, "a message of form %d", (int)header->form);
    if (header->body_bytes > body_bytes_max)
        return ek_err_set(err, EK_EFORMAT, "a message of %u bytes where at most %zu have room",
                          (unsigned)header->body_bytes, body_bytes_max);
    return EK_OK;
}

static bool within(int32_t value, int32_t low, int32_t high)
{
    return value >= low && value <= high;
}

ek_status ek_link_wire_shape_check(const ek_wire_shape *shape, ek_err *err)
{
    if (within(shape->n_layers, 1, LAYERS_MAX) && within(shape->n_experts, 1, EXPERTS_MAX) &&
        within(shape->d_model, 1, DIM_MAX) && within(shape->top_k, 1, TOP_K_MAX) &&
        within(shape->tokens_max, 1, EK_WIRE_TOKENS_MAX))
        return EK_OK;
    return ek_err_set(err, EK_EFORMAT,
                      "no model has %d layers, %d experts, width %d, top-%d and steps of %d tokens",
                      (int)shape->n_layers, (int)shape->n_experts, (int)shape->d_model,
                      (int)shape->top_k, (int)shape->tokens_max);
}

/* ---- layouts ---- */

/* Sizes here are products of numbers that were checked to be below 2^21: 64 bits hold them. */
static size_t part(size_t *at, int64_t n, size_t size)
{
    size_t beg = *at;
    *at = ek_size_align(beg + (size_t)n * size, 4);
    return beg;
}

static size_t number_bytes(uint8_t form)
{
    return form & EK_WIRE_FORM_BF16 ? sizeof(uint16_t) : sizeof(float);
}

/* A token visits an expert once, and top_k of them at most. */
static bool counts_fit(const ek_wire_shape *shape, const ek_wire_header *h)
{
    return within(h->layer, 0, shape->n_layers - 1) && within(h->n_tokens, 1, shape->tokens_max) &&
           within(h->n_shares, 1, shape->n_experts) && h->n_rows >= h->n_shares &&
           h->n_rows >= h->n_tokens && h->n_rows <= (int64_t)h->n_tokens * shape->top_k &&
           h->n_rows <= (int64_t)h->n_tokens * h->n_shares;
}

ek_status ek_link_wire_dispatch_lay(const ek_wire_shape *shape, const ek_wire_header *header,
                                    ek_wire_dispatch_layout *out_layout)
{
    if (!counts_fit(shape, header)) return EK_EFORMAT;
    size_t at = 0;
    ek_wire_dispatch_layout lay;
    bool is_summed = header->form & EK_WIRE_FORM_SUMMED;
    lay.x = part(&at, (int64_t)header->n_tokens * shape->d_model, number_bytes(header->form));
    lay.share_expert = part(&at, header->n_shares, sizeof(int32_t));
    lay.share_beg = part(&at, (int64_t)header->n_shares + 1, sizeof(int32_t));
    lay.row_token = part(&at, header->n_rows, sizeof(int32_t));
    lay.weight = part(&at, is_summed ? header->n_rows : 0, sizeof(float));
    lay.bytes = at;
    if (at > EK_WIRE_BODY_BYTES_MAX) return EK_EFORMAT;
    *out_layout = lay;
    return EK_OK;
}

ek_status ek_link_wire_combine_lay(const ek_wire_shape *shape, const ek_wire_header *header,
                                   ek_wire_combine_layout *out_layout)
{
    if (!counts_fit(shape, header)) return EK_EFORMAT;
    size_t at = 0;
    ek_wire_combine_layout lay;
    int64_t n = header->form & EK_WIRE_FORM_SUMMED ? header->n_tokens : header->n_rows;
    lay.y = part(&at, n * shape->d_model, number_bytes(header->form));
    lay.busy_us = part(&at, header->n_shares, sizeof(uint32_t));
    lay.bytes = at;
    if (at > EK_WIRE_BODY_BYTES_MAX) return EK_EFORMAT;
    *out_layout = lay;
    return EK_OK;
}

size_t ek_link_wire_dispatch_bytes_max(const ek_wire_shape *shape)
{
    size_t tokens = (size_t)shape->tokens_max;
    size_t rows = tokens * (size_t)shape->top_k;
    return tokens * (size_t)shape->d_model * sizeof(float) +
           (2 * (size_t)shape->n_experts + 1) * sizeof(int32_t) +
           rows * (sizeof(int32_t) + sizeof(float));
}

size_t ek_link_wire_combine_bytes_max(const ek_wire_shape *shape)
{
    size_t rows = (size_t)shape->tokens_max * (size_t)shape->top_k;
    return rows * (size_t)shape->d_model * sizeof(float) +
           (size_t)shape->n_experts * sizeof(uint32_t);
}

/* ---- reading ---- */

static ek_status check_shares(const ek_wire_shape *shape, const ek_wire_header *h,
                              const ek_wire_dispatch *d, ek_err *err)
{
    if (d->share_beg[0] != 0 || d->share_beg[h->n_shares] != h->n_rows)
        return ek_err_set(err, EK_EFORMAT, "the shares of a dispatch are not its rows");
    for (int32_t s = 0; s < h->n_shares; s++) {
        int32_t before = s ? d->share_expert[s - 1] : -1;
        if (d->share_expert[s] <= before || d->share_expert[s] >= shape->n_experts)
            return ek_err_set(err, EK_EFORMAT, "a dispatch names expert %d after %d, of %d",
                              (int)d->share_expert[s], (int)before, (int)shape->n_experts);
        if (d->share_beg[s + 1] <= d->share_beg[s])
            return ek_err_set(err, EK_EFORMAT, "share %d of a dispatch has no rows", (int)s);
    }
    return EK_OK;
}

static ek_status check_rows(const ek_wire_header *h, const ek_wire_dispatch *d, ek_err *err)
{
    for (int32_t s = 0; s < h->n_shares; s++) {
        int32_t before = -1;
        /* Strictly ascending begins are within n_rows, since the last one is. */
        for (int32_t r = d->share_beg[s]; r < d->share_beg[s + 1]; r++) {
            if (d->row_token[r] <= before || d->row_token[r] >= h->n_tokens)
                return ek_err_set(err, EK_EFORMAT, "row %d of a dispatch is of token %d, of %d",
                                  (int)r, (int)d->row_token[r], (int)h->n_tokens);
            before = d->row_token[r];
        }
    }
    return EK_OK;
}

ek_status ek_link_wire_dispatch_read(const ek_wire_shape *shape, const ek_wire_header *header,
                                     const void *body, ek_wire_dispatch *out_dispatch, ek_err *err)
{
    ek_wire_dispatch_layout lay;
    const uint8_t *at = body;
    if (header->kind != EK_WIRE_DISPATCH || ek_link_wire_dispatch_lay(shape, header, &lay) != EK_OK)
        return ek_err_set(
            err, EK_EFORMAT, "no dispatch has layer %d, %d tokens, %d experts and %d rows",
            (int)header->layer, (int)header->n_tokens, (int)header->n_shares, (int)header->n_rows);
    if (lay.bytes != header->body_bytes)
        return ek_err_set(err, EK_EFORMAT, "a dispatch of %u bytes should have %zu",
                          (unsigned)header->body_bytes, lay.bytes);
    bool is_summed = header->form & EK_WIRE_FORM_SUMMED;
    const ek_wire_dispatch d = {
        .x = at + lay.x,
        .share_expert = (const void *)(at + lay.share_expert),
        .share_beg = (const void *)(at + lay.share_beg),
        .row_token = (const void *)(at + lay.row_token),
        .weight = is_summed ? (const void *)(at + lay.weight) : NULL,
    };
    ek_status status = check_shares(shape, header, &d, err);
    if (status == EK_OK) status = check_rows(header, &d, err);
    if (status == EK_OK) *out_dispatch = d;
    return status;
}

/* ---- bf16 ---- */

void ek_link_wire_to_bf16(const float *x, int64_t n, uint16_t *out_bf16)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
        out_bf16[i] = (uint16_t)(is_nan ? bits >> 16 | 0x40 : rounded);
    }
}

void ek_link_wire_from_bf16(const uint16_t *x, int64_t n, float *out_f32)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)x[i] << 16;
        memcpy(out_f32 + i, &bits, sizeof bits);
    }
}
