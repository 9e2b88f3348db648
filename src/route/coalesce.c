#include "route/coalesce.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/assert.h"

#define ALTERNATIVES_MAX 16 /* of one token that are remembered, best first */

/** An expert that the batch reads and a token has not chosen. */
typedef struct alternative {
    int32_t expert; /* -1: the token has it by now */
    float share;
} alternative;

/*
 * A *share* is a score as part of S*, the sum of the scores of the token's static choice: shares of
 * a choice add up to 1 less what it loses.
 */
typedef struct token {
    double kept;            /* sum of the shares of its choice */
    double floor;           /* that may not be gone below */
    double weight;          /* that a share of 1 has */
    float scale;            /* share of the expert that others are measured by, and ... */
    float logit;            /* ... its logit */
    int32_t n_alternatives; /* -1: not looked for yet */
} token;

typedef struct coalescer {
    const ek_coalesce_job *job;
    ek_route_plan *plan;
    token *token;             /* (n_tokens) */
    alternative *alternative; /* (n_tokens, ALTERNATIVES_MAX) */
    float *share;             /* (n_pairs) of a token-slot's expert */
    int32_t *head;            /* (n_experts) first of its token-slots, or -1 */
    int32_t *next;            /* (n_pairs) */
    int32_t *candidate;       /* (n_candidates) experts that might be closed */
    int32_t n_candidates;
    double *cost;     /* (n_candidates) at least so much would be lost by closing it */
    int32_t *cost_at; /* (n_candidates) that is what it was when so many had been closed */
    double allowance; /* that the batch may still lose */
    int32_t n_closed;
} coalescer;

size_t ek_route_coalesce_bytes(const ek_route_gate *gate, int32_t n_tokens)
{
    size_t n_pairs = (size_t)n_tokens * (size_t)gate->top_k, n_experts = (size_t)gate->n_experts;
    size_t each = sizeof(token) + ALTERNATIVES_MAX * sizeof(alternative);
    return (size_t)n_tokens * each + n_pairs * (sizeof(float) + sizeof(int32_t)) +
           n_experts * (3 * sizeof(int32_t) + sizeof(double)) + 4 * sizeof(double);
}

/* ---- shares ---- */

static double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

/** Share of an expert of this logit, by the token's measure. */
static float share_of(const coalescer *c, const token *t, float z)
{
    if (c->job->gate->score == EK_ROUTE_SIGMOID)
        return (float)((double)t->scale * sigmoid((double)z) / sigmoid((double)t->logit));
    /* Where a bias chose experts of low score, others can be far above. */
    return (float)((double)t->scale * exp(fmin((double)z - (double)t->logit, 80)));
}

/** The logit of that share: -inf for 0 and less, +inf for what none has. */
static double logit_of(const coalescer *c, const token *t, double share)
{
    double ratio = share / (double)t->scale;
    if (!(ratio > 0)) return -INFINITY;
    if (c->job->gate->score != EK_ROUTE_SIGMOID) return (double)t->logit + log(ratio);
    double score = ratio * sigmoid((double)t->logit);
    return score < 1 ? log(score / (1 - score)) : INFINITY;
}

/** Weights are proportional to scores whatever the gate, so shares need no exponentials. */
static void measure_token(coalescer *c, int32_t t, double bound)
{
    const ek_route_plan *plan = c->plan;
    int32_t k = plan->top_k, best = 0;
    const float *weight = plan->weight + (ptrdiff_t)t * k;
    double sum = 0, loss = (double)c->job->loss[t];
    for (int32_t i = 0; i < k; i++) {
        sum += (double)weight[i];
        if (weight[i] > weight[best]) best = i;
    }
    double unit = sum > 0 ? (1 - loss) / sum : 0;
    float *share = c->share + (ptrdiff_t)t * k;
    for (int32_t i = 0; i < k; i++)
        share[i] = (float)((double)weight[i] * unit);
    int32_t e = plan->expert_id[(ptrdiff_t)t * k + best];
    double loss_max = fmin(bound, loss + c->job->params->coalesce);
    c->token[t] = (token){
        .kept = 1 - loss,
        .floor = sum > 0 ? 1 - loss_max : 2, /* nothing to measure by: it stays as it is */
        .weight = unit > 0 ? 1 / unit : 0,
        .scale = share[best],
        .logit = ek_route_gate_logit(c->job->logits[(ptrdiff_t)t * plan->n_experts + e]),
        .n_alternatives = -1,
    };
}

