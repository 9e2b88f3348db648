/*
 * Goal: over long random histories the scheduler keeps its promises: decode first, budgets kept,
 * prompts first come first served, blocks never overdrawn, preemption only when somebody needs
 * blocks and by the stated order, nobody starves. Method: a small world around the pure functions
 * (arrivals, readers that stall, a block account) runs thousands of steps for many seeds; after
 * each composition every promise is checked against the state, not against another scheduler.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "sched/sched.h"

#define N_REQUESTS  160
#define RUNNING_MAX 12

typedef struct request {
    int32_t n_prompt, n_answer; /* tokens given, tokens wanted */
    int32_t arrival;            /* step */
    int64_t order;
    int32_t n_cached, n_tokens, n_blocks;
    bool paused, started, done;
} request;

typedef struct world {
    ek_rng rng;
    ek_sched_params params;
    bool
        reserves; /* whole prompt's blocks at admission, as the engine does it, or block by block */
    request request[N_REQUESTS];
    int32_t waiting[N_REQUESTS], n_waiting; /* ids, oldest first */
    int32_t running[RUNNING_MAX], n_running;
    int32_t blocks, free_blocks;
    int32_t n_done, n_preempts;
    ek_sched_running view[RUNNING_MAX];
    ek_sched_pick pick[RUNNING_MAX];
    int32_t preempt[RUNNING_MAX];
    ek_sched_step step;
} world;

static int32_t pick_between(world *w, int32_t low, int32_t high)
{
    return low + (int32_t)ek_rng_below(&w->rng, (uint64_t)(high - low + 1));
}

static int32_t blocks_of(const world *w, int32_t n_tokens)
{
    return (n_tokens + w->params.kv_block_tokens - 1) / w->params.kv_block_tokens;
}

static void world_init(world *w, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    ek_rng_init(&w->rng, seed);
    w->params.running_max = pick_between(w, 1, RUNNING_MAX);
    w->params.prefill_chunk_tokens = pick_between(w, 1, 64);
    w->params.step_tokens_max = w->params.running_max + pick_between(w, 1, 64);
    w->params.kv_block_tokens = 1 << pick_between(w, 0, 5);
    w->reserves = pick_between(w, 0, 3) > 0;
    int32_t longest = 0;
    int32_t arrival = 0;
    for (int32_t i = 0; i < N_REQUESTS; i++) {
        request *r = &w->request[i];
        r->n_prompt = pick_between(w, 1, pick_between(w, 1, 200));
        r->n_answer = pick_between(w, 1, 60);
        arrival += pick_between(w, 0, 3) == 0 ? pick_between(w, 0, 40) : 0;
        r->arrival = arrival;
        r->order = i;
        r->n_tokens = r->n_prompt;
        int32_t total = blocks_of(w, r->n_prompt + r->n_answer);
        if (total > longest) longest = total;
    }
    /* From "only just fits one" to "hardly ever full". */
    w->blocks = longest + pick_between(w, 0, longest * pick_between(w, 0, 6));
    w->free_blocks = w->blocks;
}

static void remove_at(int32_t *list, int32_t *n, int32_t at)
{
    memmove(list + at, list + at + 1, (size_t)(*n - at - 1) * sizeof *list);
    (*n)--;
}

static void give_up(world *w, int32_t at)
{
    int32_t id = w->running[at];
    request *r = &w->request[id];
    w->free_blocks += r->n_blocks;
    r->n_blocks = 0;
    r->n_cached = 0;
    remove_at(w->running, &w->n_running, at);
    int32_t to = 0;
    while (to < w->n_waiting && w->request[w->waiting[to]].order < r->order)
        to++;
    memmove(w->waiting + to + 1, w->waiting + to, (size_t)(w->n_waiting - to) * sizeof *w->waiting);
    w->waiting[to] = id;
    w->n_waiting++;
    w->n_preempts++;
}

static void make_view(world *w)
{
    for (int32_t i = 0; i < w->n_running; i++) {
        const request *r = &w->request[w->running[i]];
        w->view[i] = (ek_sched_running){
            .n_cached = r->n_cached,
            .n_tokens = r->n_tokens,
            .n_blocks = r->n_blocks,
            .paused = r->paused,
            .order = r->order,
        };
    }
}

static void arrive_and_stall(world *w, int32_t now)
{
    for (int32_t i = 0; i < N_REQUESTS; i++) {
        request *r = &w->request[i];
        if (!r->started && r->arrival <= now) {
            r->started = true;
            w->waiting[w->n_waiting++] = i;
        }
        /* Readers stall and come back, but a stalled one always comes back in the end. */
        if (r->paused)
            r->paused = pick_between(w, 0, 9) != 0;
        else if (r->n_tokens > r->n_prompt)
            r->paused = pick_between(w, 0, 49) == 0;
    }
}

