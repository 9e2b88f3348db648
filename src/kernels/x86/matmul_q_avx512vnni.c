#include "kernels/x86/v16_avx512.h"

#include "kernels/x86/dot_avx512vnni.h"

#include "kernels/x86/panel_body.h"

#include "kernels/x86/unpack_body.h"

#include "kernels/tables.h"
#include "kernels/x86/matmul_q_body.h"

static_assert(TILE_TOKENS == 6 && TILE_TOKENS_MIN == 3 && DIRECT_TOKENS == 4,
              "the switches list every tile");

static void affine(const tile_job *job)
{
    switch (job->n_tokens) {
    case 3: tile_affine(8, 3, job); break;
    case 4: tile_affine(8, 4, job); break;
    case 5: tile_affine(8, 5, job); break;
    default: tile_affine(8, 6, job); break;
    }
}

static void halves(const tile_job *job)
{
    switch (job->n_tokens) {
    case 3: tile_halves(3, job); break;
    case 4: tile_halves(4, job); break;
    case 5: tile_halves(5, job); break;
    default: tile_halves(6, job); break;
    }
}

EK_V16_INLINE void direct_dispatch(unpack_fn unpack, direct_job *job)
{
    switch (job->n_tokens) {
    case 1: direct_run(unpack, 1, job); break;
    case 2: direct_run(unpack, 2, job); break;
    case 3: direct_run(unpack, 3, job); break;
    default: direct_run(unpack, 4, job); break;
    }
}

static void panel_q4_0(const source *from, panel *out)
{
    panel_fill(unpack_q4_0, from, out);
}

static void direct_q4_0(direct_job *job)
{
    direct_dispatch(unpack_q4_0, job);
}

static void panel_q8_0(const source *from, panel *out)
{
    panel_fill(unpack_q8_0, from, out);
}

static void direct_q8_0(direct_job *job)
{
    direct_dispatch(unpack_q8_0, job);
}

static void panel_q4_k(const source *from, panel *out)
{
    panel_fill(unpack_q4_k, from, out);
}

static void direct_q4_k(direct_job *job)
{
    direct_dispatch(unpack_q4_k, job);
}

static void panel_q5_k(const source *from, panel *out)
{
    panel_fill(unpack_q5_k, from, out);
}

static void direct_q5_k(direct_job *job)
{
    direct_dispatch(unpack_q5_k, job);
}

static void panel_q6_k(const source *from, panel *out)
{
    panel_fill(unpack_q6_k, from, out);
}

static void direct_q6_k(direct_job *job)
{
    direct_dispatch(unpack_q6_k, job);
}

static const q_format format_table[EK_TYPE_MAX] = {
    [EK_TYPE_Q4_0] = {32, sizeof(ek_block_q4_0), panel_q4_0, affine, direct_q4_0},
    [EK_TYPE_Q8_0] = {32, sizeof(ek_block_q8_0), panel_q8_0, affine, direct_q8_0},
    [EK_TYPE_Q4_K] = {EK_K_ELEMS, sizeof(ek_block_q4_K), panel_q4_k, affine, direct_q4_k},
    [EK_TYPE_Q5_K] = {EK_K_ELEMS, sizeof(ek_block_q5_K), panel_q5_k, affine, direct_q5_k},
    [EK_TYPE_Q6_K] = {EK_K_ELEMS, sizeof(ek_block_q6_K), panel_q6_k, halves, direct_q6_k},
};

void ek_kernels_avx512_vnni_fill(ek_kernels *table)
{
    matmul_q_fill(table);
}
