#include "kernels/x86/v16_avx2.h"

#include "kernels/x86/dot_avx2.h"

#include "kernels/x86/unpack_body.h"

#include "kernels/x86/matmul_q_body.h"
#include "kernels/x86/x86.h"

static_assert(TILE_TOKENS == 2 && TILE_PANELS == 1, "the functions below list every tile");

static void affine_4(const tile_job *job)
{
    if (job->n_tokens == 1)
        tile_affine(4, 1, 1, job);
    else
        tile_affine(4, 1, 2, job);
}

static void affine_5(const tile_job *job)
{
    if (job->n_tokens == 1)
        tile_affine(5, 1, 1, job);
    else
        tile_affine(5, 1, 2, job);
}

static void affine_8(const tile_job *job)
{
    if (job->n_tokens == 1)
        tile_affine(8, 1, 1, job);
    else
        tile_affine(8, 1, 2, job);
}

static void halves(const tile_job *job)
{
    if (job->n_tokens == 1)
        tile_halves(1, 1, job);
    else
        tile_halves(1, 2, job);
}

static const q_format format_table[EK_TYPE_MAX] = {
    [EK_TYPE_Q4_0] = {32, sizeof(ek_block_q4_0), unpack_q4_0, affine_4},
    [EK_TYPE_Q8_0] = {32, sizeof(ek_block_q8_0), unpack_q8_0, affine_8},
    [EK_TYPE_Q4_K] = {EK_K_ELEMS, sizeof(ek_block_q4_K), unpack_q4_k, affine_4},
    [EK_TYPE_Q5_K] = {EK_K_ELEMS, sizeof(ek_block_q5_K), unpack_q5_k, affine_5},
    [EK_TYPE_Q6_K] = {EK_K_ELEMS, sizeof(ek_block_q6_K), unpack_q6_k, halves},
};

void ek_kernels_avx2_matmul_q_fill(ek_kernels *table)
{
    matmul_q_fill(table);
}
