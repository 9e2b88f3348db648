#include "kernels/x86/v16_avx512.h"

#include "kernels/x86/v16_exp.h"

#include "kernels/x86/attend_body.h"
#include "kernels/x86/x86.h"

void ek_kernels_avx512_attend_fill(ek_kernels *table)
{
    attend_fill(table);
}
