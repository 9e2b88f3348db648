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

void ek_tune_log_choice(ek_route_score score, const double *logits, int32_t n, double *out)
{
    for (int32_t e = 0; e < n; e++)
        out[e] = score == EK_ROUTE_SIGMOID ? log_sigmoid(logits[e]) : logits[e];
    double sum = log_sum_exp(out, n);
    for (int32_t e = 0; e < n; e++)
        out[e] -= sum;
}

/* KL of one token; leaves q in `choice`. */
static double kl_of(const ek_loss_batch *b, int32_t token, double *choice)
{
    double teacher[EK_ROUTE_EXPERTS_MAX], kl = 0;
    int64_t at = (int64_t)token * b->n_experts;
    ek_tune_log_choice(b->score, b->teacher + at, b->n_experts, teacher);
    ek_tune_log_choice(b->score, b->logits + at, b->n_experts, choice);
    for (int32_t e = 0; e < b->n_experts; e++) {
        kl += exp(teacher[e]) * (teacher[e] - choice[e]);
        choice[e] = exp(choice[e]);
    }
    return kl;
}

/*
 * Gradient of one token. KL gives q - p for u; the balance term's derivative with respect to q_e is
 * the same for all tokens, and passes through the softmax; u's own derivative with respect to z is
 * 1 or, for a sigmoid, 1 - sigmoid(z). The z-loss looks at z itself.
 */
static void gradient_of(const ek_loss_batch *b, const ek_loss_weights *w, int32_t token,
                        double *out)
{
    int32_t n = b->n_experts;
    const double *z = b->logits + (int64_t)token * n, *q = b->choice + (int64_t)token * n;
    double teacher[EK_ROUTE_EXPERTS_MAX], pull = 0;
    ek_tune_log_choice(b->score, b->teacher + (int64_t)token * n, n, teacher);
    double lse = log_sum_exp(z, n), per_share = w->balance * n;
    for (int32_t e = 0; e < n; e++)
        pull += per_share * b->share[e] * q[e];
    for (int32_t e = 0; e < n; e++) {
        double du = q[e] - exp(teacher[e]) + q[e] * (per_share * b->share[e] - pull);
        double dz = b->score == EK_ROUTE_SIGMOID ? du * exp(log_sigmoid(-z[e])) : du;
        out[e] = (dz + w->z * 2 * lse * exp(z[e] - lse)) / b->n_tokens;
    }
}

void ek_tune_loss(const ek_loss_batch *batch, const ek_loss_weights *weights, double *out_gradient,
                  ek_losses *out_losses)
{
    const ek_loss_batch *b = batch;
    int32_t n = b->n_experts;
    ek_losses sum = {0};
    memset(b->mean_choice, 0, (size_t)n * sizeof *b->mean_choice);
    for (int32_t t = 0; t < b->n_tokens; t++) {
        double *choice = b->choice + (int64_t)t * n;
        double lse = log_sum_exp(b->logits + (int64_t)t * n, n);
        sum.kl += kl_of(b, t, choice) / b->n_tokens;
        sum.z += lse * lse / b->n_tokens;
        for (int32_t e = 0; e < n; e++)
            b->mean_choice[e] += choice[e] / b->n_tokens;
    }
    for (int32_t e = 0; e < n; e++)
        sum.balance += n * b->share[e] * b->mean_choice[e];
    sum.total = sum.kl + weights->balance * sum.balance + weights->z * sum.z;
    for (int32_t t = 0; out_gradient && t < b->n_tokens; t++)
        gradient_of(b, weights, t, out_gradient + (int64_t)t * n);
    *out_losses = sum;
}
