/*
 * What the forward pass promises besides being right: a token's logits are the same bits whatever
 * shares its step, however its prompt is cut, whatever the prefix cache gave, and whoever computes;
 * real tokens are counted once; a failing dispatcher costs nothing but the step.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "forward_rig.h"
#include "support/fixtures.h"

#define N_PROMPT  75 /* several attention units, and no multiple of anything */
#define N_DECODE  4
#define N_TOKENS  (N_PROMPT + N_DECODE)
#define N_OTHERS  5
#define VOCAB_MAX 2048

static void model_path(const char *name, ek_fixture_path *out_path)
{
    char file[128];
    snprintf(file, sizeof file, "tests/support/tiny-%s.gguf", name);
    ek_fixture_build(file, out_path);
}

static void random_tokens(uint64_t seed, int32_t n_vocab, int32_t *tokens, int32_t n)
{
    ek_rng rng;
    ek_rng_init(&rng, seed);
    for (int32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)ek_rng_below(&rng, (uint64_t)n_vocab);
}

/** Logits after the prompt and after each of the tokens that follow it. */
typedef struct answer {
    float logits[N_DECODE + 1][VOCAB_MAX];
} answer;

static void compute(ek_rig *rig, const int32_t *tokens, int32_t chunk, answer *out)
{
    ek_rig_seq seq;
    ek_rig_seq_init(&seq);
    ek_rig_feed(rig, &seq, tokens, N_PROMPT, chunk, out->logits[0]);
    for (int32_t i = 0; i < N_DECODE; i++)
        ek_rig_feed(rig, &seq, &tokens[N_PROMPT + i], 1, 1, out->logits[i + 1]);
    ek_engine_kv_free(rig->kv, &seq.kv, 0);
}

static void assert_same(const answer *a, const answer *b, int32_t n_vocab)
{
    for (int32_t i = 0; i <= N_DECODE; i++)
        assert_memory_equal(a->logits[i], b->logits[i], (size_t)n_vocab * sizeof(float));
}

/** As compute, while N_OTHERS sequences of other lengths prefill and decode in the same steps. */
static void compute_in_company(ek_rig *rig, const int32_t *tokens, int32_t chunk, answer *out)
{
    int32_t n_vocab = rig->model->params.n_vocab;
    ek_rig_seq seqs[N_OTHERS + 1];
    ek_batch_seq parts[N_OTHERS + 1];
    int32_t theirs[N_OTHERS][N_TOKENS];
    float *logits = calloc((N_OTHERS + 1) * (size_t)n_vocab, sizeof *logits);
    for (int32_t s = 0; s <= N_OTHERS; s++)
        ek_rig_seq_init(&seqs[s]);
    for (int32_t s = 0; s < N_OTHERS; s++)
        random_tokens(100 + (uint64_t)s, n_vocab, theirs[s], N_TOKENS);

    int32_t mine = 2; /* in the middle of the batch */
    for (int32_t step = 0, n_out = 0; seqs[mine].kv.n_tokens < N_TOKENS; step++) {
        int32_t my_row = 0;
        int32_t n_parts = 0;
        for (int32_t s = 0; s <= N_OTHERS; s++) {
            ek_kv_seq *kv = &seqs[s].kv;
            int32_t left = (kv->n_tokens < N_PROMPT ? N_PROMPT : N_TOKENS) - kv->n_tokens;
            int32_t n = kv->n_tokens < N_PROMPT ? (s == mine ? chunk : 3 + 5 * s) : 1;
            if (n > left) n = left;
            if (n == 0) continue; /* done */
            const int32_t *list = s == mine ? tokens : theirs[s < mine ? s : s - 1];
            parts[n_parts] = (ek_batch_seq){
                .kv = kv,
                .tokens = list + kv->n_tokens,
                .n_tokens = n,
                .wants_logits = s == mine ? kv->n_tokens + n >= N_PROMPT : (step + s) % 2 == 0,
            };
            if (s < mine) my_row += parts[n_parts].wants_logits;
            n_parts++;
            assert_int_equal(ek_engine_kv_reserve(rig->kv, kv, kv->n_tokens + n), EK_OK);
        }
        assert_int_equal(ek_engine_forward_run(rig->forward, &(ek_batch){parts, n_parts}, logits),
                         EK_OK);
        if (seqs[mine].kv.n_tokens >= N_PROMPT)
            memcpy(out->logits[n_out++], logits + (ptrdiff_t)my_row * n_vocab,
                   (size_t)n_vocab * sizeof *logits);
    }
    for (int32_t s = 0; s <= N_OTHERS; s++)
        ek_engine_kv_free(rig->kv, &seqs[s].kv, 0);
    free(logits);
}

