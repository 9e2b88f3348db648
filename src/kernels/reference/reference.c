#include "kernels/reference/reference.h"

#include "kernels/tables.h"

void ek_kernels_reference_fill(ek_kernels *table)
{
    *table = (ek_kernels){
        .name = "reference",
        .act_quantize = ek_kernels_reference_act_quantize,
        .rms_norm = ek_kernels_reference_rms_norm,
        .rope = ek_kernels_reference_rope,
        .swiglu = ek_kernels_reference_swiglu,
        .attend = ek_kernels_reference_attend,
        .axpy = ek_kernels_reference_axpy,
        .f32_to_f16 = ek_kernels_reference_f32_to_f16,
        .softmax = ek_kernels_reference_softmax,
    };
    for (uint32_t type = 0; type < EK_TYPE_MAX; type++) {
        const ek_type_info *info = ek_quant_type_info(type);
        if (info && info->supported) table->matmul[type] = ek_kernels_reference_matmul;
    }
}
