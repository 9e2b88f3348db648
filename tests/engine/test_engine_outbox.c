/*
 * Goal: an outbox hands on every byte and token in order, keeps tokens with their text, pauses
 * before it overflows and wakes its writer when there is room again. Method: single-threaded
 * cases at the rings' borders; then a writer and a reader thread exchange a long random answer,
 * with the reader stalling, and both sides' records must agree.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/outbox.h"
#include "engine/text_stream.h"
#include "sys/clock.h"
#include "sys/mem.h"
#include "sys/thread.h"

typedef struct box {
    ek_sys_region region;
    ek_outbox *outbox;
} box;

static void open_box(box *b, int32_t n_top)
{
    size_t bytes = sizeof(ek_outbox) + 64 + ek_engine_outbox_bytes(n_top);
    assert_int_equal(ek_sys_region_open(bytes, 0, &b->region), EK_OK);
    ek_arena arena = ek_sys_region_arena(&b->region);
    b->outbox = ek_new(&arena, ek_outbox, 1);
    ek_engine_outbox_init(b->outbox, &arena, n_top);
}

static void close_box(box *b)
{
    ek_sys_region_close(&b->region);
}

static ek_sampled token(int32_t id, int32_t n_top)
{
    ek_sampled sampled = {.id = id, .logprob = (float)-id, .n_top = n_top};
    for (int32_t i = 0; i < n_top; i++)
        sampled.top[i] = (ek_token_logprob){.id = id + i, .logprob = (float)-i};
    return sampled;
}

static void put(box *b, const char *text, int32_t id)
{
    ek_sampled sampled = token(id, 2);
    ek_engine_outbox_put(b->outbox, text, (int32_t)strlen(text), &sampled);
}

static void tokens_come_with_their_text(void **state)
{
    (void)state;
    box b;
    open_box(&b, 2);
    ek_output out;
    put(&b, "ab", 1);
    put(&b, "", 2);
    put(&b, "cde", 3);
    assert_false(ek_engine_outbox_take(b.outbox, &out));
    assert_int_equal(out.n_text, 5);
    assert_memory_equal(out.text, "abcde", 5);
    assert_int_equal(out.n_tokens, 3);
    const int32_t ends[] = {2, 2, 5};
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(out.token[i].id, i + 1);
        assert_int_equal(out.token[i].text_end, ends[i]);
        assert_true(out.token[i].logprob == (float)-(i + 1));
        assert_int_equal(out.token[i].n_top, 2);
        assert_int_equal(out.token[i].top[1].id, i + 2);
    }
    assert_false(out.more);
    assert_int_equal(out.finish, EK_FINISH_NONE);
    /* The ends count from the read's own text. */
    put(&b, "f", 4);
    (void)ek_engine_outbox_take(b.outbox, &out);
    assert_int_equal(out.token[0].text_end, 1);
    close_box(&b);
}

static void the_rest_comes_with_the_finish_and_the_finish_once_all_is_read(void **state)
{
    (void)state;
    box b;
    open_box(&b, 0);
    ek_output out;
    for (int32_t i = 0; i < EK_ENGINE_READ_TOKENS + 1; i++)
        put(&b, "x", i);
    ek_engine_outbox_put_rest(b.outbox, "rest", 4);
    (void)ek_engine_outbox_take(b.outbox, &out);
    assert_int_equal(out.n_tokens, EK_ENGINE_READ_TOKENS);
    assert_int_equal(out.n_text, EK_ENGINE_READ_TOKENS);
    assert_true(out.more);
    ek_engine_outbox_finish(b.outbox, EK_FINISH_STOP);
    (void)ek_engine_outbox_take(b.outbox, &out);
    assert_int_equal(out.n_tokens, 1);
    assert_int_equal(out.n_text, 5);
    assert_memory_equal(out.text, "xrest", 5);
    assert_int_equal(out.token[0].text_end, 1);
    assert_int_equal(out.token[0].n_top, 0); /* none were asked for */
    assert_false(out.more);
    assert_int_equal(out.finish, EK_FINISH_STOP);
    close_box(&b);
}

static void it_pauses_when_full_and_goes_on_when_half_empty(void **state)
{
    (void)state;
    box b;
    open_box(&b, 0);
    ek_output out;
    int32_t n = 0;
    for (; !ek_engine_outbox_pauses(b.outbox); n++)
        put(&b, "x", n);
    assert_int_equal(n, EK_OUTBOX_TOKENS);
    assert_true(ek_engine_outbox_take(b.outbox, &out)); /* the writer wants to know */
    assert_int_equal(out.n_tokens, EK_OUTBOX_TOKENS / 2);
    assert_false(ek_engine_outbox_pauses(b.outbox));
    assert_false(ek_engine_outbox_take(b.outbox, &out)); /* it knows */
    close_box(&b);
}

