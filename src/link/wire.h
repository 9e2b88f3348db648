/*
 * The wire format between a front and its workers: one header of 64 bytes before every message, and
 * the layout of each kind of body (docs/formats/wire.md).
 *
 * What arrives is trusted in nothing: a header is checked before a byte of its body is read, its
 * body's length against what the receiver has room for, and a body's lists index by index before
 * one of them is used. Numbers are little-endian, as every supported processor has them in memory,
 * so that a message is filled in and read in place. Pure.
 */
#ifndef EK_LINK_WIRE_H
#define EK_LINK_WIRE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"
#include "base/status.h"

#define EK_WIRE_MAGIC          UINT32_C(0x31574b45) /* "EKW1" */
#define EK_WIRE_VERSION        1
#define EK_WIRE_BODY_BYTES_MAX (UINT32_C(1) << 30)
#define EK_WIRE_TOKENS_MAX     65536 /* of one dispatch */
#define EK_WIRE_TOKEN_BYTES    16    /* of the secret that ties a data link to its control link */
#define EK_WIRE_TEXT_MAX       256   /* bytes of a refusal */
#define EK_WIRE_ADDRESS_MAX    2048  /* of half a link, in OPEN and OPENED */

/** Kinds of messages; a number is never used again for something else. */
typedef enum ek_wire_kind {
    EK_WIRE_HELLO = 1, /* front, first on a control link: who asks, for which model */
    EK_WIRE_WELCOME,   /* worker: what it has; on a data link: it is attached */
    EK_WIRE_REFUSE,    /* worker: why not, as text; it closes then */
    EK_WIRE_ATTACH,    /* front, first on a data link: the secret that its control link got */
    EK_WIRE_BEAT,      /* front, each 250 ms: I am here */
    EK_WIRE_LOAD,      /* worker, each 100 ms: I am here, and this is what I have to do */
    EK_WIRE_DISPATCH,  /* front: compute these rows */
    EK_WIRE_COMBINE,   /* worker: here they are */
    EK_WIRE_BYE,       /* either: I end, on purpose */
    EK_WIRE_OPEN,      /* front: let us have a data link of a fabric that meets by addresses */
    EK_WIRE_OPENED,    /* worker: my half of it */
    EK_WIRE_PROBE,     /* front, on a data link: any bytes */
    EK_WIRE_PROBED,    /* worker: the same bytes */
    EK_WIRE_KIND_GAP,  /* up to HAVE there are none */
    /* link/wire_moves.h; from a worker that moves experts, to a front that knows of it. */
    EK_WIRE_HAVE = 20, /* worker: what it has now; the number of the change is in seq */
    EK_WIRE_HEED,      /* front: it sends nothing any more that is not in HAVE number seq */
    EK_WIRE_ORDER,     /* front: acquire or release experts; its number is in seq */
    EK_WIRE_OUTCOME,   /* worker: what became of the order of that number so far */
    EK_WIRE_READ,      /* worker, to another one: give me bytes of an expert */
    EK_WIRE_PIECE,     /* here they are; none: it has them not */
    EK_WIRE_KIND_END,
} ek_wire_kind;

/* How numbers of a dispatch and its answer are written, as bits of `form`. */
#define EK_WIRE_FORM_BF16   1u /* activations and rows in bf16, rounded to nearest even; else f32 */
#define EK_WIRE_FORM_SUMMED 2u /* the answer has weighted sums per token, else a row per row */
#define EK_WIRE_FORM_ALL    3u

/* What a load report may say, as bits. */
#define EK_WIRE_LOAD_DRAINING 1u /* send other workers what they can do as well */

/** Before every message. */
typedef struct ek_wire_header {
    uint32_t magic;
    uint16_t version;
    uint8_t kind;
    uint8_t form;
    uint32_t body_bytes;
    uint32_t epoch; /* of the session, given by the worker; 0 in HELLO and REFUSE */
    uint64_t seq;   /* of the dispatch; its answer has the same */
    int32_t layer;
    int32_t n_tokens;
    int32_t n_shares; /* experts of the dispatch */
    int32_t n_rows;
    /* The load report: in LOAD and COMBINE. */
    uint64_t busy_us; /* computed since the worker started */
    uint32_t queue;   /* dispatches that wait, of all fronts */
    uint32_t load_flags;
    uint64_t echo_us; /* of a BEAT, the sender's clock; in LOAD, that of the last BEAT */
} ek_wire_header;

static_assert(sizeof(ek_wire_header) == 64, "wire header");
static_assert(offsetof(ek_wire_header, body_bytes) == 8, "wire header");
static_assert(offsetof(ek_wire_header, seq) == 16, "wire header");
static_assert(offsetof(ek_wire_header, n_rows) == 36, "wire header");
static_assert(offsetof(ek_wire_header, busy_us) == 40, "wire header");
static_assert(offsetof(ek_wire_header, echo_us) == 56, "wire header");

