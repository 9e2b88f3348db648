#include "route/gate.h"

#include <math.h>
#include <string.h>

/* Smallest normal half float: the sum that weights are divided by is never taken below it. */
static const float renormalise_sum_min = 6.103515625e-5f;

ek_status ek_route_gate_check(const ek_route_gate *gate, ek_err *err)
{
    if (gate->score != EK_ROUTE_SOFTMAX && gate->score != EK_ROUTE_SIGMOID &&
        gate->score != EK_ROUTE_SOFTMAX_CHOSEN)
        return ek_err_set(err, EK_EINVAL, "gate: score kind %d is not known", (int)gate->score);
    if (gate->n_experts < 1 || gate->n_experts > EK_ROUTE_EXPERTS_MAX)
        return ek_err_set(err, EK_EINVAL, "gate: %d experts, allowed are 1..%d", gate->n_experts,
                          EK_ROUTE_EXPERTS_MAX);
    if (gate->n_groups < 1 || gate->n_experts % gate->n_groups != 0)
        return ek_err_set(err, EK_EINVAL, "gate: %d groups do not divide %d experts",
                          gate->n_groups, gate->n_experts);
    if (gate->n_groups_used < 1 || gate->n_groups_used > gate->n_groups)
        return ek_err_set(err, EK_EINVAL, "gate: %d groups used, there are %d", gate->n_groups_used,
                          gate->n_groups);
    int32_t n_eligible = gate->n_experts / gate->n_groups * gate->n_groups_used;
    int32_t top_k_max = n_eligible < EK_ROUTE_TOP_K_MAX ? n_eligible : EK_ROUTE_TOP_K_MAX;
    if (gate->top_k < 1 || gate->top_k > top_k_max)
        return ek_err_set(err, EK_EINVAL, "gate: %d experts per token, allowed are 1..%d",
                          gate->top_k, top_k_max);
    if (!isfinite(gate->scale) || gate->scale <= 0)
        return ek_err_set(err, EK_EINVAL, "gate: weight scale %g is not a positive number",
                          (double)gate->scale);
    return EK_OK;
}

/*
 * A value and its id as one integer: greater means "higher value, then lower id". The float's bits
 * are mapped so that they order like the numbers do; NaN maps to 0, below -inf. Adding 0 makes -0
 * equal +0.
 */
static uint64_t key_of(float value, int32_t id)
{
    float canonical = value + 0.0f;
    uint32_t bits;
    memcpy(&bits, &canonical, sizeof bits);
    uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    if (value != value) ordered = 0;
    return (uint64_t)ordered << 32 | (uint32_t)~id;
}

static int32_t id_of(uint64_t key)
{
    return (int32_t) ~(uint32_t)key;
}

/** Offer a key to the k best, kept in descending order. Most keys end at the one comparison. */
static void top_offer(uint64_t *top, int32_t k, uint64_t key)
{
    if (key <= top[k - 1]) return;
    int32_t i = k - 1;
    for (; i > 0 && top[i - 1] < key; i--)
        top[i] = top[i - 1];
    top[i] = key;
}

/**
 * No real key is 0 (the low word holds ~id and ids are below 2^31), so an empty place loses to all.
 */
static void top_clear(uint64_t *top, int32_t k)
{
    memset(top, 0, (size_t)k * sizeof *top);
}

/** The sum of the two highest of n values (of the one, for n = 1). */
static float top_two_sum(const float *value, int32_t n)
{
    if (n == 1) return value[0];
    float first = -INFINITY;
    float second = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (value[i] > first) {
            second = first;
            first = value[i];
        } else if (value[i] > second) {
            second = value[i];
        }
    }
    return first + second;
}

void ek_route_gate_pick_groups(const ek_route_gate *gate, const float *value,
                               ek_gate_scratch *scratch)
{
    int32_t group_size = gate->n_experts / gate->n_groups;
    top_clear(scratch->top, gate->n_groups_used);
    for (int32_t g = 0; g < gate->n_groups; g++) {
        float sum = top_two_sum(value + (ptrdiff_t)g * group_size, group_size);
        top_offer(scratch->top, gate->n_groups_used, key_of(sum, g));
    }
    memset(scratch->group_used, 0, (size_t)gate->n_groups);
    for (int32_t i = 0; i < gate->n_groups_used; i++)
        scratch->group_used[id_of(scratch->top[i])] = 1;
}

/** Spans of experts that may be chosen from. */
typedef struct eligible {
    const ek_route_gate *gate;
    const uint8_t *group_used; /* NULL: all */
    int32_t group_size;
} eligible;

