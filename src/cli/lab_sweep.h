/*
 * `evenkeel lab sweep`: more and more traffic on one cluster, a step after the other, for each
 * policy; where the curve of latency turns steep, and how much traffic each policy takes within the
 * same limit. Main thread.
 */
#ifndef EK_CLI_LAB_SWEEP_H
#define EK_CLI_LAB_SWEEP_H

#include "cli/lab.h"

#define EK_CLI_LAB_POINTS_MAX 16

typedef struct ek_cli_lab_point {
    double load; /* of the policy's capacity, offered */
    double rate; /* requests per second, offered */
    ek_lab_figures figures;
} ek_cli_lab_point;

typedef struct ek_cli_lab_curve {
    const ek_cli_lab_policy *policy; /* borrowed */
    double capacity;                 /* requests per second that a closed loop leaves */
    ek_cli_lab_point point[EK_CLI_LAB_POINTS_MAX];
    int32_t n;
    int32_t knee;        /* index; -1: none was seen */
    double rate_limited; /* requests per second within the limit */
    bool passed_limit;   /* if not, it may be more */
} ek_cli_lab_curve;

typedef struct ek_cli_lab_sweep {
    ek_lab_phase phase; /* whose traffic */
    ek_cli_lab_curve curve[EK_CLI_LAB_POLICIES_MAX];
    int32_t n;       /* curves with at least one point */
    double limit_ms; /* of P99 */
    char problem[EK_CLI_LAB_PROBLEM_BYTES];
} ek_cli_lab_sweep;

/**
 * Offer more and more traffic to each policy.
 * @param limit_ms of P99; 0: what the first policy's is at 80 % of its capacity
 * @return as ek_cli_lab_incident
 */
EK_MUST ek_status ek_cli_lab_sweep_run(ek_cli_lab *lab, ek_lab_phase phase, double limit_ms,
                                       ek_cli_lab_sweep *out_sweep, ek_err *err);
/** The tables, on standard output. */
void ek_cli_lab_sweep_print(const ek_cli_lab *lab, const ek_cli_lab_sweep *sweep);
/** All points. @return EK_OK; EK_ENOMEM; what writing gave */
EK_MUST ek_status ek_cli_lab_sweep_write_json(const ek_cli_lab *lab, const ek_cli_lab_sweep *sweep,
                                              const char *path, ek_err *err);
/** The plot. @return EK_OK; EK_ENOMEM; what writing gave */
EK_MUST ek_status ek_cli_lab_sweep_write_html(const ek_cli_lab *lab, const ek_cli_lab_sweep *sweep,
                                              const char *path, ek_err *err);

#endif
