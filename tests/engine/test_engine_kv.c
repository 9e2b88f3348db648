/*
 * The KV cache against a naive model of it.
 *
 * Random sequences match, reserve, write, publish and free under a budget that is too small for
 * them. The model keeps published prefixes as plain token strings and searches them one by one.
 * After each action both must agree on hits, states and counters, the cache's own lists must be
 * consistent, and what lies in the blocks of a sequence must be what was written for exactly its
 * tokens: every position holds a hash of all tokens up to it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/kv_internal.h"

#define BT         4 /* tokens of a block */
#define N_BLOCKS   24
#define SEQ_BLOCKS 9
#define SEQ_TOKENS (SEQ_BLOCKS * BT)
#define N_SEQS     6
#define TTL_US     1000
#define N_ACTIONS  200000
#define N_LAYERS   2
#define N_KV_HEADS 3
#define HEAD_DIM   8
#define ENTRY_NONE (-1)
#define VOCABULARY 2 /* few tokens, so that prompts often begin alike */

/* A published block: the prefix that it ends. */
typedef struct entry {
    bool alive;
    int32_t tokens[SEQ_TOKENS];
    int32_t n_tokens; /* multiple of BT */
    int32_t n_refs;
    int64_t stamp; /* order of being given back */
    int64_t used_us;
} entry;

typedef struct live_seq {
    bool live;
    ek_kv_seq kv;
    int32_t block[SEQ_BLOCKS];
    int32_t tokens[SEQ_TOKENS];
    int32_t n_tokens;              /* known; positions written are kv.n_tokens */
    int32_t entry_idx[SEQ_BLOCKS]; /* model: published block at this place, or ENTRY_NONE */
    int32_t n_blocks;              /* model */
    int32_t n_published;           /* model */
} live_seq;

typedef struct world {
    ek_kv *kv;
    ek_rng rng;
    int64_t now_us;
    int64_t stamp;
    entry entries[N_BLOCKS];
    live_seq seqs[N_SEQS];
    uint64_t lookup, hits, evicted, expired;
} world;

static const ek_kv_params params = {
    .n_layers = N_LAYERS,
    .n_kv_heads = N_KV_HEADS,
    .head_dim_k = HEAD_DIM,
    .head_dim_v = 2 * HEAD_DIM,
    .block_tokens = BT,
    .n_blocks = N_BLOCKS,
    .prefix_cache = true,
    .prefix_ttl_us = TTL_US,
};

/* ---- the model ---- */

static int32_t model_private_blocks(const world *w)
{
    int32_t n = 0;
    for (int32_t s = 0; s < N_SEQS; s++)
        for (int32_t b = 0; w->seqs[s].live && b < w->seqs[s].n_blocks; b++)
            n += w->seqs[s].entry_idx[b] == ENTRY_NONE;
    return n;
}

static int32_t model_entries(const world *w, bool only_cached)
{
    int32_t n = 0;
    for (int32_t i = 0; i < N_BLOCKS; i++)
        n += w->entries[i].alive && (!only_cached || w->entries[i].n_refs == 0);
    return n;
}

static int32_t model_find(const world *w, const int32_t *tokens, int32_t n_tokens)
{
    for (int32_t i = 0; i < N_BLOCKS; i++) {
        const entry *e = &w->entries[i];
        if (e->alive && e->n_tokens == n_tokens &&
            memcmp(e->tokens, tokens, (size_t)n_tokens * sizeof *tokens) == 0)
            return i;
    }
    return ENTRY_NONE;
}

static int32_t model_oldest(const world *w)
{
    int32_t oldest = ENTRY_NONE;
    for (int32_t i = 0; i < N_BLOCKS; i++) {
        const entry *e = &w->entries[i];
        if (e->alive && e->n_refs == 0 &&
            (oldest == ENTRY_NONE || e->stamp < w->entries[oldest].stamp))
            oldest = i;
    }
    return oldest;
}

static void model_expire(world *w)
{
    for (int32_t i = 0; i < N_BLOCKS; i++) {
        entry *e = &w->entries[i];
        if (e->alive && e->n_refs == 0 && w->now_us - e->used_us > TTL_US) {
            e->alive = false;
            w->expired++;
        }
    }
}

static void model_release(world *w, int32_t idx)
{
    entry *e = &w->entries[idx];
    if (--e->n_refs > 0) return;
    e->stamp = ++w->stamp;
    e->used_us = w->now_us;
}

