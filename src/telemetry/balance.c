#include "telemetry/balance.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/attr.h"

/*
 * Shell sort with Ciura's gaps: qsort may ask the heap for memory at these sizes, and a scrape must
 * not.
 */
static void sort_ascending(int64_t *x, int32_t n)
{
    static const int32_t gaps[] = {701, 301, 132, 57, 23, 10, 4, 1};
    for (size_t g = 0; g < EK_COUNT_OF(gaps); g++) {
        int32_t gap = gaps[g];
        for (int32_t i = gap; i < n; i++) {
            int64_t moving = x[i];
            int32_t at = i;
            for (; at >= gap && x[at - gap] > moving; at -= gap)
                x[at] = x[at - gap];
            x[at] = moving;
        }
    }
}

/*
 * Mean absolute difference of all pairs over twice the mean. With x sorted and i from 1:
 * sum((2i - n - 1) x_i) / (n sum(x)).
 */
static double gini_of(const int64_t *counts, int32_t n, double total)
{
    int64_t sorted[EK_BALANCE_COUNTS_MAX];
    memcpy(sorted, counts, (size_t)n * sizeof sorted[0]);
    sort_ascending(sorted, n);
    double weighted = 0.0;
    for (int32_t i = 0; i < n; i++)
        weighted += (double)(2 * i - n + 1) * (double)sorted[i];
    return weighted / (n * total);
}

void ek_telemetry_balance(const int64_t *counts, int32_t n, ek_balance *out_balance)
{
    ek_assert(n >= 1);
    ek_assert(n <= EK_BALANCE_COUNTS_MAX);
    ek_balance b = {0};
    for (int32_t i = 0; i < n; i++) {
        ek_dassert(counts[i] >= 0);
        b.tokens += counts[i];
        b.n_zero += counts[i] == 0;
        if (counts[i] > counts[b.hottest]) b.hottest = i;
    }
    if (b.tokens > 0) {
        double total = (double)b.tokens, mean = total / n, squares = 0.0;
        for (int32_t i = 0; i < n; i++) {
            double off = (double)counts[i] - mean, share = (double)counts[i] / total;
            squares += off * off;
            if (share > 0.0) b.entropy -= share * log(share);
        }
        b.max_over_mean = (double)counts[b.hottest] / mean;
        b.cv = sqrt(squares / n) / mean;
        b.gini = gini_of(counts, n, total);
        b.effective = exp(b.entropy);
        b.top1_share = (double)counts[b.hottest] / total;
    }
    *out_balance = b;
}
