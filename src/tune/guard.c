#include "tune/guard.h"

#include <math.h>
#include <stdio.h>

#include "tune/adam.h"

ek_guard_limits ek_tune_guard_default(void)
{
    return (ek_guard_limits){
        .gradient_norm = 1000,
        .row_growth = 20,
        .collapse = 0.9,
        .constant = 0.99,
        .mass_top1 = 0.9,
    };
}

/* The row that is worst: not finite, else the longest. */
static int32_t worst_row(const double *x, int32_t n_rows, int32_t d, double *out_norm)
{
    int32_t worst = 0;
    double most = -1;
    for (int32_t e = 0; e < n_rows; e++) {
        double norm = ek_tune_norm(x + (int64_t)e * d, d);
        if (isfinite(norm) && norm <= most) continue;
        worst = e;
        most = norm;
        if (!isfinite(norm)) break;
    }
    *out_norm = most;
    return worst;
}

bool ek_tune_guard_exploded(const ek_guard_limits *limits, const double *gradient,
                            const double *weight, int32_t n_experts, int32_t d, double row_at_start,
                            char out_why[EK_GUARD_TEXT_MAX])
{
    double row, all = ek_tune_norm(gradient, (int64_t)n_experts * d);
    if (!isfinite(all) || all > limits->gradient_norm) {
        int32_t e = worst_row(gradient, n_experts, d, &row);
        snprintf(
            out_why, EK_GUARD_TEXT_MAX,
            "explosion: the gradient's norm is %.3g (limit %g), most of it expert %d's (%.3g); "
            "lower --rate, or lower --clip",
            all, limits->gradient_norm, e, row);
        return true;
    }
    int32_t e = worst_row(weight, n_experts, d, &row);
    if (isfinite(row) && row <= limits->row_growth * row_at_start) return false;
    snprintf(out_why, EK_GUARD_TEXT_MAX,
             "explosion: the gate's row of expert %d has grown to %.3g, more than %g times the "
             "longest at the start (%.3g); lower --rate, or raise --decay",
             e, row, limits->row_growth, row_at_start);
    return true;
}

bool ek_tune_guard_collapsed(const ek_guard_limits *limits, const ek_gate_figures *now,
                             const ek_gate_figures *start, char out_why[EK_GUARD_TEXT_MAX])
{
    static const char remedy[] = "lower --rate, or raise --balance-weight";
    if (now->collapse >= limits->collapse && start->collapse < limits->collapse) {
        snprintf(out_why, EK_GUARD_TEXT_MAX,
                 "collapse: only %.1f experts are in use, expert %d with %.0f %% of the slots; %s",
                 now->balance.effective, now->balance.hottest, 100 * now->balance.top1_share,
                 remedy);
        return true;
    }
    if (now->mass_top1 >= limits->mass_top1 && start->mass_top1 < limits->mass_top1) {
        snprintf(out_why, EK_GUARD_TEXT_MAX,
                 "collapse: expert %d has %.0f %% of the probability, as much as %.1f experts; %s",
                 now->mass_hottest, 100 * now->mass_top1, now->mass_effective, remedy);
        return true;
    }
    if (now->constant < limits->constant || start->constant >= limits->constant) return false;
    snprintf(out_why, EK_GUARD_TEXT_MAX,
             "collapse: the gate is constant: %.1f %% of the tokens go to the same experts, "
             "whatever comes in; %s",
             100 * now->constant, remedy);
    return true;
}