static bool model_reserve(world *w, live_seq *s, int32_t n_tokens)
{
    int32_t n_needed = (n_tokens + BT - 1) / BT;
    int32_t n_free = N_BLOCKS - model_entries(w, false) - model_private_blocks(w);
    if (n_needed > SEQ_BLOCKS) return false;
    if (n_needed - s->n_blocks > n_free + model_entries(w, true)) return false;
    for (; s->n_blocks < n_needed; n_free--) {
        if (n_free <= 0) {
            w->entries[model_oldest(w)].alive = false;
            w->evicted++;
        }
        s->entry_idx[s->n_blocks++] = ENTRY_NONE;
    }
    return true;
}

static void model_publish(world *w, live_seq *s, int32_t n_tokens)
{
    for (; s->n_published < n_tokens / BT; s->n_published++) {
        int32_t n = (s->n_published + 1) * BT;
        int32_t idx = model_find(w, s->tokens, n);
        for (int32_t i = 0; idx == ENTRY_NONE; i++) {
            if (w->entries[i].alive) continue;
            idx = i;
            w->entries[i] = (entry){.alive = true, .n_tokens = n};
            memcpy(w->entries[i].tokens, s->tokens, (size_t)n * sizeof(int32_t));
        }
        w->entries[idx].n_refs++;
        s->entry_idx[s->n_published] = idx;
    }
}

/* ---- contents ---- */

static uint16_t mark_of(const int32_t *tokens, int32_t pos, int32_t salt)
{
    uint64_t h = (uint64_t)salt;
    for (int32_t i = 0; i <= pos; i++)
        h = ek_mix64(h ^ (uint64_t)tokens[i]);
    return (uint16_t)h;
}

static void write_positions(world *w, live_seq *s, int32_t n_tokens)
{
    for (; s->kv.n_tokens < n_tokens; s->kv.n_tokens++) {
        int32_t pos = s->kv.n_tokens;
        int32_t block = s->kv.block[pos / BT];
        for (int32_t l = 0; l < N_LAYERS; l++) {
            for (int32_t h = 0; h < N_KV_HEADS; h++) {
                uint16_t *k = ek_engine_kv_keys(w->kv, block, l, h) + pos % BT * HEAD_DIM;
                uint16_t *v = ek_engine_kv_values(w->kv, block, l, h) + pos % BT * 2 * HEAD_DIM;
                for (int32_t i = 0; i < HEAD_DIM; i++)
                    k[i] = mark_of(s->tokens, pos, l * 100 + h * 10 + 1);
                for (int32_t i = 0; i < 2 * HEAD_DIM; i++)
                    v[i] = mark_of(s->tokens, pos, l * 100 + h * 10 + 2);
            }
        }
    }
}

static void check_contents(world *w, const live_seq *s)
{
    for (int32_t pos = 0; pos < s->kv.n_tokens; pos++) {
        int32_t block = s->kv.block[pos / BT];
        int32_t l = pos % N_LAYERS;
        int32_t h = pos % N_KV_HEADS;
        const uint16_t *k = ek_engine_kv_keys(w->kv, block, l, h) + pos % BT * HEAD_DIM;
        const uint16_t *v = ek_engine_kv_values(w->kv, block, l, h) + pos % BT * 2 * HEAD_DIM;
        assert_int_equal(k[pos % HEAD_DIM], mark_of(s->tokens, pos, l * 100 + h * 10 + 1));
        assert_int_equal(v[2 * HEAD_DIM - 1], mark_of(s->tokens, pos, l * 100 + h * 10 + 2));
    }
}

/* ---- invariants ---- */

static void check_blocks(const world *w)
{
    const ek_kv *kv = w->kv;
    int32_t n_refs[N_BLOCKS] = {0};
    int32_t n_children[N_BLOCKS] = {0};
    uint8_t is_free[N_BLOCKS] = {0};
    for (int32_t s = 0; s < N_SEQS; s++)
        for (int32_t b = 0; w->seqs[s].live && b < w->seqs[s].kv.n_blocks; b++)
            n_refs[w->seqs[s].kv.block[b]]++;
    for (int32_t i = 0; i < kv->n_free; i++)
        is_free[kv->free[i]]++;

    int32_t n_cached = 0;
    int32_t prev = EK_KV_NONE;
    for (int32_t id = kv->lru_oldest; id != EK_KV_NONE; id = kv->block[id].lru_next) {
        assert_int_equal(kv->block[id].lru_prev, prev);
        assert_int_equal(kv->block[id].n_refs, 0);
        assert_true(kv->block[id].published && !is_free[id]);
        prev = id;
        n_cached++;
    }
    assert_int_equal(kv->lru_youngest, prev);
    assert_int_equal(kv->n_cached, n_cached);

    for (int32_t id = 0; id < N_BLOCKS; id++) {
        const ek_kv_block *block = &kv->block[id];
        assert_int_equal(block->n_refs, n_refs[id]);
        assert_true(n_refs[id] <= 1 || block->published);
        assert_int_equal(is_free[id], n_refs[id] == 0 && !block->published);
        if (block->published && block->parent != EK_KV_NONE) {
            assert_true(kv->block[block->parent].published);
            n_children[block->parent]++;
        }
    }
    for (int32_t id = 0; id < N_BLOCKS; id++)
        if (kv->block[id].published) assert_int_equal(kv->block[id].n_children, n_children[id]);
}

