#include "tune/figures.h"

#include <math.h>

#include "telemetry/readings.h"
#include "tune/loss.h"

#define ROWS_AT_ONCE 256

/* Everything that one look writes to. */
typedef struct look {
    double *wide;    /* (ROWS_AT_ONCE, d) */
    double *logits;  /* (ROWS_AT_ONCE, n_experts) */
    double *teacher; /* (ROWS_AT_ONCE, n_experts) */
    double *mass;    /* (n_experts) */
    int64_t *counts; /* (2, n_experts) of either half of the rows */
    float *narrow;   /* (n_experts) logits as the router sees them */
    float *bias;     /* (n_experts), or NULL */
    int32_t *ids;    /* (2, top_k) chosen, and what the teacher would */
    float *chosen;   /* (top_k) weights, not looked at */
    ek_gate_scratch scratch;
    double kl, score_loss, z;
} look;

size_t ek_tune_figures_bytes(const ek_gate_problem *p)
{
    size_t n = (size_t)p->gate.n_experts, d = (size_t)p->d_model;
    return ROWS_AT_ONCE * (d + 2 * n) * sizeof(double) + 32 * n * sizeof(double) +
           64 * (size_t)EK_CACHE_LINE;
}

bool ek_tune_gate_scratch(const ek_route_gate *gate, ek_arena *arena, ek_gate_scratch *out_scratch)
{
    int32_t n_top = gate->top_k > gate->n_groups_used ? gate->top_k : gate->n_groups_used;
    *out_scratch = (ek_gate_scratch){
        .logit = ek_try_new(arena, float, gate->n_experts),
        .score = ek_try_new(arena, float, gate->n_experts),
        .value = ek_try_new(arena, float, gate->n_experts),
        .group_used = ek_try_new(arena, uint8_t, gate->n_groups),
        .candidate = ek_try_new(arena, int32_t, gate->n_experts + 1),
        .top = ek_try_new(arena, uint64_t, n_top),
    };
    return out_scratch->logit && out_scratch->score && out_scratch->value &&
           out_scratch->group_used && out_scratch->candidate && out_scratch->top;
}

void ek_tune_logits(const ek_gate_problem *problem, const float *rows, int32_t n_rows,
                    const double *weight, double *wide, double *out)
{
    int32_t n_experts = problem->gate.n_experts, d = problem->d_model;
    for (int64_t i = 0; i < (int64_t)n_rows * d; i++)
        wide[i] = (double)rows[i];
    problem->gemm(CblasRowMajor, CblasNoTrans, CblasTrans, n_rows, n_experts, d, 1.0, wide, d,
                  weight, d, 0.0, out, n_experts);
}

static float *narrowed(const double *from, int32_t n, ek_arena *arena, bool *good)
{
    float *to = ek_try_new(arena, float, n);
    for (int32_t i = 0; to && i < n; i++)
        to[i] = (float)from[i];
    *good = *good && to;
    return to;
}

static bool take(look *l, const ek_gate_problem *p, const ek_gate_weights *gate, ek_arena *arena)
{
    size_t n = (size_t)p->gate.n_experts;
    bool good = true;
    l->wide = ek_try_new(arena, double, ROWS_AT_ONCE *(size_t)p->d_model);
    l->logits = ek_try_new(arena, double, ROWS_AT_ONCE *n);
    l->teacher = ek_try_new(arena, double, ROWS_AT_ONCE *n);
    l->mass = ek_try_new(arena, double, n);
    l->counts = ek_try_new(arena, int64_t, 2 * n);
    l->narrow = ek_try_new(arena, float, n);
    l->ids = ek_try_new(arena, int32_t, 2 * p->gate.top_k);
    l->chosen = ek_try_new(arena, float, p->gate.top_k);
    if (gate->bias) l->bias = narrowed(gate->bias, p->gate.n_experts, arena, &good);
    return good && l->wide && l->logits && l->teacher && l->mass && l->counts && l->narrow &&
           l->ids && l->chosen && ek_tune_gate_scratch(&p->gate, arena, &l->scratch);
}

