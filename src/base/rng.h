/*
 * Pseudo-random numbers: xoshiro256**, seeded through splitmix64.
 * Source: Blackman and Vigna, "Scrambled linear pseudorandom number generators", ACM TOMS 2021.
 *
 * The state is the caller's and explicit, so that every draw can be repeated from its seed. Not for
 * secrets.
 */
#ifndef EK_BASE_RNG_H
#define EK_BASE_RNG_H

#include <stdint.h>

typedef struct ek_rng {
    uint64_t s[4];
} ek_rng;

/** Any seed is good, 0 too. */
void ek_rng_init(ek_rng *rng, uint64_t seed);

uint64_t ek_rng_next(ek_rng *rng);

/** Uniform in [0, 1), 53 bits. */
double ek_rng_unit(ek_rng *rng);

/** Uniform in [0, n), n > 0, without modulo bias. */
uint64_t ek_rng_below(ek_rng *rng, uint64_t n);

/** One splitmix64 step: a good 64-bit mixer for hashing small integers. */
uint64_t ek_mix64(uint64_t x);

#endif
