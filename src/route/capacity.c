#include "route/capacity.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/assert.h"

/* What becomes of a token-slot: executed, deferred to round 1, 2, ..., or one of these. */
enum { FATE_EXECUTED = 0, FATE_OVER = 253, FATE_REROUTED = 254, FATE_DEGRADED = 255 };

/** One batch being made to fit. */
typedef struct fitter {
    const ek_capacity_job *job;
    ek_route_plan *plan;
    int32_t n_pairs;
    int32_t *count;   /* (n_experts) token-slots of this round */
    int32_t *beg;     /* (n_experts + 1) in `ranked`, of experts that overflow */
    uint64_t *ranked; /* their token-slots, those to keep first: weight above, ~slot below */
    uint8_t *fate;    /* (n_pairs) */
    int32_t *open;    /* (n_open) experts that have room and may be chosen, ascending */
    int32_t n_open;
} fitter;

int32_t ek_route_capacity_cap(double factor, int32_t n_tokens, int32_t top_k, int32_t n_experts)
{
    double exact = factor * n_tokens * top_k / n_experts;
    /* What is whole but for rounding is whole. */
    double cap = ceil(exact * (1 - 1e-12));
    return cap < 1 ? 1 : cap > INT32_MAX ? INT32_MAX : (int32_t)cap;
}

size_t ek_route_capacity_scratch_bytes(const ek_route_gate *gate, int32_t n_tokens)
{
    size_t n_pairs = (size_t)n_tokens * (size_t)gate->top_k;
    return n_pairs * (sizeof(uint64_t) + sizeof(uint8_t)) +
           (3 * (size_t)gate->n_experts + 1) * sizeof(int32_t) + 3 * sizeof(uint64_t);
}

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t keeps(const ek_capacity_job *job, int32_t e)
{
    return min_i32(job->cap[e], job->soft[e]);
}

/* ---- who overflows ---- */

static void sift(uint64_t *heap, int32_t n, int32_t i)
{
    uint64_t key = heap[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= key) break;
        heap[i] = heap[child];
    }
    heap[i] = key;
}

/** Descending; a heap with the least on top, so that no worst case and no memory is needed. */
static void sort_descending(uint64_t *keys, int32_t n)
{
    for (int32_t i = n / 2 - 1; i >= 0; i--)
        sift(keys, n, i);
    for (int32_t last = n - 1; last > 0; last--) {
        uint64_t least = keys[0];
        keys[0] = keys[last];
        keys[last] = least;
        sift(keys, last, 0);
    }
}

/** Greater: keep rather. Weights are finite and not negative, so their bits order as they do. */
static uint64_t rank_of(float weight, int32_t pair)
{
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    return (uint64_t)bits << 32 | (uint32_t)~pair;
}

static int32_t pair_of(uint64_t rank)
{
    return (int32_t) ~(uint32_t)rank;
}

/** @return whether any expert has more than it keeps */
static bool count_pairs(fitter *f)
{
    int32_t n_experts = f->plan->n_experts;
    memset(f->count, 0, (size_t)n_experts * sizeof *f->count);
    for (int32_t i = 0; i < f->n_pairs; i++)
        f->count[f->plan->expert_id[i]]++;
    bool over = false;
    for (int32_t e = 0; e < n_experts; e++)
        over = over || f->count[e] > keeps(f->job, e);
    return over;
}

/** Rank the token-slots of each overflowing expert and mark those that it does not keep. */
static void mark_overflow(fitter *f)
{
    const ek_route_plan *plan = f->plan;
    f->beg[0] = 0;
    for (int32_t e = 0; e < plan->n_experts; e++)
        f->beg[e + 1] = f->beg[e] + (f->count[e] > keeps(f->job, e) ? f->count[e] : 0);
    memset(f->fate, FATE_EXECUTED, (size_t)f->n_pairs);
    for (int32_t i = f->n_pairs - 1; i >= 0; i--) {
        int32_t e = plan->expert_id[i];
        if (f->beg[e + 1] == f->beg[e]) continue;
        f->ranked[f->beg[e] + --f->count[e]] = rank_of(plan->weight[i], i);
    }
    for (int32_t e = 0; e < plan->n_experts; e++) {
        int32_t n = f->beg[e + 1] - f->beg[e];
        if (n == 0) continue;
        f->count[e] = keeps(f->job, e); /* full: nothing is rerouted to it */
        sort_descending(f->ranked + f->beg[e], n);
        for (int32_t r = f->count[e]; r < n; r++)
            f->fate[pair_of(f->ranked[f->beg[e] + r])] = FATE_OVER;
    }
}

/* ---- the next best expert ---- */

