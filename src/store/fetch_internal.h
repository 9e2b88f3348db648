/* What the parts of a fetch share: fetch.c begins and ends it, fetch_move.c moves bytes. */
#ifndef EK_STORE_FETCH_INTERNAL_H
#define EK_STORE_FETCH_INTERNAL_H

#include "store/fetch.h"
#include "sys/sha256.h"
#include "sys/sparse.h"

#define EK_FETCH_PATH_MAX 4096

/** A file as it is here. */
typedef struct ek_fetch_file {
    char final_path[EK_FETCH_PATH_MAX], part_path[EK_FETCH_PATH_MAX];
    bool in_place;      /* the final one is there, and is written to */
    bool wanted;        /* has shards that are missing, or is not called by its final name yet */
    ek_sys_sparse file; /* owned; open while something is missing */
} ek_fetch_file;

/** A request to be made: a pull, and what became of it so far. */
typedef struct ek_fetch_task {
    ek_store_pull pull;
    int32_t source; /* that is asked */
    int32_t n_tries;
    bool active, ended;
    int64_t due_us;
} ek_fetch_task;

/** Where the bytes of a request go. */
typedef struct ek_fetch_sink {
    struct ek_fetch *fetch;
    ek_fetch_task *task; /* NULL: free */
    bool whole_file;     /* all of the file that is missing, in one stream */
    int32_t at_shard, last;
    bool hashing;
    ek_sys_sha256 hash; /* owned while hashing */
    bool complete;      /* nothing more is of use */
    bool brought;       /* a shard, at least */
    ek_status status;   /* EK_EFORMAT: a shard is wrong; else the disk */
    ek_err err;
} ek_fetch_sink;

typedef struct ek_fetch {
    const ek_store_fetch_params *params;
    const ek_store_manifest *m;
    ek_store_fetched *out;
    ek_fetch_file *files; /* (n_files) owned, like all below */
    uint8_t *missing;     /* (n_shards) 1: wanted, and not there */
    uint8_t *done;        /* (n_shards) 1: complete */
    ek_store_pull *pulls; /* (n_shards) */
    ek_fetch_task *tasks; /* (n_tasks) */
    int32_t n_tasks, n_ended;
    uint8_t *given_up;   /* (n_sources, n_files) 1: not to be asked for that file */
    uint8_t *whole_only; /* (n_sources, n_files) 1: gives whole files */
    ek_store_carrier *carriers[EK_STORE_SOURCES_MAX];
    ek_fetch_sink sinks[EK_STORE_SOURCES_MAX][EK_STORE_SLOTS_MAX];
    int32_t n_active, n_active_at[EK_STORE_SOURCES_MAX];
    char ledger_path[EK_FETCH_PATH_MAX], manifest_path[EK_FETCH_PATH_MAX];
    int64_t moved_bytes, saved_us, told_us;
    bool unsaved;
} ek_fetch;

/** Bring all that is missing. @return as ek_store_fetch */
EK_MUST ek_status ek_store_fetch_move(ek_fetch *f, ek_err *err);

/** Bring files and ledger to the disk. @return EK_OK; EK_EIO and the like */
EK_MUST ek_status ek_store_fetch_save(ek_fetch *f, ek_err *err);

/** Tell the caller. @return false: it wants no more */
EK_MUST bool ek_store_fetch_tell(ek_fetch *f, bool checking, int64_t checked_bytes);

#endif
