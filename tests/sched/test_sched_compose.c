/*
 * Goal: each rule of step composition holds on a state small enough to work out by hand. Method:
 * one test per rule; sequences are written as {n_cached, n_tokens, n_blocks, paused, order},
 * blocks hold 4 tokens.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/attr.h"
#include "sched/sched.h"

#define SEQS_MAX 16

typedef struct composed {
    ek_sched_step step;
    ek_sched_pick pick[SEQS_MAX];
    int32_t preempt[SEQS_MAX];
} composed;

static const ek_sched_params params = {
    .running_max = 8,
    .step_tokens_max = 24,
    .prefill_chunk_tokens = 16,
    .kv_block_tokens = 4,
};

static void compose(const ek_sched_running *running, int32_t n, int32_t free_blocks, composed *out)
{
    out->step = (ek_sched_step){.pick = out->pick, .preempt = out->preempt};
    ek_sched_compose(&params, running, n, free_blocks, &out->step);
}

static void assert_pick(const composed *c, int32_t at, int32_t idx, int32_t n_tokens)
{
    assert_true(at < c->step.n_picks);
    assert_int_equal(c->pick[at].idx, idx);
    assert_int_equal(c->pick[at].n_tokens, n_tokens);
}

static void nothing_running_gives_an_empty_step(void **state)
{
    (void)state;
    composed c;
    compose(NULL, 0, 10, &c);
    assert_int_equal(c.step.n_picks, 0);
    assert_int_equal(c.step.n_preempts, 0);
}

static void decodes_go_before_an_older_prompt(void **state)
{
    (void)state;
    const ek_sched_running running[] = {
        {.n_cached = 0, .n_tokens = 100, .n_blocks = 25, .order = 1},
        {.n_cached = 5, .n_tokens = 6, .n_blocks = 2, .order = 2},
        {.n_cached = 9, .n_tokens = 10, .n_blocks = 3, .order = 3},
    };
    composed c;
    compose(running, 3, 0, &c);
    assert_int_equal(c.step.n_picks, 3);
    assert_pick(&c, 0, 1, 1);
    assert_pick(&c, 1, 2, 1);
    assert_pick(&c, 2, 0, 16);
}

static void prompts_share_the_chunk_in_order_of_age(void **state)
{
    (void)state;
    const ek_sched_running running[] = {
        {.n_cached = 0, .n_tokens = 50, .n_blocks = 13, .order = 9},
        {.n_cached = 40, .n_tokens = 50, .n_blocks = 13, .order = 4},
        {.n_cached = 0, .n_tokens = 50, .n_blocks = 13, .order = 12},
    };
    composed c;
    compose(running, 3, 0, &c);
    assert_int_equal(c.step.n_picks, 2);
    assert_pick(&c, 0, 1, 10);
    assert_pick(&c, 1, 0, 6);
}

static void paused_sequences_are_left_alone(void **state)
{
    (void)state;
    const ek_sched_running running[] = {
        {.n_cached = 5, .n_tokens = 6, .n_blocks = 2, .paused = true, .order = 1},
        {.n_cached = 0, .n_tokens = 9, .n_blocks = 3, .paused = true, .order = 2},
        {.n_cached = 5, .n_tokens = 6, .n_blocks = 2, .order = 3},
    };
    composed c;
    compose(running, 3, 0, &c);
    assert_int_equal(c.step.n_picks, 1);
    assert_pick(&c, 0, 2, 1);
    assert_int_equal(c.step.n_preempts, 0);
}

static void the_youngest_gives_way_and_only_as_many_as_needed(void **state)
{
    (void)state;
    /* Two sequences stand at a block border; the youngest's two blocks are enough for both. */
    const ek_sched_running running[] = {
        {.n_cached = 8, .n_tokens = 9, .n_blocks = 2, .order = 1},
        {.n_cached = 8, .n_tokens = 9, .n_blocks = 2, .order = 2},
        {.n_cached = 5, .n_tokens = 6, .n_blocks = 2, .order = 3},
        {.n_cached = 6, .n_tokens = 7, .n_blocks = 2, .order = 4},
    };
    composed c;
    compose(running, 4, 0, &c);
    assert_int_equal(c.step.n_preempts, 1);
    assert_int_equal(c.preempt[0], 3);
    assert_int_equal(c.step.n_picks, 3);
}

static void a_paused_one_gives_way_before_the_youngest(void **state)
{
    (void)state;
    const ek_sched_running running[] = {
        {.n_cached = 5, .n_tokens = 6, .n_blocks = 2, .paused = true, .order = 1},
        {.n_cached = 8, .n_tokens = 9, .n_blocks = 2, .order = 2},
        {.n_cached = 5, .n_tokens = 6, .n_blocks = 2, .order = 3},
    };
    composed c;
    compose(running, 3, 0, &c);
    assert_int_equal(c.step.n_preempts, 1);
    assert_int_equal(c.preempt[0], 0);
    assert_int_equal(c.step.n_picks, 2);
}

static void the_youngest_gives_way_itself_when_it_is_the_one_that_asks(void **state)
{
    (void)state;
    const ek_sched_running running[] = {
        {.n_cached = 5, .n_tokens = 6, .n_blocks = 2, .order = 1},
        {.n_cached = 8, .n_tokens = 9, .n_blocks = 2, .order = 2},
    };
    composed c;
    compose(running, 2, 0, &c);
    assert_int_equal(c.step.n_preempts, 1);
    assert_int_equal(c.preempt[0], 1);
    assert_int_equal(c.step.n_picks, 1);
    assert_pick(&c, 0, 0, 1);
}