/** What is known of a token while its overflow looks for other experts. */
typedef struct token_state {
    int32_t *id;        /* (top_k) its row of the plan */
    const float *value; /* (n_experts) bent */
    float scale;
    double score_static; /* sum of the static choice's scores */
    double score;        /* of the current choice's */
} token_state;

static bool is_chosen(const token_state *t, int32_t top_k, int32_t e)
{
    for (int32_t k = 0; k < top_k; k++)
        if (t->id[k] == e) return true;
    return false;
}

/** Best expert by bent value that has room and whose score is at least `needed`, or -1. */
static int32_t next_best(const fitter *f, const token_state *t, int32_t k, double needed)
{
    const ek_bend *bend = &f->job->bend;
    const ek_route_gate *gate = bend->gate;
    double least = ek_route_bend_logit(bend, t->scale, needed);
    int32_t best = -1;
    float best_value = -INFINITY;
    for (int32_t i = 0; i < f->n_open; i++) {
        int32_t e = f->open[i];
        if (!(t->value[e] > best_value) || (double)bend->scratch->logit[e] < least) continue;
        if (is_chosen(t, gate->top_k, e) || !ek_route_gate_keeps_groups(gate, t->id, k, e))
            continue;
        best = e;
        best_value = t->value[e];
    }
    return best;
}

static void list_open(fitter *f)
{
    for (int32_t e = 0; e < f->plan->n_experts; e++)
        if (f->count[e] < keeps(f->job, e) && f->job->bend.bank->mask[e] == 0)
            f->open[f->n_open++] = e;
}

/** One more token-slot for an expert; when that fills it, it is open no longer. */
static void move_to(fitter *f, int32_t e)
{
    if (++f->count[e] < keeps(f->job, e)) return;
    int32_t i = 0;
    while (f->open[i] != e)
        i++;
    f->n_open--;
    memmove(f->open + i, f->open + i + 1, (size_t)(f->n_open - i) * sizeof *f->open);
}

/** Choose for the token again as it was, and look up what its current choice is worth. */
static token_state look_up(const fitter *f, int32_t t)
{
    const ek_capacity_job *job = f->job;
    const ek_bend *bend = &job->bend;
    int32_t k = bend->gate->top_k;
    int32_t static_id[EK_ROUTE_TOP_K_MAX];
    float static_weight[EK_ROUTE_TOP_K_MAX];
    const float *value =
        ek_route_gate_choose(bend->gate, job->logits + (ptrdiff_t)t * bend->gate->n_experts,
                             job->bias, bend->scratch, static_id, static_weight);
    token_state state = {
        .id = f->plan->expert_id + (ptrdiff_t)t * k,
        .value = ek_route_bend_values(bend, job->bias, value),
        .scale = ek_route_bend_scale(bend, static_id),
    };
    for (int32_t i = 0; i < k; i++) {
        state.score_static += ek_route_bend_score(bend, state.scale, static_id[i]);
        state.score += ek_route_bend_score(bend, state.scale, state.id[i]);
    }
    return state;
}

static void reroute_token(fitter *f, int32_t t)
{
    const ek_capacity_job *job = f->job;
    int32_t top_k = f->plan->top_k;
    token_state state = look_up(f, t);
    bool moved = false;
    for (int32_t k = 0; k < top_k; k++) {
        uint8_t *fate = &f->fate[(ptrdiff_t)t * top_k + k];
        if (*fate != FATE_OVER) continue;
        double kept = state.score - ek_route_bend_score(&job->bend, state.scale, state.id[k]);
        double bound = ek_route_budget_bound(job->budget, job->params);
        int32_t e = next_best(f, &state, k, (1 - bound) * state.score_static - kept);
        if (e < 0) continue;
        *fate = FATE_REROUTED;
        move_to(f, e);
        state.id[k] = e;
        state.score = kept + ek_route_bend_score(&job->bend, state.scale, e);
        moved = true;
        double loss = ek_route_budget_loss(state.score_static, state.score);
        ek_route_budget_spend_more(job->budget, loss - (double)job->loss[t]);
        job->loss[t] = (float)loss;
    }
    if (!moved) return;
    ek_route_gate_weigh(job->bend.gate, job->bias, job->bend.scratch, state.id,
                        f->plan->weight + (ptrdiff_t)t * top_k);
    f->plan->token_flags[t] |= EK_ROUTE_TOKEN_REROUTED;
}

static void reroute(fitter *f)
{
    int32_t top_k = f->plan->top_k;
    list_open(f);
    for (int32_t t = 0; t < f->plan->n_tokens && f->n_open > 0; t++)
        if (memchr(f->fate + (ptrdiff_t)t * top_k, FATE_OVER, (size_t)top_k)) reroute_token(f, t);
}

/* ---- later, or not at all ---- */

