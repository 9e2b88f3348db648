#include "engine/sampler_select.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* Three digits of a 32-bit key, most significant first. */
#define DIGIT_BITS 11
#define N_DIGITS   (1 << DIGIT_BITS)

static const int digit_shift[3] = {21, 10, 0};

/* The last digit has only the ten bits that are left. */
static uint32_t digit_of(uint32_t key, int pass)
{
    return pass < 2 ? (key >> digit_shift[pass]) & (N_DIGITS - 1) : key & 0x3ffu;
}

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Bits that order as the floats do, as unsigned integers. */
static uint32_t key_of(float logit)
{
    uint32_t bits = bits_of(logit + 0.0f); /* makes -0 a 0 */
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/*
 * Reductions run over LANES independent values, so that compilers make vectors of them without
 * being allowed to reorder anything: the order of operations is the one written here, on every
 * machine.
 */
#define LANES 16

float ek_engine_select_max(const float *logits, int32_t n, int32_t *out_id)
{
    float lane[LANES];
    int32_t id = 0;
    for (int k = 0; k < LANES; k++)
        lane[k] = -INFINITY;
    for (; id + LANES <= n; id += LANES)
        for (int k = 0; k < LANES; k++)
            lane[k] = logits[id + k] > lane[k] ? logits[id + k] : lane[k];
    for (; id < n; id++)
        lane[0] = logits[id] > lane[0] ? logits[id] : lane[0];
    float max = lane[0];
    for (int k = 1; k < LANES; k++)
        max = lane[k] > max ? lane[k] : max;
    if (!out_id) return max;
    int32_t best = 0;
    if (max > -INFINITY)
        while (logits[best] != max)
            best++;
    *out_id = best;
    return max;
}

double ek_engine_select_sum(const float *weights, int32_t n)
{
    double lane[LANES] = {0};
    int32_t id = 0;
    for (; id + LANES <= n; id += LANES)
        for (int k = 0; k < LANES; k++)
            lane[k] += (double)weights[id + k];
    for (; id < n; id++)
        lane[0] += (double)weights[id];
    double sum = 0.0;
    for (int k = 0; k < LANES; k++)
        sum += lane[k];
    return sum;
}

/*
 * exp(x) for x <= 0, relative error below 2e-7; 0 below -87, where floats end. Ours and not the C
 * library's, because it becomes vector code (so it has no branches), and because a seed then
 * repeats on every machine. exp(x) = 2^n * exp(r), n the nearest integer to x / ln 2, |r| <= ln(2)
 * / 2, where a series of eight terms is enough.
 */
static inline float exp_of_negative(float x)
{
    const float floor = -87.0f;
    uint32_t below = 0u - (bits_of(x - floor) >> 31); /* all ones or none */
    float y = float_of((bits_of(floor) & below) | (bits_of(x) & ~below));
    int32_t n = (int32_t)(y * 1.44269504f - 0.5f); /* truncation rounds, as y is not positive */
    float r = y - (float)n * 0.693359375f; /* ln 2 in two parts: the first product is exact */
    r = r - (float)n * -2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    float power = float_of((uint32_t)(n + 127) << 23);
    return float_of(bits_of(p * power) & ~below);
}

void ek_engine_select_weights(const float *logits, int32_t n, float max, float temperature,
                              float *out_weights)
{
    if (max == INFINITY) {
        for (int32_t id = 0; id < n; id++)
            out_weights[id] = logits[id] == max ? 1.0f : 0.0f;
        return;
    }
    /* Subtracting first keeps a tiny temperature from overflowing. */
    for (int32_t id = 0; id < n; id++)
        out_weights[id] = exp_of_negative((logits[id] - max) / temperature);
}

/*
 * Keep the shortest run of (higher logit, then lower id) whose amount reaches `target`; an amount
 * is a token's weight, or 1 when tokens are counted. Each pass finds one more digit of the
 * border's key.
 */
static void keep_first(const float *logits, int32_t n, bool by_weight, double target,
                       float *weights)
{
    double amount[N_DIGITS];
    double above = 0.0; /* amount of all keys above the border's prefix */
    uint32_t prefix = 0, known = 0;
    for (int pass = 0; pass < 3; pass++) {
        memset(amount, 0, sizeof amount);
        for (int32_t id = 0; id < n; id++) {
            uint32_t key = key_of(logits[id]);
            if ((key & known) != prefix) continue;
            amount[digit_of(key, pass)] += by_weight ? (double)weights[id] : 1.0;
        }
        int32_t digit = (int32_t)digit_of(UINT32_MAX, pass);
        for (; digit > 0 && above + amount[digit] < target; digit--)
            above += amount[digit];
        prefix |= (uint32_t)digit << digit_shift[pass];
        known |= digit_of(UINT32_MAX, pass) << digit_shift[pass];
    }
    for (int32_t id = 0; id < n; id++) {
        uint32_t key = key_of(logits[id]);
        if (key > prefix) continue;
        bool kept = key == prefix && above < target;
        if (kept)
            above += by_weight ? (double)weights[id] : 1.0;
        else
            weights[id] = 0.0f;
    }
}

void ek_engine_select_keep_count(const float *logits, int32_t n, int32_t count, float *weights)
{
    keep_first(logits, n, false, (double)count, weights);
}

void ek_engine_select_keep_amount(const float *logits, int32_t n, double amount, float *weights)
{
    keep_first(logits, n, true, amount, weights);
}

void ek_engine_select_keep_above(int32_t n, float least, float *weights)
{
    for (int32_t id = 0; id < n; id++)
        if (weights[id] < least) weights[id] = 0.0f;
}

int32_t ek_engine_select_pick(const float *weights, int32_t n, double unit)
{
    double point = unit * ek_engine_select_sum(weights, n), below = 0.0;
    int32_t last = 0;
    for (int32_t id = 0; id < n; id++) {
        if (weights[id] == 0.0f) continue;
        last = id;
        below += (double)weights[id];
        if (point < below) break;
    }
    return last;
}
