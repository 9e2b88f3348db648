/*
 * Goal: a scan computes what serving computes: the loss of a text is that of the logits of its
 * prefixes, and what gates saw is what their logits follow from. Method: tiny models; prefixes one
 * by one through the forward pass of the rig.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/scan.h"
#include "forward_rig.h"
#include "quant/convert.h"
#include "support/fixtures.h"

#define TINY     "tests/support/tiny-qwen2moe-f32.gguf"
#define N_TOKENS 150 /* more than one step, and no whole number of them */

static void tokens_fill(int32_t *tokens, int32_t n_vocab)
{
    for (int32_t i = 0; i < N_TOKENS; i++)
        tokens[i] = (i * 37 + i * i) % n_vocab;
}

static ek_scan *scan_open(ek_model_file **out_file, int32_t n_threads)
{
    ek_fixture_path path;
    ek_scan *scan = NULL;
    ek_err err;
    ek_fixture_build(TINY, &path);
    if (ek_expert_model_open(path.text, NULL, out_file, &err) != EK_OK) fail_msg("%s", err.text);
    const ek_scan_params params = {
        .file = *out_file, .n_threads = n_threads, .text_tokens = N_TOKENS};
    if (ek_engine_scan_open(&params, &scan, &err) != EK_OK) fail_msg("%s", err.text);
    return scan;
}

static void test_loss_is_that_of_the_prefixes_logits(void **state)
{
    (void)state;
    ek_model_file *file;
    ek_scan *scan = scan_open(&file, 2);
    int32_t n_vocab = file->model->params.n_vocab, tokens[N_TOKENS];
    tokens_fill(tokens, n_vocab);
    double loss = 0, again = 0;
    assert_int_equal(ek_engine_scan_run(scan, tokens, N_TOKENS, NULL, &loss), EK_OK);
    assert_int_equal(ek_engine_scan_run(scan, tokens, N_TOKENS, NULL, &again), EK_OK);
    assert_true(loss == again);

    ek_fixture_path path;
    ek_fixture_build(TINY, &path);
    const ek_rig_params rig_params = ek_rig_defaults(path.text);
    ek_rig rig;
    ek_rig_open(&rig_params, &rig);
    float *logits = calloc((size_t)n_vocab, sizeof *logits);
    assert_non_null(logits);
    double wanted = 0;
    for (int32_t n = 1; n < N_TOKENS; n++) {
        ek_rig_logits(&rig, tokens, n, n, logits);
        double sum = 0;
        for (int32_t i = 0; i < n_vocab; i++)
            sum += exp((double)logits[i]);
        wanted += log(sum) - (double)logits[tokens[n]];
    }
    assert_true(fabs(loss - wanted) < 1e-4 * fabs(wanted));
    free(logits);
    ek_rig_close(&rig);
    ek_engine_scan_close(scan);
    ek_expert_model_close(file);
}

typedef struct seen {
    const ek_model *model;
    int32_t n_layers_seen;
    int32_t n_tokens; /* of layer 0 */
    int32_t n_slots;
} seen;

static void look(void *ctx, const ek_scan_layer *layer)
{
    seen *s = ctx;
    const ek_model_params *p = &s->model->params;
    assert_int_equal(layer->layer, s->n_layers_seen++ % p->n_layers);
    if (layer->layer == 0) {
        assert_int_equal(layer->first_token, s->n_tokens);
        s->n_tokens += layer->n_tokens;
    }
    s->n_slots += layer->plan->n_rows;
    const float *gate = s->model->layers[layer->layer].gate->data;
    for (int32_t t = 0; t < layer->n_tokens; t++)
        for (int32_t e = 0; e < p->n_experts; e++) {
            double z = 0;
            for (int32_t c = 0; c < p->d_model; c++)
                z += (double)gate[e * p->d_model + c] *
                     (double)layer->hidden[(int64_t)t * p->d_model + c];
            double got = (double)layer->gate_logits[(int64_t)t * p->n_experts + e];
            assert_true(fabs(z - got) < 1e-4 * (1 + fabs(z)));
        }
}

