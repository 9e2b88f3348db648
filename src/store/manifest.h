/*
 * The manifest of a model: its files, and a SHA-256 for each of the pieces (shards) that weights
 * are stored, fetched and checked in. docs/formats/manifest.md has the format.
 *
 * A shard is the head of a file (metadata and tensor directory), a tensor or up to 64 MiB of one,
 * or one expert's part of a tensor that holds the experts of a layer. What no shard covers is
 * zeros. A manifest's own hash, the body's, names the model: weights, metadata and tokenizer.
 *
 * Parsing checks all of it, so that whoever has a manifest relies on it: shards lie in order,
 * inside their files, without touching each other. Everything lives in the arena given. One thread.
 */
#ifndef EK_STORE_MANIFEST_H
#define EK_STORE_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"
#include "sys/sha256.h"

#define EK_STORE_VERSION            1
#define EK_STORE_MANIFEST_BYTES_MAX ((size_t)256 << 20) /* of its text */
#define EK_STORE_NAME_MAX           255                 /* bytes of a file's name */
#define EK_STORE_SHARD_BYTES_MAX    ((int64_t)64 << 20) /* of a shard that we make */

typedef enum ek_store_part {
    EK_STORE_HEAD,   /* up to a file's first tensor */
    EK_STORE_DENSE,  /* of a tensor that every token meets */
    EK_STORE_EXPERT, /* of one expert */
    EK_STORE_GAP,    /* between tensors, where there is something else than zeros */
} ek_store_part;

typedef struct ek_store_shard {
    ek_store_part part;
    int32_t file;          /* its index */
    int32_t layer, expert; /* -1 unless an expert's */
    int64_t offset, bytes; /* in the file */
    const char *tensor;    /* its name; "" for a head or a gap */
    char sha256[EK_SHA256_HEX_BYTES];
} ek_store_shard;

typedef struct ek_store_file {
    const char *name; /* without any directory */
    int64_t bytes;
    int32_t first, n_shards; /* its shards, in the order of their offsets */
} ek_store_file;

typedef struct ek_store_manifest {
    const char *arch, *model; /* "qwen2moe"; what the file calls itself */
    int32_t n_layers, n_experts;
    char identity[EK_SHA256_HEX_BYTES];  /* what fronts and workers compare: expert/identity.h */
    char tokenizer[EK_SHA256_HEX_BYTES]; /* of the tokenizer's metadata */
    char body_sha256[EK_SHA256_HEX_BYTES];
    int32_t n_files, n_shards;
    ek_store_file *files;   /* (n_files) */
    ek_store_shard *shards; /* (n_shards) */
} ek_store_manifest;

/**
 * Read a manifest's text and check it.
 * @param perm everything lies there; ek_store_manifest_perm_bytes_max says how much that can be
 * @return EK_OK; EK_EFORMAT no manifest, or a damaged one, the text says where; EK_EUNSUPPORTED
 *         another version; EK_ENOMEM
 */
EK_MUST ek_status ek_store_manifest_parse(ek_str text, ek_arena *perm,
                                          ek_store_manifest *out_manifest, ek_err *err);
size_t ek_store_manifest_perm_bytes_max(size_t text_bytes);

/**
 * The text of a manifest; computes body_sha256.
 * @param out_text its data is the caller's, ek_sys_free
 * @return EK_OK; EK_EFORMAT a name is not UTF-8; EK_ENOMEM
 */
EK_MUST ek_status ek_store_manifest_print(ek_store_manifest *manifest, ek_str *out_text,
                                          ek_err *err);

/** A shard as people call it: "blk.0.ffn_up_exps.weight, expert 3 (a.gguf, 96 bytes at 4096)". */
void ek_store_shard_say(const ek_store_manifest *manifest, int32_t shard, char *out_text,
                        size_t bytes);

/** What is wanted of a model. */
typedef struct ek_store_want {
    bool dense; /* all but the routed experts; heads are always wanted */
    /* (n_layers, ceil(n_experts / 64)) bit e % 64 of word e / 64; NULL: no experts. Borrowed. */
    const uint64_t *experts;
    bool all; /* everything, whatever the others say */
} ek_store_want;

/** Is a shard wanted? */
bool ek_store_wants(const ek_store_manifest *manifest, const ek_store_want *want, int32_t shard);

/** A run of wanted shards of one file, close enough to each other for one request. */
typedef struct ek_store_pull {
    int32_t file;
    int32_t first, last; /* shards */
} ek_store_pull;

/**
 * Group shards into requests.
 * @param missing   (n_shards) not 0: wanted and not there yet
 * @param bytes_max of a request, unless one shard alone is larger
 * @param gap_max   bytes of no use that are rather transferred than skipped
 * @param out_pulls (n_shards)
 * @return how many
 */
int32_t ek_store_plan(const ek_store_manifest *manifest, const uint8_t *missing, int64_t bytes_max,
                      int64_t gap_max, ek_store_pull *out_pulls);

#endif