static void admit(world *w)
{
    for (int32_t at = 0; at < w->n_waiting;) {
        request *r = &w->request[w->waiting[at]];
        if (r->paused) {
            at++;
            continue;
        }
        while (!ek_sched_admits(&w->params, w->n_running, w->free_blocks, r->n_tokens, 0)) {
            make_view(w);
            int32_t yields =
                ek_sched_yields(&w->params, w->view, w->n_running, w->free_blocks, r->n_tokens, 0);
            if (yields < 0) return;
            assert_true(w->view[yields].paused);
            const request *gone = &w->request[w->running[yields]];
            give_up(w, yields);
            at += gone->order < r->order;
        }
        assert_true(w->n_running < w->params.running_max);
        if (w->reserves) {
            r->n_blocks = blocks_of(w, r->n_tokens);
            w->free_blocks -= r->n_blocks;
            assert_true(w->free_blocks >= 0);
        }
        w->running[w->n_running++] = w->waiting[at];
        remove_at(w->waiting, &w->n_waiting, at);
    }
}

static bool is_given_up(const world *w, int32_t idx)
{
    for (int32_t i = 0; i < w->step.n_preempts; i++)
        if (w->step.preempt[i] == idx) return true;
    return false;
}

static int32_t tokens_picked(const world *w, int32_t idx)
{
    for (int32_t i = 0; i < w->step.n_picks; i++)
        if (w->step.pick[i].idx == idx) return w->step.pick[i].n_tokens;
    return 0;
}

static int32_t blocks_needed(const world *w, int32_t idx, int32_t n)
{
    int32_t wanted = blocks_of(w, w->view[idx].n_cached + n) - w->view[idx].n_blocks;
    return wanted > 0 ? wanted : 0;
}

static bool is_prompt_at(const world *w, int32_t idx)
{
    return w->view[idx].n_tokens - w->view[idx].n_cached > 1;
}

/*
 * Budgets; decode first; each sequence once, never a paused or given-up one, never more than it
 * has.
 */
static void check_picks(const world *w)
{
    int32_t n_decode = 0, n_prefill = 0;
    int64_t last_order = -1;
    bool in_prompts = false;
    for (int32_t i = 0; i < w->step.n_picks; i++) {
        const ek_sched_pick *p = &w->step.pick[i];
        const ek_sched_running *r = &w->view[p->idx];
        assert_true(p->n_tokens >= 1 && p->n_tokens <= r->n_tokens - r->n_cached);
        assert_false(r->paused);
        assert_false(is_given_up(w, p->idx));
        bool is_prompt = is_prompt_at(w, p->idx);
        assert_true(is_prompt || !in_prompts);
        if (is_prompt && !in_prompts) last_order = -1;
        in_prompts = is_prompt;
        assert_true(r->order > last_order);
        last_order = r->order;
        *(is_prompt ? &n_prefill : &n_decode) += p->n_tokens;
    }
    assert_true(n_prefill <= w->params.prefill_chunk_tokens);
    assert_true(n_decode + n_prefill <= w->params.step_tokens_max);
}

/*
 * Every decoding sequence has its token, unless it gave way or nothing was left to give; prompts
 * are served by age.
 */
static void check_service(const world *w)
{
    int32_t n_decode = 0, n_prefill = 0;
    for (int32_t i = 0; i < w->step.n_picks; i++) {
        bool is_prompt = is_prompt_at(w, w->step.pick[i].idx);
        *(is_prompt ? &n_prefill : &n_decode) += w->step.pick[i].n_tokens;
    }
    int32_t budget = w->params.step_tokens_max - n_decode;
    if (budget > w->params.prefill_chunk_tokens) budget = w->params.prefill_chunk_tokens;
    for (int32_t i = 0; i < w->n_running; i++) {
        const ek_sched_running *r = &w->view[i];
        int32_t left = r->n_tokens - r->n_cached;
        if (r->paused || is_given_up(w, i)) continue;
        if (left == 1 && blocks_needed(w, i, 1) == 0) assert_int_equal(tokens_picked(w, i), 1);
        /*
         * A prompt that got less than it can use spent the budget, and no younger one got any of
         * it.
         */
        bool short_of_blocks = blocks_needed(w, i, tokens_picked(w, i) + 1) > 0;
        if (left == 1 || tokens_picked(w, i) == left || short_of_blocks) continue;
        assert_int_equal(n_prefill, budget);
        for (int32_t j = 0; j < w->n_running; j++)
            if (w->view[j].order > r->order && is_prompt_at(w, j))
                assert_int_equal(tokens_picked(w, j), 0);
    }
}