typedef struct invariance {
    const char *kernels;
    const char *model;
} invariance;

/* Every architecture, and every way that a matrix is multiplied, with the fast kernels. */
static const invariance invariances[] = {
    {"auto", "qwen2moe-q8_0"}, {"auto", "qwen2moe-q4_k"}, {"auto", "qwen2moe-bf16"},
    {"auto", "qwen3moe-f32"},  {"auto", "olmoe-f32"},     {"auto", "llama-f32"},
    {"avx2", "qwen2moe-q8_0"}, {"avx2", "olmoe-f32"},     {"reference", "qwen2moe-q8_0"},
};

static void test_same_bits(void **state)
{
    static const int32_t chunks[] = {N_PROMPT, 1, 7, 33};
    const invariance *item = *state;
    ek_kernels_choice kernels;
    assert_true(ek_kernels_choice_parse(item->kernels, &kernels));
    if (!ek_rig_has_kernels(kernels)) skip();
    ek_fixture_path path;
    model_path(item->model, &path);
    answer *first = calloc(1, sizeof *first);
    answer *again = calloc(1, sizeof *again);
    for (int32_t n_threads = 1; n_threads <= 3; n_threads++) {
        ek_rig rig;
        ek_rig_params params = ek_rig_defaults(path.text);
        params.kernels = kernels;
        params.n_threads = n_threads;
        ek_rig_open(&params, &rig);
        int32_t n_vocab = rig.model->params.n_vocab;
        assert_true(n_vocab <= VOCAB_MAX);
        int32_t tokens[N_TOKENS];
        random_tokens(1, n_vocab, tokens, N_TOKENS);
        if (n_threads == 1) compute(&rig, tokens, N_PROMPT, first);
        for (size_t c = 0; c < EK_COUNT_OF(chunks); c++) {
            compute(&rig, tokens, chunks[c], again);
            assert_same(first, again, n_vocab);
            compute_in_company(&rig, tokens, chunks[c], again);
            assert_same(first, again, n_vocab);
        }
        ek_rig_close(&rig);
    }
    free(first);
    free(again);
}

static void test_prefix_hits_change_nothing(void **state)
{
    (void)state;
    ek_fixture_path path;
    model_path("qwen2moe-q8_0", &path);
    ek_rig rig;
    ek_rig_params params = ek_rig_defaults(path.text);
    params.prefix_cache = true;
    ek_rig_open(&params, &rig);
    int32_t n_vocab = rig.model->params.n_vocab;
    int32_t tokens[N_TOKENS];
    random_tokens(1, n_vocab, tokens, N_TOKENS);
    float *alone = calloc((size_t)n_vocab, sizeof *alone);
    float *shared = calloc((size_t)n_vocab, sizeof *shared);
    ek_rig_logits(&rig, tokens, N_TOKENS, 20, alone);

    for (int32_t n_known = 0; n_known < N_TOKENS; n_known += 23) {
        ek_rig_seq donor;
        ek_rig_seq seq;
        ek_rig_seq_init(&donor);
        ek_rig_seq_init(&seq);
        int32_t n_first = ek_engine_kv_match(rig.kv, &donor.kv, tokens, N_TOKENS, 0);
        ek_rig_feed(&rig, &donor, tokens + n_first, N_TOKENS - n_first, 11, shared);
        assert_memory_equal(alone, shared, (size_t)n_vocab * sizeof *shared);
        ek_engine_kv_publish(rig.kv, &donor.kv, tokens, n_known, 0);

        int32_t n_hit = ek_engine_kv_match(rig.kv, &seq.kv, tokens, N_TOKENS, 0);
        assert_int_equal(n_hit, n_known / params.block_tokens * params.block_tokens);
        ek_rig_feed(&rig, &seq, tokens + n_hit, N_TOKENS - n_hit, 9, shared);
        assert_memory_equal(alone, shared, (size_t)n_vocab * sizeof *shared);
        ek_engine_kv_free(rig.kv, &seq.kv, 0);
        ek_engine_kv_free(rig.kv, &donor.kv, 0);
    }
    free(alone);
    free(shared);
    ek_rig_close(&rig);
}

