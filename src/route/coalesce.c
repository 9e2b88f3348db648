#include "route/coalesce.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/assert.h"

#define ALTERNATIVES_MAX 8 /* of one token that are remembered, best first */

/** An expert that the batch reads and a token has not chosen. */
typedef struct alternative {
    int32_t expert; /* -1: the token has it by now */
    float logit;
    float share; /* < 0: not computed yet */
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
    float ceiling;          /* no alternative's share is above this */
    int32_t n_alternatives; /* -1: not looked for yet */
} token;

/*
 * A token-slot's place here is token << shift | choice, so that its token is found without a
 * division.
 */
typedef struct coalescer {
    const ek_coalesce_job *job;
    ek_route_plan *plan;
    int32_t shift;
    bool grouped;
    token *token;             /* (n_tokens) */
    alternative *alternative; /* (n_tokens, ALTERNATIVES_MAX) */
    float *share;             /* (n_tokens << shift) of a token-slot's expert */
    int32_t *next;            /* (n_tokens << shift) next token-slot of the same expert */
    int32_t *head;            /* (n_experts) first of its token-slots, or -1 */
    int32_t *chooser;         /* (n_experts) last token that was looked at and has chosen it */
    int32_t *open;            /* (n_open) experts that are read and may be moved to, ascending */
    int32_t n_open;
    uint64_t
        *candidate; /* (n_candidates) a heap of experts that might be closed, cheapest on top */
    int32_t n_candidates;
    int32_t *cost_at; /* (n_experts) its cost is what it was when so many had been closed */
    double allowance; /* that the batch may still lose */
    int32_t n_closed;
} coalescer;

static int32_t shift_of(int32_t top_k)
{
    int32_t shift = 0;
    while (1 << shift < top_k)
        shift++;
    return shift;
}

size_t ek_route_coalesce_bytes(const ek_route_gate *gate, int32_t n_tokens)
{
    size_t n_slots = (size_t)n_tokens << shift_of(gate->top_k), n_experts = (size_t)gate->n_experts;
    size_t each = sizeof(token) + ALTERNATIVES_MAX * sizeof(alternative);
    return (size_t)n_tokens * each + n_slots * (sizeof(float) + sizeof(int32_t)) +
           n_experts * (4 * sizeof(int32_t) + sizeof(uint64_t)) + 4 * sizeof(double);
}

/** Place in the plan's arrays. */
static ptrdiff_t plan_idx(const coalescer *c, int32_t slot)
{
    int32_t t = slot >> c->shift;
    return (ptrdiff_t)t * c->plan->top_k + (slot - (t << c->shift));
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
    return t->scale * expf(fminf(z - t->logit, 80));
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
    float unit = sum > 0 ? (float)((1 - loss) / sum) : 0;
    float *share = c->share + ((ptrdiff_t)t << c->shift);
    for (int32_t i = 0; i < k; i++)
        share[i] = weight[i] * unit;
    /* The model's own choice, made on scores alone, comes best first and before all others. */
    bool is_best =
        loss <= 0 && c->job->bank->n_bent == 0 && ek_route_gate_plain(c->job->gate, c->job->bias);
    int32_t e = plan->expert_id[(ptrdiff_t)t * k + best];
    double loss_max = fmin(bound, loss + c->job->params->coalesce);
    c->token[t] = (token){
        .kept = 1 - loss,
        .floor = unit > 0 ? 1 - loss_max : 2, /* nothing to measure by: it stays as it is */
        .weight = unit > 0 ? 1 / (double)unit : 0,
        .scale = share[best],
        .logit = ek_route_gate_logit(c->job->logits[(ptrdiff_t)t * plan->n_experts + e]),
        .ceiling = is_best ? share[k - 1] : INFINITY,
        .n_alternatives = -1,
    };
}

static void measure_all(coalescer *c, double bound)
{
    const ek_route_plan *plan = c->plan;
    memset(c->head, 0xff, (size_t)plan->n_experts * sizeof *c->head);       /* -1 */
    memset(c->chooser, 0xff, (size_t)plan->n_experts * sizeof *c->chooser); /* -1 */
    for (int32_t t = plan->n_tokens - 1; t >= 0; t--) {
        measure_token(c, t, bound);
        const int32_t *id = plan->expert_id + (ptrdiff_t)t * plan->top_k;
        for (int32_t i = 0; i < plan->top_k; i++) {
            c->next[t << c->shift | i] = c->head[id[i]];
            c->head[id[i]] = t << c->shift | i;
        }
    }
}

/* ---- who might be closed ---- */

