/*
 * The way out: running streams end by themselves, newcomers are told, stragglers are cut with a
 * word, and nobody is left inside. Cases D1, D3.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "house.h"
#include "http/client.h"
#include "stream.h"
#include "sys/thread.h"

#define COMPLETION "/v1/completions"
#define LONG       "{\"prompt\":[5],\"max_tokens\":500,\"ignore_eos\":true,\"stream\":true}"
#define SHORT      "{\"prompt\":[5],\"max_tokens\":2}"
#define WAIT_MS    120000

typedef struct drain_run {
    house h;
    ek_sys_thread thread;
    _Atomic bool hurry;
    ek_status status;
} drain_run;

static drain_run *make(void)
{
    drain_run *run = calloc(1, sizeof *run);
    assert_non_null(run);
    house_init(&run->h);
    run->h.engine_params.kernels = EK_KERNELS_REFERENCE;
    return run;
}

static bool must_hurry(void *ctx)
{
    drain_run *run = ctx;
    return run->hurry;
}

static void drain_main(void *ctx)
{
    drain_run *run = ctx;
    run->status = ek_gateway_drain(run->h.gateway, must_hurry, run);
}

static void start_drain(drain_run *run)
{
    assert_int_equal(ek_sys_thread_start(&run->thread, "drain", drain_main, run), EK_OK);
}

static void close_run(drain_run *run)
{
    house_close(&run->h);
    free(run);
}

static void await_ready(const house *h, int status)
{
    int64_t end = now_ms() + WAIT_MS;
    for (;;) {
        reply r = request_get(h->health, "/readyz");
        bool reached = r.status == status;
        reply_free(&r);
        if (reached) return;
        assert_true(now_ms() < end);
        sleep_ms(5);
    }
}

/*
 * D1: what runs is let finish; on an old connection a newcomer is told, on a new one nobody
 * listens.
 */
static void d1_streams_finish(void **state)
{
    (void)state;
    drain_run *run = make();
    house *h = &run->h;
    house_open(h);
    client c[5];
    for (int i = 0; i < 5; i++) {
        c[i] = client_open(h->address);
        client_post(&c[i], COMPLETION, LONG);
        assert_true(client_sees(&c[i], "data: ", WAIT_MS));
    }
    client partial = client_open(h->address); /* begins its request before the end, ends it after */
    client_sendz(&partial, "POST " COMPLETION " HTTP/1.1\r\nHost: a\r\n");
    sleep_ms(20);
    start_drain(run);
    await_ready(h, 503);
    int64_t end = now_ms() + WAIT_MS;
    client probe;
    while (client_try_open(h->address, &probe) && now_ms() < end) /* until the listener is closed */
        client_close(&probe);
    char rest[256];
    snprintf(rest, sizeof rest, "Content-Length: %zu\r\n\r\n%s", strlen(SHORT), SHORT);
    client_sendz(&partial, rest);
    reply r = client_reply(&partial, WAIT_MS);
    assert_error(&r, 503, "draining", NULL);
    assert_true(reply_header_is(&r, "Connection", "close"));
    reply_free(&r);
    assert_true(client_sees_end(&partial, WAIT_MS));
    client_close(&partial);
    for (int i = 0; i < 5; i++) {
        r = client_reply(&c[i], WAIT_MS);
        assert_int_equal(r.status, 200);
        stream s = stream_parse(r.body, r.n_body);
        assert_true(s.done);
        assert_null(s.error);
        assert_string_equal(s.choice[0].finish, "length");
        stream_free(&s);
        reply_free(&r);
        client_close(&c[i]);
    }
    ek_sys_thread_join(&run->thread);
    assert_int_equal(run->status, EK_OK);
    r = request_get(h->health, "/livez"); /* alive until the very end */
    assert_int_equal(r.status, 200);
    reply_free(&r);
    house_assert_idle(h);
    close_run(run);
}

/* D3: while the drain settles requests are served as before, though readiness is gone. */
static void d3_serves_while_it_settles(void **state)
{
    (void)state;
    drain_run *run = make();
    house *h = &run->h;
    h->gateway_params.drain_settle_us = 1500000;
    house_open(h);
    await_ready(h, 200);
    start_drain(run);
    await_ready(h, 503);
    reply r = request_get(h->health, "/health");
    assert_string_equal(r.body, "{\"status\":\"draining\"}");
    reply_free(&r);
    r = request_post(h->address, COMPLETION, SHORT);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    ek_sys_thread_join(&run->thread);
    assert_int_equal(run->status, EK_OK);
    client late;
    assert_false(client_try_open(h->address, &late));
    close_run(run);
}

/*
 * Who is not through when time is up is cut: a frame and the end in a stream, 503 for a plain
 * answer.
 */
static void cuts_stragglers_with_a_word(void **state)
{
    (void)state;
    for (int hurried = 0; hurried < 2; hurried++) {
        drain_run *run = make();
        house *h = &run->h;
        h->gateway_params.drain_timeout_us = hurried ? 60000000 : 100000;
        house_open(h);
        client streamed = client_open(h->address), plain = client_open(h->address);
        client_post(
            &streamed, COMPLETION,
            "{\"prompt\":[5],\"n\":4,\"max_tokens\":500,\"ignore_eos\":true,\"logprobs\":20,"
            "\"stream\":true}");
        client_post(
            &plain, COMPLETION,
            "{\"prompt\":[5],\"n\":4,\"max_tokens\":500,\"ignore_eos\":true,\"logprobs\":20}");
        assert_true(client_sees(&streamed, "data: ", WAIT_MS));
        assert_true(house_awaits(h, "evenkeel_requests_running", 8, WAIT_MS));
        start_drain(run);
        await_ready(h, 503);
        run->hurry = hurried;
        reply r = client_reply(&streamed, WAIT_MS);
        assert_int_equal(r.status, 200);
        stream s = stream_parse(r.body, r.n_body);
        assert_true(s.done);
        assert_non_null(s.error);
        assert_string_equal(json_string_value(json_object_get(s.error, "code")), "draining");
        stream_free(&s);
        reply_free(&r);
        r = client_reply(&plain, WAIT_MS);
        assert_error(&r, 503, "draining", NULL);
        reply_free(&r);
        ek_sys_thread_join(&run->thread);
        assert_int_equal(run->status, EK_ETIMEOUT);
        client_close(&streamed);
        client_close(&plain);
        house_assert_idle(h);
        close_run(run);
    }
}

static void drains_while_loading(void **state)
{
    (void)state;
    drain_run *run = make();
    house_open_gateway(&run->h);
    start_drain(run);
    ek_sys_thread_join(&run->thread);
    assert_int_equal(run->status, EK_OK);
    close_run(run);
}

/* Destroyed without a drain, with requests in every stage. */
static void closes_in_the_middle_of_everything(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        drain_run *run = make();
        house *h = &run->h;
        house_open(h);
        client c[24];
        for (int i = 0; i < 24; i++) {
            c[i] = client_open(h->address);
            client_post(&c[i], COMPLETION,
                        i % 2 ? LONG : "{\"prompt\":[5],\"n\":2,\"max_tokens\":200}");
        }
        sleep_ms(round * 7);
        close_run(run);
        for (int i = 0; i < 24; i++) {
            assert_true(client_sees_end(&c[i], WAIT_MS));
            client_close(&c[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(d1_streams_finish),
        cmocka_unit_test(d3_serves_while_it_settles),
        cmocka_unit_test(cuts_stragglers_with_a_word),
        cmocka_unit_test(drains_while_loading),
        cmocka_unit_test(closes_in_the_middle_of_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
