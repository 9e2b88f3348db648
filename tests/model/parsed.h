/*
 * A file under test, parsed (and loaded) from heap blocks of exactly its size and of exactly the
 * memory that the reader promises to get by with, so that a sanitizer or EK_ENOMEM shows the first
 * byte too many.
 */
#ifndef EK_TESTS_MODEL_PARSED_H
#define EK_TESTS_MODEL_PARSED_H

#include "base/err.h"
#include "model/desc.h"
#include "model/gguf.h"
#include "support/gguf_builder.h"

typedef struct parsed {
    ek_span file;   /* owned */
    void *gguf_mem; /* owned */
    void *desc_mem; /* owned */
    ek_status status;
    ek_err err;
    ek_gguf *gguf;   /* NULL unless parsing went well */
    ek_model *model; /* NULL unless loaded, too */
} parsed;

/** Takes the builder. The file must parse. */
parsed parsed_open(ek_builder *b);
/** Takes the builder. The file must parse and load as a model. */
parsed parsed_load(ek_builder *b);
/** Takes the bytes; parses, and loads as a model if that went well. `status` is the last one's. */
parsed parsed_try(ek_span file);
void parsed_close(parsed *p);

/** Takes the builder. Parsing fails with that status and a text that contains `text`. */
void expect_parse_error(ek_builder *b, ek_status status, const char *text);
/** Takes the builder. Parsing goes well, loading fails with that status and text. */
void expect_load_error(ek_builder *b, ek_status status, const char *text);

#endif
