#include "route/policy.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"

#define LOAD_MAX 1e6 /* of a sample; what is beyond, infinity too, is this */

/* ---- what each keeps ---- */

static void init_bank(ek_policy_bank *bank)
{
    memset(bank->load, 0, (size_t)bank->n * sizeof *bank->load);
    memset(bank->smooth, 0, (size_t)bank->n * sizeof *bank->smooth);
    for (int32_t i = 0; i < bank->n; i++)
        ek_route_breaker_init(&bank->breaker[i]);
    bank->sampled = false;
}

static void step_smooth(const ek_route_params *params, ek_policy_bank *bank,
                        EK_UNUSED const ek_policy_sample *sample)
{
    /* The first sample is taken as it is: there is nothing to smooth it with. */
    float g = bank->sampled ? (float)params->discount_smoothing : 1.0f;
    for (int32_t i = 0; i < bank->n; i++)
        bank->smooth[i] += g * (bank->load[i] - bank->smooth[i]);
}

static void step_breakers(const ek_route_params *params, ek_policy_bank *bank,
                          const ek_policy_sample *sample)
{
    for (int32_t i = 0; i < bank->n; i++) {
        ek_breaker_sample s = {0};
        if (sample->service) s = sample->service[i];
        s.load = (double)bank->load[i];
        ek_route_breaker_step(&bank->breaker[i], &params->breaker, &s, sample->now_us);
    }
}

static void step_both(const ek_route_params *params, ek_policy_bank *bank,
                      const ek_policy_sample *sample)
{
    step_smooth(params, bank, sample);
    step_breakers(params, bank, sample);
}

/* ---- penalties ---- */

/**
 * Falls with load, and by a step where the candidate is full: whoever is not full comes before
 * whoever is, the less loaded first in both.
 */
static double penalty_least_load(const ek_route_params *params,
                                 EK_UNUSED const ek_policy_bank *bank, EK_UNUSED int32_t i,
                                 double load)
{
    return (load < params->load_max ? 0.5 : 0) + 0.5 / (1 + load);
}

/**
 * (1 - alpha) exp(-beta (L - L0)) above L0. A load newer than the last sample is smoothed as that
 * sample will be.
 */
static double penalty_discount(const ek_route_params *params, const ek_policy_bank *bank, int32_t i,
                               double load)
{
    double smooth = (double)bank->smooth[i];
    if (load != (double)bank->load[i]) smooth += params->discount_smoothing * (load - smooth);
    if (smooth <= params->discount_load) return 1;
    double p = (1 - params->discount_alpha) *
               exp(-params->discount_beta * (smooth - params->discount_load));
    return fmax(p, DBL_MIN); /* 0 would mean excluded */
}

/**
 * Hysteresis is a matter of samples: a load newer than the last one changes no state. It can lower
 * the weight, though, so that what arrives between two samples does not all go the same way.
 */
static double penalty_breaker(const ek_route_params *params, const ek_policy_bank *bank, int32_t i,
                              double load)
{
    double weight = (double)bank->breaker[i].weight;
    if (load == (double)bank->load[i] || load < params->breaker.derate_load) return weight;
    return fmin(weight, ek_route_breaker_derated_weight(&params->breaker, load));
}

static double penalty_adaptive(const ek_route_params *params, const ek_policy_bank *bank, int32_t i,
                               double load)
{
    return fmin(penalty_breaker(params, bank, i, load), penalty_discount(params, bank, i, load));
}

const ek_policy ek_route_policies[EK_ROUTE_N_POLICIES] = {
    {EK_ROUTE_POLICY_STATIC, "static", "the model's own choice, bit for bit", true, init_bank, NULL,
     NULL},
    {EK_ROUTE_POLICY_LEAST_LOAD, "least-load", "whoever has least to do and is not full", false,
     init_bank, NULL, penalty_least_load},
    {EK_ROUTE_POLICY_DISCOUNT, "discount", "scores fall with load", true, init_bank, step_smooth,
     penalty_discount},
    {EK_ROUTE_POLICY_BREAKER, "breaker", "thresholds with hysteresis for each expert", true,
     init_bank, step_breakers, penalty_breaker},
    {EK_ROUTE_POLICY_ADAPTIVE, "adaptive",
     "breaker and discount, tuned by the tail that they lead to", true, init_bank, step_both,
     penalty_adaptive},
};

/* ---- the policy in force ---- */

static void tune(ek_policy_core *core)
{
    core->tuned = core->params;
    if (core->policy->id == EK_ROUTE_POLICY_ADAPTIVE)
        ek_route_adapt_tune(core->adapt.gain, &core->params, &core->tuned);
}

void ek_route_policy_core_init(ek_policy_core *core, const ek_route_params *params)
{
    ek_route_adapt_init(&core->adapt);
    core->load_max = 0;
    ek_route_policy_core_switch(core, params);
}

void ek_route_policy_core_switch(ek_policy_core *core, const ek_route_params *params)
{
    core->params = *params;
    core->policy = &ek_route_policies[params->policy];
    tune(core);
}

void ek_route_policy_core_sample(ek_policy_core *core, int64_t tail_us)
{
    if (core->policy->id == EK_ROUTE_POLICY_ADAPTIVE &&
        ek_route_adapt_sample(&core->adapt, &core->params, tail_us, core->load_max))
        tune(core);
    core->load_max = 0;
}

/* ---- a bank ---- */

size_t ek_route_policy_bank_bytes(int32_t n)
{
    size_t each = sizeof(ek_breaker) + 5 * sizeof(float) + sizeof(int32_t) + sizeof(uint8_t);
    return (size_t)n * each + 4 * sizeof(int64_t); /* each array may need padding before it */
}