static void the_oldest_never_gives_way(void **state)
{
    (void)state;
    const ek_sched_running running[] = {
        {.n_cached = 8, .n_tokens = 9, .n_blocks = 2, .order = 1},
    };
    composed c;
    compose(running, 1, 0, &c);
    assert_int_equal(c.step.n_picks, 0);
    assert_int_equal(c.step.n_preempts, 0);
}

static void a_prompt_takes_what_fits_into_the_free_blocks(void **state)
{
    (void)state;
    const ek_sched_running running[] = {
        {.n_cached = 6, .n_tokens = 40, .n_blocks = 2, .order = 1},
        {.n_cached = 4, .n_tokens = 40, .n_blocks = 2, .order = 2},
    };
    composed c;
    compose(running, 2, 1, &c);
    assert_int_equal(c.step.n_preempts, 0);
    assert_int_equal(c.step.n_picks, 2);
    assert_pick(&c, 0, 0, 6); /* to the end of its third block */
    assert_pick(&c, 1, 1, 4); /* the rest of the block it has */
}

static void a_prompt_waits_while_others_work_and_takes_when_nobody_does(void **state)
{
    (void)state;
    ek_sched_running running[] = {
        {.n_cached = 8, .n_tokens = 40, .n_blocks = 2, .order = 1},
        {.n_cached = 5, .n_tokens = 6, .n_blocks = 2, .order = 2},
    };
    composed c;
    compose(running, 2, 0, &c);
    assert_int_equal(c.step.n_preempts, 0);
    assert_int_equal(c.step.n_picks, 1);
    assert_pick(&c, 0, 1, 1);

    running[1] = (ek_sched_running){.n_cached = 8, .n_tokens = 30, .n_blocks = 2, .order = 2};
    compose(running, 2, 0, &c);
    assert_int_equal(c.step.n_preempts, 1);
    assert_int_equal(c.preempt[0], 1);
    assert_int_equal(c.step.n_picks, 1);
    assert_pick(&c, 0, 0, 8);
}

static void admission_wants_a_place_the_prompts_blocks_and_one_for_each_running(void **state)
{
    (void)state;
    assert_true(ek_sched_admits(&params, 0, 3, 12, 0));
    assert_false(ek_sched_admits(&params, 0, 2, 12, 0));
    assert_false(ek_sched_admits(&params, 0, 3, 13, 0));
    assert_true(ek_sched_admits(&params, 0, 2, 13, 8)); /* two blocks are shared */
    assert_true(ek_sched_admits(&params, 5, 8, 12, 0));
    assert_false(ek_sched_admits(&params, 5, 7, 12, 0));
    assert_false(ek_sched_admits(&params, 8, 1000, 1, 0)); /* all places taken */
    assert_true(ek_sched_admits(&params, 7, 8, 1, 0));
    assert_false(ek_sched_admits(&params, 0, INT32_MAX / 8, INT32_MAX, 0));
}

static void the_youngest_paused_one_yields_to_the_queue(void **state)
{
    (void)state;
    const ek_sched_running running[] = {
        {.n_tokens = 2, .n_blocks = 3, .paused = true, .order = 3},
        {.n_tokens = 2, .n_blocks = 4, .paused = true, .order = 7},
        {.n_tokens = 2, .n_blocks = 5, .paused = false, .order = 8},
    };
    assert_int_equal(ek_sched_yields(&params, running, 3, 0, 4, 0), 1);
    assert_int_equal(ek_sched_yields(&params, running, 1, 0, 4, 0), 0);
    assert_int_equal(ek_sched_yields(&params, running + 2, 1, 0, 4, 0), -1);
    assert_int_equal(ek_sched_yields(&params, NULL, 0, 0, 4, 0), -1);
    /* Both paused ones hold seven blocks; the third needs one of them for itself. */
    assert_int_equal(ek_sched_yields(&params, running, 3, 0, 6 * 4, 0), 1);
    assert_int_equal(ek_sched_yields(&params, running, 3, 0, 7 * 4, 0), -1);
    assert_int_equal(ek_sched_yields(&params, running, 3, 1, 7 * 4, 0), 1);
    assert_int_equal(ek_sched_yields(&params, running, 3, 0, 8 * 4, 8), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_running_gives_an_empty_step),
        cmocka_unit_test(decodes_go_before_an_older_prompt),
        cmocka_unit_test(prompts_share_the_chunk_in_order_of_age),
        cmocka_unit_test(paused_sequences_are_left_alone),
        cmocka_unit_test(the_youngest_gives_way_and_only_as_many_as_needed),
        cmocka_unit_test(a_paused_one_gives_way_before_the_youngest),
        cmocka_unit_test(the_youngest_gives_way_itself_when_it_is_the_one_that_asks),
        cmocka_unit_test(the_oldest_never_gives_way),
        cmocka_unit_test(a_prompt_takes_what_fits_into_the_free_blocks),
        cmocka_unit_test(a_prompt_waits_while_others_work_and_takes_when_nobody_does),
        cmocka_unit_test(admission_wants_a_place_the_prompts_blocks_and_one_for_each_running),
        cmocka_unit_test(the_youngest_paused_one_yields_to_the_queue),
    };
    return cmocka_run_group_tests_name("sched/compose", tests, NULL, NULL);
}
