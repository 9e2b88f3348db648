/*
 * Pre-tokenizer: cuts a text into the pieces within which byte-level BPE may merge.
 *
 * A model names its pre-tokenizer (tokenizer.ggml.pre), a row of a table: one or more regular
 * expressions that are applied one after another, each to the pieces that the one before left. What
 * lies between two matches is a piece too, so that no byte is ever lost. PCRE2 compiles them to
 * machine code where the system lets it, and interprets them elsewhere with the same result.
 *
 * The compiled object is immutable and shared by threads; a cursor belongs to one call. Private to
 * the tokenizer.
 */
#ifndef EK_MODEL_PRETOKENIZE_H
#define EK_MODEL_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"

#define EK_PRETOKENIZE_STEPS_MAX 6

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

/** One name, as the file says it, and what else the models that use it have in common. */
typedef struct ek_pretokenize_rule {
    const char *name;
    const char *const *patterns; /* NULL-terminated, at most EK_PRETOKENIZE_STEPS_MAX */
    bool ignore_merges;          /* a piece that the vocabulary has is that token, merges or not */
    bool adds_bos;               /* unless the file says otherwise */
} ek_pretokenize_rule;

typedef struct ek_pretokenizer {
    const ek_pretokenize_rule *rule;
    int32_t n_steps;
    struct pcre2_real_code_8 *code[EK_PRETOKENIZE_STEPS_MAX]; /* owned */
    bool jit[EK_PRETOKENIZE_STEPS_MAX];
} ek_pretokenizer;

/** All rules: for tests. */
const ek_pretokenize_rule *ek_model_pretokenize_rules(int32_t *out_n);

/**
 * @param allow_jit  false: interpret (tests compare the two)
 * @return EK_OK; EK_EUNSUPPORTED no such name (the text lists the known); EK_ENOMEM
 */
EK_MUST ek_status ek_model_pretokenizer_init(ek_pretokenizer *pre, ek_str name, bool allow_jit,
                                             ek_err *err);
/** Accepts a zeroed or half-built one. */
void ek_model_pretokenizer_fini(ek_pretokenizer *pre);

typedef struct ek_pretokenize_level {
    const char *beg; /* the piece that this step cuts */
    const char *end;
    const char *pos;       /* cut up to here */
    const char *match;     /* next match at or after pos; [end, end) when there is none */
    const char *match_end; /* NULL: not searched yet */
} ek_pretokenize_level;

typedef struct ek_pretokenize_cursor {
    const ek_pretokenizer *pre;
    struct pcre2_real_match_data_8 *match_data; /* owned */
    ek_pretokenize_level level[EK_PRETOKENIZE_STEPS_MAX];
    int32_t depth; /* step whose piece is being cut; -1: done */
} ek_pretokenize_cursor;

/** @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_model_pretokenize_open(ek_pretokenize_cursor *cursor,
                                            const ek_pretokenizer *pre);
/** Accepts a zeroed cursor. */
void ek_model_pretokenize_close(ek_pretokenize_cursor *cursor);

/** Begin with a text, which must be well-formed UTF-8 and outlive the cursor's use of it. */
void ek_model_pretokenize_text(ek_pretokenize_cursor *cursor, ek_str text);

/**
 * The next piece, never empty.
 * @return EK_OK; EK_END; EK_ENOMEM the matcher ran out of its budget
 */
EK_MUST ek_status ek_model_pretokenize_next(ek_pretokenize_cursor *cursor, ek_str *out_piece);

#endif
