#include "tune/loss.h"

#include <math.h>
#include <string.h>

static double log_sum_exp(const double *z, int32_t n)
{
    double max = z[0], sum = 0;
    for (int32_t e = 1; e < n; e++)
        max = fmax(max, z[e]);
    for (int32_t e = 0; e < n; e++)
        sum += exp(z[e] - max);
    return max + log(sum);
}

/* Without overflow on either side. */
static double log_sigmoid(double z)
{
    return z >= 0 ? -log1p(exp(-z)) : z - log1p(exp(z));
}

/* exp(u - max) of all, their sum to 1, and their logarithms. @return logsumexp(u) */
static double normalise(const double *u, int32_t n, double *out_choice, double *out_log)
{
    double max = u[0], sum = 0;
    for (int32_t e = 1; e < n; e++)
        max = fmax(max, u[e]);
    for (int32_t e = 0; e < n; e++)
        sum += out_choice[e] = exp(u[e] - max);
    double lse = max + log(sum);
    for (int32_t e = 0; e < n; e++) {
        out_choice[e] /= sum;
        out_log[e] = u[e] - lse;
    }
    return lse;
}

double ek_tune_choice(ek_route_score score, const double *logits, int32_t n, double *out_choice,
                      double *out_log)
{
    if (score != EK_ROUTE_SIGMOID) return normalise(logits, n, out_choice, out_log);
    double u[EK_ROUTE_EXPERTS_MAX] = {0};
    for (int32_t e = 0; e < n; e++)
        u[e] = log_sigmoid(logits[e]);
    normalise(u, n, out_choice, out_log);
    return log_sum_exp(logits, n);
}

/* How u changes with z. */
static double slope(ek_route_score score, double z)
{
    return score == EK_ROUTE_SIGMOID ? exp(log_sigmoid(-z)) : 1;
}

/*
 * One token: its part of the losses, and of the gradient all but the balance term's. KL gives q - p
 * for u; the z-loss looks at z itself.
 */
static void add_token(const ek_loss_batch *b, const ek_loss_weights *w, int32_t token,
                      double *gradient, ek_losses *sum)
{
    int32_t n = b->n_experts;
    int64_t at = (int64_t)token * n;
    const double *z = b->logits + at;
    double *q = b->choice + at, log_q[EK_ROUTE_EXPERTS_MAX];
    double p[EK_ROUTE_EXPERTS_MAX], log_p[EK_ROUTE_EXPERTS_MAX], kl = 0;
    ek_tune_choice(b->score, b->teacher + at, n, p, log_p);
    double lse = ek_tune_choice(b->score, z, n, q, log_q);
    for (int32_t e = 0; e < n; e++) {
        kl += p[e] * (log_p[e] - log_q[e]);
        b->mean_choice[e] += q[e] / b->n_tokens;
    }
    sum->kl += kl / b->n_tokens;
    sum->z += lse * lse / b->n_tokens;
    for (int32_t e = 0; gradient && e < n; e++) {
        double softmax = b->score == EK_ROUTE_SIGMOID ? exp(z[e] - lse) : q[e];
        gradient[at + e] = (q[e] - p[e]) * slope(b->score, z[e]) + w->z * 2 * lse * softmax;
    }
}

/*
 * The balance term's derivative with respect to q_e is the same for all tokens, and passes through
 * the softmax.
 */
static void add_balance(const ek_loss_batch *b, const ek_loss_weights *w, int32_t token,
                        double *gradient)
{
    int32_t n = b->n_experts;
    int64_t at = (int64_t)token * n;
    const double *z = b->logits + at, *q = b->choice + at;
    double per_share = w->balance * n, pull = 0;
    for (int32_t e = 0; e < n; e++)
        pull += per_share * b->share[e] * q[e];
    for (int32_t e = 0; e < n; e++) {
        double du = q[e] * (per_share * b->share[e] - pull);
        gradient[at + e] = (gradient[at + e] + du * slope(b->score, z[e])) / b->n_tokens;
    }
}

void ek_tune_loss(const ek_loss_batch *batch, const ek_loss_weights *weights, double *out_gradient,
                  ek_losses *out_losses)
{
    const ek_loss_batch *b = batch;
    ek_losses sum = {0};
    memset(b->mean_choice, 0, (size_t)b->n_experts * sizeof *b->mean_choice);
    for (int32_t t = 0; t < b->n_tokens; t++)
        add_token(b, weights, t, out_gradient, &sum);
    for (int32_t t = 0; out_gradient && t < b->n_tokens; t++)
        add_balance(b, weights, t, out_gradient);
    for (int32_t e = 0; e < b->n_experts; e++)
        sum.balance += b->n_experts * b->share[e] * b->mean_choice[e];
    sum.total = sum.kl + weights->balance * sum.balance + weights->z * sum.z;
    *out_losses = sum;
}
