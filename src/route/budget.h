/*
 * The quality budget: how much of its gate score a token may give up for the sake of load.
 *
 * With S* the sum of the scores that the model's own choice has, and S that of the choice made, a
 * token's loss is 1 - S/S*. No token may lose more than `max_score_loss`, and while the running
 * mean over a layer's tokens is above `mean_score_loss`, that bound narrows, to nothing at
 * EK_BUDGET_BAND beyond it: so the mean cannot get further. Substitutions that are too dear are
 * undone, the worst first. Pure.
 */
#ifndef EK_ROUTE_BUDGET_H
#define EK_ROUTE_BUDGET_H

#include <stdint.h>

#include "route/params.h"

/** Tokens over which the mean runs. */
#define EK_BUDGET_HORIZON 1024

/** How far above mean_score_loss, relatively, single tokens may lose nothing any more. */
#define EK_BUDGET_BAND 0.1

/** One layer's account. Zero-initialise. */
typedef struct ek_budget {
    double mean; /* of losses, running */
} ek_budget;

/** What the next token may lose. */
static inline double ek_route_budget_bound(const ek_budget *budget, const ek_route_params *params)
{
    double over = budget->mean - params->mean_score_loss;
    if (over <= 0 && params->mean_score_loss > 0) return params->max_score_loss;
    double left = 1 - over / (EK_BUDGET_BAND * params->mean_score_loss);
    return left > 0 ? params->max_score_loss * left : 0; /* no mean allowed: -inf or NaN */
}

/** A token lost so much (0 for most). */
static inline void ek_route_budget_spend(ek_budget *budget, double loss)
{
    budget->mean += (loss - budget->mean) / EK_BUDGET_HORIZON;
}

/** A token lost so much more than was already spent for it. */
static inline void ek_route_budget_spend_more(ek_budget *budget, double loss)
{
    budget->mean += loss / EK_BUDGET_HORIZON;
}

/** n tokens lost nothing. */
void ek_route_budget_rest(ek_budget *budget, int32_t n_tokens);

/**
 * Loss of a choice against the model's own; 0 where it is better, or where there was nothing to
 * lose.
 */
double ek_route_budget_loss(double score_sum_static, double score_sum);

/**
 * Undo substitutions until the loss is inside the bound: of those left, the expert with the lowest
 * score that was put in makes room for the one with the highest that was left out.
 * @param static_id    (k) the model's own choice
 * @param static_score (k) its scores, >= 0
 * @param id, score    (k) the choice to be trimmed, in place; what both choices have stays where it
 *            is
 * @param out_loss     of the trimmed choice
 * @return substitutions undone
 */
int32_t ek_route_budget_trim(const int32_t *static_id, const double *static_score, int32_t k,
                             double bound, int32_t *id, double *score, double *out_loss);

#endif