/** What was not rerouted goes into this round up to the cap, then into later ones. */
static void settle_rest(fitter *f)
{
    for (int32_t e = 0; e < f->plan->n_experts; e++) {
        int32_t n_here = 0;
        int32_t cap = f->job->cap[e];
        for (int32_t r = f->beg[e]; r < f->beg[e + 1]; r++) {
            uint8_t *fate = &f->fate[pair_of(f->ranked[r])];
            if (*fate == FATE_REROUTED) continue;
            int32_t round = cap > 0 ? n_here++ / cap : INT32_MAX;
            *fate = round <= f->job->params->defer_rounds ? (uint8_t)round : FATE_DEGRADED;
        }
    }
}

/** Leave out a token's degraded slots; the others take over what they weighed. */
static void degrade_token(fitter *f, int32_t t)
{
    int32_t top_k = f->plan->top_k;
    ptrdiff_t row = (ptrdiff_t)t * top_k;
    double before = 0, after = 0;
    for (int32_t k = 0; k < top_k; k++) {
        double weight = (double)f->plan->weight[row + k];
        before += weight;
        if (f->fate[row + k] != FATE_DEGRADED) after += weight;
    }
    double growth = after > 0 ? before / after : 0;
    for (int32_t k = 0; k < top_k; k++) {
        bool out = f->fate[row + k] == FATE_DEGRADED;
        if (out) f->plan->expert_id[row + k] = -1;
        f->plan->weight[row + k] =
            out ? 0 : (float)fmin((double)f->plan->weight[row + k] * growth, before);
    }
    f->plan->token_flags[t] |= EK_ROUTE_TOKEN_DEGRADED;
}

static bool is_deferred(uint8_t fate)
{
    return fate != FATE_EXECUTED && fate < FATE_OVER;
}

static ek_capacity_counts count_fates(const fitter *f)
{
    ek_capacity_counts counts = {0};
    for (int32_t i = 0; i < f->n_pairs; i++) {
        counts.n_executed += f->fate[i] == FATE_EXECUTED;
        counts.n_rerouted += f->fate[i] == FATE_REROUTED;
        counts.n_deferred += is_deferred(f->fate[i]);
        counts.n_degraded += f->fate[i] == FATE_DEGRADED;
    }
    return counts;
}

/** Write the deferred token-slots down by round. */
static void list_deferred(fitter *f)
{
    ek_route_plan *plan = f->plan;
    int32_t next[EK_ROUTE_DEFERRALS_MAX + 1] = {0}; /* counts of rounds, then where they go on */
    for (int32_t i = 0; i < f->n_pairs; i++) {
        if (!is_deferred(f->fate[i])) continue;
        next[f->fate[i]]++;
        if (f->fate[i] > plan->n_rounds) plan->n_rounds = f->fate[i];
        plan->token_flags[i / plan->top_k] |= EK_ROUTE_TOKEN_DEFERRED;
    }
    plan->deferred_beg[0] = 0;
    for (int32_t round = 1; round <= plan->n_rounds; round++) {
        int32_t n = next[round];
        next[round] = plan->deferred_beg[round - 1];
        plan->deferred_beg[round] = next[round] + n;
    }
    for (int32_t i = 0; i < f->n_pairs; i++)
        if (is_deferred(f->fate[i])) plan->deferred[next[f->fate[i]]++] = i;
    plan->n_deferred = plan->deferred_beg[plan->n_rounds];
}

ek_status ek_route_capacity_apply(const ek_capacity_job *job, ek_arena scratch, ek_route_plan *plan,
                                  ek_capacity_counts *out_counts)
{
    fitter f = {.job = job, .plan = plan, .n_pairs = plan->n_tokens * plan->top_k};
    size_t n_pairs = (size_t)f.n_pairs;
    f.ranked = ek_arena_try_raw(&scratch, n_pairs, sizeof *f.ranked, _Alignof(uint64_t));
    f.count = ek_try_new(&scratch, int32_t, plan->n_experts);
    f.beg = ek_try_new(&scratch, int32_t, plan->n_experts + 1);
    f.open = ek_try_new(&scratch, int32_t, plan->n_experts);
    f.fate = ek_arena_try_raw(&scratch, n_pairs, 1, 1);
    if (!f.ranked || !f.count || !f.beg || !f.open || !f.fate) return EK_ENOMEM;
    if (!count_pairs(&f)) {
        *out_counts = (ek_capacity_counts){.n_executed = f.n_pairs};
        return EK_OK;
    }
    mark_overflow(&f);
    reroute(&f);
    settle_rest(&f);
    list_deferred(&f);
    *out_counts = count_fates(&f);
    for (int32_t t = 0; t < plan->n_tokens; t++)
        if (memchr(f.fate + (ptrdiff_t)t * plan->top_k, FATE_DEGRADED, (size_t)plan->top_k))
            degrade_token(&f, t);
    return EK_OK;
}