static void measure_all(coalescer *c, double bound)
{
    memset(c->head, 0xff, (size_t)c->plan->n_experts * sizeof *c->head); /* -1 */
    for (int32_t t = 0; t < c->plan->n_tokens; t++)
        measure_token(c, t, bound);
    for (int32_t i = c->plan->n_tokens * c->plan->top_k - 1; i >= 0; i--) {
        int32_t e = c->plan->expert_id[i];
        c->next[i] = c->head[e];
        c->head[e] = i;
    }
}

/* ---- who might be closed ---- */

/**
 * No alternative of a token can be above this: in a static choice made on scores alone that is its
 * least chosen expert's share.
 */
static double ceiling_of(const coalescer *c, int32_t t)
{
    if (c->job->loss[t] > 0 || c->job->bank->n_bent > 0 ||
        !ek_route_gate_plain(c->job->gate, c->job->bias))
        return INFINITY;
    return (double)c->share[(ptrdiff_t)(t + 1) * c->plan->top_k - 1]; /* best first */
}

/** What closing an expert loses at least; INFINITY where it is out of the question. */
static double cost_at_least(const coalescer *c, int32_t e)
{
    double cost = 0;
    for (int32_t i = c->head[e]; i >= 0 && cost <= c->allowance; i = c->next[i]) {
        int32_t t = i / c->plan->top_k;
        double given_up = fmax((double)c->share[i] - ceiling_of(c, t), 0);
        if (c->token[t].kept - given_up < c->token[t].floor) return INFINITY;
        cost += given_up;
    }
    return cost <= c->allowance ? cost : INFINITY;
}

static void list_candidates(coalescer *c)
{
    for (int32_t e = 0; e < c->plan->n_experts; e++) {
        if (c->head[e] < 0) continue;
        double cost = cost_at_least(c, e);
        if (cost == INFINITY) continue;
        c->candidate[c->n_candidates] = e;
        c->cost_at[c->n_candidates] = -1;
        c->cost[c->n_candidates++] = cost;
    }
}

/* ---- what a token could do instead ---- */

static bool is_chosen(const ek_route_plan *plan, int32_t t, int32_t e)
{
    for (int32_t i = t * plan->top_k; i < (t + 1) * plan->top_k; i++)
        if (plan->expert_id[i] == e) return true;
    return false;
}

/** Keep the best ALTERNATIVES_MAX by logit, lower id first of equals; ids come ascending. */
static int32_t insert(alternative *list, int32_t n, int32_t e, const float *logits)
{
    float z = logits[e];
    if (n == ALTERNATIVES_MAX && !(z > logits[list[n - 1].expert])) return n;
    int32_t i = n < ALTERNATIVES_MAX ? n++ : n - 1;
    for (; i > 0 && logits[list[i - 1].expert] < z; i--)
        list[i] = list[i - 1];
    list[i].expert = e;
    return n;
}