static void check_agreement(const world *w)
{
    ek_kv_stats stats;
    ek_engine_kv_stats_get(w->kv, &stats);
    int32_t n_cached = model_entries(w, true);
    int32_t n_used = model_private_blocks(w) + model_entries(w, false) - n_cached;
    assert_int_equal(stats.n_blocks, N_BLOCKS);
    assert_int_equal(stats.n_used, n_used);
    assert_int_equal(stats.n_cached, n_cached);
    assert_int_equal(ek_engine_kv_available(w->kv), N_BLOCKS - n_used);
    assert_int_equal(stats.lookup_tokens, w->lookup);
    assert_int_equal(stats.hit_tokens, w->hits);
    assert_int_equal(stats.evicted_blocks, w->evicted);
    assert_int_equal(stats.expired_blocks, w->expired);
}

/* ---- actions ---- */

static void act_start(world *w, live_seq *s)
{
    *s = (live_seq){.live = true, .n_tokens = 1 + (int32_t)ek_rng_below(&w->rng, SEQ_TOKENS - 8)};
    s->kv = (ek_kv_seq){.block = s->block, .n_blocks_max = SEQ_BLOCKS};
    for (int32_t i = 0; i < s->n_tokens; i++)
        s->tokens[i] = (int32_t)ek_rng_below(&w->rng, i % BT == 0 ? VOCABULARY : 1);

    model_expire(w);
    int32_t n_hit = 0;
    while (n_hit + BT < s->n_tokens) {
        int32_t idx = model_find(w, s->tokens, n_hit + BT);
        if (idx == ENTRY_NONE) break;
        w->entries[idx].n_refs++;
        s->entry_idx[s->n_blocks++] = idx;
        n_hit += BT;
    }
    s->n_published = s->n_blocks;
    w->lookup += (uint64_t)s->n_tokens;
    w->hits += (uint64_t)n_hit;

    assert_int_equal(ek_engine_kv_match(w->kv, &s->kv, s->tokens, s->n_tokens, w->now_us), n_hit);
    assert_int_equal(s->kv.n_tokens, n_hit);
    assert_int_equal(s->kv.n_blocks, n_hit / BT);
    check_contents(w, s);
}

static void act_free(world *w, live_seq *s)
{
    for (int32_t b = s->n_blocks - 1; b >= 0; b--)
        if (s->entry_idx[b] != ENTRY_NONE) model_release(w, s->entry_idx[b]);
    ek_engine_kv_free(w->kv, &s->kv, w->now_us);
    assert_int_equal(s->kv.n_blocks, 0);
    assert_int_equal(s->kv.n_tokens, 0);
    assert_int_equal(s->kv.n_published, 0);
    s->live = false;
    s->n_blocks = 0;
}

static void act_write(world *w, live_seq *s)
{
    int32_t n = s->kv.n_tokens + (int32_t)ek_rng_below(&w->rng, 2 * BT);
    if (n > SEQ_TOKENS + BT) n = SEQ_TOKENS + BT;
    for (; s->n_tokens < n && s->n_tokens < SEQ_TOKENS; s->n_tokens++)
        s->tokens[s->n_tokens] = (int32_t)ek_rng_below(&w->rng, VOCABULARY);
    ek_status want = model_reserve(w, s, n) ? EK_OK : EK_ENOMEM;
    assert_int_equal(ek_engine_kv_reserve(w->kv, &s->kv, n), want);
    assert_int_equal(s->kv.n_blocks, s->n_blocks);
    if (want == EK_OK) write_positions(w, s, n);
}

