#include "sched/pace.h"

#include <string.h>

#define SPREAD_START 1e14 /* square microseconds: nothing is known */
#define NOISE        0.1  /* of a step's time that nobody can foresee */
#define DRIFT        0.02 /* of a step's time, by which a cost may change from step to step */
#define ACCIDENT     4.0  /* times the expected time */
#define STRETCH      2.5  /* of a step, for the sake of prompts */
#define STEPS_NEEDED 4    /* before anything is called an accident */

void ek_sched_pace_init(ek_sched_pace *pace)
{
    memset(pace, 0, sizeof *pace);
    for (int32_t i = 0; i < EK_PACE_TERMS; i++)
        pace->spread[i][i] = SPREAD_START;
}

static double expect(const ek_sched_pace *pace, const double x[EK_PACE_TERMS])
{
    double sum = 0;
    for (int32_t i = 0; i < EK_PACE_TERMS; i++)
        sum += pace->us[i] * x[i];
    return sum > 0 ? sum : 0;
}

void ek_sched_pace_learn(ek_sched_pace *pace, int32_t n_decode, int32_t n_prompt, int64_t took_us)
{
    const double x[EK_PACE_TERMS] = {1.0, n_decode, n_prompt};
    double expected = expect(pace, x), took = (double)took_us;
    if (pace->n_steps >= STEPS_NEEDED && took > ACCIDENT * expected) took = ACCIDENT * expected;

    double px[EK_PACE_TERMS], variance = NOISE * NOISE * took * took + 1.0;
    for (int32_t i = 0; i < EK_PACE_TERMS; i++) {
        /* Only what is seen may have changed: the rest stays as well known as it was. */
        double drift = x[i] > 0 ? DRIFT * took / x[i] : 0;
        pace->spread[i][i] += drift * drift;
    }
    for (int32_t i = 0; i < EK_PACE_TERMS; i++) {
        px[i] = 0;
        for (int32_t k = 0; k < EK_PACE_TERMS; k++)
            px[i] += pace->spread[i][k] * x[k];
        variance += x[i] * px[i];
    }
    for (int32_t i = 0; i < EK_PACE_TERMS; i++)
        pace->us[i] += px[i] / variance * (took - expected);
    for (int32_t i = 0; i < EK_PACE_TERMS; i++)
        for (int32_t k = 0; k < EK_PACE_TERMS; k++)
            pace->spread[i][k] -= px[i] * px[k] / variance;
    pace->n_steps++;
}

int64_t ek_sched_pace_expect_us(const ek_sched_pace *pace, int32_t n_decode, int32_t n_prompt)
{
    const double x[EK_PACE_TERMS] = {1.0, n_decode, n_prompt};
    return (int64_t)expect(pace, x);
}

int32_t ek_sched_pace_chunk(const ek_sched_pace *pace, int32_t n_decode, int32_t n_present,
                            int64_t target_us, int32_t least, int32_t most)
{
    if (n_decode == 0 || target_us == 0 || pace->n_steps < STEPS_NEEDED) return most;
    double now = (double)ek_sched_pace_expect_us(pace, n_decode, 0);
    /*
     * So few may have decoded so far that what one more costs is not known; but a token of an
     * answer costs no less than one of a prompt.
     */
    double per_prompt = pace->us[2], per_decode = pace->us[1];
    double each = per_decode > per_prompt ? per_decode : per_prompt;
    double soon = now + each * (n_present - n_decode);
    double allowed = (double)target_us > STRETCH * soon ? (double)target_us : STRETCH * soon;
    double room = allowed - now;
    if (per_prompt * most <= room) return most; /* also when it seems to cost nothing */
    double n = room / per_prompt;
    return n < least ? least : (int32_t)n;
}
