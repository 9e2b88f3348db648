/*
 * Goal: both tokenizers give what the plain definition of their algorithm gives, and any text comes
 * back unchanged, for vocabularies and texts that nobody thought of. Method: random vocabularies
 * over a small alphabet (so that joins are frequent, tied and nested) against a slow reference that
 * works on strings; random bytes and random Unicode there and back.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "support/fixtures.h"
#include "tokenized.h"

#define PIECES_MAX 60
#define TEXT_MAX   300

typedef struct pieces {
    char text[PIECES_MAX][24];
    char merge[PIECES_MAX][32];
    extra_token extra[PIECES_MAX];
    const char *merges[PIECES_MAX];
    size_t n;
} pieces;

/* Pieces made by joining two earlier ones, beginning with the letters of `alphabet`. */
static void random_pieces(ek_rng *rng, const char *alphabet, bool with_letters, pieces *out)
{
    char known[PIECES_MAX + 8][24];
    size_t n_known = strlen(alphabet);
    for (size_t i = 0; i < n_known; i++)
        snprintf(known[i], sizeof known[i], "%c", alphabet[i]);
    out->n = 0;
    for (size_t i = 0; with_letters && i < n_known; i++)
        snprintf(out->text[out->n++], sizeof out->text[0], "%c", alphabet[i]);
    for (int tries = 0; tries < 400 && out->n < PIECES_MAX; tries++) {
        const char *left = known[ek_rng_below(rng, n_known)];
        const char *right = known[ek_rng_below(rng, n_known)];
        char joined[48];
        snprintf(joined, sizeof joined, "%s%s", left, right);
        bool fresh = strlen(joined) < 12;
        for (size_t i = 0; i < n_known && fresh; i++)
            fresh = strcmp(known[i], joined) != 0;
        if (!fresh) continue;
        snprintf(out->merge[out->n], sizeof out->merge[0], "%s %s", left, right);
        out->merges[out->n] = out->merge[out->n];
        memcpy(out->text[out->n], joined, 24);
        memcpy(known[n_known++], joined, 24);
        out->n++;
    }
    for (size_t i = 0; i < out->n; i++)
        out->extra[i] = (extra_token){out->text[i], EK_TOKEN_NORMAL, 0};
}

static size_t random_letters(ek_rng *rng, const char *alphabet, char *text)
{
    size_t len = ek_rng_below(rng, 4) == 0 ? ek_rng_below(rng, TEXT_MAX) : ek_rng_below(rng, 40);
    for (size_t i = 0; i < len; i++)
        text[i] = alphabet[ek_rng_below(rng, strlen(alphabet))];
    return len;
}

/* ---- byte-level BPE against its definition ---- */

static int32_t find_text(const pieces *p, const char *text, size_t len)
{
    for (size_t i = 0; i < p->n; i++)
        if (strlen(p->text[i]) == len && memcmp(p->text[i], text, len) == 0) return (int32_t)i;
    return -1;
}

/* Join the leftmost occurrence of the earliest merge until none applies; ids into out. */
static int64_t reference_bpe(const pieces *p, const char *text, size_t len, int32_t *out)
{
    size_t beg[TEXT_MAX + 1];
    size_t n = len;
    for (size_t i = 0; i <= len; i++)
        beg[i] = i;
    for (;;) {
        size_t best = SIZE_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            char merge[TEXT_MAX + 2];
            int m = snprintf(merge, sizeof merge, "%.*s %.*s", (int)(beg[i + 1] - beg[i]),
                             text + beg[i], (int)(beg[i + 2] - beg[i + 1]), text + beg[i + 1]);
            assert_true(m > 0);
            for (size_t r = 0; r < p->n && r < best; r++)
                if (strcmp(p->merge[r], merge) == 0) {
                    best = r;
                    at = i;
                }
        }
        if (best == SIZE_MAX) break;
        memmove(&beg[at + 1], &beg[at + 2], (n - at - 1) * sizeof beg[0]);
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        size_t piece = beg[i + 1] - beg[i];
        out[i] = piece == 1 ? text[beg[i]] : BPE_EXTRA + find_text(p, text + beg[i], piece);
    }
    return (int64_t)n;
}

static void test_bpe_is_its_definition(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 1);
    static pieces p;
    int64_t n_joined = 0;
    for (int vocab = 0; vocab < 60; vocab++) {
        random_pieces(&rng, "abc", false, &p);
        vocab_file f = {0};
        build_bpe(&f, "gpt-2", p.extra, p.n, p.merges, p.n); /* letters only: one piece per text */
        tokenized t = tokenized_build(&f);
        for (int round = 0; round < 30; round++) {
            char text[TEXT_MAX];
            int32_t wanted[TEXT_MAX];
            size_t len = random_letters(&rng, "abc", text);
            int64_t n = reference_bpe(&p, text, len, wanted);
            id_list got = encode(&t, (ek_str){text, len}, false);
            assert_ids("random BPE", got, wanted, n);
            n_joined += (int64_t)len - n;
            free(got.data);
        }
        tokenized_close(&t);
    }
    assert_true(n_joined > 10000);
}

