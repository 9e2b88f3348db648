/*
 * Route tokens twice, as the model would and with one expert overloaded, and show what changed.
 *
 *     cc route_logits.c -o route_logits $(pkg-config --cflags --libs evenkeel)
 *     ./route_logits [LOGITS]
 *
 * LOGITS holds TOKENS * EXPERTS numbers; without it they are made up.
 */
#include <evenkeel/route.h>
#include <stdio.h>

enum { TOKENS = 12, EXPERTS = 8, TOP_K = 2, HOT = 3, SAMPLES = 8 };

static void read_logits(const char *path, float *out)
{
    FILE *in = path ? fopen(path, "r") : NULL;
    unsigned state = 7;
    for (int i = 0; i < TOKENS * EXPERTS; i++) {
        state = state * 1664525u + 1013904223u;
        if (!in || fscanf(in, "%f", &out[i]) != 1)
            out[i] = (float)(state >> 16) / 32768.0f + (i % EXPERTS == HOT ? 0.7f : 0.0f);
    }
    if (in) fclose(in);
}

int main(int argc, char **argv)
{
    static unsigned char memory[1 << 20]; /* the library takes none of its own */
    ek_arena perm = ek_arena_over(memory, sizeof memory);
    const ek_route_gate gate = {.score = EK_ROUTE_SOFTMAX,
                                .n_experts = EXPERTS,
                                .top_k = TOP_K,
                                .n_groups = 1,
                                .n_groups_used = 1,
                                .renormalise = true,
                                .scale = 1.0f};
    ek_route_params params;
    ek_route_params_default(&params);
    params.policy = EK_ROUTE_POLICY_BREAKER;
    params.max_score_loss = 0.5;  /* a token may give up so much of its gate score, */
    params.mean_score_loss = 0.2; /* and tokens on average so much */
    ek_router *router;
    ek_err err;
    if (ek_route_create(&gate, 1, &params, &perm, &router, &err) < 0)
        return fprintf(stderr, "%s\n", err.text), 1;

    float logits[TOKENS * EXPERTS], utilisation[EXPERTS] = {0};
    ek_route_plan calm, loaded = {0};
    ek_route_view view = {.version = 1, .utilisation = utilisation};
    read_logits(argc > 1 ? argv[1] : NULL, logits);
    if (ek_route_plan_layer(router, 0, logits, NULL, TOKENS, &view, &perm, &calm) < 0) return 1;

    /* One expert works at its limit: sample after sample its breaker sees it, and derates it. */
    utilisation[HOT] = 0.8f;
    for (int i = 0; i < SAMPLES; i++) {
        ek_arena step = perm; /* a step's memory, given back by not taking it over */
        view.version++;
        view.sampled_us += params.sample_us;
        if (ek_route_plan_layer(router, 0, logits, NULL, TOKENS, &view, &step, &loaded) < 0)
            return 1;
    }
    for (int t = 0; t < TOKENS; t++) {
        const int32_t *a = calm.expert_id + t * TOP_K, *b = loaded.expert_id + t * TOP_K;
        int changed = loaded.token_flags && (loaded.token_flags[t] & EK_ROUTE_TOKEN_CHANGED);
        printf("token %2d: experts %d %d -> %d %d%s\n", t, a[0], a[1], b[0], b[1],
               changed ? "  changed" : "");
    }
    const ek_route_stats *stats = ek_route_stats_of(router);
    printf("expert %d: breaker %s, rows %d -> %d; score lost per bent token %.3f, at most %.3f\n",
           HOT, ek_route_breaker_state_name(ek_route_breakers(router, 0)[HOT].state),
           calm.expert_beg[HOT + 1] - calm.expert_beg[HOT],
           loaded.expert_beg[HOT + 1] - loaded.expert_beg[HOT],
           stats->n_bent ? stats->loss_sum / (double)stats->n_bent : 0.0, stats->loss_max);
    return 0;
}