/** Two requests: each (token, choice) is a token, each (request, expert) a request once. */
static void test_counts(void **state)
{
    (void)state;
    enum { n_seqs = 2, n_each = 21 };
    ek_fixture_path path;
    model_path("qwen2moe-f32", &path);
    ek_rig rig;
    ek_rig_params params = ek_rig_defaults(path.text);
    params.n_threads = 2;
    ek_rig_open(&params, &rig);
    const ek_model_params *p = &rig.model->params;
    int32_t n = p->n_layers * p->n_experts;
    int32_t tokens[n_seqs][n_each];
    uint64_t seen[n_seqs][8] = {{0}};
    ek_rig_seq seqs[n_seqs];
    ek_batch_seq parts[n_seqs];
    assert_true(n <= 8 * 64);
    for (int32_t s = 0; s < n_seqs; s++) {
        random_tokens((uint64_t)s, p->n_vocab, tokens[s], n_each);
        ek_rig_seq_init(&seqs[s]);
        assert_int_equal(ek_engine_kv_reserve(rig.kv, &seqs[s].kv, n_each), EK_OK);
    }
    for (int32_t i = 0; i < n_each; i += 7) {
        for (int32_t s = 0; s < n_seqs; s++)
            parts[s] = (ek_batch_seq){
                .kv = &seqs[s].kv, .tokens = tokens[s] + i, .n_tokens = 7, .expert_seen = seen[s]};
        assert_int_equal(ek_engine_forward_run(rig.forward, &(ek_batch){parts, n_seqs}, NULL),
                         EK_OK);
    }

    int64_t *counts = calloc((size_t)n * 3, sizeof *counts);
    int64_t *requests = counts + n;
    int64_t *busy_ns = counts + (ptrdiff_t)n * 2;
    ek_telemetry_experts_read(rig.stats, 0, counts, requests, busy_ns);
    for (int32_t l = 0; l < p->n_layers; l++) {
        int64_t sum = 0;
        for (int32_t e = 0; e < p->n_experts; e++) {
            int32_t i = l * p->n_experts + e;
            int64_t met = 0;
            for (int32_t s = 0; s < n_seqs; s++)
                met += (int64_t)(seen[s][i / 64] >> (i % 64) & 1);
            assert_int_equal(requests[i], met);
            assert_true((counts[i] > 0) == (met > 0));
            assert_true((busy_ns[i] > 0) == (met > 0));
            sum += counts[i];
        }
        assert_int_equal(sum, n_seqs * n_each * p->top_k);
    }
    free(counts);
    int64_t plan_ns;
    int64_t total_ns;
    ek_engine_forward_times(rig.forward, &plan_ns, &total_ns);
    assert_true(plan_ns > 0 && plan_ns < total_ns);
    ek_rig_close(&rig);
}

/* ---- failures ---- */

/** Passes everything on to a real dispatcher, and fails the call that it is told to fail. */
typedef struct faulty {
    ek_dispatcher base;
    ek_dispatcher *real;
    int32_t n_until_failure; /* dispatches and combines */
} faulty;

static bool faulty_fails(faulty *self)
{
    return self->n_until_failure-- == 0;
}

static ek_status faulty_dispatch(ek_dispatcher *base, const ek_expert_work *work, ek_arena *step)
{
    faulty *self = (faulty *)base;
    return faulty_fails(self) ? EK_EPEER : ek_expert_dispatch(self->real, work, step);
}

static ek_status faulty_combine(ek_dispatcher *base, const ek_expert_work *work, float *out)
{
    faulty *self = (faulty *)base;
    return faulty_fails(self) ? EK_EPEER : ek_expert_combine(self->real, work, out);
}

static size_t faulty_step_bytes(const ek_dispatcher *base, int32_t n_tokens)
{
    return ek_expert_step_bytes(((const faulty *)base)->real, n_tokens);
}