bool ek_route_policy_bank_create(int32_t n, ek_arena *perm, ek_policy_bank *out_bank)
{
    ek_arena arena = *perm;
    ek_policy_bank bank = {
        .n = n,
        .breaker = ek_try_new(&arena, ek_breaker, n),
        .load = ek_try_new(&arena, float, n),
        .smooth = ek_try_new(&arena, float, n),
        .log_p = ek_try_new(&arena, float, n),
        .p = ek_try_new(&arena, float, n),
        .mask = ek_try_new(&arena, float, n),
        .bent = ek_try_new(&arena, int32_t, n),
        .is_bent = ek_try_new(&arena, uint8_t, n),
    };
    if (!bank.breaker || !bank.load || !bank.smooth || !bank.log_p || !bank.p || !bank.mask ||
        !bank.bent || !bank.is_bent)
        return false;
    *perm = arena;
    *out_bank = bank;
    return true;
}

void ek_route_policy_bank_init(const ek_policy_core *core, ek_policy_bank *bank, int32_t n_needed,
                               uint64_t noise_seed)
{
    bank->n_needed = n_needed;
    bank->noise_seed = noise_seed;
    core->policy->init(bank);
    ek_route_policy_bank_blind(bank);
}

void ek_route_policy_bank_blind(ek_policy_bank *bank)
{
    for (int32_t i = 0; i < bank->n; i++) {
        bank->log_p[i] = bank->mask[i] = 0;
        bank->p[i] = 1;
        bank->is_bent[i] = 0;
    }
    bank->n_bent = 0;
}

double ek_route_policy_noise(uint64_t seed, uint64_t what)
{
    return (double)(ek_mix64(seed ^ ek_mix64(what)) >> 11) * 0x1p-53;
}

/** log p, clipped; @param out_excluded what the policy says of it, whatever the others are like */
static double log_p_alone(const ek_policy_core *core, const ek_policy_bank *bank, int32_t i,
                          double load, bool *out_excluded)
{
    double p = 1;
    if (core->policy->penalty) p = core->policy->penalty(&core->tuned, bank, i, load);
    *out_excluded = p <= 0;
    double p_min = core->tuned.penalty_min;
    return p >= 1 ? 0 : log(p > p_min ? p : p_min); /* a NaN would become p_min */
}

double ek_route_policy_log_p(const ek_policy_core *core, const ek_policy_bank *bank, int32_t i,
                             double load, bool *out_excluded)
{
    double log_p = log_p_alone(core, bank, i, load, out_excluded);
    if (!*out_excluded || bank->mask[i] < 0) return log_p;
    *out_excluded = false; /* it had to be let in again */
    return (double)bank->log_p[i];
}

/** log p >= floor, with the noise downwards and from where it stays above the floor. */
static void set_penalty(ek_policy_bank *bank, int32_t i, double log_p, double floor)
{
    log_p = fmax(log_p, floor + EK_ROUTE_NOISE) -
            EK_ROUTE_NOISE * ek_route_policy_noise(bank->noise_seed, (uint64_t)i);
    bank->log_p[i] = (float)log_p;
    bank->p[i] = (float)exp(log_p);
}

/**
 * Let the least loaded of the excluded in again, as if they were only derated, until a choice has
 * enough to choose from and those that are left can carry the load of all. Else the first breaker
 * that opens under a load that is heavy everywhere pushes the next one over, and so on.
 */
static void readmit(const ek_policy_core *core, ek_policy_bank *bank, int32_t n_excluded,
                    double floor)
{
    double load_sum = 0;
    for (int32_t i = 0; i < bank->n; i++)
        load_sum += (double)bank->load[i];
    for (; n_excluded > 0; n_excluded--) {
        int32_t n_left = bank->n - n_excluded;
        if (n_left >= bank->n_needed && load_sum <= core->tuned.breaker.trip_load * n_left) return;
        int32_t least = -1;
        for (int32_t i = 0; i < bank->n; i++)
            if (bank->mask[i] < 0 && (least < 0 || bank->load[i] < bank->load[least])) least = i;
        bank->mask[least] = 0;
        set_penalty(bank, least, log(core->tuned.breaker.trip_weight), floor);
    }
}

void ek_route_policy_bank_refresh(const ek_policy_core *core, ek_policy_bank *bank)
{
    if (!core->policy->penalty) {
        ek_route_policy_bank_blind(bank);
        return;
    }
    double floor = log(core->tuned.penalty_min);
    int32_t n_excluded = 0;
    bank->n_bent = 0;
    for (int32_t i = 0; i < bank->n; i++) {
        bool excluded;
        double log_p = log_p_alone(core, bank, i, (double)bank->load[i], &excluded);
        bank->is_bent[i] = log_p < 0 || !core->policy->reads_scores;
        bank->log_p[i] = 0;
        bank->p[i] = 1;
        bank->mask[i] = excluded ? EK_ROUTE_EXCLUDED : 0;
        n_excluded += excluded;
        if (!bank->is_bent[i]) continue;
        set_penalty(bank, i, log_p, floor);
        bank->bent[bank->n_bent++] = i;
    }
    readmit(core, bank, n_excluded, floor);
}

void ek_route_policy_bank_sample(ek_policy_core *core, ek_policy_bank *bank,
                                 const ek_policy_sample *sample)
{
    for (int32_t i = 0; i < bank->n; i++) {
        double load = (double)sample->load[i];
        load = load > 0 ? fmin(load, LOAD_MAX) : 0; /* NaN is not above 0 */
        bank->load[i] = (float)load;
        core->load_max = fmax(core->load_max, load);
    }
    if (core->policy->step) core->policy->step(&core->tuned, bank, sample);
    bank->sampled = true;
    ek_route_policy_bank_refresh(core, bank);
}
