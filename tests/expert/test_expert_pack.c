/*
 * Goal: a packed model computes the same bits as the file it was made from. Method: tiny models,
 * every matrix of every layer times a few tokens, from both; on one thread and on three; and what
 * must stay as it is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "expert/act.h"
#include "expert/ffn.h"
#include "expert/model_file.h"
#include "expert/pack.h"
#include "support/fixtures.h"
#include "sys/cpu.h"
#include "sys/mem.h"

enum { N_TOKENS = 7, N_FIELDS = 11 };

typedef struct mats {
    const ek_tensor *tensor[N_FIELDS];
} mats;

static mats mats_of(const ek_model *model, int32_t l)
{
    const ek_model_layer *layer = &model->layers[l];
    return (mats){{layer->attn_q, layer->attn_k, layer->attn_v, layer->attn_out, layer->expert_gate,
                   layer->expert_up, layer->expert_down, layer->shared_gate, layer->shared_up,
                   layer->shared_down, model->output}};
}

/* All rows of matrix `idx` of a tensor times N_TOKENS tokens. */
static float *multiply(const ek_kernels *kernels, const ek_tensor *tensor, int32_t idx)
{
    ek_mat mat = ek_expert_mat(tensor, idx);
    ek_sys_region region;
    size_t bytes = ek_expert_act_bytes(N_TOKENS, mat.n_cols, true);
    assert_int_equal(ek_sys_region_open(bytes, 0, &region), EK_OK);
    ek_arena arena = ek_sys_region_arena(&region);
    ek_act_buf buf;
    assert_true(ek_expert_act_take(&arena, N_TOKENS, mat.n_cols, true, &buf));
    ek_rng rng;
    ek_rng_init(&rng, 5);
    for (int32_t i = 0; i < N_TOKENS * mat.n_cols; i++)
        buf.f32[i] = (float)(ek_rng_unit(&rng) - 0.5);
    for (int64_t t = 0; t < N_TOKENS; t++)
        ek_expert_act_prepare(kernels, &buf, t, 0, mat.n_cols);
    float *y = ek_sys_calloc((size_t)N_TOKENS * (size_t)mat.n_rows, sizeof *y);
    assert_non_null(y);
    ek_act x = ek_expert_act_rows(&buf, 0);
    kernels->matmul[mat.type](&mat, 0, mat.n_rows, &x, NULL, N_TOKENS, y, mat.n_rows);
    ek_sys_region_close(&region);
    return y;
}

static void compare(const ek_kernels *kernels, const ek_tensor *plain, const ek_tensor *packed)
{
    int64_t n_mats = plain->dim[2];
    for (int32_t i = 0; i < n_mats; i++) {
        float *y = multiply(kernels, plain, i);
        float *z = multiply(kernels, packed, i);
        assert_memory_equal(y, z, (size_t)(N_TOKENS * plain->dim[1]) * sizeof *y);
        ek_sys_free(y);
        ek_sys_free(z);
    }
}

static int count_packed(const ek_model *plain, const ek_model *own)
{
    int n = 0;
    for (int32_t l = 0; l < own->params.n_layers; l++) {
        mats a = mats_of(plain, l), b = mats_of(own, l);
        for (int i = 0; i < N_FIELDS; i++) {
            bool is_output = i == N_FIELDS - 1; /* the same one with every layer */
            if (a.tensor[i] == b.tensor[i] || (is_output && l > 0)) continue;
            if (b.tensor[i]->packed)
                n++;
            else
                assert_ptr_equal(a.tensor[i]->data, b.tensor[i]->data);
        }
    }
    return n;
}

/* With no time at all it goes on by a chunk a call; what is not packed yet is the file's. */
static void pack_in_parts(const ek_model *plain, const ek_model *own, ek_packed_model *packed,
                          ek_sys_pool *pool)
{
    ek_pack_progress progress = ek_expert_pack_progress(packed);
    assert_int_equal(progress.packed_bytes, 0);
    while (progress.packed_bytes < progress.total_bytes) {
        int n_before = count_packed(plain, own);
        int64_t bytes_before = progress.packed_bytes;
        bool changed = ek_expert_pack_some(packed, pool, 0);
        progress = ek_expert_pack_progress(packed);
        assert_int_equal(changed, progress.packed_bytes > bytes_before);
        assert_int_equal(count_packed(plain, own), n_before + changed);
    }
    assert_false(ek_expert_pack_some(packed, pool, 1000));
}

