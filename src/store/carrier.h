/*
 * Carriers bring bytes of files from one place: a directory, an HTTP server, an S3 bucket. What
 * differs between them is behind one small table; libcurl is known to carrier_curl.c alone.
 *
 * A carrier has a number of slots, each with at most one request under way. Whoever owns it starts
 * requests and calls step, from which bytes are handed on as they come, in order. One thread.
 */
#ifndef EK_STORE_CARRIER_H
#define EK_STORE_CARRIER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"

#define EK_STORE_URL_MAX   4096
#define EK_STORE_SLOTS_MAX 64 /* requests under way at once */

/** How places are reached. All texts are borrowed until the carrier is closed; NULL: not set. */
typedef struct ek_store_access {
    const char *aws_key_id, *aws_secret, *aws_token; /* without a key requests are not signed */
    const char *aws_region;                          /* NULL: us-east-1 */
    const char *aws_endpoint;                        /* URL; NULL: AWS's of the region */
    const char *ca_file; /* certificates of authorities that servers may have theirs from; NULL: the
                          * system's */
    int32_t stall_s;     /* a request that moves less than 1 KiB/s for so long is given up */
} ek_store_access;

/** Bytes of one file. */
typedef struct ek_store_request {
    const char *name;      /* of the file below the place; "": the place is the file. Borrowed */
    int64_t offset, bytes; /* wanted; bytes 0: all of it */
    int64_t file_bytes;    /* its size; 0: unknown */
    /**
     * Bytes that lie at `at`; false: no more, the taker knows why. In step only.
     */
    bool (*take)(void *ctx, int64_t at, ek_span bytes);
    void *ctx;
} ek_store_request;

/** How a request ended. */
typedef enum ek_store_verdict {
    EK_STORE_CAME,      /* all that was asked for, or what the place has of it */
    EK_STORE_REFUSED,   /* take said false */
    EK_STORE_WHOLE,     /* the place only gives whole files; nothing was handed on */
    EK_STORE_TRANSIENT, /* it may do to ask again */
    EK_STORE_ABSENT,    /* it will not: no such file, no permission, no such place */
} ek_store_verdict;

typedef struct ek_store_outcome {
    int32_t slot;
    ek_store_verdict verdict;
    ek_err err; /* for TRANSIENT and ABSENT: place and reason */
} ek_store_outcome;

typedef struct ek_store_carrier ek_store_carrier;

/** What a kind of carrier implements. */
typedef struct ek_store_carrier_ops {
    ek_status (*start)(ek_store_carrier *carrier, int32_t slot, const ek_store_request *request,
                       ek_err *err);
    bool (*step)(ek_store_carrier *carrier, int32_t wait_ms, ek_store_outcome *out_outcome);
    void (*close)(ek_store_carrier *carrier);
} ek_store_carrier_ops;

struct ek_store_carrier {
    const ek_store_carrier_ops *ops;
    char place[EK_STORE_URL_MAX]; /* as it was named, without slashes at its end */
};

/**
 * Open the carrier for a place: "http://", "https://" or "s3://bucket/..." by its beginning, else a
 * directory, or "file://" and one. A place that ends in ".gguf" is a file.
 * @param n_slots 1..EK_STORE_SLOTS_MAX
 * @param access  borrowed until close
 * @return EK_OK; EK_EINVAL no place; EK_ENOMEM
 */
EK_MUST ek_status ek_store_carrier_open(const char *place, int32_t n_slots,
                                        const ek_store_access *access,
                                        ek_store_carrier **out_carrier, ek_err *err);

/** @return EK_OK; EK_EINVAL a URL that cannot be; EK_ENOMEM */
EK_MUST static inline ek_status ek_store_carrier_start(ek_store_carrier *carrier, int32_t slot,
                                                       const ek_store_request *request, ek_err *err)
{
    return carrier->ops->start(carrier, slot, request, err);
}

/**
 * Move bytes, waiting up to wait_ms for some to come.
 * @return whether a request has ended: its slot is free again
 */
static inline bool ek_store_carrier_step(ek_store_carrier *carrier, int32_t wait_ms,
                                         ek_store_outcome *out_outcome)
{
    return carrier->ops->step(carrier, wait_ms, out_outcome);
}

/** Ends what is under way. Accepts NULL. */
void ek_store_carrier_close(ek_store_carrier *carrier);

/** Is it the URL of a server, or a path? */
bool ek_store_is_url(const char *place);

/**
 * Read one small file: a manifest.
 * @param place path or URL of the file itself; "-" is standard input
 * @param out_text its data is the caller's, ek_sys_free
 * @return EK_OK; EK_EINVAL; EK_ENOTFOUND; EK_EACCESS; EK_EIO; EK_EPEER; EK_ERANGE longer than
 *         max_bytes; EK_ENOMEM
 */
EK_MUST ek_status ek_store_read_text(const char *place, size_t max_bytes,
                                     const ek_store_access *access, ek_str *out_text, ek_err *err);

/* The kinds; for carrier.c. */
ek_status ek_store_carrier_open_disk(int32_t n_slots, ek_store_carrier **out_carrier, ek_err *err);
ek_status ek_store_carrier_open_curl(int32_t n_slots, const ek_store_access *access,
                                     ek_store_carrier **out_carrier, ek_err *err);
/** "PLACE/NAME", or PLACE where that names a file. @return false: too long */
bool ek_store_carrier_path(const ek_store_carrier *carrier, const char *name,
                           char out_path[EK_STORE_URL_MAX]);

#endif
