#include "telemetry/readings.h"

#include <math.h>

#include "base/assert.h"
#include "base/drift.h"
#include "telemetry/balance.h"

static const ek_reading unknown = {.known = false, .expert = -1};

static int64_t sum_of(const int64_t *tokens, int32_t n)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += tokens[i];
    return sum;
}

ek_reading ek_telemetry_read_overload(const float *utilisation, int32_t n)
{
    if (!utilisation) return unknown;
    ek_reading r = {.known = true, .expert = 0};
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        sum += (double)utilisation[i];
        if (utilisation[i] > utilisation[r.expert]) r.expert = i;
    }
    r.value = (double)utilisation[r.expert];
    r.with[0] = sum / n;
    return r;
}

ek_reading ek_telemetry_read_imbalance(const int64_t *tokens, int32_t n, int64_t tokens_min)
{
    ek_balance b;
    ek_telemetry_balance(tokens, n, &b);
    if (b.tokens < tokens_min || b.tokens == 0) return unknown;
    return (ek_reading){.known = true,
                        .value = b.max_over_mean,
                        .expert = b.hottest,
                        .tokens = b.tokens,
                        .with = {b.cv}};
}

/* The top_k highest counts, highest first. */
static void highest(const int64_t *tokens, int32_t n, int32_t top_k, int64_t *out)
{
    int32_t n_kept = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t at = n_kept;
        while (at > 0 && out[at - 1] < tokens[i])
            at--;
        if (at == top_k) continue;
        n_kept = n_kept < top_k ? n_kept + 1 : top_k;
        for (int32_t k = n_kept - 1; k > at; k--)
            out[k] = out[k - 1];
        out[at] = tokens[i];
    }
}

ek_reading ek_telemetry_read_collapse(const int64_t *tokens, int32_t n, int32_t top_k,
                                      int64_t tokens_min)
{
    ek_assert(top_k >= 1 && top_k <= n && top_k <= EK_READING_TOP_K_MAX);
    ek_balance b;
    ek_telemetry_balance(tokens, n, &b);
    if (n == top_k || b.tokens < tokens_min || b.tokens == 0) return unknown;
    int64_t top[EK_READING_TOP_K_MAX];
    highest(tokens, n, top_k, top);
    double collapsed = 1.0 - (b.effective - top_k) / (n - top_k);
    return (ek_reading){
        .known = true,
        .value = fmin(fmax(collapsed, 0.0), 1.0),
        .expert = b.hottest,
        .tokens = b.tokens,
        .with = {b.effective, (double)sum_of(top, top_k) / (double)b.tokens},
    };
}

ek_reading ek_telemetry_read_constant(const int64_t *tokens, const int64_t *before, int32_t n,
                                      int32_t top_k, int64_t tokens_min)
{
    ek_assert(top_k >= 1 && top_k <= n && top_k <= EK_READING_TOP_K_MAX);
    int64_t sum = sum_of(tokens, n), sum_before = sum_of(before, n);
    int64_t least = sum < sum_before ? sum : sum_before;
    if (n == top_k || least < tokens_min || least == 0) return unknown;
    int64_t top[EK_READING_TOP_K_MAX];
    highest(tokens, n, top_k, top);
    double part = (double)top[top_k - 1] * top_k / (double)sum;
    double drift = ek_drift(tokens, before, n);
    return (ek_reading){
        .known = true,
        .value = fmin(part, 1.0 - drift),
        .expert = -1,
        .tokens = sum,
        .with = {part, drift},
    };
}

ek_reading ek_telemetry_read_zero_hit(const int64_t *const *windows, int32_t n_windows, int32_t n,
                                      int64_t tokens_min)
{
    ek_reading r = {.known = true, .expert = -1};
    for (int32_t i = 0; i < n; i++) {
        int64_t sum = 0;
        for (int32_t w = 0; w < n_windows; w++)
            sum += windows[w][i];
        r.tokens += sum;
        if (sum > 0) continue;
        r.value += 1.0;
        if (r.expert < 0) r.expert = i;
    }
    return r.tokens >= tokens_min && r.tokens > 0 ? r : unknown;
}

/* The expert whose share went furthest without getting anywhere. */
static int32_t who_turned_back(const int64_t *const *windows, const int64_t *sums,
                               int32_t n_windows, int32_t n)
{
    int32_t worst = 0;
    double most = -1.0;
    for (int32_t i = 0; i < n; i++) {
        double way = 0.0, before = (double)windows[0][i] / (double)sums[0], first = before;
        for (int32_t w = 1; w < n_windows; w++) {
            double share = (double)windows[w][i] / (double)sums[w];
            way += fabs(share - before);
            before = share;
        }
        double lost = way - fabs(before - first);
        if (lost > most) {
            most = lost;
            worst = i;
        }
    }
    return worst;
}

ek_reading ek_telemetry_read_oscillation(const int64_t *const *windows, int32_t n_windows,
                                         int32_t n, int64_t tokens_min)
{
    ek_assert(n_windows >= 3 && n_windows <= EK_READING_WINDOWS_MAX);
    int64_t sums[EK_READING_WINDOWS_MAX], total = 0;
    for (int32_t w = 0; w < n_windows; w++) {
        sums[w] = sum_of(windows[w], n);
        total += sums[w];
        if (sums[w] < tokens_min || sums[w] == 0) return unknown;
    }
    double way = 0.0, chance = 0.0;
    for (int32_t w = 1; w < n_windows; w++) {
        way += ek_drift(windows[w - 1], windows[w], n);
        chance += ek_drift_noise(windows[w - 1], windows[w], n);
    }
    double far = ek_drift(windows[0], windows[n_windows - 1], n);
    return (ek_reading){
        .known = true,
        .value = fmax(0.0, (way - far - chance) / (n_windows - 1)),
        .expert = who_turned_back(windows, sums, n_windows, n),
        .tokens = total,
        .with = {way, far},
    };
}
