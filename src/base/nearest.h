/*
 * The known name that a mistyped word was probably meant to be: for "did you mean" in error texts.
 *
 *     ek_nearest nearest = ek_nearest_start(word);
 *     for each known name: ek_nearest_offer(&nearest, name);
 *     if (nearest.name) ... "did you mean %s?"
 *
 * Distance counts insertions, deletions, substitutions and swaps of neighbours. A name qualifies
 * when at most about a third of the longer word has to change, so that nonsense gets no suggestion.
 * Pure.
 */
#ifndef EK_BASE_NEAREST_H
#define EK_BASE_NEAREST_H

#include <stdint.h>

#include "base/span.h"

#define EK_NEAREST_WORD_MAX 63 /* bytes; longer words and names are never near anything */

typedef struct ek_nearest {
    ek_str word;      /* borrowed until the last offer */
    const char *name; /* best so far, borrowed from its offer; NULL: none is near */
    int32_t distance; /* of name */
} ek_nearest;

/** Edits that turn a into b; INT32_MAX when one of them is longer than EK_NEAREST_WORD_MAX. */
int32_t ek_nearest_distance(ek_str a, ek_str b);

ek_nearest ek_nearest_start(ek_str word);

/** Keep name if it is nearer than the best so far; the earlier of equals stays. */
void ek_nearest_offer(ek_nearest *nearest, const char *name);

#endif
