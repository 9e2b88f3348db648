#include "route/route.h"

#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "route/gate.h"

struct ek_router {
    ek_route_gate gate;
    ek_route_params params;
    ek_gate_scratch scratch;
};

ek_status ek_route_create(const ek_route_gate *gate, const ek_route_params *params, ek_arena *perm,
                          ek_router **out_router, ek_err *err)
{
    ek_status status = ek_route_gate_check(gate, err);
    if (status != EK_OK) return status;
    if (params->policy != EK_ROUTE_POLICY_STATIC)
        return ek_err_set(err, EK_EINVAL, "routing policy %d is not known", (int)params->policy);

    int32_t n_top = gate->top_k > gate->n_groups_used ? gate->top_k : gate->n_groups_used;
    ek_arena arena = *perm;
    ek_router *router = ek_try_new(&arena, ek_router, 1);
    float *floats = ek_try_new(&arena, float, (size_t)gate->n_experts * 3);
    uint8_t *group_used = ek_try_new(&arena, uint8_t, gate->n_groups);
    uint64_t *top = ek_try_new(&arena, uint64_t, n_top);
    if (!router || !floats || !group_used || !top)
        return ek_err_set(err, EK_ENOMEM, "no memory for the router of %d experts",
                          gate->n_experts);

    router->gate = *gate;
    router->params = *params;
    router->scratch = (ek_gate_scratch){
        .logit = floats,
        .score = floats + gate->n_experts,
        .value = floats + (ptrdiff_t)gate->n_experts * 2,
        .group_used = group_used,
        .top = top,
    };
    *perm = arena;
    *out_router = router;
    return EK_OK;
}

/**
 * Pack (token, choice) pairs by expert: count, sum up to first rows, place. Going through the
 * tokens in order keeps them ascending inside each expert. `next` is n_experts counters of scratch.
 */
static void pack(ek_route_plan *plan, int32_t *next)
{
    int32_t n_pairs = plan->n_tokens * plan->top_k;
    int32_t *beg = plan->expert_beg;
    memset(beg, 0, ((size_t)plan->n_experts + 1) * sizeof *beg);
    for (int32_t i = 0; i < n_pairs; i++)
        if (plan->expert_id[i] >= 0) beg[plan->expert_id[i] + 1]++;

    plan->n_active = 0;
    for (int32_t e = 0; e < plan->n_experts; e++) {
        plan->n_active += beg[e + 1] > 0;
        next[e] = beg[e];
        beg[e + 1] += beg[e];
    }
    plan->n_rows = beg[plan->n_experts];

    for (int32_t t = 0, i = 0; t < plan->n_tokens; t++) {
        for (int32_t k = 0; k < plan->top_k; k++, i++) {
            int32_t expert = plan->expert_id[i];
            int32_t row = expert >= 0 ? next[expert]++ : -1;
            plan->row_of[i] = row;
            if (row >= 0) plan->row_token[row] = t;
        }
    }
}

ek_status ek_route_plan_layer(ek_router *router, int32_t layer, const float *logits,
                              const float *bias, int32_t n_tokens,
                              EK_UNUSED const ek_route_view *view, ek_arena *step,
                              ek_route_plan *out_plan)
{
    ek_assert(layer >= 0 && n_tokens >= 0);
    const ek_route_gate *gate = &router->gate;
    ek_arena arena = *step;
    size_t n_pairs;
    if (!ek_size_mul((size_t)n_tokens, (size_t)gate->top_k, &n_pairs) || n_pairs > INT32_MAX)
        return EK_ENOMEM;
    ek_route_plan plan = {
        .n_tokens = n_tokens,
        .n_experts = gate->n_experts,
        .top_k = gate->top_k,
        .expert_id = ek_try_new(&arena, int32_t, n_pairs),
        .weight = ek_try_new(&arena, float, n_pairs),
        .expert_beg = ek_try_new(&arena, int32_t, gate->n_experts + 1),
        .row_token = ek_try_new(&arena, int32_t, n_pairs),
        .row_of = ek_try_new(&arena, int32_t, n_pairs),
    };
    int32_t *next = ek_try_new(&arena, int32_t, gate->n_experts);
    if (!plan.expert_id || !plan.weight || !plan.expert_beg || !plan.row_token || !plan.row_of ||
        !next)
        return EK_ENOMEM;

    for (int32_t t = 0; t < n_tokens; t++)
        ek_route_gate_choose(gate, logits + (ptrdiff_t)t * gate->n_experts, bias, &router->scratch,
                             plan.expert_id + (ptrdiff_t)t * gate->top_k,
                             plan.weight + (ptrdiff_t)t * gate->top_k);
    pack(&plan, next);

    *step = arena;
    *out_plan = plan;
    return EK_OK;
}

size_t ek_route_plan_bytes(const ek_route_gate *gate, int32_t n_tokens)
{
    size_t n_pairs = (size_t)n_tokens * (size_t)gate->top_k;
    size_t n_experts = (size_t)gate->n_experts;
    /*
     * Four arrays of pairs, first rows, counters; all 4-byte elements, so only the first may need
     * padding.
     */
    return 4 * n_pairs * sizeof(int32_t) + (2 * n_experts + 1) * sizeof(int32_t) + sizeof(int32_t);
}
