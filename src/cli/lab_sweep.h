/*
 * `evenkeel lab sweep`: more and more ordinary traffic on one cluster, a step after the other, and
 * where the curve of latency turns steep. Main thread.
 */
#ifndef EK_CLI_LAB_SWEEP_H
#define EK_CLI_LAB_SWEEP_H

#include "cli/lab.h"

#define EK_CLI_LAB_POINTS_MAX 16

typedef struct ek_cli_lab_point {
    double load; /* of the capacity, offered */
    double rate; /* requests per second, offered */
    ek_lab_figures figures;
} ek_cli_lab_point;

typedef struct ek_cli_lab_curve {
    ek_cli_lab_point point[EK_CLI_LAB_POINTS_MAX];
    int32_t n;
    int32_t knee; /* index; -1: none was seen */
    char problem[EK_CLI_LAB_PROBLEM_BYTES];
} ek_cli_lab_curve;

/**
 * Offer more and more ordinary traffic to the first policy, and see when latency turns steep.
 * @return as ek_cli_lab_incident
 */
EK_MUST ek_status ek_cli_lab_sweep(ek_cli_lab *lab, ek_cli_lab_curve *out_curve, ek_err *err);
/** The table, on standard output. */
void ek_cli_lab_curve_print(const ek_cli_lab *lab, const ek_cli_lab_curve *curve);
/** Its points. @return EK_OK; EK_ENOMEM; what writing gave */
EK_MUST ek_status ek_cli_lab_curve_write_json(const ek_cli_lab *lab, const ek_cli_lab_curve *curve,
                                              const char *path, ek_err *err);
/** Its plot. @return EK_OK; EK_ENOMEM; what writing gave */
EK_MUST ek_status ek_cli_lab_curve_write_html(const ek_cli_lab *lab, const ek_cli_lab_curve *curve,
                                              const char *path, ek_err *err);

#endif
