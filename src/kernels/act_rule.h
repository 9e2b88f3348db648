/*
 * How the int8 form of activations is rounded. One rule for every instruction set: all tables give
 * the same bytes, so a worker with another processor computes with the same activations. Private to
 * this room. Pure.
 */
#ifndef EK_KERNELS_ACT_RULE_H
#define EK_KERNELS_ACT_RULE_H

#include <math.h>

typedef struct ek_act_rule {
    float scale;   /* x ~ scale * q */
    float inverse; /* q = x * inverse, rounded to nearest, ties to even */
} ek_act_rule;

/*
 * Below this a block counts as zero: its reciprocal would overflow, and no weight is large enough
 * to lift the product anywhere near f32's precision of the rest.
 */
#define EK_ACT_TINY 0x1p-100f

/** @param largest the block's largest magnitude, NaN when an element is not finite */
static inline ek_act_rule ek_act_rule_for(float largest)
{
    if (isnan(largest)) return (ek_act_rule){NAN, 0.0f};
    if (largest < EK_ACT_TINY) return (ek_act_rule){0.0f, 0.0f};
    return (ek_act_rule){largest / 127.0f, 127.0f / largest};
}

#endif
