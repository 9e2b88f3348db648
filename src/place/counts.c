#include "place/core.h"

/* Sift the root of a max-heap of (priority, expert) down. Equal priorities: the lower rank wins, by order of building. */
static void sift_down(float *priority, int32_t *expert, int32_t n)
{
    float moving = priority[0];
    int32_t moving_expert = expert[0];
    int32_t hole = 0;
    for (int32_t child = 1; child < n; child = 2 * hole + 1) {
        if (child + 1 < n && priority[child + 1] > priority[child]) child++;
        if (!(priority[child] > moving)) break;
        priority[hole] = priority[child];
        expert[hole] = expert[child];
        hole = child;
    }
    priority[hole] = moving;
    expert[hole] = moving_expert;
}

void ek_place_counts(ek_place_core *core, float shift, ek_arena scratch)
{
    int32_t n = core->n_experts;
    float *priority = ek_new(&scratch, float, n);
    int32_t *expert = ek_new(&scratch, int32_t, n);
    /* Descending order is already a max-heap. */
    for (int32_t i = 0; i < n; i++) {
        int32_t e = core->order[i];
        core->count[e] = 1;
        expert[i] = e;
        priority[i] = core->n_devices > 1 ? (float)core->load[e] / (1.0f + shift) : -1.0f;
    }
    for (int32_t spare = core->n_slots - n; spare > 0 && priority[0] >= 0.0f; spare--) {
        int32_t e = expert[0];
        int32_t count = ++core->count[e];
        /* A replica more than there are devices could only sit beside another one. */
        priority[0] =
            count < core->n_devices ? (float)core->load[e] / ((float)count + shift) : -1.0f;
        sift_down(priority, expert, n);
    }
    for (int32_t e = 0; e < n; e++)
        core->replica_load[e] = core->load[e] / core->count[e];
}
