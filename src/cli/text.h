/*
 * A growing text on the heap, for what arrives piece by piece: answers, lines, events. One thread.
 */
#ifndef EK_CLI_TEXT_H
#define EK_CLI_TEXT_H

#include <stddef.h>

#include "base/attr.h"
#include "base/span.h"
#include "base/status.h"

typedef struct ek_cli_text {
    char *data; /* (len + 1) owned, NUL-terminated; NULL while empty and never used */
    size_t len;
    size_t room;
} ek_cli_text;

/**
 * @return EK_OK; EK_ENOMEM; EK_ERANGE it would grow beyond max_bytes. The text is unchanged on
 *         failure
 */
EK_MUST ek_status ek_cli_text_append(ek_cli_text *text, ek_str more, size_t max_bytes);

/** Drop the first n bytes. */
void ek_cli_text_drop(ek_cli_text *text, size_t n);

static inline void ek_cli_text_clear(ek_cli_text *text)
{
    ek_cli_text_drop(text, text->len);
}

static inline ek_str ek_cli_text_str(const ek_cli_text *text)
{
    return (ek_str){text->data ? text->data : "", text->len};
}

void ek_cli_text_free(ek_cli_text *text);

#endif
