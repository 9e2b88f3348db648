#include "model/specials.h"

#include <string.h>

#include "model/tokenizer.h"

static bool text_less(const ek_special *a, const ek_special *b)
{
    size_t shorter = a->text.len < b->text.len ? a->text.len : b->text.len;
    int order = memcmp(a->text.data, b->text.data, shorter);
    if (order != 0) return order < 0;
    return a->text.len != b->text.len ? a->text.len < b->text.len : a->id < b->id;
}

static void sift_down(ek_special *heap, int32_t at, int32_t n)
{
    ek_special moving = heap[at];
    for (int32_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && text_less(&heap[child], &heap[child + 1])) child++;
        if (!text_less(&moving, &heap[child])) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

/* Heapsort: in place and O(n log n) for every file. */
static void sort(ek_special *specials, int32_t n)
{
    for (int32_t at = n / 2 - 1; at >= 0; at--)
        sift_down(specials, at, n);
    for (int32_t end = n - 1; end > 0; end--) {
        ek_special largest = specials[0];
        specials[0] = specials[end];
        specials[end] = largest;
        sift_down(specials, 0, end);
    }
}

static bool is_found(const ek_vocab *vocab, int32_t id)
{
    if (vocab->names[id].len == 0) return false;
    return vocab->kinds[id] == EK_TOKEN_USER || ek_model_vocab_is_special(vocab, id);
}

ek_status ek_model_specials_init(const ek_vocab *vocab, ek_arena *perm, ek_specials *out_specials)
{
    ek_specials specials = {.vocab = vocab, .len_min = EK_TOKENIZER_PIECE_MAX};
    for (int32_t id = 0; id < vocab->n_tokens; id++)
        specials.n += is_found(vocab, id);
    ek_special *sorted = ek_try_new(perm, ek_special, specials.n);
    if (!sorted) return EK_ENOMEM;
    int32_t n = 0;
    for (int32_t id = 0; id < vocab->n_tokens; id++) {
        if (!is_found(vocab, id)) continue;
        bool user = vocab->kinds[id] == EK_TOKEN_USER;
        ek_str text = user ? vocab->pieces[id] : vocab->names[id];
        sorted[n++] = (ek_special){text, id};
        specials.first[(uint8_t)text.data[0]] = true;
        if (text.len < specials.len_min) specials.len_min = text.len;
    }
    sort(sorted, n);
    specials.sorted = sorted;
    *out_specials = specials;
    return EK_OK;
}

/*
 * The first of sorted[low, high) whose byte at `depth` is at least `byte`; texts that end there
 * count as -1.
 */
static int32_t lower_bound(const ek_specials *specials, int32_t low, int32_t high, size_t depth,
                           int byte)
{
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        ek_str text = specials->sorted[middle].text;
        int here = depth < text.len ? (uint8_t)text.data[depth] : -1;
        if (here < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int32_t ek_model_specials_match(const ek_specials *specials, ek_str text, size_t at,
                                size_t user_end, size_t control_end, size_t *out_len)
{
    int32_t found = -1;
    int32_t low = 0;
    int32_t high = specials->n;
    /*
     * All of sorted[low, high) begin with text[at, at + depth): one that ends here is the first of
     * them.
     */
    for (size_t depth = 0; at + depth < text.len && low < high; depth++) {
        int byte = (uint8_t)text.data[at + depth];
        low = lower_bound(specials, low, high, depth, byte);
        high = lower_bound(specials, low, high, depth, byte + 1);
        if (low == high || specials->sorted[low].text.len != depth + 1) continue;
        int32_t id = specials->sorted[low].id;
        bool user = specials->vocab->kinds[id] == EK_TOKEN_USER;
        if (at + depth + 1 > (user ? user_end : control_end)) continue;
        found = id;
        *out_len = depth + 1;
    }
    return found;
}
