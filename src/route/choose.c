#include "route/choose.h"

#include <math.h>

#include "base/assert.h"
#include "base/rng.h"
#include "route/budget.h"
#include "route/policy.h"

struct ek_chooser {
    int32_t n;
    ek_policy_core core;
    ek_policy_bank bank;
    ek_breaker_sample *service; /* (n) since the last sample */
    ek_budget budget;
    ek_chooser_stats stats;
};

size_t ek_route_chooser_bytes(int32_t n)
{
    return sizeof(ek_chooser) + ek_route_policy_bank_bytes(n) +
           (size_t)n * sizeof(ek_breaker_sample) + 2 * sizeof(int64_t);
}

static void forget(ek_chooser *c)
{
    uint64_t seed = ek_mix64((uint64_t)(uint32_t)c->core.params.seed);
    ek_route_policy_bank_init(&c->core, &c->bank, 1, seed);
}

ek_status ek_route_chooser_create(int32_t n, const ek_route_params *params, ek_arena *perm,
                                  ek_chooser **out_chooser, ek_err *err)
{
    if (n < 1 || n > EK_CHOOSE_CANDIDATES_MAX)
        return ek_err_set(err, EK_EINVAL, "%d upstreams; allowed are 1 to %d", n,
                          EK_CHOOSE_CANDIDATES_MAX);
    ek_status status = ek_route_params_check(params, err);
    if (status != EK_OK) return status;
    ek_arena arena = *perm;
    ek_chooser *c = ek_try_new(&arena, ek_chooser, 1);
    ek_breaker_sample *service = ek_try_new(&arena, ek_breaker_sample, n);
    if (!c || !service || !ek_route_policy_bank_create(n, &arena, &c->bank))
        return ek_err_set(err, EK_ENOMEM, "no memory for a choice of %d upstreams", n);
    c->n = n;
    c->service = service;
    ek_route_policy_core_init(&c->core, params);
    forget(c);
    *perm = arena;
    *out_chooser = c;
    return EK_OK;
}

ek_status ek_route_chooser_switch(ek_chooser *c, const ek_route_params *params, ek_err *err)
{
    ek_status status = ek_route_params_check(params, err);
    if (status != EK_OK) return status;
    const ek_policy *before = c->core.policy;
    ek_route_policy_core_switch(&c->core, params);
    if (c->core.policy != before) forget(c);
    return EK_OK;
}

void ek_route_chooser_sample(ek_chooser *c, const ek_route_view *view)
{
    if (!view->utilisation) return;
    ek_route_policy_core_sample(&c->core, view->tail_us);
    const ek_policy_sample sample = {
        .load = view->utilisation, .service = c->service, .now_us = view->sampled_us};
    ek_route_policy_bank_sample(&c->core, &c->bank, &sample);
    for (int32_t i = 0; i < c->n; i++)
        c->service[i] = (ek_breaker_sample){0};
}

static double score_clean(double score)
{
    return score > 0 && score < INFINITY ? score : 0;
}

/**
 * The best candidate for the policy, or -1.
 * @param score_min   of the quality budget
 * @param last_resort look among those that the policy excludes, instead of the others
 */
static int32_t find(const ek_chooser *c, const double *scores, const float *loads, uint64_t salt,
                    double score_min, bool last_resort)
{
    uint64_t noise_seed = ek_mix64(c->bank.noise_seed ^ salt);
    int32_t best = -1;
    double best_value = 0;
    for (int32_t i = 0; i < c->n; i++) {
        double score = score_clean(scores[i]);
        if (score <= 0 || score < score_min) continue;
        double load = (double)c->bank.load[i];
        if (loads && loads[i] >= 0) load = (double)loads[i];
        bool excluded;
        double value = ek_route_policy_log_p(&c->core, &c->bank, i, load, &excluded);
        const ek_breaker *b = &c->bank.breaker[i];
        bool no_probe_left = b->state == EK_BREAKER_HALF_OPEN &&
                             (b->probe_failed || b->n_probes >= c->core.tuned.breaker.probes);
        if ((excluded || no_probe_left) != last_resort) continue;
        value += (c->core.policy->reads_scores ? 1 : EK_ROUTE_TIEBREAK) * log(score);
        value -= EK_ROUTE_NOISE * ek_route_policy_noise(noise_seed, (uint64_t)i);
        if (best >= 0 && value <= best_value) continue;
        best = i;
        best_value = value;
    }
    return best;
}

