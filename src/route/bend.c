#include "route/bend.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "route/budget.h"

#define LOGIT_MAX 64.0f /* as a tie-break; beyond it a logit says nothing more */

/** The logit whose sigmoid is p * sigmoid(z). A hopeless z becomes -inf, never NaN. */
static float sigmoid_logit_bent(float z, float log_p, float p)
{
    return log_p - logf((1.0f - p) + expf(-z));
}

static float value_bent(const ek_bend *b, const float *bias, int32_t e)
{
    const ek_policy_bank *bank = b->bank;
    float z = b->scratch->logit[e];
    float added = bias ? bias[e] : 0;
    if (b->gate->score == EK_ROUTE_SOFTMAX_CHOSEN)
        return z + bank->log_p[e] + added; /* this gate's scores live as logits */
    if (!ek_route_gate_plain(b->gate, bias))
        return expf(logf(b->scratch->score[e]) + bank->log_p[e]) + added;
    if (b->gate->score == EK_ROUTE_SIGMOID)
        return sigmoid_logit_bent(z, bank->log_p[e], bank->p[e]);
    return z + bank->log_p[e];
}

/** Load first: all experts, whatever their scores, which decide between loads that are alike. */
static void values_of_loads(const ek_bend *b, const float *value)
{
    const ek_policy_bank *bank = b->bank;
    for (int32_t e = 0; e < b->gate->n_experts; e++) {
        float z = b->scratch->logit[e];
        z = z < -LOGIT_MAX ? -LOGIT_MAX : z > LOGIT_MAX ? LOGIT_MAX : z;
        float bent = bank->log_p[e] + (float)EK_ROUTE_TIEBREAK * z + bank->mask[e];
        b->value[e] = value[e] != value[e] ? value[e] : bent;
    }
}

const float *ek_route_bend_values(const ek_bend *b, const float *bias, const float *value)
{
    const ek_policy_bank *bank = b->bank;
    if (bank->n_bent == 0) return value;
    if (!b->reads_scores) {
        values_of_loads(b, value);
        return b->value;
    }
    memcpy(b->value, value, (size_t)b->gate->n_experts * sizeof *value);
    for (int32_t i = 0; i < bank->n_bent; i++) {
        int32_t e = bank->bent[i];
        if (value[e] == value[e]) /* NaN stays what it is: last */
            b->value[e] = value_bent(b, bias, e) + bank->mask[e];
    }
    return b->value;
}

float ek_route_bend_scale(const ek_bend *b, const int32_t *static_id)
{
    float max = -INFINITY;
    for (int32_t k = 0; k < b->gate->top_k; k++)
        max = fmaxf(max, b->scratch->logit[static_id[k]]);
    return max > -INFINITY ? max : 0;
}

double ek_route_bend_score(const ek_bend *b, float scale, int32_t e)
{
    double z = (double)b->scratch->logit[e];
    if (b->gate->score == EK_ROUTE_SIGMOID) return 1 / (1 + exp(-z));
    /* Where a bias chose experts of low score, others can be far above the scale. */
    return exp(fmin(z - (double)scale, 700));
}

double ek_route_bend_logit(const ek_bend *b, float scale, double score)
{
    if (!(score > 0)) return -INFINITY;
    if (b->gate->score != EK_ROUTE_SIGMOID) return log(score) + (double)scale;
    return score < 1 ? log(score / (1 - score)) : INFINITY;
}

/** Penalties only lower values: where none of the chosen has one, nothing can come before them. */
static bool is_touched(const ek_bend *b, const int32_t *id)
{
    const ek_policy_bank *bank = b->bank;
    if (bank->n_bent == 0) return false;
    if (!b->reads_scores) return true;
    for (int32_t k = 0; k < b->gate->top_k; k++)
        if (bank->is_bent[id[k]]) return true;
    if (b->gate->n_groups_used == b->gate->n_groups) return false;
    /* The sum that a group is chosen by may have lost, too. */
    int32_t group_size = b->gate->n_experts / b->gate->n_groups;
    for (int32_t i = 0; i < bank->n_bent; i++)
        if (b->scratch->group_used[bank->bent[i] / group_size]) return true;
    return false;
}

/** How many of set a are not in set b. */
static int32_t n_missing(const int32_t *a, const int32_t *b, int32_t n)
{
    int32_t n_out = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t j = 0;
        while (j < n && b[j] != a[i])
            j++;
        n_out += j == n;
    }
    return n_out;
}