static void act_publish(world *w, live_seq *s)
{
    int32_t n = (int32_t)ek_rng_below(&w->rng, (uint64_t)s->kv.n_tokens + 1);
    model_publish(w, s, n);
    ek_engine_kv_publish(w->kv, &s->kv, s->tokens, n, w->now_us);
    assert_int_equal(s->kv.n_published, s->n_published);
}

static void test_random_life(void **state)
{
    (void)state;
    world w = {0};
    ek_rng_init(&w.rng, 11);
    assert_int_equal(ek_engine_kv_create(&params, &w.kv, NULL), EK_OK);
    for (int32_t i = 0; i < N_ACTIONS; i++) {
        live_seq *s = &w.seqs[ek_rng_below(&w.rng, N_SEQS)];
        uint64_t action = ek_rng_below(&w.rng, 10);
        w.now_us += (int64_t)ek_rng_below(&w.rng, action == 9 ? 400 : 4);
        if (!s->live)
            act_start(&w, s);
        else if (action < 5)
            act_write(&w, s);
        else if (action < 8)
            act_publish(&w, s);
        else if (action == 8)
            act_free(&w, s);
        else {
            model_expire(&w);
            ek_engine_kv_expire(w.kv, w.now_us);
        }
        check_agreement(&w);
        if (i % 16 == 0) check_blocks(&w);
        for (int32_t k = 0; i % 16 == 0 && k < N_SEQS; k++)
            if (w.seqs[k].live) check_contents(&w, &w.seqs[k]);
    }
    print_message("%llu of %llu tokens hit, %llu blocks evicted, %llu expired\n",
                  (unsigned long long)w.hits, (unsigned long long)w.lookup,
                  (unsigned long long)w.evicted, (unsigned long long)w.expired);
    assert_true(w.hits > w.lookup / 10 && w.evicted > 1000 && w.expired > 1000);
    ek_engine_kv_destroy(w.kv);
}

/* ---- single properties ---- */

static ek_kv *kv_with_published(const int32_t *tokens, int32_t n_tokens, int64_t now_us)
{
    ek_kv *kv;
    int32_t block[SEQ_BLOCKS];
    ek_kv_seq seq = {.block = block, .n_blocks_max = SEQ_BLOCKS};
    assert_int_equal(ek_engine_kv_create(&params, &kv, NULL), EK_OK);
    assert_int_equal(ek_engine_kv_reserve(kv, &seq, n_tokens), EK_OK);
    seq.n_tokens = n_tokens;
    ek_engine_kv_publish(kv, &seq, tokens, n_tokens, now_us);
    ek_engine_kv_free(kv, &seq, now_us);
    return kv;
}

static int32_t hits(ek_kv *kv, const int32_t *tokens, int32_t n_tokens, int64_t now_us)
{
    int32_t block[SEQ_BLOCKS];
    ek_kv_seq seq = {.block = block, .n_blocks_max = SEQ_BLOCKS};
    int32_t n = ek_engine_kv_match(kv, &seq, tokens, n_tokens, now_us);
    ek_engine_kv_free(kv, &seq, now_us);
    return n;
}

static void test_last_token_is_left_to_compute(void **state)
{
    (void)state;
    const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    ek_kv *kv = kv_with_published(tokens, 8, 0);
    assert_int_equal(hits(kv, tokens, 9, 0), 8);
    assert_int_equal(hits(kv, tokens, 8, 0), 4);
    assert_int_equal(hits(kv, tokens, 5, 0), 4);
    assert_int_equal(hits(kv, tokens, 4, 0), 0);
    assert_int_equal(hits(kv, tokens, 1, 0), 0);
    /* The same second block after another first one is another prefix. */
    const int32_t other[9] = {1, 2, 3, 5, 5, 6, 7, 8, 9};
    assert_int_equal(hits(kv, other, 9, 0), 0);
    const int32_t tail[9] = {5, 6, 7, 8, 1, 2, 3, 4, 9};
    assert_int_equal(hits(kv, tail, 9, 0), 0);
    ek_engine_kv_destroy(kv);
}

