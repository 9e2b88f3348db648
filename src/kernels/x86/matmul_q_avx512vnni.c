#include "kernels/x86/v16_avx512.h"

#include "kernels/x86/dot_avx512vnni.h"

#include "kernels/x86/unpack_body.h"

#include "kernels/tables.h"
#include "kernels/x86/matmul_q_body.h"

static_assert(TILE_TOKENS == 6 && TILE_PANELS == 2, "the switches below list every tile");

static void affine(const tile_job *job)
{
    switch (job->n_panels * 8 + job->n_tokens) {
    case 8 + 1: tile_affine(8, 1, 1, job); break;
    case 8 + 2: tile_affine(8, 1, 2, job); break;
    case 8 + 3: tile_affine(8, 1, 3, job); break;
    case 8 + 4: tile_affine(8, 1, 4, job); break;
    case 8 + 5: tile_affine(8, 1, 5, job); break;
    case 8 + 6: tile_affine(8, 1, 6, job); break;
    case 16 + 1: tile_affine(8, 2, 1, job); break;
    case 16 + 2: tile_affine(8, 2, 2, job); break;
    case 16 + 3: tile_affine(8, 2, 3, job); break;
    case 16 + 4: tile_affine(8, 2, 4, job); break;
    case 16 + 5: tile_affine(8, 2, 5, job); break;
    default: tile_affine(8, 2, 6, job); break;
    }
}

static void halves(const tile_job *job)
{
    switch (job->n_panels * 8 + job->n_tokens) {
    case 8 + 1: tile_halves(1, 1, job); break;
    case 8 + 2: tile_halves(1, 2, job); break;
    case 8 + 3: tile_halves(1, 3, job); break;
    case 8 + 4: tile_halves(1, 4, job); break;
    case 8 + 5: tile_halves(1, 5, job); break;
    case 8 + 6: tile_halves(1, 6, job); break;
    case 16 + 1: tile_halves(2, 1, job); break;
    case 16 + 2: tile_halves(2, 2, job); break;
    case 16 + 3: tile_halves(2, 3, job); break;
    case 16 + 4: tile_halves(2, 4, job); break;
    case 16 + 5: tile_halves(2, 5, job); break;
    default: tile_halves(2, 6, job); break;
    }
}

static const q_format format_table[EK_TYPE_MAX] = {
    [EK_TYPE_Q4_0] = {32, sizeof(ek_block_q4_0), unpack_q4_0, affine},
    [EK_TYPE_Q8_0] = {32, sizeof(ek_block_q8_0), unpack_q8_0, affine},
    [EK_TYPE_Q4_K] = {EK_K_ELEMS, sizeof(ek_block_q4_K), unpack_q4_k, affine},
    [EK_TYPE_Q5_K] = {EK_K_ELEMS, sizeof(ek_block_q5_K), unpack_q5_k, affine},
    [EK_TYPE_Q6_K] = {EK_K_ELEMS, sizeof(ek_block_q6_K), unpack_q6_k, halves},
};

void ek_kernels_avx512_vnni_fill(ek_kernels *table)
{
    matmul_q_fill(table);
}
