/*
 * What a gate is taught by: losses of a batch of gate logits, and their gradient.
 *
 * With z the logits of a token, u = z for a softmax gate and log sigmoid(z) for a sigmoid gate, and
 * q = softmax(u) its choice distribution:
 *
 *     total = KL(p || q), mean over tokens           p: the teacher's choice distribution
 *           + balance * n_experts * sum_e f_e P_e    f_e: share of slots that expert e was given,
 *                                                    taken as a constant; P_e: mean of q_e
 *           + z * mean of logsumexp(z)^2             keeps logits small
 *
 * Source: the balance loss is that of arXiv:2101.03961 eq. 4-6 with top-k shares, the z-loss that
 * of arXiv:2202.08906 eq. 5. Everything is in double: the gradient is proven against finite
 * differences of this very code (tests/tune/test_tune_loss.c). Pure.
 */
#ifndef EK_TUNE_LOSS_H
#define EK_TUNE_LOSS_H

#include <stdint.h>

#include "route/route.h"

typedef struct ek_loss_weights {
    double balance;
    double z;
} ek_loss_weights;

typedef struct ek_losses {
    double kl;      /* nats per token */
    double balance; /* n_experts * sum f P, without its weight: 1 is even */
    double z;       /* without its weight */
    double total;   /* weighted */
} ek_losses;

typedef struct ek_loss_batch {
    ek_route_score score;
    int32_t n_tokens;
    int32_t n_experts;
    const double *logits;  /* (n_tokens, n_experts) finite, noise added */
    const double *teacher; /* (n_tokens, n_experts) its logits, finite */
    const double *share;   /* (n_experts) f, sums to 1 */
    double *choice;        /* (n_tokens, n_experts) written: q */
    double *mean_choice;   /* (n_experts) written: P */
} ek_loss_batch;

/**
 * The choice distribution of one token's logits, and its logarithm.
 * @param out_choice (n) q
 * @param out_log    (n) ln q
 * @return logsumexp of the logits
 */
double ek_tune_choice(ek_route_score score, const double *logits, int32_t n, double *out_choice,
                      double *out_log);

/**
 * @param out_gradient (n_tokens, n_experts) of total with respect to logits; NULL: not wanted
 * Cost O(n_tokens * n_experts).
 */
void ek_tune_loss(const ek_loss_batch *batch, const ek_loss_weights *weights, double *out_gradient,
                  ek_losses *out_losses);

#endif
