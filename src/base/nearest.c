#include "base/nearest.h"

static int32_t min_of(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

int32_t ek_nearest_distance(ek_str a, ek_str b)
{
    if (a.len > EK_NEAREST_WORD_MAX || b.len > EK_NEAREST_WORD_MAX) return INT32_MAX;

    /* Three rows of the usual table: a swap of neighbours looks two rows back. */
    int32_t rows[3][EK_NEAREST_WORD_MAX + 1];
    int32_t *before = rows[0], *above = rows[1], *here = rows[2];
    for (size_t j = 0; j <= b.len; j++)
        above[j] = (int32_t)j;

    for (size_t i = 1; i <= a.len; i++) {
        here[0] = (int32_t)i;
        for (size_t j = 1; j <= b.len; j++) {
            const int32_t change = a.data[i - 1] != b.data[j - 1];
            int32_t best = min_of(above[j] + 1, here[j - 1] + 1);
            best = min_of(best, above[j - 1] + change);
            if (i > 1 && j > 1 && a.data[i - 1] == b.data[j - 2] && a.data[i - 2] == b.data[j - 1])
                best = min_of(best, before[j - 2] + 1);
            here[j] = best;
        }
        int32_t *recycled = before;
        before = above;
        above = here;
        here = recycled;
    }
    return above[b.len];
}

ek_nearest ek_nearest_start(ek_str word)
{
    return (ek_nearest){word, NULL, INT32_MAX};
}

void ek_nearest_offer(ek_nearest *nearest, const char *name)
{
    const ek_str known = ek_str_from(name);
    const int32_t distance = ek_nearest_distance(nearest->word, known);
    const size_t longer = known.len > nearest->word.len ? known.len : nearest->word.len;
    if (distance >= nearest->distance || (size_t)distance * 3 > longer + 1) return;
    nearest->name = name;
    nearest->distance = distance;
}
