#include "place/controller_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/fixtures.h"

ek_place_rig ek_place_rig_make(int32_t n_experts, int32_t n_slots, const int32_t *slot_expert)
{
    ek_place_rig r = {
        .setup = {.topology = {.n_experts = n_experts,
                               .n_slots = n_slots,
                               .n_devices = EK_RIG_DEVICES,
                               .n_nodes = 1,
                               .n_groups = 1},
                  .n_layers = EK_RIG_LAYERS,
                  .slot_expert = slot_expert},
        .now_us = 100 * EK_RIG_S,
    };
    ek_place_controller_params_default(&r.params);
    r.params.bytes_per_expert = 29;
    r.params.link_bytes_per_s = 10.0;
    r.params.seconds_per_row = 1e-3;
    r.params.horizon_us = 10 * EK_RIG_S;
    r.params.n_windows = 4;
    r.params.n_windows_min = 2;
    r.params.max_step_bytes = 1000;
    return r;
}

void ek_place_rig_open(ek_place_rig *r)
{
    ek_err err = {0};
    r->bytes = ek_place_controller_bytes(&r->setup, &r->params);
    ek_arena perm = ek_fixture_arena(r->bytes);
    r->memory = perm.beg;
    r->scratch = ek_fixture_arena(ek_place_controller_scratch_bytes(&r->setup, &r->params));
    r->scratch_memory = r->scratch.beg;
    if (ek_place_controller_create(&r->setup, &r->params, &perm, &r->c, &err) != EK_OK)
        fail_msg("%s", err.text);
}

void ek_place_rig_close(ek_place_rig *r)
{
    ek_fixture_arena_free(r->memory);
    ek_fixture_arena_free(r->scratch_memory);
}

void ek_place_rig_feed(ek_place_rig *r, const int64_t *tokens, int32_t n_windows)
{
    for (int32_t i = 0; i < n_windows; i++) {
        r->now_us += EK_RIG_S;
        ek_place_controller_feed(r->c, r->now_us, EK_RIG_S, tokens);
    }
}

ek_place_controller_stats ek_place_rig_stats(const ek_place_rig *r)
{
    ek_place_controller_stats s;
    ek_place_controller_stats_get(r->c, &s);
    return s;
}
