#include "keel/shares.h"

#include "base/assert.h"
#include "route/activate.h"
#include "route/route.h"

static size_t ints(int64_t n)
{
    return (size_t)n * sizeof(int32_t) + EK_CACHE_LINE;
}

size_t ek_keel_shares_bytes(int32_t n_experts, int32_t n_slots, int32_t n_devices)
{
    /* Of a placement only the number of replicas counts, and that is at most the slots. */
    int32_t beg[EK_ROUTE_EXPERTS_MAX + 1];
    ek_assert(n_experts >= 1 && n_experts <= EK_ROUTE_EXPERTS_MAX);
    beg[n_experts] = n_slots;
    const ek_route_replicas most = {
        .n_experts = n_experts, .n_slots = n_slots, .n_devices = n_devices, .beg = beg};
    size_t result = ints(n_devices + 1) + 3 * ints(n_slots);
    return result + ints(n_experts) + ints(n_slots) + ek_route_activate_bytes(&most);
}

static bool take_shares(ek_arena *arena, int32_t n_shares, int32_t n_devices,
                        ek_keel_shares *out_shares)
{
    *out_shares = (ek_keel_shares){
        .n_devices = n_devices,
        .device_beg = ek_try_new(arena, int32_t, n_devices + 1),
        .share_expert = ek_try_new(arena, int32_t, n_shares),
        .share_row = ek_try_new(arena, int32_t, 2 * n_shares),
    };
    return out_shares->device_beg && out_shares->share_expert && out_shares->share_row;
}

ek_status ek_keel_shares_whole(const int32_t *expert_beg, int32_t n_experts, ek_arena *step,
                               ek_keel_shares *out_shares)
{
    ek_arena rest = *step;
    ek_keel_shares shares;
    if (!take_shares(&rest, n_experts, 1, &shares)) return EK_ENOMEM;
    for (int32_t e = 0; e < n_experts; e++) {
        if (expert_beg[e] == expert_beg[e + 1]) continue;
        int32_t i = shares.n_shares++;
        shares.share_expert[i] = e;
        shares.share_row[2 * i] = expert_beg[e];
        shares.share_row[2 * i + 1] = expert_beg[e + 1];
    }
    shares.device_beg[1] = shares.n_shares;
    *step = rest;
    *out_shares = shares;
    return EK_OK;
}

/** From quotas per replica to runs of rows per device. */
static void lay_out(const ek_route_replicas *r, const int32_t *expert_beg, const int32_t *quota,
                    ek_keel_shares *shares)
{
    int32_t *beg = shares->device_beg; /* zeroed */
    for (int32_t i = 0; i < r->beg[r->n_experts]; i++)
        if (quota[i] > 0) beg[r->device[i] + 1]++;
    for (int32_t d = 0; d < r->n_devices; d++)
        beg[d + 1] += beg[d];
    shares->n_shares = beg[r->n_devices];
    /* beg[d] serves as the write position and is moved back afterwards. */
    for (int32_t e = 0; e < r->n_experts; e++) {
        int32_t row = expert_beg[e];
        for (int32_t i = r->beg[e]; i < r->beg[e + 1]; i++) {
            if (quota[i] == 0) continue;
            int32_t at = beg[r->device[i]]++;
            shares->share_expert[at] = e;
            shares->share_row[2 * at] = row;
            row += quota[i];
            shares->share_row[2 * at + 1] = row;
        }
    }
    for (int32_t d = r->n_devices; d > 0; d--)
        beg[d] = beg[d - 1];
    beg[0] = 0;
}

ek_status ek_keel_shares_split(const ek_route_replicas *replicas, const int32_t *expert_beg,
                               int32_t knee, ek_arena *step, ek_keel_shares *out_shares)
{
    const ek_route_replicas *r = replicas;
    ek_arena rest = *step;
    ek_keel_shares shares;
    if (!take_shares(&rest, r->n_slots, r->n_devices, &shares)) return EK_ENOMEM;
    ek_arena scratch = rest;
    int32_t *tokens = ek_try_new(&scratch, int32_t, r->n_experts);
    int32_t *quota = ek_try_new(&scratch, int32_t, r->n_slots);
    if (!tokens || !quota) return EK_ENOMEM;
    for (int32_t e = 0; e < r->n_experts; e++)
        tokens[e] = expert_beg[e + 1] - expert_beg[e];
    ek_route_activation activation;
    ek_status status = ek_route_activate(r, tokens, knee, scratch, quota, &activation);
    if (status != EK_OK) return status;
    lay_out(r, expert_beg, quota, &shares);
    *step = rest;
    *out_shares = shares;
    return EK_OK;
}
