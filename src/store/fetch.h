/*
 * Fetching the weights that are wanted from the nearest place that has them.
 *
 * Files are made with their true size and filled shard by shard, so that what was not wanted takes
 * no space and offsets are those of the whole model. A shard counts once its hash is right. A file
 * is called NAME.part until all that was wanted of it is there and on the disk; NAME.fetch.json, of
 * the first file's name, is the ledger (store/ledger.h), NAME.manifest.json the manifest. Whatever
 * ends a fetch, the same call goes on from there.
 *
 * The calling thread does everything but hashing what is there already.
 */
#ifndef EK_STORE_FETCH_H
#define EK_STORE_FETCH_H

#include "store/carrier.h"
#include "store/manifest.h"
#include "sys/pool.h"

#define EK_STORE_SOURCES_MAX 16

typedef struct ek_store_progress {
    int64_t wanted_bytes, done_bytes; /* done: hashed, and right */
    int64_t moved_bytes;              /* that came in, whatever became of them */
    bool checking;                    /* what is there already is being hashed */
} ek_store_progress;

typedef struct ek_store_fetch_params {
    const ek_store_manifest *manifest;
    ek_str manifest_text; /* as it came; is written beside the weights */
    const char *dir;      /* made if it is not there; its parent has to be */
    const char *const *sources;
    int32_t n_sources; /* 1..EK_STORE_SOURCES_MAX, nearest first */
    ek_store_access access;
    ek_store_want want;
    int32_t n_parallel; /* 1..EK_STORE_SLOTS_MAX requests at once */
    int32_t n_retries;  /* of a request at one source, >= 0; after pauses that double */
    ek_sys_pool *pool;
    /** Several times a second; false ends the fetch. NULL: nobody asks. */
    bool (*on_progress)(void *ctx, const ek_store_progress *progress);
    void *ctx;
} ek_store_fetch_params;

typedef struct ek_store_fetched {
    int32_t n_wanted, n_kept, n_came; /* shards */
    int32_t n_damaged;                /* that were there, and wrong */
    int64_t wanted_bytes, kept_bytes, came_bytes;
    int64_t n_retries;
    bool unsaved;              /* it failed, and the ledger does not have all that came */
    int64_t check_us, load_us; /* hashing what was there; all of it */
    struct {
        int64_t bytes;
        char trouble[EK_ERR_TEXT_MAX]; /* the last; "" for none */
    } sources[EK_STORE_SOURCES_MAX];
} ek_store_fetched;

/**
 * Fetch.
 * @param out_fetched written whatever comes back
 * @return EK_OK all that is wanted is in place; EK_ECANCELED; EK_EINVAL a source that is none;
 *         EK_EEXIST something else is in the way; EK_EFORMAT the sources have other weights;
 *         EK_ENOTFOUND, EK_EACCESS, EK_EPEER, EK_ETIMEOUT the last reason of the last source;
 *         EK_EIO the disk, full for example; EK_ENOMEM
 */
EK_MUST ek_status ek_store_fetch(const ek_store_fetch_params *params, ek_store_fetched *out_fetched,
                                 ek_err *err);

#endif
