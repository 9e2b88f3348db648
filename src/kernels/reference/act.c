#include <math.h>

#include "kernels/act_rule.h"
#include "kernels/reference/reference.h"

void ek_kernels_reference_act_quantize(const float *x, int32_t n_cols, int8_t *q, float *scale,
                                       float *scaled_sum, int32_t *half_offset)
{
    for (int32_t b = 0; b < n_cols / EK_ACT_BLOCK; b++) {
        const float *in = x + b * EK_ACT_BLOCK;
        int8_t *out = q + b * EK_ACT_BLOCK;
        float largest = 0.0f;
        bool finite = true;
        for (int32_t i = 0; i < EK_ACT_BLOCK; i++) {
            finite = finite && isfinite(in[i]);
            largest = fmaxf(largest, fabsf(in[i]));
        }
        ek_act_rule rule = ek_act_rule_for(finite ? largest : NAN);
        int32_t sum[2] = {0, 0}; /* of the block's halves */
        for (int32_t i = 0; i < EK_ACT_BLOCK; i++) {
            out[i] = (int8_t)(finite ? rintf(in[i] * rule.inverse) : 0.0f);
            sum[i / (EK_ACT_BLOCK / 2)] += out[i];
        }
        scale[b] = rule.scale;
        scaled_sum[b] = rule.scale * (float)(sum[0] + sum[1]);
        half_offset[2 * b] = -32 * sum[0];
        half_offset[2 * b + 1] = -32 * sum[1];
    }
}
