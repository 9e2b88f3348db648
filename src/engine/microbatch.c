#include "engine/microbatch.h"

#define RECENT    0.2 /* weight of the last step in what steps take */
#define SURPRISE  1.5 /* so many times as long as usual counts no more: a worker was lost */
#define MICRO_MAX EK_MICRO_BATCHES_MAX

static ek_microbatch_class *class_of(ek_microbatch_rule *rule, int32_t n_tokens)
{
    int32_t c = 0;
    while (c < EK_MICROBATCH_CLASSES - 1 && n_tokens >> (c + 1) > 0)
        c++;
    return &rule->classes[c];
}

void ek_engine_microbatch_init(ek_microbatch_rule *rule, ek_micro_batching choice)
{
    *rule = (ek_microbatch_rule){.choice = choice};
}

/** Does each token's plan depend on that token alone, in the step and in its halves? */
static bool is_separable(const ek_route_params *route, int32_t n_tokens)
{
    if (route->capacity_factor > 0) return false;
    return route->coalesce <= 0 || n_tokens / 2 > route->coalesce_tokens;
}

int32_t ek_engine_microbatch_choose(ek_microbatch_rule *rule, const ek_route_params *route,
                                    int32_t n_tokens)
{
    if (rule->choice == EK_MICRO_BATCHING_ONE || n_tokens < 2) return 1;
    if (!is_separable(route, n_tokens)) return 1;
    if (rule->choice == EK_MICRO_BATCHING_TWO) return 2;
    if (n_tokens < EK_MICROBATCH_TOKENS_MIN) return 1;
    ek_microbatch_class *c = class_of(rule, n_tokens);
    /* In turn. */
    if (c->n_seen[0] < EK_MICROBATCH_TRIALS || c->n_seen[1] < EK_MICROBATCH_TRIALS)
        return c->n_seen[1] < c->n_seen[0] ? 2 : 1;
    int32_t quicker = c->ns_per_token[1] < c->ns_per_token[0] ? 2 : 1;
    if (++c->n_since < EK_MICROBATCH_AGAIN) return quicker;
    c->n_since = 0;
    return MICRO_MAX + 1 - quicker;
}

void ek_engine_microbatch_learn(ek_microbatch_rule *rule, int32_t n_tokens, int32_t n_micro,
                                int64_t took_ns)
{
    if (rule->choice != EK_MICRO_BATCHING_AUTO || n_tokens < EK_MICROBATCH_TOKENS_MIN) return;
    ek_microbatch_class *c = class_of(rule, n_tokens);
    double *mean = &c->ns_per_token[n_micro - 1];
    int32_t *n_seen = &c->n_seen[n_micro - 1];
    double taken = (double)took_ns / n_tokens;
    bool is_trial = *n_seen < EK_MICROBATCH_TRIALS;
    if (*n_seen > 0 && taken > SURPRISE * *mean) taken = SURPRISE * *mean;
    *mean += (is_trial ? 1.0 / (*n_seen + 1) : RECENT) * (taken - *mean);
    *n_seen += is_trial;
}