static bool is_eligible(const eligible *from, int32_t group)
{
    return !from->group_used || from->group_used[group];
}

/*
 * Maxima are kept in LANES side by side, which compilers turn into vector instructions; they do not
 * depend on the order in which they are taken.
 */
#define LANES 8

/**
 * A value that at least LANES of the eligible experts reach, or -inf: the lowest of LANES maxima
 * over disjoint sets. NaN is below everything, because no comparison with it is true.
 */
static float reached_by_lanes(const eligible *from, const float *value)
{
    float max[LANES];
    for (int32_t j = 0; j < LANES; j++)
        max[j] = -INFINITY;
    for (int32_t g = 0; g < from->gate->n_groups; g++) {
        if (!is_eligible(from, g)) continue;
        const float *v = value + (ptrdiff_t)g * from->group_size;
        for (int32_t i = 0; i + LANES <= from->group_size; i += LANES)
            for (int32_t j = 0; j < LANES; j++)
                max[j] = v[i + j] > max[j] ? v[i + j] : max[j];
    }
    float least = max[0];
    for (int32_t j = 1; j < LANES; j++)
        least = max[j] < least ? max[j] : least;
    return least;
}

void ek_route_gate_pick(const ek_route_gate *gate, const float *value, ek_gate_scratch *scratch,
                        int32_t *out_id)
{
    bool grouped = gate->n_groups_used < gate->n_groups;
    const eligible from = {
        .gate = gate,
        .group_used = grouped ? scratch->group_used : NULL,
        .group_size = gate->n_experts / gate->n_groups,
    };
    /*
     * Only what reaches `least` can be among the best; its ids are noted without a branch, because
     * which ones they are cannot be predicted.
     */
    float least = gate->top_k <= LANES ? reached_by_lanes(&from, value) : -INFINITY;
    int32_t n = 0;
    if (least > -INFINITY) {
        for (int32_t g = 0; g < gate->n_groups; g++) {
            if (!is_eligible(&from, g)) continue;
            for (int32_t e = g * from.group_size; e < (g + 1) * from.group_size; e++) {
                scratch->candidate[n] = e;
                n += value[e] >= least;
            }
        }
    } else {
        for (int32_t g = 0; g < gate->n_groups; g++)
            for (int32_t e = g * from.group_size; e < (g + 1) * from.group_size; e++)
                if (is_eligible(&from, g)) scratch->candidate[n++] = e;
    }
    top_clear(scratch->top, gate->top_k);
    for (int32_t i = 0; i < n; i++)
        top_offer(scratch->top, gate->top_k,
                  key_of(value[scratch->candidate[i]], scratch->candidate[i]));
    for (int32_t k = 0; k < gate->top_k; k++)
        out_id[k] = id_of(scratch->top[k]);
}

void ek_route_gate_order(const float *value, int32_t *ids, int32_t n)
{
    for (int32_t k = 1; k < n; k++) {
        int32_t id = ids[k];
        uint64_t key = key_of(value[id], id);
        int32_t i = k;
        for (; i > 0 && key_of(value[ids[i - 1]], ids[i - 1]) < key; i--)
            ids[i] = ids[i - 1];
        ids[i] = id;
    }
}

/** exp(z - max) and its sum; all are 0 where there is nothing but -inf. */
static double exp_all(const float *z, int32_t n, float *out)
{
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        max = z[i] > max ? z[i] : max;
    if (max == -INFINITY) max = 0;
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        out[i] = expf(z[i] - max);
        sum += (double)out[i];
    }
    return sum;
}

static void softmax(const float *z, int32_t n, float *out)
{
    double sum = exp_all(z, n, out);
    float inverse = sum > 0 ? (float)(1.0 / sum) : 0;
    for (int32_t i = 0; i < n; i++)
        out[i] *= inverse;
}

static float sigmoid(float z)
{
    return 1.0f / (1.0f + expf(-z));
}

static void renormalise(float *weight, int32_t n)
{
    double sum = 0;
    for (int32_t k = 0; k < n; k++)
        sum += (double)weight[k];
    float clamped = sum > (double)renormalise_sum_min ? (float)sum : renormalise_sum_min;
    for (int32_t k = 0; k < n; k++)
        weight[k] /= clamped;
}

/**
 * Scores of all experts, and what they are chosen by: score + bias. A NaN logit's value is NaN,
 * which every comparison of the choice ranks lowest.
 */
