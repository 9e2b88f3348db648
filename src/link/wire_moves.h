/*
 * Messages by which experts move between workers, besides those of link/wire.h: what a worker has
 * now, what a front wants it to have, what came of that, and the bytes of an expert that one worker
 * reads from another (docs/formats/wire.md).
 *
 * As in link/wire.h, nothing that arrives is used before it was checked here. Pure.
 */
#ifndef EK_LINK_WIRE_MOVES_H
#define EK_LINK_WIRE_MOVES_H

#include "link/wire.h"

#define EK_WIRE_HELLO_MOVES       1u      /* of HELLO's features: it takes HAVE */
#define EK_WIRE_WELCOME_MOVES     0x4000u /* of WELCOME's fabrics: HAVE follows at once */
#define EK_WIRE_ORDER_EXPERTS_MAX 64      /* of one layer, in one order */
#define EK_WIRE_ORDER_PEERS_MAX   4
#define EK_WIRE_PEER_BYTES        128 /* of an address, with its NUL */
#define EK_WIRE_PIECE_BYTES_MAX   ((uint32_t)256 << 10)

/** Head of HAVE's body; two sets of experts follow: what it offers, and what it acquired of it. */
typedef struct ek_wire_have {
    uint64_t room_bytes; /* for experts beyond those that it was started with */
    uint64_t used_bytes; /* of it */
} ek_wire_have;

static_assert(sizeof(ek_wire_have) == 16, "have");

typedef enum ek_wire_verb {
    EK_WIRE_ACQUIRE = 1,
    EK_WIRE_RELEASE,
} ek_wire_verb;

/** Body of ORDER, as long as its counts make it. */
typedef struct ek_wire_order {
    uint32_t verb; /* ek_wire_verb */
    int32_t layer;
    int32_t n_experts;                         /* 1..EK_WIRE_ORDER_EXPERTS_MAX */
    int32_t n_peers;                           /* that may have the bytes, nearest first */
    int32_t expert[EK_WIRE_ORDER_EXPERTS_MAX]; /* ascending */
    char peer[EK_WIRE_ORDER_PEERS_MAX][EK_WIRE_PEER_BYTES]; /* "host:port", NUL-terminated */
} ek_wire_order;

static_assert(offsetof(ek_wire_order, expert) == 16, "order");

typedef enum ek_wire_move_state {
    EK_WIRE_MOVE_WORKING = 1,
    EK_WIRE_MOVE_DONE,
    EK_WIRE_MOVE_FAILED,  /* the text says why; what was done before stays */
    EK_WIRE_MOVE_REFUSED, /* it takes no orders of this front */
} ek_wire_move_state;

/** Head of OUTCOME's body; why, as text, follows. */
typedef struct ek_wire_outcome {
    uint32_t state;  /* ek_wire_move_state */
    uint32_t n_done; /* experts of the order */
    uint64_t bytes;  /* of weights that were read, whereever from */
    uint64_t bytes_all;
    uint64_t store_bytes; /* of them from the weight store */
    uint64_t peer_bytes;  /* and from another worker */
} ek_wire_outcome;

static_assert(sizeof(ek_wire_outcome) == 40, "outcome");

/** Body of READ: a part of one matrix of an expert, as it lies in the model's file. */
typedef struct ek_wire_read {
    uint8_t model[32]; /* expert/identity.h */
    int32_t layer;
    int32_t expert;
    uint32_t mat;    /* 0 gate, 1 up, 2 down */
    uint32_t bytes;  /* 1..EK_WIRE_PIECE_BYTES_MAX */
    uint64_t offset; /* within the expert's matrix */
} ek_wire_read;

static_assert(sizeof(ek_wire_read) == 56, "read");

/** Bytes of HAVE's body for a model. */
size_t ek_link_wire_have_bytes(const ek_wire_shape *shape);

/**
 * Lay an order out as it is sent.
 * @param out_body sizeof *order bytes of room
 * @return its bytes
 */
size_t ek_link_wire_order_write(const ek_wire_order *order, uint8_t *out_body);

/**
 * Check a received ORDER: its length, each index, each address.
 * @return EK_OK; EK_EFORMAT, the text says what is wrong
 */
EK_MUST ek_status ek_link_wire_order_read(const ek_wire_shape *shape, const ek_wire_header *header,
                                          const void *body, ek_wire_order *out_order, ek_err *err);

/**
 * Check a received OUTCOME.
 * @param out_why its text, in the body
 * @return EK_OK; EK_EFORMAT
 */
EK_MUST ek_status ek_link_wire_outcome_read(const ek_wire_header *header, const void *body,
                                            ek_wire_outcome *out_outcome, ek_str *out_why,
                                            ek_err *err);

/**
 * Check a received READ.
 * @return EK_OK; EK_EFORMAT
 */
EK_MUST ek_status ek_link_wire_read_read(const ek_wire_shape *shape, const ek_wire_header *header,
                                         const void *body, ek_wire_read *out_read, ek_err *err);

#endif