/** Experts that are read anyway and could take the least of the token's shares. */
static void find_alternatives(coalescer *c, int32_t t)
{
    const ek_route_plan *plan = c->plan;
    const float *logits = c->job->logits + (ptrdiff_t)t * plan->n_experts;
    alternative *list = c->alternative + (ptrdiff_t)t * ALTERNATIVES_MAX;
    token *own = &c->token[t];
    double least = INFINITY;
    for (int32_t i = t * plan->top_k; i < (t + 1) * plan->top_k; i++)
        least = fmin(least, (double)c->share[i]);
    /* Rounded down a little: what is too dear is refused with exact figures later. */
    float z_min = (float)(logit_of(c, own, least - (own->kept - own->floor)) - 1e-4);
    int32_t *passed = c->job->scratch->candidate, n = 0, n_passed = 0;
    for (int32_t e = 0; e < plan->n_experts; e++) {
        passed[n_passed] = e;
        n_passed += logits[e] >= z_min; /* NaN is not */
    }
    for (int32_t i = 0; i < n_passed; i++) {
        int32_t e = passed[i];
        if (c->head[e] < 0 || c->job->bank->mask[e] < 0 || is_chosen(plan, t, e)) continue;
        n = insert(list, n, e, logits);
    }
    for (int32_t i = 0; i < n; i++)
        list[i].share = share_of(c, own, ek_route_gate_logit(logits[list[i].expert]));
    own->n_alternatives = n;
}

/** The best place for a token-slot whose expert is to be closed, or NULL. */
static alternative *best_alternative(coalescer *c, int32_t pair)
{
    const ek_route_plan *plan = c->plan;
    const float *log_p = c->job->bank->log_p;
    int32_t t = pair / plan->top_k, e = plan->expert_id[pair];
    if (c->token[t].n_alternatives < 0) find_alternatives(c, t);
    alternative *list = c->alternative + (ptrdiff_t)t * ALTERNATIVES_MAX;
    for (int32_t i = 0; i < c->token[t].n_alternatives; i++) {
        int32_t other = list[i].expert;
        if (other < 0 || c->head[other] < 0 || log_p[other] < log_p[e]) continue;
        if (ek_route_gate_keeps_groups(c->job->gate, plan->expert_id + (ptrdiff_t)t * plan->top_k,
                                       pair % plan->top_k, other))
            return &list[i];
    }
    return NULL;
}

/* ---- closing ---- */

static double loss_of(double kept)
{
    return fmax(1 - kept, 0);
}

/** What closing an expert loses now; INFINITY where the budget does not allow it. */
static double cost_of(coalescer *c, int32_t e)
{
    double cost = 0;
    for (int32_t i = c->head[e]; i >= 0; i = c->next[i]) {
        const token *t = &c->token[i / c->plan->top_k];
        const alternative *other = best_alternative(c, i);
        if (!other) return INFINITY;
        double kept = t->kept - (double)c->share[i] + (double)other->share;
        if (kept < t->floor) return INFINITY;
        cost += loss_of(kept) - loss_of(t->kept);
    }
    return cost <= c->allowance ? cost : INFINITY;
}

/**
 * A gate that does not renormalise weighs by scores: what stays keeps its weight, and the new one
 * stands to the old as their shares do.
 */
static bool weighs_by_score(const ek_route_gate *gate)
{
    return gate->score == EK_ROUTE_SOFTMAX && !gate->renormalise;
}

static void close_expert(coalescer *c, int32_t e)
{
    ek_route_plan *plan = c->plan;
    for (int32_t i = c->head[e], next; i >= 0; i = next) {
        next = c->next[i];
        token *t = &c->token[i / plan->top_k];
        alternative *other = best_alternative(c, i);
        ek_assert(other); /* its cost was finite */
        double before = loss_of(t->kept);
        t->kept += (double)other->share - (double)c->share[i];
        c->allowance -= loss_of(t->kept) - before;
        if (weighs_by_score(c->job->gate))
            plan->weight[i] = (float)((double)other->share * t->weight);
        c->share[i] = other->share;
        plan->expert_id[i] = other->expert;
        plan->token_flags[i / plan->top_k] |= EK_ROUTE_TOKEN_COALESCED;
        c->next[i] = c->head[other->expert];
        c->head[other->expert] = i;
        other->expert = -1;
    }
    c->head[e] = -1;
    c->n_closed++;
}

static void drop_candidate(coalescer *c, int32_t i)
{
    c->n_candidates--;
    c->candidate[i] = c->candidate[c->n_candidates];
    c->cost[i] = c->cost[c->n_candidates];
    c->cost_at[i] = c->cost_at[c->n_candidates];
}

