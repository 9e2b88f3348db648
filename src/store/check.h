/*
 * Hashing shards on all threads of a pool, and holding a model's files against a manifest. One
 * thread calls.
 */
#ifndef EK_STORE_CHECK_H
#define EK_STORE_CHECK_H

#include "store/manifest.h"
#include "sys/pool.h"

/** Hashing many shards. */
typedef struct ek_store_hashing {
    const ek_store_manifest *manifest;
    const ek_span *files;  /* (n_files) mapped; one without data: its shards are left out */
    const uint8_t *wanted; /* (n_shards) 0: leave out; NULL: all */
    ek_sys_pool *pool;
    /* Called by the thread that called, now and then. False: stop. NULL: nobody asks. */
    bool (*on_progress)(void *ctx, int64_t done_bytes, int64_t all_bytes);
    void *ctx;
} ek_store_hashing;

/**
 * Hash shards.
 * @param out_hex (n_shards) of those asked for
 * @return EK_OK; EK_ENOMEM; EK_ECANCELED
 */
EK_MUST ek_status ek_store_hash(const ek_store_hashing *job, char (*out_hex)[EK_SHA256_HEX_BYTES]);

/** Say how a shard differs. @return EK_EFORMAT */
ek_status ek_store_differs(const ek_store_manifest *manifest, int32_t shard, const char *found_hex,
                           ek_err *err);

/** What to hold against a manifest. */
typedef struct ek_store_checking {
    const ek_store_manifest *manifest;
    const char *model_path; /* of the first file; the others lie beside it */
    ek_store_want want;
    ek_sys_pool *pool;
    bool (*on_progress)(void *ctx, int64_t done_bytes, int64_t all_bytes); /* as above */
    void *ctx;
} ek_store_checking;

/**
 * Are the shards that are wanted those of the manifest?
 * @param out_n, out_bytes shards that were looked at, and their bytes
 * @return EK_OK; EK_EFORMAT a file of another size, or shards that differ: the text names the first
 *         and both hashes; what sys/file.h returns; EK_ECANCELED; EK_ENOMEM
 */
EK_MUST ek_status ek_store_check(const ek_store_checking *job, int32_t *out_n, int64_t *out_bytes,
                                 ek_err *err);

#endif
