#include "route/budget.h"

#include <math.h>
#include <stdbool.h>

#include "base/assert.h"
#include "route/route.h"

void ek_route_budget_rest(ek_budget *budget, int32_t n_tokens)
{
    if (budget->mean > 0) budget->mean *= pow(1 - 1.0 / EK_BUDGET_HORIZON, n_tokens);
}

double ek_route_budget_loss(double score_sum_static, double score_sum)
{
    if (!(score_sum_static > 0)) return 0;
    double loss = 1 - score_sum / score_sum_static;
    return loss > 0 ? loss : 0;
}

static bool holds(const int32_t *ids, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

static double sum_of(const double *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

int32_t ek_route_budget_trim(const int32_t *static_id, const double *static_score, int32_t k,
                             double bound, int32_t *id, double *score, double *out_loss)
{
    ek_assert(k <= EK_ROUTE_TOP_K_MAX);
    /* Places of what was left out and of what was put in; as many of the one as of the other. */
    int32_t out[EK_ROUTE_TOP_K_MAX], in[EK_ROUTE_TOP_K_MAX];
    int32_t n_out = 0, n_in = 0, n_undone = 0;
    for (int32_t i = 0; i < k; i++) {
        if (!holds(id, k, static_id[i])) out[n_out++] = i;
        if (!holds(static_id, k, id[i])) in[n_in++] = i;
    }
    double sum_static = sum_of(static_score, k);
    double loss = ek_route_budget_loss(sum_static, sum_of(score, k));
    while (loss > bound && n_in > 0) {
        int32_t best = 0, worst = 0;
        for (int32_t i = 1; i < n_in; i++) {
            if (static_score[out[i]] > static_score[out[best]]) best = i;
            if (score[in[i]] < score[in[worst]]) worst = i;
        }
        id[in[worst]] = static_id[out[best]];
        score[in[worst]] = static_score[out[best]];
        n_undone++;
        n_in--;
        out[best] = out[n_in];
        in[worst] = in[n_in];
        loss = n_in > 0 ? ek_route_budget_loss(sum_static, sum_of(score, k)) : 0;
    }
    *out_loss = loss;
    return n_undone;
}
