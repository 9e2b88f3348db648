#include "kernels/tables.h"
#include "kernels/x86/x86.h"

void ek_kernels_avx2_fill(ek_kernels *table)
{
    table->name = "avx2";
    ek_kernels_avx2_vector_fill(table);
    ek_kernels_avx2_attend_fill(table);
    ek_kernels_avx2_matmul_f_fill(table);
    ek_kernels_avx2_matmul_q_fill(table);
}
