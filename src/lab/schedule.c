#include "lab/schedule.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/rng.h"

#define DEVIATIONS 6 /* of a count that is drawn, above its mean */
#define ROOM_MIN   64

const char *const ek_lab_kind_names[EK_LAB_N_KINDS] = {"chinese", "english", "code", "logistics"};
const char *const ek_lab_phase_names[EK_LAB_N_PHASES] = {"mixed", "promotion", "recovery"};

void ek_lab_plan_incident(double seconds, double rate, uint64_t seed, ek_lab_plan *out_plan)
{
    static const double ordinary[EK_LAB_N_KINDS] = {0.3, 0.3, 0.3, 0.1};
    static const double promotion[EK_LAB_N_KINDS] = {0.05, 0.03, 0.02, 0.9};
    static const double part[EK_LAB_N_PHASES] = {0.2, 0.4, 0.4};
    *out_plan = (ek_lab_plan){.seed = seed};
    for (int p = 0; p < EK_LAB_N_PHASES; p++) {
        out_plan->seconds[p] = seconds * part[p];
        out_plan->rate[p] = rate;
        memcpy(out_plan->share[p], p == EK_LAB_PROMOTION ? promotion : ordinary, sizeof ordinary);
    }
}

double ek_lab_plan_begins(const ek_lab_plan *plan, int phase)
{
    double at = 0;
    for (int p = 0; p < phase; p++)
        at += plan->seconds[p];
    return at;
}

int64_t ek_lab_plan_requests_max(const ek_lab_plan *plan)
{
    double mean = 0;
    for (int p = 0; p < EK_LAB_N_PHASES; p++)
        mean += plan->seconds[p] * plan->rate[p];
    return (int64_t)(mean + DEVIATIONS * sqrt(mean)) + ROOM_MIN;
}

static bool is_good(double value)
{
    return isfinite(value) && value >= 0;
}

static bool is_valid(const ek_lab_plan *plan)
{
    for (int p = 0; p < EK_LAB_N_PHASES; p++) {
        if (!is_good(plan->seconds[p]) || !is_good(plan->rate[p])) return false;
        for (int k = 0; k < EK_LAB_N_KINDS; k++)
            if (!is_good(plan->share[p][k])) return false;
    }
    return true;
}

static ek_lab_kind draw_kind(const double share[EK_LAB_N_KINDS], ek_rng *rng)
{
    double left = ek_rng_unit(rng);
    for (int k = 0; k < EK_LAB_N_KINDS - 1; k++) {
        if (left < share[k]) return (ek_lab_kind)k;
        left -= share[k];
    }
    return (ek_lab_kind)(EK_LAB_N_KINDS - 1);
}

ek_status ek_lab_schedule(const ek_lab_plan *plan, int32_t room, ek_lab_request *out_request,
                          int32_t *out_n)
{
    if (!is_valid(plan)) return EK_EINVAL;
    ek_rng rng;
    ek_rng_init(&rng, plan->seed);
    int32_t n = 0;
    for (int p = 0; p < EK_LAB_N_PHASES; p++) {
        /* What is left of a gap at a border counts for nothing: the process has no memory. */
        double at_s = ek_lab_plan_begins(plan, p);
        const double end_s = at_s + plan->seconds[p];
        while (plan->rate[p] > 0) {
            at_s += -log(1.0 - ek_rng_unit(&rng)) / plan->rate[p];
            if (at_s >= end_s) break;
            if (n == room) return EK_ERANGE;
            out_request[n++] = (ek_lab_request){
                .due_us = (int64_t)(at_s * 1e6),
                .draw = ek_rng_next(&rng),
                .phase = (ek_lab_phase)p,
                .kind = draw_kind(plan->share[p], &rng),
            };
        }
    }
    *out_n = n;
    return EK_OK;
}