/** What closing an expert loses at least; INFINITY where it is out of the question. */
static double cost_at_least(const coalescer *c, int32_t e)
{
    double cost = 0;
    for (int32_t i = c->head[e]; i >= 0; i = c->next[i]) {
        const token *t = &c->token[i >> c->shift];
        double given_up = fmax((double)(c->share[i] - t->ceiling), 0);
        cost += given_up;
        if (t->kept - given_up < t->floor || cost > c->allowance) return INFINITY;
    }
    return cost;
}

/** Cost above, expert below: the cheapest is least, the lower id of equals. */
static uint64_t key_of(double cost, int32_t e)
{
    float positive = (float)fmax(cost, 0);
    uint32_t bits;
    memcpy(&bits, &positive, sizeof bits);
    return (uint64_t)bits << 32 | (uint32_t)e;
}

static int32_t expert_of(uint64_t key)
{
    return (int32_t)(uint32_t)key;
}

static void sift(coalescer *c, int32_t i)
{
    uint64_t *heap = c->candidate, key = heap[i];
    for (int32_t child; (child = 2 * i + 1) < c->n_candidates; i = child) {
        if (child + 1 < c->n_candidates && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= key) break;
        heap[i] = heap[child];
    }
    heap[i] = key;
}

static void list_experts(coalescer *c)
{
    for (int32_t e = 0; e < c->plan->n_experts; e++) {
        if (c->head[e] < 0) continue;
        if (c->job->bank->mask[e] == 0) c->open[c->n_open++] = e;
        double cost = cost_at_least(c, e);
        if (cost == INFINITY) continue;
        c->cost_at[e] = -1;
        c->candidate[c->n_candidates++] = key_of(cost, e);
    }
    for (int32_t i = c->n_candidates / 2 - 1; i >= 0; i--)
        sift(c, i);
}

/* ---- what a token could do instead ---- */

/** Keep the best ALTERNATIVES_MAX by logit, lower id first of equals; ids come ascending. */
static int32_t insert(alternative *list, int32_t n, int32_t e, float z)
{
    if (n == ALTERNATIVES_MAX && !(z > list[n - 1].logit)) return n;
    int32_t i = n < ALTERNATIVES_MAX ? n++ : n - 1;
    for (; i > 0 && list[i - 1].logit < z; i--)
        list[i] = list[i - 1];
    list[i] = (alternative){e, z, -1};
    return n;
}

/** Experts that are read anyway and could take the least of the token's shares. */
static void find_alternatives(coalescer *c, int32_t t)
{
    const ek_route_plan *plan = c->plan;
    const float *logits = c->job->logits + (ptrdiff_t)t * plan->n_experts;
    const float *share = c->share + ((ptrdiff_t)t << c->shift);
    const int32_t *id = plan->expert_id + (ptrdiff_t)t * plan->top_k;
    alternative *list = c->alternative + (ptrdiff_t)t * ALTERNATIVES_MAX;
    token *own = &c->token[t];
    float least = INFINITY;
    for (int32_t i = 0; i < plan->top_k; i++) {
        least = fminf(least, share[i]);
        c->chooser[id[i]] = t;
    }
    /* Rounded down a little: what is too dear is refused with exact figures later. */
    float z_min = (float)(logit_of(c, own, (double)least - (own->kept - own->floor)) - 1e-4);
    int32_t *passed = c->job->scratch->candidate, n = 0, n_passed = 0;
    for (int32_t i = 0; i < c->n_open; i++) {
        int32_t e = c->open[i];
        passed[n_passed] = e;
        n_passed += (logits[e] >= z_min) & (c->chooser[e] != t); /* NaN is not */
    }
    for (int32_t i = 0; i < n_passed; i++) {
        int32_t e = passed[i];
        if (c->grouped && !ek_route_gate_keeps_groups(c->job->gate, id, -1, e)) continue;
        n = insert(list, n, e, ek_route_gate_logit(logits[e]));
    }
    own->n_alternatives = n;
}

/**
 * The best place on the token's list for a token-slot whose expert is to be closed, or NULL.
 * @param out_used_up whether nothing on the list is of use to anybody any more
 */
static alternative *best_listed(coalescer *c, int32_t slot, bool *out_used_up)
{
    const ek_route_plan *plan = c->plan;
    const float *log_p = c->job->bank->log_p;
    int32_t t = slot >> c->shift, e = plan->expert_id[plan_idx(c, slot)];
    token *own = &c->token[t];
    alternative *list = c->alternative + (ptrdiff_t)t * ALTERNATIVES_MAX;
    *out_used_up = true;
    for (int32_t i = 0; i < own->n_alternatives; i++) {
        int32_t other = list[i].expert;
        if (other < 0 || c->head[other] < 0) continue;
        *out_used_up = false;
        if (log_p[other] < log_p[e]) continue;
        if (c->grouped &&
            !ek_route_gate_keeps_groups(c->job->gate, plan->expert_id + (ptrdiff_t)t * plan->top_k,
                                        slot - (t << c->shift), other))
            continue;
        if (list[i].share < 0) list[i].share = share_of(c, own, list[i].logit);
        return &list[i];
    }
    return NULL;
}

