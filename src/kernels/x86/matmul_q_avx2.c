#include "kernels/x86/v16_avx2.h"

#include "kernels/x86/dot_avx2.h"

#include "kernels/x86/panel_body.h"

#include "kernels/x86/unpack_body.h"

#include "kernels/x86/matmul_q_body.h"
#include "kernels/x86/x86.h"

static_assert(TILE_TOKENS == 2 && TILE_TOKENS_MIN == 1 && DIRECT_TOKENS == 1,
              "every tile is listed");

static void affine_4(const tile_job *job)
{
    if (job->n_tokens == 1)
        tile_affine(4, 1, job);
    else
        tile_affine(4, 2, job);
}

static void affine_5(const tile_job *job)
{
    if (job->n_tokens == 1)
        tile_affine(5, 1, job);
    else
        tile_affine(5, 2, job);
}

static void affine_8(const tile_job *job)
{
    if (job->n_tokens == 1)
        tile_affine(8, 1, job);
    else
        tile_affine(8, 2, job);
}

static void halves(const tile_job *job)
{
    if (job->n_tokens == 1)
        tile_halves(1, job);
    else
        tile_halves(2, job);
}

static void panel_q4_0(const source *from, panel *out)
{
    panel_fill(unpack_q4_0, from, out);
}

static void direct_q4_0(direct_job *job)
{
    direct_run(unpack_q4_0, 1, job);
}

static void panel_q8_0(const source *from, panel *out)
{
    panel_fill(unpack_q8_0, from, out);
}

static void direct_q8_0(direct_job *job)
{
    direct_run(unpack_q8_0, 1, job);
}

static void panel_q4_k(const source *from, panel *out)
{
    panel_fill(unpack_q4_k, from, out);
}

static void direct_q4_k(direct_job *job)
{
    direct_run(unpack_q4_k, 1, job);
}

static void panel_q5_k(const source *from, panel *out)
{
    panel_fill(unpack_q5_k, from, out);
}

static void direct_q5_k(direct_job *job)
{
    direct_run(unpack_q5_k, 1, job);
}

static void panel_q6_k(const source *from, panel *out)
{
    panel_fill(unpack_q6_k, from, out);
}

static void direct_q6_k(direct_job *job)
{
    direct_run(unpack_q6_k, 1, job);
}

static const q_format format_table[EK_TYPE_MAX] = {
    [EK_TYPE_Q4_0] = {32, sizeof(ek_block_q4_0), panel_q4_0, affine_4, direct_q4_0},
    [EK_TYPE_Q8_0] = {32, sizeof(ek_block_q8_0), panel_q8_0, affine_8, direct_q8_0},
    [EK_TYPE_Q4_K] = {EK_K_ELEMS, sizeof(ek_block_q4_K), panel_q4_k, affine_4, direct_q4_k},
    [EK_TYPE_Q5_K] = {EK_K_ELEMS, sizeof(ek_block_q5_K), panel_q5_k, affine_5, direct_q5_k},
    [EK_TYPE_Q6_K] = {EK_K_ELEMS, sizeof(ek_block_q6_K), panel_q6_k, halves, direct_q6_k},
};

void ek_kernels_avx2_matmul_q_fill(ek_kernels *table)
{
    matmul_q_fill(table);
}
