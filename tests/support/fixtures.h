/*
 * What tests run on: models that the build made, models and expected values from ../shared, files
 * and temporary folders.
 *
 * Whatever may be absent (everything of ../shared) is asked for with a function that prints what is
 * missing and returns NULL or false; the test then calls skip(). Whatever has to be there fails the
 * test at once. Memory is the heap's, so that a sanitizer sees each byte that is read past an end.
 * One thread.
 */
#ifndef EK_TESTS_SUPPORT_FIXTURES_H
#define EK_TESTS_SUPPORT_FIXTURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/span.h"

#define EK_FIXTURE_PATH_MAX 4096

typedef struct ek_fixture_path {
    char text[EK_FIXTURE_PATH_MAX];
} ek_fixture_path;

/** A file in the build tree ("tests/support/tiny-olmoe-f32.gguf"); it must be there. */
void ek_fixture_build(const char *name, ek_fixture_path *out_path);

/** A file in the source tree ("tests/fuzz/corpus"). */
void ek_fixture_source(const char *name, ek_fixture_path *out_path);

/**
 * A file below ../shared ("data/models/demo-q8_0.gguf"), found through $EK_SHARED or beside the
 * source tree. @return false, and says so on standard output, when it is absent
 */
EK_MUST bool ek_fixture_shared(const char *name, ek_fixture_path *out_path);

/**
 * A small model made by ../shared/tools/make_gguf.py ("tiny-olmoe", "q4_k_m"), once per build
 * folder; tests that run side by side wait for each other. Its SHA-256 must be the one in
 * expected_logits.json, since the generator trains its tokenizer from /usr/share/common-licenses as
 * Debian 12 has them.
 * @return false, and says why, when ../shared is absent or the file came out differently
 */
EK_MUST bool ek_fixture_shared_gguf(const char *preset, const char *quant,
                                    ek_fixture_path *out_path);

/** A new empty folder below the build tree, and its removal with everything in it. */
void ek_fixture_tempdir(ek_fixture_path *out_path);
void ek_fixture_tempdir_remove(const ek_fixture_path *path);

/** "<dir>/<name>". */
void ek_fixture_join(const ek_fixture_path *dir, const char *name, ek_fixture_path *out_path);

/** A file's bytes in a heap block of exactly that size; fails the test when it cannot be read. */
ek_span ek_fixture_read(const char *path);
void ek_fixture_write(const char *path, ek_span bytes);
/** Frees what ek_fixture_read gave. */
void ek_fixture_free(ek_span bytes);

/** An arena over heap memory; ek_fixture_arena_free takes its `beg` as it was before first use. */
ek_arena ek_fixture_arena(size_t bytes);
void ek_fixture_arena_free(void *base);

/** One prompt and what an independent implementation made of it. */
typedef struct ek_fixture_case {
    ek_str prompt;         /* special tokens parsed, BOS as the file says */
    const int32_t *tokens; /* (n_tokens) the prompt's ids */
    int32_t n_tokens;
    const int32_t *greedy; /* (n_greedy) ids that follow, an end token last if it came to one */
    int32_t n_greedy;
    const float *logits; /* (n_logits) of the last prompt position */
    int32_t n_logits;
    /* The same from weights dequantised to F32: the truth to aim at. F32 files: as above. */
    const int32_t *exact_greedy;
    int32_t n_exact_greedy;
    const float *exact_logits;
    double nmse_of_peer; /* the peer's own error against that truth; 0 in F32 files */
    double top1_margin; /* how close the closest greedy race is; NAN where not given (demo model) */
    ek_str text;        /* demo model: the greedy answer as text; else empty */
} ek_fixture_case;

typedef struct ek_fixture_golden {
    void *mem;                    /* owned */
    ek_str preset;                /* "tiny-olmoe"; empty for the demo model */
    ek_str quant;                 /* "f32" */
    ek_str sha256;                /* of the file, lower-case hex */
    const ek_fixture_case *cases; /* (n_cases) */
    int32_t n_cases;
} ek_fixture_golden;

/**
 * Expected values for one model file: "tiny-olmoe-f32.gguf" and its like, or "demo-q8_0.gguf".
 * @return false, and says so, when ../shared is absent; an entry that is not there fails the test
 */
EK_MUST bool ek_fixture_golden_load(const char *model_file, ek_fixture_golden *out_golden);
void ek_fixture_golden_free(ek_fixture_golden *golden);

/** Ids that an independent tokenizer gave, no BOS or EOS added. */
typedef struct ek_fixture_encoding {
    ek_str text;
    const int32_t *plain; /* (n_plain) special tokens in the text are plain text */
    int32_t n_plain;
    const int32_t *special; /* (n_special) special tokens in the text are parsed */
    int32_t n_special;
} ek_fixture_encoding;

typedef struct ek_fixture_encodings {
    void *mem; /* owned */
    const ek_fixture_encoding *items;
    int32_t n_items;
} ek_fixture_encodings;

/** @param preset "tiny-qwen2moe", "tiny-olmoe", "tiny-deepseek2", "tiny-deepseek2-v3" or
 * "tiny-mixtral" */
EK_MUST bool ek_fixture_encodings_load(const char *preset, ek_fixture_encodings *out_encodings);
void ek_fixture_encodings_free(ek_fixture_encodings *encodings);

#endif