static int32_t find_static(const ek_chooser *c, const double *scores)
{
    int32_t best = -1;
    for (int32_t i = 0; i < c->n; i++)
        if (score_clean(scores[i]) > 0 && (best < 0 || scores[i] > scores[best])) best = i;
    return best;
}

/** What the policy makes of it: static_id where it has nothing to say. */
static void bend(ek_chooser *c, const double *scores, const float *loads, uint64_t salt,
                 ek_choice *choice)
{
    double best_score = scores[choice->id];
    double score_min = best_score * (1 - ek_route_budget_bound(&c->budget, &c->core.params));
    int32_t found = find(c, scores, loads, salt, score_min, false);
    if (found < 0) {
        choice->is_last_resort = true;
        found = find(c, scores, loads, salt, score_min, true);
    }
    ek_assert(found >= 0); /* the static choice is inside any budget */
    if (found != choice->id) choice->static_id = choice->id;
    choice->id = found;
    choice->loss = ek_route_budget_loss(best_score, scores[found]);
    if (!choice->is_last_resort && c->bank.breaker[found].state == EK_BREAKER_HALF_OPEN)
        choice->is_probe =
            ek_route_breaker_admit(&c->bank.breaker[found], &c->core.tuned.breaker, 1) == 1;
}

static void tell(ek_chooser *c, const ek_choice *choice)
{
    ek_chooser_stats *stats = &c->stats;
    stats->n_choices++;
    stats->n_stale += choice->load_view_stale;
    stats->n_changed += choice->static_id >= 0;
    stats->n_probes += choice->is_probe;
    stats->n_last_resort += choice->is_last_resort;
    stats->n_refused += choice->id < 0;
    stats->loss_sum += choice->loss;
    if (choice->loss > stats->loss_max) stats->loss_max = choice->loss;
}

ek_choice ek_route_choose(ek_chooser *c, const double *scores, const float *loads, int64_t age_us,
                          uint64_t salt)
{
    ek_choice choice = {.id = find_static(c, scores), .static_id = -1};
    bool reads_loads = c->core.policy->penalty != NULL;
    int64_t age_max_us = EK_ROUTE_STALE_PERIODS * c->core.params.sample_us;
    choice.load_view_stale = reads_loads && (!c->bank.sampled || age_us > age_max_us);
    if (choice.id >= 0 && reads_loads && !choice.load_view_stale)
        bend(c, scores, loads, salt, &choice);
    if (reads_loads) ek_route_budget_spend(&c->budget, choice.loss);
    tell(c, &choice);
    return choice;
}

void ek_route_choose_report(ek_chooser *c, int32_t id, bool ok, int64_t latency_us)
{
    ek_assert(id >= 0 && id < c->n);
    ek_breaker_sample *s = &c->service[id];
    if (ok && s->n_ok < INT32_MAX / 2) s->n_ok++;
    if (!ok && s->n_failed < INT32_MAX / 2) s->n_failed++;
    if (latency_us > s->latency_us) s->latency_us = latency_us;
}

void ek_route_choose_settle(ek_chooser *c, int32_t id, bool ok)
{
    ek_assert(id >= 0 && id < c->n);
    ek_route_breaker_settle(&c->bank.breaker[id], ok, !ok);
}

const ek_breaker *ek_route_chooser_breakers(const ek_chooser *c)
{
    return c->bank.breaker;
}

const ek_chooser_stats *ek_route_chooser_stats_of(const ek_chooser *c)
{
    return &c->stats;
}
