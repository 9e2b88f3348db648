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

static const q_format format_table[EK_TYPE_MAX] = {
    [EK_TYPE_Q4_0] = {32, sizeof(ek_block_q4_0), q4_0_direct, q4_0_unpack, affine_4},
    [EK_TYPE_Q8_0] = {32, sizeof(ek_block_q8_0), q8_0_direct, q8_0_unpack, affine_8},
    [EK_TYPE_Q4_K] = {EK_K_ELEMS, sizeof(ek_block_q4_K), q4_k_direct, q4_k_unpack, affine_4},
    [EK_TYPE_Q5_K] = {EK_K_ELEMS, sizeof(ek_block_q5_K), q5_k_direct, q5_k_unpack, affine_5},
    [EK_TYPE_Q6_K] = {EK_K_ELEMS, sizeof(ek_block_q6_K), q6_k_direct, q6_k_unpack, halves},
};

void ek_kernels_avx2_matmul_q_fill(ek_kernels *table)
{
    matmul_q_fill(table);
}
