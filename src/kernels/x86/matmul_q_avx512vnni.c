#include "kernels/x86/v16_avx512.h"

#include "kernels/x86/dot_avx512vnni.h"

#include "kernels/x86/panel_body.h"

#include "kernels/x86/unpack_body.h"

#include "kernels/tables.h"
#include "kernels/x86/matmul_q_body.h"

static_assert(TILE_TOKENS == 6 && TILE_TOKENS_MIN == 3 && DIRECT_TOKENS == 6,
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

static const q_format format_table[EK_TYPE_MAX] = {
    [EK_TYPE_Q4_0] = {32, sizeof(ek_block_q4_0), q4_0_direct, q4_0_unpack, affine},
    [EK_TYPE_Q8_0] = {32, sizeof(ek_block_q8_0), q8_0_direct, q8_0_unpack, affine},
    [EK_TYPE_Q4_K] = {EK_K_ELEMS, sizeof(ek_block_q4_K), q4_k_direct, q4_k_unpack, affine},
    [EK_TYPE_Q5_K] = {EK_K_ELEMS, sizeof(ek_block_q5_K), q5_k_direct, q5_k_unpack, affine},
    [EK_TYPE_Q6_K] = {EK_K_ELEMS, sizeof(ek_block_q6_K), q6_k_direct, q6_k_unpack, halves},
};

void ek_kernels_avx512_vnni_fill(ek_kernels *table)
{
    matmul_q_fill(table);
}
