#include "model/merge.h"

bool ek_model_merge_init(ek_merge *merge, int32_t n, ek_merge_small *small, ek_arena *scratch)
{
    if (n <= EK_MERGE_SMALL) {
        *merge = (ek_merge){.n = n,
                            .beg = small->beg,
                            .id = small->id,
                            .next = small->next,
                            .prev = small->prev,
                            .rank = small->rank,
                            .join = small->join};
        return true;
    }
    *merge = (ek_merge){.n = n};
    merge->heap = ek_try_new(scratch, uint64_t, 2 * (size_t)n);
    merge->beg = ek_try_new(scratch, int32_t, (size_t)n + 1);
    merge->id = ek_try_new(scratch, int32_t, n);
    merge->next = ek_try_new(scratch, int32_t, n);
    merge->prev = ek_try_new(scratch, int32_t, n);
    merge->rank = ek_try_new(scratch, uint32_t, n);
    merge->join = ek_try_new(scratch, int32_t, n);
    return merge->heap && merge->beg && merge->id && merge->next && merge->prev && merge->rank &&
           merge->join;
}

static void sift_down(ek_merge *merge, int32_t at)
{
    uint64_t moving = merge->heap[at];
    for (int32_t child = 2 * at + 1; child < merge->n_heap; child = 2 * at + 1) {
        merge->n_steps++;
        if (child + 1 < merge->n_heap && merge->heap[child + 1] < merge->heap[child]) child++;
        if (moving <= merge->heap[child]) break;
        merge->heap[at] = merge->heap[child];
        at = child;
    }
    merge->heap[at] = moving;
}

static void heap_push(ek_merge *merge, uint64_t entry)
{
    int32_t at = merge->n_heap++;
    for (; at > 0 && entry < merge->heap[(at - 1) / 2]; at = (at - 1) / 2) {
        merge->heap[at] = merge->heap[(at - 1) / 2];
        merge->n_steps++;
    }
    merge->heap[at] = entry;
}

static uint64_t heap_pop(ek_merge *merge)
{
    uint64_t top = merge->heap[0];
    merge->heap[0] = merge->heap[--merge->n_heap];
    sift_down(merge, 0);
    return top;
}

static uint64_t entry_of(const ek_merge *merge, int32_t symbol)
{
    return (uint64_t)merge->rank[symbol] << 32 | (uint32_t)symbol;
}

static void look(ek_merge *merge, int32_t symbol, ek_join_fn join, const void *ctx)
{
    ek_join found = {.rank = EK_JOIN_NONE, .id = -1};
    if (merge->next[symbol] < merge->n) found = join(ctx, merge, symbol, merge->next[symbol]);
    merge->rank[symbol] = found.rank;
    merge->join[symbol] = found.id;
    merge->n_steps++;
}

/* Swallow the successor of `left`, and look at the two pairs that this made. */
static void join_pair(ek_merge *merge, int32_t left, ek_join_fn join, const void *ctx)
{
    int32_t right = merge->next[left];
    merge->id[left] = merge->join[left];
    merge->next[left] = merge->next[right];
    if (merge->next[left] < merge->n) merge->prev[merge->next[left]] = left;
    merge->rank[right] = EK_JOIN_NONE; /* so that entries about it are seen to be old */
    merge->prev[right] = merge->n_joins++;
    look(merge, left, join, ctx);
    if (merge->prev[left] >= 0) look(merge, merge->prev[left], join, ctx);
}

static void run_small(ek_merge *merge, ek_join_fn join, const void *ctx)
{
    for (;;) {
        uint32_t lowest = EK_JOIN_NONE;
        int32_t left = 0;
        for (int32_t i = 0; i < merge->n; i = merge->next[i]) {
            merge->n_steps++;
            if (merge->rank[i] < lowest) {
                lowest = merge->rank[i];
                left = i;
            }
        }
        if (lowest == EK_JOIN_NONE) return;
        join_pair(merge, left, join, ctx);
    }
}

/*
 * An entry is old when its symbol's rank is another by now. Should a later pair at the same place
 * have the same rank by chance, then joining it now is right as well: it has this very place in the
 * order. The heap never holds more than 2n entries: each join takes at least one and adds at most
 * two.
 */
static void run_heap(ek_merge *merge, ek_join_fn join, const void *ctx)
{
    for (int32_t i = 0; i < merge->n; i++)
        if (merge->rank[i] != EK_JOIN_NONE) merge->heap[merge->n_heap++] = entry_of(merge, i);
    for (int32_t at = merge->n_heap / 2 - 1; at >= 0; at--)
        sift_down(merge, at);
    while (merge->n_heap > 0) {
        uint64_t entry = heap_pop(merge);
        int32_t left = (int32_t)(uint32_t)entry;
        if (entry != entry_of(merge, left)) continue;
        join_pair(merge, left, join, ctx);
        if (merge->rank[left] != EK_JOIN_NONE) heap_push(merge, entry_of(merge, left));
        int32_t before = merge->prev[left];
        if (before >= 0 && merge->rank[before] != EK_JOIN_NONE)
            heap_push(merge, entry_of(merge, before));
    }
}

void ek_model_merge_run(ek_merge *merge, ek_join_fn join, const void *ctx)
{
    for (int32_t i = 0; i < merge->n; i++) {
        merge->next[i] = i + 1;
        merge->prev[i] = i - 1;
    }
    for (int32_t i = 0; i < merge->n; i++)
        look(merge, i, join, ctx);
    if (merge->heap)
        run_heap(merge, join, ctx);
    else
        run_small(merge, join, ctx);
}
