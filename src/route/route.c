#include "route/route.h"

#include "base/assert.h"
#include "base/rng.h"
#include "route/router.h"

/* ---- life ---- */

size_t ek_route_bytes(const ek_route_gate *gate, int32_t n_layers)
{
    size_t n_experts = (size_t)gate->n_experts;
    size_t layers =
        (size_t)n_layers * (sizeof(ek_router_layer) + ek_route_policy_bank_bytes(gate->n_experts));
    size_t scratch = n_experts * (4 * sizeof(float) + 3 * sizeof(int32_t)) + sizeof(int32_t) +
                     2 * (size_t)gate->n_groups +
                     (size_t)(gate->top_k + gate->n_groups_used) * sizeof(uint64_t);
    return sizeof(ek_router) + layers + scratch + 8 * sizeof(uint64_t);
}

static bool take_scratch(ek_router *router, ek_arena *arena)
{
    const ek_route_gate *gate = &router->gate;
    int32_t n_top = gate->top_k > gate->n_groups_used ? gate->top_k : gate->n_groups_used;
    float *floats = ek_try_new(arena, float, (size_t)gate->n_experts * 4);
    int32_t *ints = ek_try_new(arena, int32_t, (size_t)gate->n_experts * 3 + 1);
    uint8_t *groups = ek_try_new(arena, uint8_t, (size_t)gate->n_groups * 2);
    uint64_t *top = ek_try_new(arena, uint64_t, n_top);
    if (!floats || !ints || !groups || !top) return false;
    router->scratch = (ek_gate_scratch){
        .logit = floats,
        .score = floats + gate->n_experts,
        .value = floats + (ptrdiff_t)gate->n_experts * 2,
        .group_used = groups,
        .candidate = ints + (ptrdiff_t)gate->n_experts * 2,
        .top = top,
    };
    router->bent_value = floats + (ptrdiff_t)gate->n_experts * 3;
    router->groups = groups + gate->n_groups;
    router->cap = ints;
    router->soft = ints + gate->n_experts;
    return true;
}

static bool take_layers(ek_router *router, ek_arena *arena)
{
    router->layers = ek_try_new(arena, ek_router_layer, router->n_layers);
    if (!router->layers) return false;
    for (int32_t i = 0; i < router->n_layers; i++)
        if (!ek_route_policy_bank_create(router->gate.n_experts, arena, &router->layers[i].bank))
            return false;
    return true;
}

static void follow_params(ek_router *router)
{
    router->params_version++;
    router->is_plain = !router->core.policy->penalty && router->core.params.capacity_factor == 0 &&
                       router->core.params.coalesce == 0;
}

void ek_route_layer_init(ek_router *router, int32_t layer)
{
    router->layers[layer].policy_version = router->policy_version;
    uint64_t seed = ek_mix64((uint64_t)(uint32_t)router->core.params.seed);
    ek_route_policy_bank_init(&router->core, &router->layers[layer].bank, router->gate.top_k,
                              ek_mix64(seed + (uint64_t)layer));
}

ek_status ek_route_create(const ek_route_gate *gate, int32_t n_layers,
                          const ek_route_params *params, ek_arena *perm, ek_router **out_router,
                          ek_err *err)
{
    ek_status status = ek_route_gate_check(gate, err);
    if (status == EK_OK) status = ek_route_params_check(params, err);
    if (status != EK_OK) return status;
    if (n_layers < 1)
        return ek_err_set(err, EK_EINVAL, "gate: %d layers, there has to be one", n_layers);

    ek_arena arena = *perm;
    ek_router *router = ek_try_new(&arena, ek_router, 1);
    if (router) {
        router->gate = *gate;
        router->n_layers = n_layers;
    }
    if (!router || !take_scratch(router, &arena) || !take_layers(router, &arena))
        return ek_err_set(err, EK_ENOMEM, "no memory for the router of %d layers of %d experts",
                          n_layers, gate->n_experts);
    ek_route_policy_core_init(&router->core, params);
    follow_params(router);
    for (int32_t i = 0; i < n_layers; i++) {
        router->layers[i].params_version = router->params_version;
        ek_route_layer_init(router, i);
    }
    *perm = arena;
    *out_router = router;
    return EK_OK;
}

/* ---- other params under way ---- */

ek_status ek_route_switch(ek_router *router, const ek_route_params *params, ek_err *err)
{
    ek_status status = ek_route_params_check(params, err);
    if (status != EK_OK) return status;
    int32_t seen = atomic_load_explicit(&router->mail, memory_order_relaxed);
    /* Acquire: pairs with whoever last released the mailbox, so that his access is over. */
    if (seen == MAIL_HELD ||
        !atomic_compare_exchange_strong_explicit(&router->mail, &seen, MAIL_HELD,
                                                 memory_order_acquire, memory_order_relaxed))
        return EK_AGAIN;
    router->mail_params = *params;
    atomic_store_explicit(&router->mail, MAIL_FULL, memory_order_release);
    return EK_OK;
}

bool ek_route_adopt(ek_router *router)
{
    int32_t full = MAIL_FULL;
    if (atomic_load_explicit(&router->mail, memory_order_relaxed) != MAIL_FULL) return false;
    /* Acquire: pairs with the release of ek_route_switch. */
    if (!atomic_compare_exchange_strong_explicit(&router->mail, &full, MAIL_HELD,
                                                 memory_order_acquire, memory_order_relaxed))
        return false;
    if (router->mail_params.policy != router->core.params.policy) router->policy_version++;
    ek_route_policy_core_switch(&router->core, &router->mail_params);
    atomic_store_explicit(&router->mail, MAIL_EMPTY, memory_order_release);
    follow_params(router);
    return true;
}

/* ---- for the owner ---- */

const ek_route_stats *ek_route_stats_of(const ek_router *router)
{
    return &router->stats;
}

const ek_breaker *ek_route_breakers(const ek_router *router, int32_t layer)
{
    ek_assert(layer >= 0 && layer < router->n_layers);
    return router->layers[layer].bank.breaker;
}

uint32_t ek_route_params_version(const ek_router *router)
{
    return router->params_version;
}

const ek_route_params *ek_route_params_of(const ek_router *router)
{
    return &router->core.params;
}

double ek_route_gain(const ek_router *router)
{
    return router->core.adapt.gain;
}