static ek_forward_params params_of(ek_rig *rig)
{
    return (ek_forward_params){
        .model = rig->model,
        .kernels = &rig->kernels,
        .pool = rig->pool,
        .kv = rig->kv,
        .router = rig->router,
        .dispatcher = rig->dispatcher,
        .batch_tokens_max = 32,
        .context_tokens = 40,
        .logits_rows_max = 2,
    };
}

static void test_failed_dispatch_advances_nothing(void **state)
{
    (void)state;
    static const ek_dispatcher_ops ops = {
        .dispatch = faulty_dispatch, .combine = faulty_combine, .step_bytes = faulty_step_bytes};
    ek_fixture_path path;
    model_path("qwen2moe-f32", &path);
    ek_rig rig;
    ek_rig_params rig_params = ek_rig_defaults(path.text);
    ek_rig_open(&rig_params, &rig);
    int32_t n_vocab = rig.model->params.n_vocab;
    int32_t tokens[20];
    random_tokens(9, n_vocab, tokens, 20);
    float *want = calloc((size_t)n_vocab, sizeof *want);
    float *logits = calloc((size_t)n_vocab, sizeof *logits);
    ek_rig_logits(&rig, tokens, 20, 20, want);

    faulty dispatcher = {{.ops = &ops}, rig.dispatcher, 0};
    ek_forward_params params = params_of(&rig);
    ek_forward *forward;
    params.dispatcher = &dispatcher.base;
    assert_int_equal(ek_engine_forward_create(&params, &forward, NULL), EK_OK);
    ek_rig_seq seq;
    ek_rig_seq_init(&seq);
    assert_int_equal(ek_engine_kv_reserve(rig.kv, &seq.kv, 20), EK_OK);
    ek_batch_seq part = {.kv = &seq.kv, .tokens = tokens, .n_tokens = 20, .wants_logits = true};
    int32_t n_calls = 2 * rig.model->params.n_layers;
    for (int32_t i = 0; i < n_calls; i++) {
        dispatcher.n_until_failure = i;
        assert_int_equal(ek_engine_forward_run(forward, &(ek_batch){&part, 1}, logits), EK_EPEER);
        assert_int_equal(seq.kv.n_tokens, 0);
    }
    dispatcher.n_until_failure = n_calls;
    assert_int_equal(ek_engine_forward_run(forward, &(ek_batch){&part, 1}, logits), EK_OK);
    assert_int_equal(seq.kv.n_tokens, 20);
    assert_memory_equal(want, logits, (size_t)n_vocab * sizeof *want);

    ek_engine_kv_free(rig.kv, &seq.kv, 0);
    ek_engine_forward_destroy(forward);
    free(want);
    free(logits);
    ek_rig_close(&rig);
}