/** Body of HELLO. */
typedef struct ek_wire_hello {
    uint8_t model[32]; /* expert/identity.h */
    int32_t n_layers;
    int32_t n_experts;
    int32_t d_model;
    int32_t top_k;
    int32_t tokens_max; /* of one dispatch */
    uint32_t features;  /* EK_WIRE_HELLO_*; others 0 */
} ek_wire_hello;

static_assert(sizeof(ek_wire_hello) == 56, "hello");

#define EK_WIRE_FABRIC_UCX 1u
#define EK_WIRE_CAN_PROBE  0x8000u

/** Body of WELCOME on a control link; the set of experts follows (link/expert_set.h). */
typedef struct ek_wire_welcome {
    uint8_t token[EK_WIRE_TOKEN_BYTES]; /* the data link's first body */
    uint64_t weight_bytes;              /* of its experts */
    int32_t n_threads;
    uint16_t plain_port; /* where unencrypted data links are taken; 0: nowhere */
    uint16_t fabrics;    /* EK_WIRE_FABRIC_*: what OPEN may ask for; EK_WIRE_CAN_*: what else */
} ek_wire_welcome;

static_assert(sizeof(ek_wire_welcome) == 32, "welcome");

/** Sizes that both sides of a session agreed on in HELLO. */
typedef struct ek_wire_shape {
    int32_t n_layers;
    int32_t n_experts;
    int32_t d_model;
    int32_t top_k;
    int32_t tokens_max;
} ek_wire_shape;

/** A header of this version with everything else 0. */
ek_wire_header ek_link_wire_header(ek_wire_kind kind, uint32_t epoch);

/**
 * Is this the beginning of a message that a receiver with so much room can take?
 * @return EK_OK; EK_EUNSUPPORTED another version (kind and sizes mean nothing then); EK_EFORMAT,
 *         the text says what is wrong
 */
EK_MUST ek_status ek_link_wire_check(const ek_wire_header *header, size_t body_bytes_max,
                                     ek_err *err);

/** Could a model have this shape? @return EK_OK; EK_EFORMAT */
EK_MUST ek_status ek_link_wire_shape_check(const ek_wire_shape *shape, ek_err *err);

/** Where the parts of a dispatch's body begin, from its start; all multiples of 4. */
typedef struct ek_wire_dispatch_layout {
    size_t x;            /* (n_tokens, d_model) f32 or bf16 */
    size_t share_expert; /* (n_shares) ascending */
    size_t share_beg;    /* (n_shares + 1) rows of each share; first 0, last n_rows */
    size_t row_token;    /* (n_rows) of the message's tokens; ascending within a share */
    size_t weight;       /* (n_rows) f32 where sums are asked for, else absent */
    size_t bytes;
} ek_wire_dispatch_layout;

/** Where those of an answer begin. */
typedef struct ek_wire_combine_layout {
    size_t y;       /* (n_rows, d_model), or (n_tokens, d_model) sums; f32 or bf16 */
    size_t busy_us; /* (n_shares) u32: time that threads computed for each share */
    size_t bytes;
} ek_wire_combine_layout;

/**
 * Lay a dispatch or its answer out, from the counts in its header.
 * @return EK_OK; EK_EFORMAT counts that no dispatch of this shape can have, or a body beyond
 *         EK_WIRE_BODY_BYTES_MAX
 */
EK_MUST ek_status ek_link_wire_dispatch_lay(const ek_wire_shape *shape,
                                            const ek_wire_header *header,
                                            ek_wire_dispatch_layout *out_layout);
/** @return as above */
EK_MUST ek_status ek_link_wire_combine_lay(const ek_wire_shape *shape, const ek_wire_header *header,
                                           ek_wire_combine_layout *out_layout);

/** The longest bodies that dispatches of this shape, and their answers, can have. */
size_t ek_link_wire_dispatch_bytes_max(const ek_wire_shape *shape);
size_t ek_link_wire_combine_bytes_max(const ek_wire_shape *shape);

/** A dispatch in a received body, whose lists have been checked. Pointers are into the body. */
typedef struct ek_wire_dispatch {
    const void *x;
    const int32_t *share_expert;
    const int32_t *share_beg;
    const int32_t *row_token;
    const float *weight; /* NULL: rows are asked for */
} ek_wire_dispatch;

/**
 * Check a received dispatch: its length and each of its indices. (Whether the experts are there is
 * the worker's to know.)
 * @param body 4-byte aligned, header->body_bytes long
 * @return EK_OK; EK_EFORMAT, the text says what is wrong
 */
EK_MUST ek_status ek_link_wire_dispatch_read(const ek_wire_shape *shape,
                                             const ek_wire_header *header, const void *body,
                                             ek_wire_dispatch *out_dispatch, ek_err *err);

/** n numbers to bf16, rounded to nearest even (a NaN stays one), and back. */
void ek_link_wire_to_bf16(const float *x, int64_t n, uint16_t *out_bf16);
void ek_link_wire_from_bf16(const uint16_t *x, int64_t n, float *out_f32);

#endif