static void long_texts_pause_it_before_they_overflow(void **state)
{
    (void)state;
    static char text[EK_TEXT_FEED_MAX + 1];
    memset(text, 'y', sizeof text - 1);
    box b;
    open_box(&b, 0);
    size_t n_in = 0, n_out = 0;
    int n_pauses = 0;
    for (int32_t i = 0; i < 200; i++) {
        while (ek_engine_outbox_pauses(b.outbox)) {
            ek_output out;
            n_pauses++;
            (void)ek_engine_outbox_take(b.outbox, &out);
            assert_true(out.n_text > 0);
            n_out += (size_t)out.n_text;
        }
        put(&b, text, i);
        n_in += sizeof text - 1;
        /* Whenever it does not pause, the last words still fit. */
        assert_true(b.outbox->text_end - b.outbox->text_taken + EK_TEXT_FLUSH_MAX <=
                    EK_OUTBOX_TEXT_BYTES);
    }
    ek_engine_outbox_finish(b.outbox, EK_FINISH_LENGTH);
    ek_output out = {0};
    while (out.finish == EK_FINISH_NONE) {
        (void)ek_engine_outbox_take(b.outbox, &out);
        n_out += (size_t)out.n_text;
    }
    assert_int_equal(n_in, n_out);
    assert_true(n_pauses > 20);
    close_box(&b);
}

/* ---- two threads ---- */

#define N_TOKENS 20000

typedef struct exchange {
    box b;
    ek_sys_mutex mutex;
    ek_sys_cond room;
    bool nudged; /* under the mutex */
    uint64_t written, n_bytes;
} exchange;

/* Both sides can make the text of token i. */
static int32_t text_of(int32_t i, char *text)
{
    uint64_t bits = ek_mix64((uint64_t)i);
    int32_t n = bits % 50 == 0 ? EK_TEXT_FEED_MAX : (int32_t)(bits % 9);
    for (int32_t k = 0; k < n; k++)
        text[k] = (char)(bits >> (k % 48));
    return n;
}

static void write_all(void *ctx)
{
    exchange *x = ctx;
    char text[EK_TEXT_FEED_MAX];
    for (int32_t i = 0; i < N_TOKENS; i++) {
        ek_sys_mutex_lock(&x->mutex);
        while (ek_engine_outbox_pauses(x->b.outbox)) {
            while (!x->nudged)
                ek_sys_cond_wait(&x->room, &x->mutex);
            x->nudged = false;
        }
        ek_sys_mutex_unlock(&x->mutex);
        int32_t n = text_of(i, text);
        ek_sampled sampled = token(i, 1);
        ek_engine_outbox_put(x->b.outbox, text, n, &sampled);
    }
    ek_engine_outbox_finish(x->b.outbox, EK_FINISH_LENGTH);
}

static void check_output(const ek_output *out, int32_t first)
{
    char text[EK_TEXT_FEED_MAX];
    int32_t beg = 0;
    for (int32_t i = 0; i < out->n_tokens; i++) {
        int32_t n = text_of(first + i, text);
        assert_int_equal(out->token[i].id, first + i);
        assert_int_equal(out->token[i].top[0].id, first + i);
        assert_int_equal(out->token[i].text_end, beg + n);
        assert_memory_equal(out->text + beg, text, (size_t)n);
        beg += n;
    }
    assert_int_equal(out->n_text, beg);
}

static void a_writer_and_a_stalling_reader_agree(void **state)
{
    (void)state;
    exchange x = {0};
    ek_sys_thread writer = {0};
    ek_rng rng;
    ek_rng_init(&rng, 3);
    open_box(&x.b, 1);
    ek_sys_mutex_init(&x.mutex);
    ek_sys_cond_init(&x.room);
    assert_int_equal(ek_sys_thread_start(&writer, "writer", write_all, &x), EK_OK);
    ek_output out = {0};
    for (int32_t n = 0; out.finish == EK_FINISH_NONE; n += out.n_tokens) {
        if (ek_engine_outbox_take(x.b.outbox, &out)) {
            ek_sys_mutex_lock(&x.mutex);
            x.nudged = true;
            ek_sys_cond_signal(&x.room);
            ek_sys_mutex_unlock(&x.mutex);
        }
        check_output(&out, n);
        if (out.finish != EK_FINISH_NONE) assert_int_equal(n + out.n_tokens, N_TOKENS);
        if (ek_rng_below(&rng, 50) == 0) ek_sys_sleep_us(200);
    }
    ek_sys_thread_join(&writer);
    ek_sys_cond_fini(&x.room);
    ek_sys_mutex_fini(&x.mutex);
    close_box(&x.b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_come_with_their_text),
        cmocka_unit_test(the_rest_comes_with_the_finish_and_the_finish_once_all_is_read),
        cmocka_unit_test(it_pauses_when_full_and_goes_on_when_half_empty),
        cmocka_unit_test(long_texts_pause_it_before_they_overflow),
        cmocka_unit_test(a_writer_and_a_stalling_reader_agree),
    };
    return cmocka_run_group_tests_name("engine/outbox", tests, NULL, NULL);
}
