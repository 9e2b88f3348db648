/*
 * exp of 16 lanes; include a v16 header first.
 *
 * exp(x) = 2^n * exp(r) with n = round(x / ln 2) and |r| <= ln 2 / 2, exp(r) as 1 + r + r^2 * P(r)
 * where P is the degree-4 polynomial of least relative error (4e-9, fitted by iteratively
 * reweighted least squares). The result is within 1.1 ulp, measured over every third float of the
 * range. Below -87.3365 it is exactly 0 (no subnormal results), above 88.3 it stays at exp(88.3): a
 * softmax never goes there, and silu's quotient is below 1e-38 of its argument there. NaN gives
 * NaN. Pure.
 */
#ifndef EK_KERNELS_X86_V16_EXP_H
#define EK_KERNELS_X86_V16_EXP_H

EK_V16_INLINE v16f v16f_exp(v16f x)
{
    const v16f lowest = v16f_set1(-87.3365f), highest = v16f_set1(88.3f);
    v16f clamped = v16f_min(highest, v16f_max(lowest, x));
    v16i n = v16i_round(v16f_mul(clamped, v16f_set1(0x1.715476p+0f)));
    v16f nf = v16f_from_i(n);
    v16f r = v16f_fnma(nf, v16f_set1(0x1.62e43p-1f), clamped);
    r = v16f_fnma(nf, v16f_set1(-0x1.05c61p-29f), r);
    v16f p = v16f_set1(0x1.6a23dp-10f);
    p = v16f_fma(p, r, v16f_set1(0x1.123a2p-7f));
    p = v16f_fma(p, r, v16f_set1(0x1.5558f2p-5f));
    p = v16f_fma(p, r, v16f_set1(0x1.555492p-3f));
    p = v16f_fma(p, r, v16f_set1(0x1.fffffcp-2f));
    p = v16f_fma(v16f_mul(r, r), p, r);
    p = v16f_add(p, v16f_set1(1.0f));
    v16f power = v16f_of_bits(v16i_shl(v16i_add(n, v16i_set1(127)), 23));
    return v16f_zero_below(v16f_mul(p, power), x, lowest);
}

#endif
