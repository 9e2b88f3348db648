#include "base/rng.h"

#include "base/assert.h"

uint64_t ek_mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void ek_rng_init(ek_rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        rng->s[i] = ek_mix64(seed + (uint64_t)i * 0x9e3779b97f4a7c15u);
}

static uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

uint64_t ek_rng_next(ek_rng *rng)
{
    uint64_t *s = rng->s;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

double ek_rng_unit(ek_rng *rng)
{
    return (double)(ek_rng_next(rng) >> 11) * 0x1p-53;
}

uint64_t ek_rng_below(ek_rng *rng, uint64_t n)
{
    ek_assert(n > 0);
    uint64_t reject_below = -n % n; /* 2^64 mod n */
    for (;;) {
        uint64_t x = ek_rng_next(rng);
        if (x >= reject_below) return x % n;
    }
}