static alternative *best_alternative(coalescer *c, int32_t slot)
{
    int32_t t = slot >> c->shift;
    bool is_used_up;
    if (c->token[t].n_alternatives < 0) find_alternatives(c, t);
    alternative *best = best_listed(c, slot, &is_used_up);
    if (best || !is_used_up || c->token[t].n_alternatives < ALTERNATIVES_MAX) return best;
    find_alternatives(c, t); /* there was no room for more */
    return best_listed(c, slot, &is_used_up);
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
        const token *t = &c->token[i >> c->shift];
        const alternative *other = best_alternative(c, i);
        if (!other) return INFINITY;
        double kept = t->kept - (double)(c->share[i] - other->share);
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
        token *t = &c->token[i >> c->shift];
        alternative *other = best_alternative(c, i);
        ek_assert(other); /* its cost was finite */
        double before = loss_of(t->kept);
        t->kept -= (double)(c->share[i] - other->share);
        c->allowance -= loss_of(t->kept) - before;
        if (weighs_by_score(c->job->gate))
            plan->weight[plan_idx(c, i)] = (float)((double)other->share * t->weight);
        c->share[i] = other->share;
        plan->expert_id[plan_idx(c, i)] = other->expert;
        plan->token_flags[i >> c->shift] |= EK_ROUTE_TOKEN_COALESCED;
        c->next[i] = c->head[other->expert];
        c->head[other->expert] = i;
        other->expert = -1;
    }
    c->head[e] = -1;
    c->n_closed++;
    int32_t at = 0;
    while (at < c->n_open && c->open[at] < e)
        at++;
    if (at == c->n_open || c->open[at] != e) return; /* excluded: it was never open */
    c->n_open--;
    memmove(c->open + at, c->open + at + 1, (size_t)(c->n_open - at) * sizeof *c->open);
}

/** The cheapest costs this now: down it goes, or out. */
static void settle_top(coalescer *c, double cost)
{
    if (cost == INFINITY)
        c->candidate[0] = c->candidate[--c->n_candidates];
    else
        c->candidate[0] = key_of(cost, expert_of(c->candidate[0]));
    if (c->n_candidates > 0) sift(c, 0);
}

/**
 * Costs only rise while experts are closed (alternatives become fewer, tokens more), so the
 * cheapest by old figures is looked at again, and closed if it is up to date.
 */
static void close_all(coalescer *c)
{
    while (c->n_candidates > 0) {
        int32_t e = expert_of(c->candidate[0]);
        if (c->cost_at[e] == c->n_closed) {
            close_expert(c, e);
            settle_top(c, INFINITY);
        } else {
            c->cost_at[e] = c->n_closed;
            settle_top(c, cost_of(c, e));
        }
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
    int32_t shift = shift_of(plan->top_k);
    size_t n_tokens = (size_t)plan->n_tokens, n_slots = n_tokens << shift;
    size_t n_experts = (size_t)plan->n_experts;
    token *tokens = ek_arena_try_raw(&scratch, n_tokens, sizeof *tokens, _Alignof(token));
    uint64_t *heap = ek_arena_try_raw(&scratch, n_experts, sizeof *heap, _Alignof(uint64_t));
    alternative *list = ek_arena_try_raw(&scratch, n_tokens * ALTERNATIVES_MAX, sizeof *list,
                                         _Alignof(alternative));
    float *share = ek_arena_try_raw(&scratch, n_slots, sizeof *share, sizeof *share);
    int32_t *ints = ek_arena_try_raw(&scratch, n_slots + 4 * n_experts, sizeof *ints, sizeof *ints);
    if (!tokens || !heap || !list || !share || !ints) return EK_ENOMEM;
    coalescer c = {
        .job = job,
        .plan = plan,
        .shift = shift,
        .grouped = job->gate->n_groups_used < job->gate->n_groups,
        .token = tokens,
        .alternative = list,
        .share = share,
        .next = ints,
        .head = ints + n_slots,
        .chooser = ints + n_slots + n_experts,
        .open = ints + n_slots + 2 * n_experts,
        .cost_at = ints + n_slots + 3 * n_experts,
        .candidate = heap,
        .allowance = EK_BUDGET_HORIZON * (job->params->mean_score_loss - job->budget->mean),
    };
    double bound = ek_route_budget_bound(job->budget, job->params);
    if (c.allowance > 0 && bound > 0) {
        measure_all(&c, bound);
        list_experts(&c);
        close_all(&c);
    }
    *out_counts = settle(&c);
    return EK_OK;
}