static void score_all(const ek_route_gate *gate, const float *logits, const float *bias,
                      ek_gate_scratch *scratch)
{
    int32_t n = gate->n_experts;
    if (gate->score == EK_ROUTE_SOFTMAX) {
        softmax(scratch->logit, n, scratch->score);
    } else if (gate->score == EK_ROUTE_SIGMOID) {
        for (int32_t e = 0; e < n; e++)
            scratch->score[e] = sigmoid(scratch->logit[e]);
    } else {
        memcpy(scratch->score, scratch->logit, (size_t)n * sizeof(float));
    }
    for (int32_t e = 0; e < n; e++)
        scratch->value[e] = logits[e] != logits[e] ? NAN : scratch->score[e] + (bias ? bias[e] : 0);
}

/**
 * Weights need the chosen's logits only: a sigmoid stands for itself, and of a renormalised softmax
 * the sum over all cancels. (The best k of EK_ROUTE_EXPERTS_MAX always add up to more than the
 * clamp; with a bias the chosen may not be the best.) That leaves exponentials of top_k logits
 * instead of all.
 */
static bool softmax_of_chosen(const ek_route_gate *gate, bool plain)
{
    return gate->score == EK_ROUTE_SOFTMAX_CHOSEN ||
           (gate->score == EK_ROUTE_SOFTMAX && gate->renormalise && plain);
}

void ek_route_gate_weigh(const ek_route_gate *gate, const float *bias,
                         const ek_gate_scratch *scratch, const int32_t *ids, float *out_weight)
{
    bool chosen_only = softmax_of_chosen(gate, ek_route_gate_plain(gate, bias));
    for (int32_t k = 0; k < gate->top_k; k++) {
        float z = scratch->logit[ids[k]];
        out_weight[k] = chosen_only                       ? z
                        : gate->score == EK_ROUTE_SIGMOID ? sigmoid(z)
                                                          : scratch->score[ids[k]];
    }
    if (chosen_only)
        softmax(out_weight, gate->top_k, out_weight);
    else if (gate->renormalise)
        renormalise(out_weight, gate->top_k);
    if (gate->scale != 1.0f)
        for (int32_t k = 0; k < gate->top_k; k++)
            out_weight[k] *= gate->scale;
}

void ek_route_gate_weigh_alone(const ek_route_gate *gate, const float *bias, const float *logits,
                               ek_gate_scratch *scratch, const int32_t *ids, float *out_weight)
{
    bool plain = ek_route_gate_plain(gate, bias);
    if (softmax_of_chosen(gate, plain) || gate->score == EK_ROUTE_SIGMOID) {
        for (int32_t k = 0; k < gate->top_k; k++)
            scratch->logit[ids[k]] = ek_route_gate_logit(logits[ids[k]]);
    } else {
        for (int32_t e = 0; e < gate->n_experts; e++)
            scratch->logit[e] = ek_route_gate_logit(logits[e]);
        score_all(gate, logits, bias, scratch);
    }
    ek_route_gate_weigh(gate, bias, scratch, ids, out_weight);
}

bool ek_route_gate_keeps_groups(const ek_route_gate *gate, const int32_t *ids, int32_t k, int32_t e)
{
    if (gate->n_groups_used == gate->n_groups) return true;
    int32_t size = gate->n_experts / gate->n_groups;
    int32_t n_used = 0;
    for (int32_t i = 0; i < gate->top_k; i++) {
        if (i == k) continue;
        int32_t group = ids[i] / size;
        if (group == e / size) return true;
        bool first = true;
        for (int32_t j = 0; j < i; j++)
            first = first && (j == k || ids[j] / size != group);
        n_used += first;
    }
    return n_used < gate->n_groups_used;
}

const float *ek_route_gate_choose(const ek_route_gate *gate, const float *logits, const float *bias,
                                  ek_gate_scratch *scratch, int32_t *out_id, float *out_weight)
{
    for (int32_t e = 0; e < gate->n_experts; e++)
        scratch->logit[e] = ek_route_gate_logit(logits[e]);

    bool plain = ek_route_gate_plain(gate, bias);
    bool chosen_only = softmax_of_chosen(gate, plain) || gate->score == EK_ROUTE_SIGMOID;
    if (!plain || !chosen_only) score_all(gate, logits, bias, scratch);
    const float *value = plain ? logits : scratch->value;
    if (gate->n_groups_used < gate->n_groups) ek_route_gate_pick_groups(gate, value, scratch);
    ek_route_gate_pick(gate, value, scratch, out_id);
    ek_route_gate_weigh(gate, bias, scratch, out_id, out_weight);
    return value;
}
