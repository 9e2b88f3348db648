#include "kernels/x86/v16_avx512.h"

#include "kernels/x86/v16_exp.h"

#include "kernels/x86/vector_body.h"
#include "kernels/x86/x86.h"

void ek_kernels_avx512_vector_fill(ek_kernels *table)
{
    vector_fill(table);
}