static void test_gates_are_seen(void **state)
{
    (void)state;
    ek_model_file *file;
    ek_scan *scan = scan_open(&file, 1);
    const ek_model_params *p = &file->model->params;
    int32_t tokens[N_TOKENS];
    tokens_fill(tokens, p->n_vocab);
    seen s = {.model = file->model};
    const ek_scan_sink sink = {&s, look};
    assert_int_equal(ek_engine_scan_run(scan, tokens, N_TOKENS, &sink, NULL), EK_OK);
    assert_int_equal(s.n_tokens, N_TOKENS);
    assert_int_equal(s.n_slots, N_TOKENS * p->n_layers * p->top_k);
    /* Without the sink nobody looks any more. */
    assert_int_equal(ek_engine_scan_run(scan, tokens, 3, NULL, NULL), EK_OK);
    assert_int_equal(s.n_tokens, N_TOKENS);
    ek_engine_scan_close(scan);
    ek_expert_model_close(file);
}

/* The loss of a text with every second expert of each layer at this load, after five samples. */
static double loss_under(ek_route_policy policy, const float *load, double *out_score_loss)
{
    ek_fixture_path path;
    ek_model_file *file;
    ek_scan *scan;
    ek_err err;
    ek_route_params routing;
    ek_route_params_default(&routing);
    routing.policy = policy;
    ek_fixture_build(TINY, &path);
    if (ek_expert_model_open(path.text, NULL, &file, &err) != EK_OK) fail_msg("%s", err.text);
    const ek_scan_params params = {
        .file = file, .n_threads = 1, .text_tokens = N_TOKENS, .routing = &routing};
    if (ek_engine_scan_open(&params, &scan, &err) != EK_OK) fail_msg("%s", err.text);
    const ek_model_params *p = &file->model->params;
    const int64_t n = (int64_t)p->n_layers * p->n_experts;
    float *loads = calloc((size_t)n, sizeof *loads);
    assert_non_null(loads);
    for (int64_t i = 0; load && i < n; i += 2)
        loads[i] = *load;
    int32_t tokens[N_TOKENS];
    tokens_fill(tokens, p->n_vocab);
    double loss = -1;
    for (int i = 0; i < 8; i++) {
        ek_engine_scan_set_loads(scan, load ? loads : NULL, 1000000 + 100000 * (int64_t)i);
        assert_int_equal(ek_engine_scan_run(scan, tokens, N_TOKENS, NULL, &loss), EK_OK);
    }
    *out_score_loss = ek_engine_scan_score_loss(scan);
    ek_engine_scan_close(scan);
    ek_expert_model_close(file);
    free(loads);
    return loss;
}

static void test_loads_bend_what_a_policy_chooses(void **state)
{
    (void)state;
    const float high = 0.95f, low = 0.1f;
    double given;
    const double plain = loss_under(EK_ROUTE_POLICY_STATIC, &high, &given);
    assert_true(given == 0);
    assert_true(loss_under(EK_ROUTE_POLICY_BREAKER, NULL, &given) == plain); /* not known */
    assert_true(given == 0);
    assert_true(loss_under(EK_ROUTE_POLICY_BREAKER, &low, &given) == plain);
    assert_true(given == 0);
    assert_true(loss_under(EK_ROUTE_POLICY_BREAKER, &high, &given) != plain);
    assert_true(given > 0 && given < 0.15);
    assert_true(loss_under(EK_ROUTE_POLICY_DISCOUNT, &high, &given) != plain);
    assert_true(given > 0 && given < 0.15);
}

static void test_what_cannot_be_scanned_is_refused(void **state)
{
    (void)state;
    ek_model_file *file;
    ek_scan *scan = scan_open(&file, 1), *none = NULL;
    int32_t tokens[N_TOKENS + 1] = {0};
    double loss = -1;
    ek_err err;
    assert_int_equal(ek_engine_scan_run(scan, tokens, N_TOKENS + 1, NULL, &loss), EK_EINVAL);
    assert_int_equal(ek_engine_scan_run(scan, tokens, 0, NULL, &loss), EK_EINVAL);
    tokens[2] = file->model->params.n_vocab;
    assert_int_equal(ek_engine_scan_run(scan, tokens, 3, NULL, &loss), EK_EINVAL);
    assert_true(loss == -1);
    const ek_scan_params params = {
        .file = file, .n_threads = 1, .text_tokens = file->model->params.context_tokens + 1};
    assert_int_equal(ek_engine_scan_open(&params, &none, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "the model's context"));
    ek_engine_scan_close(scan);
    ek_engine_scan_close(NULL);
    ek_expert_model_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_is_that_of_the_prefixes_logits),
        cmocka_unit_test(test_gates_are_seen),
        cmocka_unit_test(test_loads_bend_what_a_policy_chooses),
        cmocka_unit_test(test_what_cannot_be_scanned_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