/* How many matrices were packed. */
static int check_model(const char *name, ek_kernels_choice choice, int32_t n_threads, bool at_home,
                       bool in_parts)
{
    ek_fixture_path path;
    ek_model_file *file = NULL;
    ek_packed_model *packed = NULL;
    ek_kernels kernels;
    ek_sys_pool *pool = NULL;
    ek_err err;
    ek_fixture_build(name, &path);
    if (ek_expert_model_open(path.text, NULL, &file, &err) != EK_OK) fail_msg("%s", err.text);
    assert_int_equal(ek_kernels_select(choice, ek_sys_cpu_flags(), &kernels), EK_OK);
    assert_int_equal(ek_sys_pool_create(n_threads, false, &pool), EK_OK);
    assert_int_equal(ek_expert_pack_create(file->model, NULL, &kernels, &packed, &err), EK_OK);
    /* Experts in turn on node 0, on node 1, and anywhere. */
    int32_t thread_node[16], expert_node[1024];
    for (int32_t t = 0; t < n_threads; t++)
        thread_node[t] = t % 2;
    for (int32_t i = 0; i < file->model->params.n_layers * file->model->params.n_experts; i++)
        expert_node[i] = i % 3 - 1;
    const ek_expert_homes homes = {
        .n_nodes = 2, .thread_node = thread_node, .expert_node = expert_node};
    if (at_home) ek_expert_pack_set_homes(packed, &homes);
    const ek_model *model = ek_expert_pack_model(packed);
    if (in_parts)
        pack_in_parts(file->model, model, packed, pool);
    else
        ek_expert_pack_run(packed, pool);
    assert_ptr_equal(model->token_embd, file->model->token_embd);
    int n_packed = 0;
    for (int32_t l = 0; l < model->params.n_layers; l++) {
        mats plain = mats_of(file->model, l), own = mats_of(model, l);
        assert_ptr_equal(model->layers[l].gate, file->model->layers[l].gate);
        for (int i = 0; i < N_FIELDS; i++) {
            if (plain.tensor[i] == own.tensor[i]) continue;
            assert_true(own.tensor[i]->packed);
            assert_false(plain.tensor[i]->packed);
            compare(&kernels, plain.tensor[i], own.tensor[i]);
            n_packed++;
        }
    }
    ek_expert_pack_destroy(packed);
    ek_sys_pool_destroy(pool);
    ek_expert_model_close(file);
    return n_packed;
}

static void packs_without_changing_a_result(void **state EK_UNUSED)
{
    ek_kernels best;
    assert_int_equal(ek_kernels_select(EK_KERNELS_AUTO, ek_sys_cpu_flags(), &best), EK_OK);
    if (!best.act_int8[EK_TYPE_Q8_0]) {
        print_message("this machine has no kernels that read packed matrices\n");
        skip();
    }
    /* Experts' three matrices and the dense ones of each layer, wherever widths allow. */
    static const char *const types[] = {"q8_0", "q4_0", "q4_k", "q5_k", "q6_k"};
    for (size_t i = 0; i < EK_COUNT_OF(types); i++) {
        char name[64];
        snprintf(name, sizeof name, "tests/support/tiny-qwen2moe-%s.gguf", types[i]);
        assert_true(check_model(name, EK_KERNELS_AUTO, 3, false, false) > 6);
        assert_true(check_model(name, EK_KERNELS_AUTO, 3, true, false) > 6);
        assert_true(check_model(name, EK_KERNELS_AUTO, 3, i % 2 == 0, true) > 6);
        assert_true(check_model(name, EK_KERNELS_AVX2, 1, false, true) > 6);
    }
}

static void leaves_alone_what_kernels_read_plain(void **state EK_UNUSED)
{
    assert_int_equal(
        check_model("tests/support/tiny-olmoe-f32.gguf", EK_KERNELS_AUTO, 2, true, false), 0);
    assert_int_equal(
        check_model("tests/support/tiny-qwen2moe-q8_0.gguf", EK_KERNELS_REFERENCE, 2, false, true),
        0);
    ek_expert_pack_destroy(NULL);
}

static void check_expert(const ek_kernels *kernels, const ek_tensor *plain, const ek_tensor *packed,
                         int32_t expert)
{
    float *y = multiply(kernels, plain, expert), *z = multiply(kernels, packed, expert);
    assert_memory_equal(y, z, (size_t)(N_TOKENS * plain->dim[1]) * sizeof *y);
    ek_sys_free(y);
    ek_sys_free(z);
}

