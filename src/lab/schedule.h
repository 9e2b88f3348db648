/*
 * When a lab's requests are due, and what they are about: an ordinary hour, a promotion, and the
 * time after it.
 *
 * Drawn from a seed and nothing else, so that every policy gets the same requests at the same
 * times. Arrivals are a Poisson process whose rate is that of the phase. Pure.
 */
#ifndef EK_LAB_SCHEDULE_H
#define EK_LAB_SCHEDULE_H

#include <stdint.h>

#include "base/attr.h"
#include "base/status.h"

typedef enum ek_lab_kind {
    EK_LAB_CHINESE,
    EK_LAB_ENGLISH,
    EK_LAB_CODE,
    EK_LAB_LOGISTICS, /* Chinese: where is my parcel? */
    EK_LAB_N_KINDS,
} ek_lab_kind;

typedef enum ek_lab_phase {
    EK_LAB_MIXED,
    EK_LAB_PROMOTION,
    EK_LAB_RECOVERY,
    EK_LAB_N_PHASES
} ek_lab_phase;

typedef struct ek_lab_plan {
    double seconds[EK_LAB_N_PHASES];
    double rate[EK_LAB_N_PHASES];                  /* requests per second */
    double share[EK_LAB_N_PHASES][EK_LAB_N_KINDS]; /* of each kind; a phase's sum is 1 */
    uint64_t seed;
} ek_lab_plan;

typedef struct ek_lab_request {
    int64_t due_us; /* since the start, ascending */
    uint64_t draw;  /* which text of its kind: any number */
    ek_lab_phase phase;
    ek_lab_kind kind;
} ek_lab_request;

extern const char *const ek_lab_kind_names[EK_LAB_N_KINDS];
extern const char *const ek_lab_phase_names[EK_LAB_N_PHASES];

/**
 * The incident: before it and after it Chinese, English, code and logistics 0.3, 0.3, 0.3 and 0.1;
 * in the promotion 0.9 logistics and 0.05, 0.03 and 0.02 of the others. A fifth of the time is
 * before it, two fifths are the promotion, and as long is there to recover from it.
 * @param seconds, rate of all phases
 */
void ek_lab_plan_incident(double seconds, double rate, uint64_t seed, ek_lab_plan *out_plan);

/** When a phase begins, in seconds since the start; that of EK_LAB_N_PHASES is the end. */
double ek_lab_plan_begins(const ek_lab_plan *plan, int phase);

/** Room that ek_lab_schedule never passes but once in some billion seeds. */
int64_t ek_lab_plan_requests_max(const ek_lab_plan *plan);

/**
 * Draw it.
 * @param out_request (room)
 * @return EK_OK; EK_ERANGE more than room; EK_EINVAL a time, a rate or a share is negative or no
 *         number
 */
EK_MUST ek_status ek_lab_schedule(const ek_lab_plan *plan, int32_t room,
                                  ek_lab_request *out_request, int32_t *out_n);

#endif
