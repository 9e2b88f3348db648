#include "kernels/x86/v16_avx2.h"

#include "kernels/x86/matmul_f_body.h"
#include "kernels/x86/x86.h"

void ek_kernels_avx2_matmul_f_fill(ek_kernels *table)
{
    matmul_f_fill(table);
}