static void test_batches_beyond_the_limits(void **state)
{
    (void)state;
    ek_fixture_path path;
    model_path("llama-f32", &path);
    ek_rig rig;
    ek_rig_params rig_params = ek_rig_defaults(path.text);
    ek_rig_open(&rig_params, &rig);
    ek_forward_params params = params_of(&rig);
    ek_forward *forward;
    assert_int_equal(ek_engine_forward_create(&params, &forward, NULL), EK_OK);
    int32_t n_vocab = rig.model->params.n_vocab;
    float *logits = calloc(2 * (size_t)n_vocab, sizeof *logits);
    int32_t tokens[64] = {0};
    ek_rig_seq seq;
    ek_rig_seq_init(&seq);
    assert_int_equal(ek_engine_kv_reserve(rig.kv, &seq.kv, 64), EK_OK);

    ek_batch_seq part = {.kv = &seq.kv, .tokens = tokens, .n_tokens = 33};
    const ek_batch one = {&part, 1};
    assert_int_equal(ek_engine_forward_run(forward, &one, logits), EK_EINVAL); /* 32 at once */
    part.n_tokens = 0;
    assert_int_equal(ek_engine_forward_run(forward, &one, logits), EK_EINVAL);
    part.n_tokens = -1;
    assert_int_equal(ek_engine_forward_run(forward, &one, logits), EK_EINVAL);
    part.n_tokens = 4;
    tokens[3] = n_vocab;
    assert_int_equal(ek_engine_forward_run(forward, &one, logits), EK_EINVAL);
    tokens[3] = -1;
    assert_int_equal(ek_engine_forward_run(forward, &one, logits), EK_EINVAL);
    tokens[3] = n_vocab - 1;
    assert_int_equal(ek_engine_forward_run(forward, &one, logits), EK_OK);
    assert_int_equal(seq.kv.n_tokens, 4);
    seq.kv.n_tokens = 37; /* the context is 40 */
    assert_int_equal(ek_engine_forward_run(forward, &one, logits), EK_EINVAL);
    seq.kv.n_tokens = 36;
    assert_int_equal(ek_engine_forward_run(forward, &one, logits), EK_OK);
    seq.kv.n_tokens = 14;
    seq.kv.n_blocks = 1; /* room for 16 */
    assert_int_equal(ek_engine_forward_run(forward, &one, logits), EK_EINVAL);
    seq.kv.n_blocks = 4;

    ek_batch_seq three[3];
    for (int32_t i = 0; i < 3; i++)
        three[i] =
            (ek_batch_seq){.kv = &seq.kv, .tokens = tokens, .n_tokens = 1, .wants_logits = true};
    assert_int_equal(ek_engine_forward_run(forward, &(ek_batch){three, 3}, logits), EK_EINVAL);
    assert_int_equal(ek_engine_forward_run(forward, &(ek_batch){NULL, 0}, NULL), EK_OK);
    assert_int_equal(seq.kv.n_tokens, 14);

    free(logits);
    ek_engine_kv_free(rig.kv, &seq.kv, 0);
    ek_engine_forward_destroy(forward);
    ek_rig_close(&rig);
}

static void test_create_refuses(void **state)
{
    (void)state;
    ek_fixture_path path;
    model_path("olmoe-f32", &path);
    ek_rig rig;
    ek_rig_params rig_params = ek_rig_defaults(path.text);
    ek_rig_open(&rig_params, &rig);
    ek_forward *forward = NULL;
    ek_err err = {0};
    ek_forward_params bad[] = {params_of(&rig), params_of(&rig), params_of(&rig), params_of(&rig)};
    bad[0].batch_tokens_max = 0;
    bad[1].logits_rows_max = 33;
    bad[2].context_tokens = 0;
    ek_kv_params other = *ek_engine_kv_params(rig.kv);
    other.n_kv_heads++;
    assert_int_equal(ek_engine_kv_create(&other, &bad[3].kv, NULL), EK_OK);
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++) {
        err.text[0] = 0;
        assert_int_equal(ek_engine_forward_create(&bad[i], &forward, &err), EK_EINVAL);
        assert_true(err.text[0] != 0);
    }
    assert_null(forward);
    ek_engine_kv_destroy(bad[3].kv);

    ek_forward_params small = params_of(&rig);
    ek_forward_params large = small;
    large.batch_tokens_max = 512;
    ek_forward_params early = large; /* before the cache is there */
    early.kv = NULL;
    early.router = NULL;
    assert_true(ek_engine_forward_bytes(&early) >= ek_engine_forward_bytes(&large));
    int64_t d = rig.model->params.d_model;
    int64_t more = ek_engine_forward_bytes(&large) - ek_engine_forward_bytes(&small);
    assert_true(more > 480 * 3 * d * (int64_t)sizeof(float)); /* at least x, normed and delta */
    ek_engine_forward_destroy(NULL);
    ek_rig_close(&rig);
}

int main(void)
{
    struct CMUnitTest tests[EK_COUNT_OF(invariances) + 5];
    char names[EK_COUNT_OF(invariances)][64];
    size_t n = 0;
    for (; n < EK_COUNT_OF(invariances); n++) {
        snprintf(names[n], sizeof names[n], "same bits: %s %s", invariances[n].kernels,
                 invariances[n].model);
        tests[n] = (struct CMUnitTest){
            .name = names[n],
            .test_func = test_same_bits,
            .initial_state = (void *)(uintptr_t)&invariances[n],
        };
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_prefix_hits_change_nothing);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_counts);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_failed_dispatch_advances_nothing);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_batches_beyond_the_limits);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_create_refuses);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
