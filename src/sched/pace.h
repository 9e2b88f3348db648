/*
 * How many prompt tokens a step may take, so that running answers do not wait long for it.
 *
 * A step's time is modelled as
 *
 *     base + per_decode * decoding sequences + per_prompt * prompt tokens
 *
 * and fitted to the steps that run by a Kalman filter whose costs may drift, so that it follows the
 * model, the machine, the length of contexts and whatever else runs beside. What no step has shown
 * for long, such as prompts during an hour of answers, stays as it was known. A step that took far
 * longer than expected is taken for an accident of the machine and counts as a few times what was
 * expected. Plain memory of the caller's; pure; one owner.
 */
#ifndef EK_SCHED_PACE_H
#define EK_SCHED_PACE_H

#include <stdint.h>

#define EK_PACE_TERMS 3 /* base, per decoding sequence, per prompt token */

/** Zero-initialise, then ek_sched_pace_init. */
typedef struct ek_sched_pace {
    double us[EK_PACE_TERMS];                    /* microseconds of each */
    double spread[EK_PACE_TERMS][EK_PACE_TERMS]; /* covariance of what is not known of them */
    int64_t n_steps;
} ek_sched_pace;

void ek_sched_pace_init(ek_sched_pace *pace);

/** A step of n_decode decoding sequences and n_prompt prompt tokens took so long. */
void ek_sched_pace_learn(ek_sched_pace *pace, int32_t n_decode, int32_t n_prompt, int64_t took_us);

/** Expected time of a step; 0 before the first step was learnt. */
int64_t ek_sched_pace_expect_us(const ek_sched_pace *pace, int32_t n_decode, int32_t n_prompt);

/**
 * Prompt tokens that may join n_decode decoding sequences. A step may take target_us, or 2.5 times
 * what it would take if all n_present decoded, whichever is more: that is what those who decode
 * will wait for each token soon enough, and those with prompts must not starve until then.
 * @param n_present decoding sequences and those that have prompts to be computed, >= n_decode
 * @param target_us > 0; 0: as long as it takes
 * @param least, most 1 <= least <= most; with nothing decoding or nothing learnt it is `most`
 * @return in [least, most]
 */
int32_t ek_sched_pace_chunk(const ek_sched_pace *pace, int32_t n_decode, int32_t n_present,
                            int64_t target_us, int32_t least, int32_t most);

#endif
