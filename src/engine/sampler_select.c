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

/* Bits that order as the floats do, as unsigned integers. */
static uint32_t key_of(float logit)
{
    float no_minus_zero = logit + 0.0f;
    uint32_t bits;
    memcpy(&bits, &no_minus_zero, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

float ek_engine_select_max(const float *logits, int32_t n, int32_t *out_id)
{
    float max = -INFINITY;
    int32_t best = 0;
    for (int32_t id = 0; id < n; id++) {
        if (!(logits[id] > max)) continue;
        max = logits[id];
        best = id;
    }
    if (out_id) *out_id = best;
    return max;
}

void ek_engine_select_weights(const float *logits, int32_t n, float max, float temperature,
                              float *out_weights)
{
    /*
     * Subtracting first keeps a tiny temperature from overflowing; comparing first serves an
     * infinite maximum.
     */
    for (int32_t id = 0; id < n; id++)
        out_weights[id] = logits[id] == max ? 1.0f : expf((logits[id] - max) / temperature);
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

void ek_engine_select_keep_share(const float *logits, int32_t n, float share, float *weights)
{
    double sum = 0.0;
    for (int32_t id = 0; id < n; id++)
        sum += (double)weights[id];
    keep_first(logits, n, true, (double)share * sum, weights);
}

void ek_engine_select_keep_above(int32_t n, float least, float *weights)
{
    for (int32_t id = 0; id < n; id++)
        if (weights[id] < least) weights[id] = 0.0f;
}

int32_t ek_engine_select_pick(const float *weights, int32_t n, double unit)
{
    double sum = 0.0;
    for (int32_t id = 0; id < n; id++)
        sum += (double)weights[id];
    double point = unit * sum, below = 0.0;
    int32_t last = 0;
    for (int32_t id = 0; id < n; id++) {
        if (weights[id] == 0.0f) continue;
        last = id;
        below += (double)weights[id];
        if (point < below) break;
    }
    return last;
}