static void choose(const ek_gate_problem *p, look *l, const double *logits, const float *bias,
                   int32_t *ids)
{
    for (int32_t e = 0; e < p->gate.n_experts; e++)
        l->narrow[e] = (float)logits[e];
    ek_route_gate_choose(&p->gate, l->narrow, bias, &l->scratch, ids, l->chosen);
}

static void look_at_token(const ek_gate_problem *p, look *l, int32_t row, int64_t *counts)
{
    int32_t n = p->gate.n_experts, top_k = p->gate.top_k;
    const double *z = l->logits + (int64_t)row * n, *zt = l->teacher + (int64_t)row * n;
    double q[EK_ROUTE_EXPERTS_MAX], log_q[EK_ROUTE_EXPERTS_MAX], t[EK_ROUTE_EXPERTS_MAX];
    double log_t[EK_ROUTE_EXPERTS_MAX], got = 0, best = 0;
    double lse = ek_tune_choice(p->gate.score, z, n, q, log_q);
    ek_tune_choice(p->gate.score, zt, n, t, log_t);
    for (int32_t e = 0; e < n; e++) {
        l->kl += t[e] * (log_t[e] - log_q[e]);
        l->mass[e] += q[e];
    }
    l->z += lse * lse;
    choose(p, l, zt, p->bias, l->ids + top_k);
    choose(p, l, z, l->bias, l->ids);
    for (int32_t k = 0; k < top_k; k++) {
        counts[l->ids[k]]++;
        got += t[l->ids[k]];
        best += t[l->ids[top_k + k]];
    }
    l->score_loss += best > 0 ? 1 - got / best : 0;
}

static void summarise(const ek_gate_problem *p, const look *l, int32_t n_rows, ek_gate_figures *out)
{
    int32_t n = p->gate.n_experts, top_k = p->gate.top_k;
    const int64_t *early = l->counts, *late = l->counts + n;
    int64_t both[EK_ROUTE_EXPERTS_MAX], least = 8 * (int64_t)n;
    double entropy = 0;
    *out = (ek_gate_figures){
        .kl = l->kl / n_rows,
        .score_loss = l->score_loss / n_rows,
        .z = l->z / n_rows,
    };
    for (int32_t e = 0; e < n; e++) {
        double share = l->mass[e] / n_rows;
        both[e] = early[e] + late[e];
        entropy -= share > 0 ? share * log(share) : 0;
        if (share > l->mass[out->mass_hottest] / n_rows) out->mass_hottest = e;
    }
    out->mass_top1 = l->mass[out->mass_hottest] / n_rows;
    out->mass_effective = exp(entropy);
    ek_telemetry_balance(both, n, &out->balance);
    ek_reading collapse = ek_telemetry_read_collapse(both, n, top_k, least);
    ek_reading constant = ek_telemetry_read_constant(late, early, n, top_k, least / 2);
    out->collapse = collapse.known ? collapse.value : 0;
    out->constant = constant.known ? constant.value : 0;
}

ek_status ek_tune_figures(const ek_gate_problem *p, const ek_gate_weights *gate, bool held,
                          ek_arena scratch, int32_t *out_ids, ek_gate_figures *out_figures)
{
    look l = {0};
    if (!take(&l, p, gate, &scratch)) return EK_ENOMEM;
    int32_t n_rows = held ? p->n_held : p->n_train, n = p->gate.n_experts, d = p->d_model;
    const float *rows = held ? p->held : p->train;
    for (int32_t beg = 0; beg < n_rows; beg += ROWS_AT_ONCE) {
        int32_t m = n_rows - beg < ROWS_AT_ONCE ? n_rows - beg : ROWS_AT_ONCE;
        ek_tune_logits(p, rows + (int64_t)beg * d, m, gate->weight, l.wide, l.logits);
        ek_tune_logits(p, rows + (int64_t)beg * d, m, p->teacher, l.wide, l.teacher);
        for (int32_t i = 0; i < m; i++) {
            look_at_token(p, &l, i, l.counts + (beg + i < n_rows / 2 ? 0 : n));
            for (int32_t k = 0; out_ids && k < p->gate.top_k; k++)
                out_ids[(int64_t)(beg + i) * p->gate.top_k + k] = l.ids[k];
        }
    }
    summarise(p, &l, n_rows, out_figures);
    return EK_OK;
}
