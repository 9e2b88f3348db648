#include "lab/spread.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct ranked {
    double value;
    int32_t expert;
} ranked;

/* Highest first; the lower expert of equals. */
static int compare(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? 1 : -1;
    return (x->expert > y->expert) - (x->expert < y->expert);
}

static bool is_valid(int32_t n_experts, int32_t n_workers)
{
    return n_experts >= 1 && n_experts <= EK_LAB_EXPERTS_MAX && n_workers >= 1 &&
           n_workers <= n_experts && n_workers <= EK_LAB_WORKERS_MAX;
}

static double sum_of(const int64_t *counts, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)counts[i];
    return sum;
}

ek_status ek_lab_together(const int64_t *ordinary, const int64_t *kind, int32_t n_experts,
                          int32_t n_workers, int32_t *out_worker)
{
    ranked order[EK_LAB_EXPERTS_MAX];
    if (!is_valid(n_experts, n_workers)) return EK_EINVAL;
    const double ordinary_sum = sum_of(ordinary, n_experts);
    for (int32_t e = 0; e < n_experts; e++) /* one more each, so that nothing is divided by 0 */
        order[e] = (ranked){((double)kind[e] + 1) / ((double)ordinary[e] + 1), e};
    qsort(order, (size_t)n_experts, sizeof order[0], compare);
    double taken = 0;
    int32_t worker = 0, n_has = 0;
    for (int32_t i = 0; i < n_experts; i++) {
        const int32_t e = order[i].expert;
        const double load = (double)ordinary[e];
        const double border = ordinary_sum * (worker + 1) / n_workers;
        /* The border is passed by less than half of an expert, and nobody is left without one. */
        const bool full = n_has > 0 && taken + load / 2 > border;
        const bool needed = n_experts - i == n_workers - 1 - worker;
        if (worker < n_workers - 1 && n_has > 0 && (full || needed)) {
            worker++;
            n_has = 0;
        }
        out_worker[e] = worker;
        taken += load;
        n_has++;
    }
    return EK_OK;
}

/* The worker with the fewest replicas of `own`'s experts, of these the least loaded. */
static int32_t choose(int32_t own, int32_t n_workers, const int32_t *n_of_own, const double *load)
{
    int32_t best = -1;
    for (int32_t w = 0; w < n_workers; w++) {
        if (w == own) continue;
        if (best < 0 || n_of_own[w] < n_of_own[best] ||
            (n_of_own[w] == n_of_own[best] && load[w] < load[best]))
            best = w;
    }
    return best;
}

ek_status ek_lab_replicas(const int64_t *ordinary, const int32_t *worker, int32_t n_experts,
                          int32_t n_workers, int32_t n_replicas, int32_t *out_replica)
{
    ranked order[EK_LAB_EXPERTS_MAX];
    int32_t n_of[EK_LAB_WORKERS_MAX][EK_LAB_WORKERS_MAX] = {{0}}; /* owner, who has the replica */
    double load[EK_LAB_WORKERS_MAX] = {0};
    if (!is_valid(n_experts, n_workers) || n_replicas < 0 || n_replicas > n_experts)
        return EK_EINVAL;
    for (int32_t e = 0; e < n_experts; e++) {
        if (worker[e] < 0 || worker[e] >= n_workers) return EK_EINVAL;
        order[e] = (ranked){(double)ordinary[e], e};
        load[worker[e]] += (double)ordinary[e];
    }
    for (int32_t e = 0; e < n_experts; e++)
        out_replica[e] = -1;
    qsort(order, (size_t)n_experts, sizeof order[0], compare);
    for (int32_t i = 0; i < n_replicas && n_workers > 1; i++) {
        const int32_t e = order[i].expert, own = worker[e];
        const int32_t to = choose(own, n_workers, n_of[own], load);
        out_replica[e] = to;
        n_of[own][to]++;
        load[own] -= order[i].value / 2;
        load[to] += order[i].value / 2;
    }
    return EK_OK;
}