/**
 * Costs only rise while experts are closed (alternatives become fewer, tokens more), so the
 * cheapest by old figures is looked at again, and closed if it is up to date.
 */
static void close_all(coalescer *c)
{
    while (c->n_candidates > 0) {
        int32_t best = 0;
        for (int32_t i = 1; i < c->n_candidates; i++)
            if (c->cost[i] < c->cost[best] ||
                (c->cost[i] == c->cost[best] && c->candidate[i] < c->candidate[best]))
                best = i;
        if (c->cost_at[best] == c->n_closed) {
            close_expert(c, c->candidate[best]);
            drop_candidate(c, best);
            continue;
        }
        c->cost[best] = cost_of(c, c->candidate[best]);
        c->cost_at[best] = c->n_closed;
        if (c->cost[best] == INFINITY) drop_candidate(c, best);
    }
}

/** Weights and accounts of the tokens that moved. */
static ek_coalesce_counts settle(coalescer *c)
{
    const ek_coalesce_job *job = c->job;
    ek_route_plan *plan = c->plan;
    ek_coalesce_counts counts = {.n_closed = c->n_closed};
    for (int32_t t = 0; c->n_closed > 0 && t < plan->n_tokens; t++) {
        if (!(plan->token_flags[t] & EK_ROUTE_TOKEN_COALESCED)) continue;
        ptrdiff_t row = (ptrdiff_t)t * plan->top_k;
        plan->token_flags[t] |= EK_ROUTE_TOKEN_CHANGED;
        double loss = loss_of(c->token[t].kept);
        double given_up = loss - (double)job->loss[t];
        job->loss[t] = (float)loss;
        ek_route_budget_spend_more(job->budget, given_up);
        counts.loss_sum += given_up;
        counts.n_changed++;
        if (!weighs_by_score(job->gate))
            ek_route_gate_weigh_alone(job->gate, job->bias,
                                      job->logits + (ptrdiff_t)t * plan->n_experts, job->scratch,
                                      plan->expert_id + row, plan->weight + row);
    }
    return counts;
}

ek_status ek_route_coalesce(const ek_coalesce_job *job, ek_arena scratch, ek_route_plan *plan,
                            ek_coalesce_counts *out_counts)
{
    size_t n_tokens = (size_t)plan->n_tokens, n_pairs = n_tokens * (size_t)plan->top_k;
    size_t n_experts = (size_t)plan->n_experts;
    coalescer c = {
        .job = job,
        .plan = plan,
        .token = ek_arena_try_raw(&scratch, n_tokens, sizeof(token), _Alignof(token)),
        .cost = ek_arena_try_raw(&scratch, n_experts, sizeof(double), _Alignof(double)),
        .alternative = ek_arena_try_raw(&scratch, n_tokens * ALTERNATIVES_MAX, sizeof(alternative),
                                        _Alignof(alternative)),
        .share = ek_arena_try_raw(&scratch, n_pairs, sizeof(float), _Alignof(float)),
        .next = ek_arena_try_raw(&scratch, n_pairs, sizeof(int32_t), _Alignof(int32_t)),
        .head = ek_arena_try_raw(&scratch, n_experts, sizeof(int32_t), _Alignof(int32_t)),
        .candidate = ek_arena_try_raw(&scratch, n_experts, sizeof(int32_t), _Alignof(int32_t)),
        .cost_at = ek_arena_try_raw(&scratch, n_experts, sizeof(int32_t), _Alignof(int32_t)),
        .allowance = EK_BUDGET_HORIZON * (job->params->mean_score_loss - job->budget->mean),
    };
    if (!c.token || !c.cost || !c.alternative || !c.share || !c.next || !c.head || !c.candidate ||
        !c.cost_at)
        return EK_ENOMEM;
    double bound = ek_route_budget_bound(job->budget, job->params);
    if (c.allowance > 0 && bound > 0) {
        measure_all(&c, bound);
        list_candidates(&c);
        close_all(&c);
    }
    *out_counts = settle(&c);
    return EK_OK;
}