/* ---- SentencePiece against its definition ---- */

typedef struct node {
    size_t beg, end;
    int left, right; /* nodes; -1: a character */
} node;

static void emit(const pieces *p, const char *text, const node *nodes, int at, int32_t *out,
                 int64_t *n)
{
    const node *s = &nodes[at];
    int32_t i = find_text(p, text + s->beg, s->end - s->beg);
    if (i >= 0 && p->extra[i].kind == EK_TOKEN_UNUSED && s->left >= 0) {
        emit(p, text, nodes, s->left, out, n);
        emit(p, text, nodes, s->right, out, n);
        return;
    }
    out[(*n)++] = i >= 0 ? SPM_EXTRA + i : SPM_BYTE + (uint8_t)text[s->beg];
}

/* Join the best-scored adjacent pair, leftmost among equals; take unused results apart again. */
static int64_t reference_spm(const pieces *p, const char *text, size_t len, int32_t *out)
{
    node nodes[2 * TEXT_MAX];
    int symbols[TEXT_MAX];
    int n_nodes = 0;
    size_t n = len;
    for (size_t i = 0; i < len; i++) {
        nodes[n_nodes] = (node){i, i + 1, -1, -1};
        symbols[i] = n_nodes++;
    }
    for (;;) {
        int32_t best = -1;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            size_t beg = nodes[symbols[i]].beg;
            int32_t piece = find_text(p, text + beg, nodes[symbols[i + 1]].end - beg);
            if (piece < 0 || (best >= 0 && p->extra[piece].score <= p->extra[best].score)) continue;
            best = piece;
            at = i;
        }
        if (best < 0) break;
        nodes[n_nodes] = (node){nodes[symbols[at]].beg, nodes[symbols[at + 1]].end, symbols[at],
                                symbols[at + 1]};
        symbols[at] = n_nodes++;
        memmove(&symbols[at + 1], &symbols[at + 2], (n - at - 2) * sizeof symbols[0]);
        n--;
    }
    int64_t n_out = 0;
    for (size_t i = 0; i < n; i++)
        emit(p, text, nodes, symbols[i], out, &n_out);
    return n_out;
}

/* The file writes U+2581 for the space that the reference works with. */
static void build_spm_from(vocab_file *f, pieces *p)
{
    static char names[PIECES_MAX][64];
    extra_token extra[PIECES_MAX];
    for (size_t i = 0; i < p->n; i++) {
        size_t len = 0;
        for (const char *c = p->text[i]; *c; c++)
            len += (size_t)snprintf(names[i] + len, sizeof names[i] - len, "%s",
                                    *c == ' ' ? "▁" : (char[]){*c, 0});
        extra[i] = p->extra[i];
        extra[i].name = names[i];
    }
    build_spm(f, extra, p->n);
    vocab_file_bool(f, "tokenizer.ggml.add_space_prefix", 0);
}

static void test_spm_is_its_definition(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 2);
    static pieces p;
    int64_t n_joined = 0;
    for (int vocab = 0; vocab < 80; vocab++) {
        /*
         * With a space in the alphabet pieces may cross words; without letters some symbols are no
         * token.
         */
        const char *alphabet = vocab % 2 ? "ab " : "abc";
        random_pieces(&rng, alphabet, vocab % 3 != 0, &p);
        for (size_t i = 0; i < p.n; i++) {
            p.extra[i].score = (float)ek_rng_below(&rng, 12) - 6; /* many ties */
            if (vocab % 4 == 0 && ek_rng_below(&rng, 3) == 0) p.extra[i].kind = EK_TOKEN_UNUSED;
        }
        vocab_file f = {0};
        build_spm_from(&f, &p);
        tokenized t = tokenized_build(&f);
        for (int round = 0; round < 30; round++) {
            char text[TEXT_MAX];
            int32_t wanted[TEXT_MAX];
            size_t len = random_letters(&rng, alphabet, text);
            int64_t n = reference_spm(&p, text, len, wanted);
            id_list got = encode(&t, (ek_str){text, len}, false);
            assert_ids("random SPM", got, wanted, n);
            n_joined += (int64_t)len - n;
            free(got.data);
        }
        tokenized_close(&t);
    }
    assert_true(n_joined > 10000);
}

/* ---- there and back ---- */

static size_t random_bytes(ek_rng *rng, char *text, size_t max)
{
    size_t len = ek_rng_below(rng, max);
    for (size_t i = 0; i < len; i++)
        text[i] = (char)ek_rng_below(rng, 256);
    return len;
}