/*
 * Blocks that had to be there before anybody gave way: those of the decodes, or one prompt's next
 * one.
 */
static int32_t blocks_demanded(const world *w)
{
    int32_t n = 0;
    for (int32_t i = 0; i < w->step.n_picks; i++)
        if (!is_prompt_at(w, w->step.pick[i].idx)) n += blocks_needed(w, w->step.pick[i].idx, 1);
    bool only_prompts = w->step.n_picks > 0 && is_prompt_at(w, w->step.pick[0].idx);
    if (only_prompts) n += blocks_needed(w, w->step.pick[0].idx, 1);
    /* The last to give way may have been the one that asked. */
    if (w->step.n_preempts > 0) {
        int32_t last = w->step.preempt[w->step.n_preempts - 1];
        if (!is_prompt_at(w, last) && !w->view[last].paused) n += blocks_needed(w, last, 1);
    }
    return n;
}

/*
 * The picks fit; nobody gave way in vain; paused ones first, then the youngest first; the oldest
 * stays.
 */
static void check_preemption(const world *w)
{
    int32_t needed = 0, freed = 0;
    for (int32_t i = 0; i < w->step.n_picks; i++)
        needed += blocks_needed(w, w->step.pick[i].idx, w->step.pick[i].n_tokens);
    bool was_paused = true;
    int64_t last_order = INT64_MAX;
    for (int32_t i = 0; i < w->step.n_preempts; i++) {
        const ek_sched_running *r = &w->view[w->step.preempt[i]];
        assert_true(was_paused || !r->paused);
        if (was_paused && !r->paused) last_order = INT64_MAX;
        was_paused = r->paused;
        assert_true(r->order < last_order);
        last_order = r->order;
        assert_true(blocks_demanded(w) > w->free_blocks + freed);
        assert_true(r->n_blocks > 0);
        freed += r->n_blocks;
    }
    assert_true(needed <= w->free_blocks + freed);
    int32_t oldest = -1;
    for (int32_t i = 0; i < w->n_running; i++)
        if (!w->view[i].paused && (oldest < 0 || w->view[i].order < w->view[oldest].order))
            oldest = i;
    if (oldest < 0) return;
    assert_false(is_given_up(w, oldest));
    assert_true(w->step.n_picks > 0); /* work goes on whenever anybody may work */
}

static void apply(world *w)
{
    int32_t ids[RUNNING_MAX];
    memcpy(ids, w->running, sizeof ids);
    for (int32_t i = 0; i < w->step.n_preempts; i++) {
        int32_t at = 0;
        while (w->running[at] != ids[w->step.preempt[i]])
            at++;
        give_up(w, at);
    }
    for (int32_t i = 0; i < w->step.n_picks; i++) {
        request *r = &w->request[ids[w->step.pick[i].idx]];
        int32_t more = blocks_of(w, r->n_cached + w->step.pick[i].n_tokens) - r->n_blocks;
        if (more > 0) {
            r->n_blocks += more;
            w->free_blocks -= more;
        }
        assert_true(w->free_blocks >= 0);
        r->n_cached += w->step.pick[i].n_tokens;
        if (r->n_cached < r->n_tokens) continue;
        r->n_tokens++;
        r->done = r->n_tokens - r->n_prompt >= r->n_answer;
    }
    for (int32_t at = w->n_running - 1; at >= 0; at--) {
        request *r = &w->request[w->running[at]];
        if (!r->done) continue;
        w->free_blocks += r->n_blocks;
        remove_at(w->running, &w->n_running, at);
        w->n_done++;
    }
}

static void run_history(uint64_t seed, int32_t *n_preempts)
{
    world w;
    world_init(&w, seed);
    int32_t now = 0;
    for (; w.n_done < N_REQUESTS; now++) {
        assert_true(now < 200000); /* nobody starves */
        arrive_and_stall(&w, now);
        admit(&w);
        make_view(&w);
        w.step = (ek_sched_step){.pick = w.pick, .preempt = w.preempt};
        ek_sched_compose(&w.params, w.view, w.n_running, w.free_blocks, &w.step);
        check_picks(&w);
        check_service(&w);
        check_preemption(&w);
        apply(&w);
    }
    assert_int_equal(w.free_blocks, w.blocks);
    *n_preempts += w.n_preempts;
}

static void every_history_keeps_every_promise(void **state)
{
    (void)state;
    int32_t n_preempts = 0;
    for (uint64_t seed = 1; seed <= 400; seed++)
        run_history(seed, &n_preempts);
    assert_true(n_preempts > 1000); /* the histories do reach the hard part */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_history_keeps_every_promise)};
    return cmocka_run_group_tests_name("sched/simulation", tests, NULL, NULL);
}
