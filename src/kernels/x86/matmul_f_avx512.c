#include "kernels/x86/v16_avx512.h"

#include "kernels/x86/matmul_f_body.h"
#include "kernels/x86/x86.h"

void ek_kernels_avx512_matmul_f_fill(ek_kernels *table)
{
    matmul_f_fill(table);
}
