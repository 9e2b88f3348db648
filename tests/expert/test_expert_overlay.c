/*
 * Goal: an overlay changes the gates it names and nothing else, fits one model only, and is refused
 * with its path and the reason where anything about it is wrong. Method: overlays written for the
 * tiny models, right ones and each with one mistake.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "expert/model_file.h"
#include "model/gguf_write.h"
#include "support/fixtures.h"

#define TINY  "tests/support/tiny-qwen2moe-f32.gguf"
#define OTHER "tests/support/tiny-qwen2moe-q8_0.gguf"

/* What goes into an overlay; tests change one thing. */
typedef struct draft {
    ek_gguf_out_pair pair[8];
    int32_t n_pairs;
    ek_gguf_out_tensor tensor[4];
    int32_t n_tensors;
    char sha256[EK_SHA256_HEX_BYTES];
    float *weight; /* (n_experts, d) owned */
    float *bias;   /* (n_experts) owned */
} draft;

static ek_model_file *open_model(const char *name)
{
    ek_fixture_path path;
    ek_model_file *file = NULL;
    ek_err err;
    ek_fixture_build(name, &path);
    if (ek_expert_model_open(path.text, NULL, &file, &err) != EK_OK) fail_msg("%s", err.text);
    return file;
}

/* Gate and bias of layer 1, all numbers different from the model's. */
static void draft_make(const ek_model_file *file, draft *d)
{
    const ek_model_params *p = &file->model->params;
    *d = (draft){0};
    assert_int_equal(ek_expert_model_fingerprint(file, d->sha256), EK_OK);
    d->pair[0] = (ek_gguf_out_pair){.key = "general.architecture", .text = EK_OVERLAY_ARCH};
    d->pair[1] = (ek_gguf_out_pair){.key = "evenkeel.overlay.version", .number = 1};
    d->pair[2] = (ek_gguf_out_pair){.key = "evenkeel.overlay.base_sha256", .text = d->sha256};
    d->pair[3] = (ek_gguf_out_pair){.key = "evenkeel.overlay.method", .text = "router"};
    d->n_pairs = 4;
    int64_t n = (int64_t)p->n_experts * p->d_model;
    d->weight = calloc((size_t)n, sizeof(float));
    d->bias = calloc((size_t)p->n_experts, sizeof(float));
    for (int64_t i = 0; i < n; i++)
        d->weight[i] = 0.25f + (float)i;
    for (int32_t i = 0; i < p->n_experts; i++)
        d->bias[i] = 0.5f * (float)i;
    d->tensor[0] = (ek_gguf_out_tensor){
        .name = "blk.1.ffn_gate_inp.weight", .dim = {p->d_model, p->n_experts}, .data = d->weight};
    d->tensor[1] = (ek_gguf_out_tensor){
        .name = "blk.1.exp_probs_b.bias", .dim = {p->n_experts}, .data = d->bias};
    d->n_tensors = 2;
}

static void draft_free(draft *d)
{
    free(d->weight);
    free(d->bias);
}

static void draft_write(const draft *d, const ek_fixture_path *path)
{
    const ek_gguf_out out = {d->pair, d->n_pairs, d->tensor, d->n_tensors};
    size_t bytes = ek_model_gguf_write_bytes(&out);
    uint8_t *file = malloc(bytes);
    assert_non_null(file);
    ek_model_gguf_write(&out, file);
    ek_fixture_write(path->text, (ek_span){file, bytes});
    free(file);
}

/* What opening that draft over TINY says. */
static ek_status try_draft(const draft *d, ek_err *err)
{
    ek_fixture_path dir, path;
    ek_fixture_tempdir(&dir);
    ek_fixture_join(&dir, "gates.gguf", &path);
    draft_write(d, &path);
    ek_model_file *file = open_model(TINY);
    const ek_model *before = file->model;
    *err = (ek_err){0};
    ek_status status = ek_expert_model_overlay(file, path.text, err);
    if (status != EK_OK) {
        assert_ptr_equal(file->model, before);
        assert_null(file->overlay);
        assert_non_null(strstr(err->text, "gates.gguf: "));
    }
    ek_expert_model_close(file);
    ek_fixture_tempdir_remove(&dir);
    return status;
}

static void test_gates_are_the_overlays_and_all_else_is_the_models(void **state)
{
    (void)state;
    ek_fixture_path dir, path;
    ek_fixture_tempdir(&dir);
    ek_fixture_join(&dir, "gates.gguf", &path);
    ek_model_file *file = open_model(TINY);
    const ek_model base = *file->model;
    draft d;
    draft_make(file, &d);
    draft_write(&d, &path);
    ek_err err = {0};
    if (ek_expert_model_overlay(file, path.text, &err) != EK_OK) fail_msg("%s", err.text);

    size_t bytes = (size_t)base.params.n_experts * (size_t)base.params.d_model * sizeof(float);
    const ek_model_layer *layer = file->model->layers;
    assert_ptr_equal(layer[0].gate, base.layers[0].gate);
    assert_null(layer[0].gate_bias);
    assert_ptr_not_equal(layer[1].gate, base.layers[1].gate);
    assert_memory_equal(layer[1].gate->data, d.weight, bytes);
    assert_memory_equal(layer[1].gate_bias->data, d.bias,
                        (size_t)base.params.n_experts * sizeof(float));
    assert_ptr_equal(layer[1].expert_down, base.layers[1].expert_down);
    assert_ptr_equal(file->model->output, base.output);
    assert_string_equal(ek_expert_overlay_method(file->overlay), "router");
    assert_int_equal(strlen(ek_expert_overlay_sha256(file->overlay)), 64);
    /* The fingerprint stays the base's. */
    char sha256[EK_SHA256_HEX_BYTES];
    assert_int_equal(ek_expert_model_fingerprint(file, sha256), EK_OK);
    assert_string_equal(sha256, d.sha256);
    draft_free(&d);
    ek_expert_model_close(file);
    ek_fixture_tempdir_remove(&dir);
}