/** Forge a hash collision by hand: the tokens still decide. */
static void test_collision_is_no_hit(void **state)
{
    (void)state;
    const int32_t mine[5] = {1, 2, 3, 4, 0};
    const int32_t yours[5] = {9, 8, 7, 6, 0};
    ek_kv *kv = kv_with_published(mine, 4, 0);
    ek_kv *other = kv_with_published(yours, 4, 0);
    int32_t id = kv->lru_oldest;
    uint64_t hash = other->block[other->lru_oldest].hash;
    assert_true(hash != kv->block[id].hash);
    kv->bucket[kv->block[id].hash & kv->bucket_mask] = EK_KV_NONE;
    kv->bucket[hash & kv->bucket_mask] = id;
    kv->block[id].hash = hash;
    assert_int_equal(hits(kv, yours, 5, 0), 0);
    memcpy(kv->tokens + id * BT, yours, BT * sizeof(int32_t)); /* the forgery itself was good */
    assert_int_equal(hits(kv, yours, 5, 0), 4);
    ek_engine_kv_destroy(kv);
    ek_engine_kv_destroy(other);
}

static void test_time_limit(void **state)
{
    (void)state;
    const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    ek_kv *kv = kv_with_published(tokens, 8, 5);
    assert_int_equal(hits(kv, tokens, 9, 5 + TTL_US), 8); /* and is used anew */
    assert_int_equal(hits(kv, tokens, 9, 5 + 2 * TTL_US), 8);
    assert_int_equal(hits(kv, tokens, 9, 6 + 3 * TTL_US), 0);
    assert_int_equal(ek_engine_kv_available(kv), N_BLOCKS);
    ek_engine_kv_destroy(kv);
}

static void test_no_prefix_cache(void **state)
{
    (void)state;
    const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    ek_kv_params off = params;
    off.prefix_cache = false;
    int32_t block[SEQ_BLOCKS];
    ek_kv_seq seq = {.block = block, .n_blocks_max = SEQ_BLOCKS};
    ek_kv *kv;
    assert_int_equal(ek_engine_kv_create(&off, &kv, NULL), EK_OK);
    assert_int_equal(ek_engine_kv_reserve(kv, &seq, 9), EK_OK);
    seq.n_tokens = 9;
    ek_engine_kv_publish(kv, &seq, tokens, 9, 0);
    ek_engine_kv_free(kv, &seq, 0);
    assert_int_equal(hits(kv, tokens, 9, 0), 0);
    ek_kv_stats stats;
    ek_engine_kv_stats_get(kv, &stats);
    assert_int_equal(stats.n_used + stats.n_cached, 0);
    ek_engine_kv_destroy(kv);
}

static void test_create_refuses(void **state)
{
    (void)state;
    ek_kv *kv = NULL;
    ek_err err = {0};
    ek_kv_params bad[] = {params, params, params, params, params};
    bad[0].n_layers = 0;
    bad[1].head_dim_v = 1 << 20;
    bad[2].block_tokens = 0;
    bad[3].n_blocks = 0;
    bad[4].n_kv_heads = -1;
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++) {
        assert_int_equal(ek_engine_kv_create(&bad[i], &kv, &err), EK_EINVAL);
        assert_non_null(strstr(err.text, "KV cache: "));
        assert_null(kv);
    }
    ek_kv_params huge = params;
    huge.n_blocks = 1 << 28;
    huge.n_layers = 65536;
    assert_int_equal(ek_engine_kv_create(&huge, &kv, &err), EK_ENOMEM);
    ek_engine_kv_destroy(NULL);
}

static void test_layout(void **state)
{
    (void)state;
    ek_kv *kv;
    assert_int_equal(ek_engine_kv_create(&params, &kv, NULL), EK_OK);
    int64_t bytes = ek_engine_kv_block_bytes(&params);
    assert_int_equal(bytes, N_LAYERS * N_KV_HEADS * BT * 3 * HEAD_DIM * 2);
    assert_int_equal(ek_engine_kv_params(kv)->n_blocks, N_BLOCKS);
    const uint16_t *first = ek_engine_kv_keys(kv, 0, 0, 0);
    assert_ptr_equal(ek_engine_kv_values(kv, 0, 0, 0), first + BT * HEAD_DIM);
    assert_ptr_equal(ek_engine_kv_keys(kv, 0, 0, 1), first + BT * 3 * HEAD_DIM);
    assert_ptr_equal(ek_engine_kv_keys(kv, 1, 0, 0), first + bytes / 2);
    assert_int_equal((uintptr_t)first % EK_CACHE_LINE, 0);
    ek_engine_kv_destroy(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_life),
        cmocka_unit_test(test_last_token_is_left_to_compute),
        cmocka_unit_test(test_collision_is_no_hit),
        cmocka_unit_test(test_time_limit),
        cmocka_unit_test(test_no_prefix_cache),
        cmocka_unit_test(test_create_refuses),
        cmocka_unit_test(test_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
