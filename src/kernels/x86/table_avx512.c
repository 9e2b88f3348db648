#include "kernels/tables.h"
#include "kernels/x86/x86.h"

void ek_kernels_avx512_fill(ek_kernels *table)
{
    table->name = "avx512";
    ek_kernels_avx512_vector_fill(table);
    ek_kernels_avx512_attend_fill(table);
    ek_kernels_avx512_matmul_f_fill(table);
}
