/*
 * Getting an expert's bytes into a worker's model file: they are there already, or they come from a
 * weight store, or from another worker.
 *
 * Bytes are held against the manifest shard by shard before they are written, so that the file has
 * what the manifest says or what it had before. Without a manifest the file is taken for whole, as
 * it is at start. One shard is in memory at a time, and all reading keeps to a rate, so that
 * serving goes on beside it. One thread.
 */
#ifndef EK_WORKER_ACQUIRE_H
#define EK_WORKER_ACQUIRE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "link/fabric.h"
#include "link/wire_moves.h"
#include "model/desc.h"
#include "store/carrier.h"
#include "store/manifest.h"

#define EK_ACQUIRE_SOURCES_MAX 8

/** The connection to the worker that was read from last: kept, since a handshake costs. */
typedef struct ek_acquire_line {
    ek_link *link; /* owned; NULL: none */
    char address[EK_WIRE_PEER_BYTES];
} ek_acquire_line;

/** Where bytes may come from. All borrowed for as long as it is used. */
typedef struct ek_acquire_setup {
    const ek_model *model; /* as it lies in the file's map */
    const char *model_path;
    const ek_store_manifest *manifest; /* NULL: the file is whole */
    const char *sources;               /* "DIR,https://..."; NULL: none */
    ek_store_access access;
    int64_t bytes_per_s;   /* 0: as fast as can be */
    ek_fabric *tls;        /* to other workers */
    ek_acquire_line *line; /* the caller's, zeroed at first; hung up by it when an order is over */
    const uint8_t *identity; /* (32) of the model */
    /** Asked every now and then; false ends it. */
    bool (*goes_on)(void *ctx);
    void *ctx;
} ek_acquire_setup;

/** Bytes that were read, for whoever looks at it from another thread. */
typedef struct ek_acquire_progress {
    _Atomic uint64_t bytes;
    _Atomic uint64_t store_bytes;
    _Atomic uint64_t peer_bytes;
} ek_acquire_progress;

/**
 * Have an expert's bytes in the file.
 * @param order its peers may have them
 * @return EK_OK; EK_ECANCELED; EK_EFORMAT, EK_ENOTFOUND, EK_EPEER, ... the last reason of the last
 *         source; EK_EACCESS, EK_EIO the file cannot be written; EK_ENOMEM
 */
EK_MUST ek_status ek_worker_acquire(const ek_acquire_setup *setup, const ek_wire_order *order,
                                    int32_t expert, ek_acquire_progress *progress, ek_err *err);

/** Close the connection. */
void ek_worker_acquire_hang_up(ek_acquire_line *line);

/* ---- for acquire_peer.c ---- */

/** A shard on its way. */
typedef struct ek_acquire_shard {
    const ek_acquire_setup *setup;
    int32_t shard;
    int32_t layer, expert;
    uint32_t mat;    /* 0 gate, 1 up, 2 down */
    uint64_t offset; /* within the expert's matrix */
    size_t bytes;
    const uint8_t *there; /* in the file's map */
    uint8_t *buffer;      /* (bytes) */
    int64_t beg_us;       /* of the order, for the rate */
    uint64_t *spent;      /* bytes since then */
    ek_acquire_progress *progress;
} ek_acquire_shard;

/** Read a shard from a worker into its buffer, unchecked. @return EK_OK; EK_EPEER and its like */
EK_MUST ek_status ek_worker_acquire_from_peer(const ek_acquire_shard *shard, const char *address,
                                              ek_err *err);

/** So many bytes were read: wait until the rate allows more. @return false: it is to end */
bool ek_worker_acquire_pace(const ek_acquire_shard *shard, size_t bytes);

#endif
