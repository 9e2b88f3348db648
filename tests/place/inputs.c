#include "place/inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/fixtures.h"

bool ek_place_input_table(const char *name, ek_arena *perm, ek_place_table *out_table)
{
    char relative[256];
    ek_fixture_path path;
    ek_err err;
    snprintf(relative, sizeof relative, "data/placement/%s", name);
    if (!ek_fixture_shared(relative, &path)) return false;
    ek_span bytes = ek_fixture_read(path.text);
    ek_str text = {(const char *)bytes.data, bytes.len};
    if (ek_place_csv_parse(text, -1.0, true, name, perm, out_table, &err) != EK_OK)
        fail_msg("%s", err.text);
    ek_fixture_free(bytes);
    return true;
}

void ek_place_input_row(const ek_place_table *table, int32_t row, int32_t *out)
{
    for (int32_t c = 0; c < table->n_columns; c++)
        out[c] = (int32_t)table->value[(int64_t)row * table->n_columns + c];
}

static int32_t between(ek_rng *rng, int32_t low, int32_t high)
{
    return low + (int32_t)ek_rng_below(rng, (uint64_t)(high - low + 1));
}

void ek_place_input_random(ek_rng *rng, ek_place_random *out)
{
    ek_place_topology *t = &out->topology;
    memset(out, 0, sizeof *out);
    t->n_nodes = between(rng, 1, 4);
    t->n_devices = t->n_nodes * between(rng, 1, 8);
    bool grouped = between(rng, 0, 2) == 0;
    t->n_groups = grouped ? t->n_nodes * between(rng, 1, 3) : 1;
    t->n_experts = t->n_groups * between(rng, 1, 160 / t->n_groups);
    /* Enough slots on every node for its share, then some more here and there. */
    int32_t per_device = t->n_experts / t->n_devices + 1;
    for (int32_t d = 0; d < t->n_devices; d++) {
        out->device_slots[d] = per_device + between(rng, 0, 4);
        t->n_slots += out->device_slots[d];
    }
    t->device_slots = out->device_slots;
    if (!grouped && t->n_devices > 2 && between(rng, 0, 1)) {
        int32_t dead = between(rng, 0, t->n_devices - 1);
        if (t->n_slots - out->device_slots[dead] >= t->n_experts) {
            out->device_dead[dead] = true;
            t->device_dead = out->device_dead;
        }
    }
    double skew = ek_rng_unit(rng) * 3.0;
    for (int32_t e = 0; e < t->n_experts; e++)
        out->loads[e] = floor(1000.0 * exp(skew * (ek_rng_unit(rng) * 2.0 - 1.0)));
    if (between(rng, 0, 9) == 0) memset(out->loads, 0, sizeof out->loads);
}

/* Each of n_members to one of n_domains, each of which gets one at least. */
static void scatter(ek_rng *rng, int32_t *domain, int32_t n_members, int32_t n_domains)
{
    for (int32_t i = 0; i < n_members; i++)
        domain[i] = i < n_domains ? i : between(rng, 0, n_domains - 1);
    for (int32_t i = n_members - 1; i > 0; i--) {
        int32_t other = between(rng, 0, i), moving = domain[i];
        domain[i] = domain[other];
        domain[other] = moving;
    }
}

void ek_place_input_racks(ek_rng *rng, ek_place_random *problem)
{
    ek_place_topology *t = &problem->topology;
    t->n_racks = between(rng, 1, t->n_nodes);
    bool even = t->n_nodes % t->n_racks == 0 && between(rng, 0, 1);
    if (even) return;
    scatter(rng, problem->node_rack, t->n_nodes, t->n_racks);
    t->node_rack = problem->node_rack;
    if (t->n_groups > 1) return; /* whose nodes have room for as many experts each */
    scatter(rng, problem->device_node, t->n_devices, t->n_nodes);
    t->device_node = problem->device_node;
}

void ek_place_input_check(const ek_place_topology *t, const int32_t *slot_expert)
{
    bool seen[4096] = {false};
    for (int32_t d = 0, s = 0; d < t->n_devices; d++) {
        int32_t n = t->device_slots ? t->device_slots[d] : t->n_slots / t->n_devices;
        for (int32_t end = s + n; s < end; s++) {
            assert_in_range(slot_expert[s] + 1, 0, (uint64_t)t->n_experts);
            if (t->device_dead && t->device_dead[d])
                assert_int_equal(slot_expert[s], EK_PLACE_EMPTY);
            if (slot_expert[s] >= 0) seen[slot_expert[s]] = true;
        }
    }
    for (int32_t e = 0; e < t->n_experts; e++)
        assert_true(seen[e]);
}

int32_t ek_place_input_duplicates(const ek_place_topology *t, const int32_t *slot_expert)
{
    int32_t n_duplicates = 0;
    for (int32_t d = 0, beg = 0; d < t->n_devices; d++) {
        int32_t end = beg + (t->device_slots ? t->device_slots[d] : t->n_slots / t->n_devices);
        for (int32_t s = beg; s < end; s++)
            for (int32_t earlier = beg; earlier < s; earlier++)
                if (slot_expert[s] >= 0 && slot_expert[s] == slot_expert[earlier]) {
                    n_duplicates++;
                    break;
                }
        beg = end;
    }
    return n_duplicates;
}