static size_t random_unicode(ek_rng *rng, char *text, size_t max)
{
    static const uint32_t tops[] = {0x80, 0x80, 0x800, 0x3400, 0xa000, 0x110000};
    size_t len = 0;
    size_t wanted = ek_rng_below(rng, max - 4);
    while (len < wanted) {
        uint32_t cp = (uint32_t)ek_rng_below(rng, tops[ek_rng_below(rng, EK_COUNT_OF(tops))]);
        if (cp < 0xd800 || cp > 0xdfff) len += ek_utf8_encode(cp, text + len);
    }
    return len;
}

static void round_trips(const tokenized *t, uint64_t seed)
{
    ek_rng rng;
    ek_rng_init(&rng, seed);
    char text[2000];
    for (int round = 0; round < 400; round++) {
        size_t len = random_bytes(&rng, text, sizeof text);
        assert_round_trip(t, (ek_str){text, len});
        len = random_unicode(&rng, text, sizeof text);
        assert_round_trip(t, (ek_str){text, len});
    }
}

static void test_round_trip_small_vocabularies(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 3);
    static pieces p;
    static const char *const rules[] = {"qwen2",        "gpt-2",       "llama-bpe", "gpt-4o",
                                        "deepseek-llm", "deepseek-v3", NULL};
    for (size_t i = 0; i < EK_COUNT_OF(rules); i++) {
        random_pieces(&rng, "aei", false, &p);
        vocab_file f = {0};
        build_bpe(&f, rules[i], p.extra, p.n, p.merges, p.n);
        tokenized t = tokenized_build(&f);
        round_trips(&t, 10 + i);
        tokenized_close(&t);
    }
    random_pieces(&rng, "ae ", true, &p);
    vocab_file f = {0};
    build_spm_from(&f, &p);
    tokenized t = tokenized_build(&f);
    round_trips(&t, 20);
    tokenized_close(&t);
}

static void test_round_trip_shared_vocabularies(void **state)
{
    (void)state;
    static const char *const presets[] = {"tiny-qwen2moe", "tiny-mixtral"};
    for (size_t i = 0; i < EK_COUNT_OF(presets); i++) {
        ek_fixture_path path;
        if (!ek_fixture_shared_gguf(presets[i], "f32", &path)) skip();
        tokenized t = tokenized_read(path.text);
        round_trips(&t, 30 + i);
        tokenized_close(&t);
    }
}

/* ---- many threads, one tokenizer ---- */

typedef struct shared_use {
    const tokenized *t;
    const id_list *wanted; /* (n_texts) */
    const ek_str *texts;
    int n_wrong;
} shared_use;

#define TEXT(literal)                \
    {                                \
        literal, sizeof(literal) - 1 \
    }

enum { N_SHARED_TEXTS = 3, N_THREADS = 4 };

/* Counts instead of asserting: cmocka may only fail on the thread that runs the test. */
static void *encode_over_and_over(void *arg)
{
    shared_use *use = arg;
    char mem[65536];
    int32_t ids[1024];
    for (int round = 0; round < 200; round++) {
        int i = round % N_SHARED_TEXTS;
        int64_t n = 0;
        ek_status status = ek_model_tokenizer_encode(use->t->tokenizer, use->texts[i], true,
                                                     ek_arena_over(mem, sizeof mem), ids, 1024, &n);
        if (status != EK_OK || n != use->wanted[i].n ||
            memcmp(ids, use->wanted[i].data, (size_t)n * sizeof ids[0]) != 0)
            use->n_wrong++;
    }
    return NULL;
}

static void test_threads_share_one_tokenizer(void **state)
{
    (void)state;
    static const ek_str texts[N_SHARED_TEXTS] = {
        TEXT("aeiou aeae ieie, 123 \n\n  你好"),
        TEXT("\xff\xfe aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        TEXT("if(x){\r\n\tfoo();\r\n}\r\n")};
    ek_rng rng;
    ek_rng_init(&rng, 5);
    static pieces p;
    random_pieces(&rng, "aei", false, &p);
    vocab_file f = {0};
    build_bpe(&f, "deepseek-v3", p.extra, p.n, p.merges, p.n);
    tokenized t = tokenized_build(&f);
    id_list wanted[N_SHARED_TEXTS];
    for (int i = 0; i < N_SHARED_TEXTS; i++)
        wanted[i] = encode(&t, texts[i], true);
    pthread_t thread[N_THREADS];
    shared_use use[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        use[i] = (shared_use){&t, wanted, texts, 0};
        assert_int_equal(pthread_create(&thread[i], NULL, encode_over_and_over, &use[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
        assert_int_equal(use[i].n_wrong, 0);
    }
    for (int i = 0; i < N_SHARED_TEXTS; i++)
        free(wanted[i].data);
    tokenized_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bpe_is_its_definition),
        cmocka_unit_test(test_spm_is_its_definition),
        cmocka_unit_test(test_round_trip_small_vocabularies),
        cmocka_unit_test(test_round_trip_shared_vocabularies),
        cmocka_unit_test(test_threads_share_one_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
