#include "sched/sched.h"

#include "base/assert.h"

/* While a step is composed, pick[] holds all sequences by age; n_tokens says what became of one. */
enum { GIVEN_UP = -1, LEFT_OUT = 0 };

typedef struct composer {
    const ek_sched_params *params;
    const ek_sched_running *running;
    ek_sched_step *step;
    int32_t n_running;
    int32_t free_blocks;
    int32_t n_picked;
} composer;

int32_t ek_sched_blocks(const ek_sched_params *params, int32_t n_tokens)
{
    return n_tokens / params->kv_block_tokens + (n_tokens % params->kv_block_tokens != 0);
}

/* Insertion sort: the engine's list is sorted already but for requests that came back. */
static void sort_by_age(composer *c)
{
    ek_sched_pick *pick = c->step->pick;
    for (int32_t i = 0; i < c->n_running; i++) {
        int32_t at = i;
        for (; at > 0 && c->running[pick[at - 1].idx].order > c->running[i].order; at--)
            pick[at] = pick[at - 1];
        pick[at] = (ek_sched_pick){.idx = i, .n_tokens = LEFT_OUT};
    }
}

static const ek_sched_running *sequence(const composer *c, int32_t at)
{
    return &c->running[c->step->pick[at].idx];
}

static int32_t tokens_left(const ek_sched_running *seq)
{
    return seq->n_tokens - seq->n_cached;
}

/* Blocks to add before `n` more positions fit. */
static int32_t blocks_short(const composer *c, const ek_sched_running *seq, int32_t n)
{
    int32_t wanted = ek_sched_blocks(c->params, seq->n_cached + n);
    return wanted > seq->n_blocks ? wanted - seq->n_blocks : 0;
}

/*
 * The one that gives way to the sequence at place `asking`: the youngest paused one, else the
 * youngest that is not older. Only holders of blocks count, since giving up anything else frees
 * nothing. -1: nobody.
 */
static int32_t find_victim(const composer *c, int32_t asking)
{
    int32_t youngest = -1;
    for (int32_t at = c->n_running - 1; at >= 0; at--) {
        const ek_sched_running *seq = sequence(c, at);
        if (c->step->pick[at].n_tokens == GIVEN_UP || seq->n_blocks == 0) continue;
        if (seq->paused) return at;
        if (youngest < 0 && at >= asking) youngest = at;
    }
    return youngest;
}

/*
 * Give sequences up until the one at `asking` can have n_blocks; false when it gave way itself or
 * must wait.
 */
static bool make_room(composer *c, int32_t asking, int32_t n_blocks)
{
    while (c->free_blocks < n_blocks) {
        int32_t at = find_victim(c, asking);
        bool gives_way_itself = at == asking;
        if (at < 0 || (gives_way_itself && c->n_picked == 0)) return false;
        c->step->preempt[c->step->n_preempts++] = c->step->pick[at].idx;
        c->step->pick[at].n_tokens = GIVEN_UP;
        c->free_blocks += sequence(c, at)->n_blocks;
        if (gives_way_itself) return false;
    }
    return true;
}

static void take(composer *c, int32_t at, int32_t n_tokens)
{
    c->free_blocks -= blocks_short(c, sequence(c, at), n_tokens);
    c->step->pick[at].n_tokens = n_tokens;
    c->n_picked++;
}

static bool may_run(const composer *c, int32_t at)
{
    return c->step->pick[at].n_tokens == LEFT_OUT && !sequence(c, at)->paused;
}

static void pick_decodes(composer *c)
{
    for (int32_t at = 0; at < c->n_running && c->n_picked < c->params->step_tokens_max; at++) {
        const ek_sched_running *seq = sequence(c, at);
        if (!may_run(c, at) || tokens_left(seq) != 1) continue;
        if (make_room(c, at, blocks_short(c, seq, 1))) take(c, at, 1);
    }
}

/* Prompt tokens of the sequence that the blocks at hand have room for. */
static int32_t tokens_that_fit(const composer *c, const ek_sched_running *seq)
{
    int64_t blocks = (int64_t)seq->n_blocks + c->free_blocks;
    int64_t room = blocks * c->params->kv_block_tokens - seq->n_cached;
    return room < tokens_left(seq) ? (int32_t)room : tokens_left(seq);
}

static void pick_prompts(composer *c)
{
    int32_t budget = c->params->step_tokens_max - c->n_picked;
    if (budget > c->params->prefill_chunk_tokens) budget = c->params->prefill_chunk_tokens;
    for (int32_t at = 0; at < c->n_running && budget > 0; at++) {
        const ek_sched_running *seq = sequence(c, at);
        if (!may_run(c, at) || tokens_left(seq) <= 1) continue;
        /* Others at work will end and free blocks; only when nobody works must it take them. */
        if (c->n_picked == 0) (void)make_room(c, at, blocks_short(c, seq, 1));
        int32_t n = tokens_that_fit(c, seq);
        if (n > budget) n = budget;
        if (n <= 0) continue;
        take(c, at, n);
        budget -= n;
    }
}

/* Keep what was picked: decoding sequences first, each kind oldest first. */
static void compact(composer *c)
{
    ek_sched_pick *pick = c->step->pick;
    int32_t n = 0;
    for (int32_t at = 0; at < c->n_running; at++)
        if (pick[at].n_tokens > 0) pick[n++] = pick[at];
    c->step->n_picks = n;
    int32_t n_decodes = 0;
    for (int32_t at = 0; at < n; at++) {
        if (tokens_left(sequence(c, at)) != 1) continue;
        ek_sched_pick decode = pick[at];
        for (int32_t i = at; i > n_decodes; i--)
            pick[i] = pick[i - 1];
        pick[n_decodes++] = decode;
    }
}

void ek_sched_compose(const ek_sched_params *params, const ek_sched_running *running,
                      int32_t n_running, int32_t free_blocks, ek_sched_step *out_step)
{
    ek_assert(params->step_tokens_max > params->running_max);
    ek_assert(params->prefill_chunk_tokens >= 1);
    ek_assert(params->kv_block_tokens >= 1);
    composer c = {
        .params = params,
        .running = running,
        .step = out_step,
        .n_running = n_running,
        .free_blocks = free_blocks,
    };
    out_step->n_picks = 0;
    out_step->n_preempts = 0;
    sort_by_age(&c);
    pick_decodes(&c);
    pick_prompts(&c);
    compact(&c);
}

bool ek_sched_admits(const ek_sched_params *params, int32_t n_running, int32_t free_blocks,
                     int32_t n_prompt, int32_t n_hit)
{
    if (n_running >= params->running_max) return false;
    int64_t wanted = (int64_t)ek_sched_blocks(params, n_prompt) - n_hit / params->kv_block_tokens;
    return wanted + n_running <= free_blocks;
}

int32_t ek_sched_yields(const ek_sched_params *params, const ek_sched_running *running,
                        int32_t n_running, int32_t free_blocks, int32_t n_prompt, int32_t n_hit)
{
    int32_t youngest = -1, n_paused = 0;
    int64_t blocks = free_blocks;
    for (int32_t i = 0; i < n_running; i++) {
        if (!running[i].paused) continue;
        n_paused++;
        blocks += running[i].n_blocks;
        if (youngest < 0 || running[i].order > running[youngest].order) youngest = i;
    }
    int32_t had = blocks > INT32_MAX ? INT32_MAX : (int32_t)blocks;
    bool suffices = ek_sched_admits(params, n_running - n_paused, had, n_prompt, n_hit);
    return suffices ? youngest : -1;
}