static void test_another_model_is_refused(void **state)
{
    (void)state;
    ek_model_file *other = open_model(OTHER), *file = open_model(TINY);
    char sha256[EK_SHA256_HEX_BYTES];
    draft d;
    ek_err err;
    draft_make(other, &d);
    assert_int_equal(ek_expert_model_fingerprint(file, sha256), EK_OK);
    assert_string_not_equal(sha256, d.sha256);
    assert_int_equal(try_draft(&d, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "made for another model"));
    draft_free(&d);
    ek_expert_model_close(other);
    ek_expert_model_close(file);
}

static void test_mistakes_are_named(void **state)
{
    (void)state;
    ek_model_file *file = open_model(TINY);
    ek_err err;
    draft d;
    draft_make(file, &d);
    assert_int_equal(try_draft(&d, &err), EK_OK);

    draft wrong = d;
    wrong.pair[0].text = "qwen2moe";
    assert_int_equal(try_draft(&wrong, &err), EK_EFORMAT);
    assert_non_null(strstr(err.text, "is no gate overlay"));

    wrong = d;
    wrong.pair[1].number = 2;
    assert_int_equal(try_draft(&wrong, &err), EK_EUNSUPPORTED);

    wrong = d;
    wrong.n_pairs = 2;
    assert_int_equal(try_draft(&wrong, &err), EK_EFORMAT);
    assert_non_null(strstr(err.text, "base_sha256: missing"));

    wrong = d;
    wrong.n_tensors = 0;
    assert_int_equal(try_draft(&wrong, &err), EK_EFORMAT);

    wrong = d;
    snprintf(wrong.tensor[0].name, sizeof wrong.tensor[0].name, "blk.99.ffn_gate_inp.weight");
    assert_int_equal(try_draft(&wrong, &err), EK_EFORMAT);
    assert_non_null(strstr(err.text, "blk.99.ffn_gate_inp.weight: is no gate"));

    wrong = d;
    wrong.tensor[0].dim[1] -= 1;
    assert_int_equal(try_draft(&wrong, &err), EK_EFORMAT);
    assert_non_null(strstr(err.text, "must be F32 of"));

    d.bias[2] = NAN;
    assert_int_equal(try_draft(&d, &err), EK_EFORMAT);
    assert_non_null(strstr(err.text, "blk.1.exp_probs_b.bias: element 2"));
    draft_free(&d);
    ek_expert_model_close(file);
}

static void test_every_truncation_is_refused(void **state)
{
    (void)state;
    ek_fixture_path dir, path;
    ek_fixture_tempdir(&dir);
    ek_fixture_join(&dir, "gates.gguf", &path);
    ek_model_file *file = open_model(TINY);
    draft d;
    draft_make(file, &d);
    draft_write(&d, &path);
    ek_span whole = ek_fixture_read(path.text);
    ek_err err;
    for (size_t n = 1; n + 32 < whole.len; n += 1 + n / 7) {
        ek_fixture_write(path.text, (ek_span){whole.data, n});
        assert_int_not_equal(ek_expert_model_overlay(file, path.text, &err), EK_OK);
    }
    ek_fixture_free(whole);
    draft_free(&d);
    ek_expert_model_close(file);
    ek_fixture_tempdir_remove(&dir);
}

/* A change at either end of a tensor, in a gate, or in the metadata is another model. */
static void test_fingerprint_sees_changes(void **state)
{
    (void)state;
    ek_fixture_path source, dir, path;
    ek_fixture_build(TINY, &source);
    ek_fixture_tempdir(&dir);
    ek_fixture_join(&dir, "changed.gguf", &path);
    ek_span whole = ek_fixture_read(source.text);
    uint8_t *copy = malloc(whole.len);
    assert_non_null(copy);
    memcpy(copy, whole.data, whole.len);
    ek_model_file *file = open_model(TINY);
    char before[EK_SHA256_HEX_BYTES], after[EK_SHA256_HEX_BYTES];
    assert_int_equal(ek_expert_model_fingerprint(file, before), EK_OK);
    ek_expert_model_close(file);
    /* The last byte of the file may be padding; the last tensor ends within 32 bytes of it. */
    copy[whole.len - 33] ^= 1;
    ek_fixture_write(path.text, (ek_span){copy, whole.len});
    assert_int_equal(ek_expert_model_open(path.text, NULL, &file, NULL), EK_OK);
    assert_int_equal(ek_expert_model_fingerprint(file, after), EK_OK);
    assert_string_not_equal(before, after);
    ek_expert_model_close(file);
    free(copy);
    ek_fixture_free(whole);
    ek_fixture_tempdir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gates_are_the_overlays_and_all_else_is_the_models),
        cmocka_unit_test(test_another_model_is_refused),
        cmocka_unit_test(test_mistakes_are_named),
        cmocka_unit_test(test_every_truncation_is_refused),
        cmocka_unit_test(test_fingerprint_sees_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