/* Experts that come after loading, and go again, beside some that stay. */
static void check_comings_and_goings(const ek_kernels *kernels, ek_packed_model *packed,
                                     int32_t layer, const ek_tensor *const tensors[][2])
{
    for (int turn = 0; turn < 2; turn++) {
        ek_expert_pack_add(packed, layer, 0);
        for (int i = 0; i < 3; i++)
            for (int32_t e = 0; e < 2; e++)
                check_expert(kernels, tensors[i][0], tensors[i][1], e);
        ek_expert_pack_drop(packed, layer, 0);
        for (int i = 0; i < 3; i++)
            check_expert(kernels, tensors[i][0], tensors[i][1], 1);
    }
}

/* A worker's part: two experts of the last layer. The front's: all but experts. */
static void packs_a_part(void **state EK_UNUSED)
{
    ek_fixture_path path;
    ek_model_file *file = NULL;
    ek_packed_model *packed = NULL;
    ek_kernels kernels;
    ek_sys_pool *pool = NULL;
    ek_err err;
    ek_fixture_build("tests/support/tiny-qwen2moe-q8_0.gguf", &path);
    if (ek_expert_model_open(path.text, NULL, &file, &err) != EK_OK) fail_msg("%s", err.text);
    assert_int_equal(ek_kernels_select(EK_KERNELS_AUTO, ek_sys_cpu_flags(), &kernels), EK_OK);
    if (!kernels.act_int8[EK_TYPE_Q8_0]) {
        print_message("this machine has no kernels that read packed matrices\n");
        skip();
    }
    assert_int_equal(ek_sys_pool_create(2, false, &pool), EK_OK);
    int32_t n_layers = file->model->params.n_layers, n_experts = file->model->params.n_experts;
    assert_in_range(n_experts, 3, 64);
    uint64_t bits[16] = {0};
    assert_in_range(n_layers, 1, EK_COUNT_OF(bits));
    bits[n_layers - 1] = UINT64_C(1) << (n_experts - 1) | 2;
    const ek_model_part worker = {.experts = bits}, front = {.dense = true};

    assert_int_equal(ek_expert_pack_create(file->model, &worker, &kernels, &packed, &err), EK_OK);
    ek_expert_pack_run(packed, pool);
    const ek_model_layer *plain = &file->model->layers[n_layers - 1];
    const ek_model_layer *own = &ek_expert_pack_model(packed)->layers[n_layers - 1];
    assert_ptr_equal(own->attn_q, plain->attn_q);
    assert_ptr_equal(ek_expert_pack_model(packed)->output, file->model->output);
    const ek_tensor *const tensors[][2] = {{plain->expert_gate, own->expert_gate},
                                           {plain->expert_up, own->expert_up},
                                           {plain->expert_down, own->expert_down}};
    for (size_t i = 0; i < EK_COUNT_OF(tensors); i++) {
        const ek_tensor *from = tensors[i][0], *to = tensors[i][1];
        assert_true(to->packed);
        size_t bytes = from->bytes / (size_t)n_experts;
        for (int32_t e = 0; e < n_experts; e++) {
            bool wanted = bits[n_layers - 1] >> e & 1;
            const uint8_t *mat = (const uint8_t *)to->data + (size_t)e * bytes;
            bool is_empty = true;
            for (size_t b = 0; b < bytes && is_empty; b++)
                is_empty = mat[b] == 0;
            assert_int_equal(is_empty, !wanted); /* its memory was never touched */
            if (wanted) check_expert(&kernels, from, to, e);
        }
    }
    check_comings_and_goings(&kernels, packed, n_layers - 1, tensors);
    ek_expert_pack_destroy(packed);

    assert_int_equal(ek_expert_pack_create(file->model, &front, &kernels, &packed, &err), EK_OK);
    ek_expert_pack_run(packed, pool);
    own = &ek_expert_pack_model(packed)->layers[n_layers - 1];
    assert_ptr_equal(own->expert_gate, plain->expert_gate);
    assert_true(own->attn_q->packed);
    ek_expert_pack_destroy(packed);
    ek_sys_pool_destroy(pool);
    ek_expert_model_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packs_without_changing_a_result),
        cmocka_unit_test(leaves_alone_what_kernels_read_plain),
        cmocka_unit_test(packs_a_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