/** Undo what is too dear. @return the loss that is left */
static double trim(const ek_bend *b, const int32_t *static_id, double bound, int32_t *id)
{
    double static_score[EK_ROUTE_TOP_K_MAX], score[EK_ROUTE_TOP_K_MAX], loss;
    int32_t k = b->gate->top_k;
    float scale = ek_route_bend_scale(b, static_id);
    for (int32_t i = 0; i < k; i++) {
        static_score[i] = ek_route_bend_score(b, scale, static_id[i]);
        score[i] = ek_route_bend_score(b, scale, id[i]);
    }
    ek_route_budget_trim(static_id, static_score, k, bound, id, score, &loss);
    return loss;
}

/**
 * What is undone returns an expert of the static choice, which may lie in another group. So where
 * the groups differ and the choice is too dear, it is first made again inside the static choice's
 * groups: any mixture of the two keeps to them.
 */
static double trim_grouped(const ek_bend *b, const float *bent, const int32_t *static_id,
                           double bound, int32_t *id)
{
    int32_t k = b->gate->top_k;
    int32_t trimmed[EK_ROUTE_TOP_K_MAX];
    memcpy(trimmed, id, (size_t)k * sizeof *id);
    double loss = trim(b, static_id, bound, trimmed);
    if (n_missing(id, trimmed, k) == 0) return loss;
    memcpy(b->scratch->group_used, b->groups, (size_t)b->gate->n_groups);
    ek_route_gate_pick(b->gate, bent, b->scratch, id);
    return trim(b, static_id, bound, id);
}

void ek_route_bend_token(const ek_bend *b, const float *bias, const float *value, double bound,
                         int32_t *id, float *weight, ek_bend_outcome *out_outcome)
{
    int32_t k = b->gate->top_k;
    *out_outcome = (ek_bend_outcome){0};
    if (!is_touched(b, id)) return;
    ek_dassert(k <= EK_ROUTE_TOP_K_MAX);

    bool grouped = b->gate->n_groups_used < b->gate->n_groups;
    int32_t chosen[EK_ROUTE_TOP_K_MAX];
    const float *bent = ek_route_bend_values(b, bias, value);
    if (grouped) {
        memcpy(b->groups, b->scratch->group_used, (size_t)b->gate->n_groups);
        ek_route_gate_pick_groups(b->gate, bent, b->scratch);
    }
    ek_route_gate_pick(b->gate, bent, b->scratch, chosen);
    if (n_missing(id, chosen, k) == 0) return;
    int32_t wanted[EK_ROUTE_TOP_K_MAX];
    memcpy(wanted, chosen, (size_t)k * sizeof *wanted);
    double loss = grouped ? trim_grouped(b, bent, id, bound, chosen) : trim(b, id, bound, chosen);
    out_outcome->n_undone = n_missing(wanted, chosen, k);
    if (n_missing(id, chosen, k) == 0) return;
    out_outcome->loss = loss;
    out_outcome->changed = true;
    ek_route_gate_order(value, chosen, k);
    memcpy(id, chosen, (size_t)k * sizeof *id);
    ek_route_gate_weigh(b->gate, bias, b->scratch, id, weight);
}

double ek_route_bend_divergence(const ek_bend *b)
{
    const ek_policy_bank *bank = b->bank;
    const float *z = b->scratch->logit;
    int32_t n = b->gate->n_experts;
    bool is_sigmoid = b->gate->score == EK_ROUTE_SIGMOID;
    float max = -INFINITY;
    for (int32_t e = 0; e < n; e++)
        max = z[e] > max ? z[e] : max;
    if (max == -INFINITY) return 0;
    /* sums of s, s log s, s log p, and of what Q is normalised by */
    double sum = 0, sum_log = 0, sum_log_p = 0, sum_bent = 0;
    for (int32_t e = 0; e < n; e++) {
        double s = is_sigmoid ? 1 / (1 + exp(-(double)z[e])) : exp((double)z[e] - (double)max);
        double p = (double)bank->p[e];
        sum += s;
        sum_log += s > 0 ? s * log(s) : 0;
        sum_log_p += s * (double)bank->log_p[e];
        sum_bent += b->reads_scores ? s * p : p;
    }
    if (!(sum > 0)) return 0;
    /* log P = log s - log sum; log Q = (log s) + log p - log sum_bent. */
    double divergence =
        (b->reads_scores ? 0 : sum_log / sum) - sum_log_p / sum + log(sum_bent) - log(sum);
    return divergence > 0 ? divergence : 0;
}
