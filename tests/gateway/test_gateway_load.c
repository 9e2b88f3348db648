/*
 * A server with more to do than it can: the queue is bounded and says so at once, waiting has an
 * end, health is answered whatever else is going on, and an engine that is stuck is noticed. Cases
 * E4, O1, O3, H1, H3; pings.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "house.h"
#include "http/client.h"
#include "stream.h"

#define COMPLETION "/v1/completions"
#define ONE        "{\"prompt\":[5],\"max_tokens\":500,\"ignore_eos\":true"
#define EIGHT      ONE ",\"n\":8"
#define WAIT_MS    120000

static house *make_slow(void)
{
    house *h = house_make();
    h->engine_params.kernels = EK_KERNELS_REFERENCE;
    return h;
}

/*
 * O1, E4: what does not fit is refused while those that fit are still at work; they are not
 * disturbed.
 */
static void o1_refuses_what_does_not_fit(void **state)
{
    (void)state;
    house *h = make_slow();
    h->engine_params.running_max = 4;
    h->engine_params.queue_max = 8;
    house_open(h);
    client c[50];
    for (int i = 0; i < 50; i++) {
        c[i] = client_open(h->address);
        client_post(&c[i], COMPLETION, i % 2 ? ONE "}" : ONE ",\"stream\":true}");
    }
    int n_taken = 0, n_refused = 0;
    int64_t start = now_ms();
    assert_true(house_awaits(h, "evenkeel_http_requests_total{code=\"429\"}", 38, WAIT_MS));
    print_message("all refused within %d ms\n", (int)(now_ms() - start));
    for (int i = 0; i < 50; i++) {
        reply r = client_reply(&c[i], WAIT_MS);
        if (r.status == 200) {
            n_taken++;
        } else {
            assert_error(&r, 429, "queue_full", NULL);
            n_refused++;
        }
        reply_free(&r);
        client_close(&c[i]);
    }
    assert_int_equal(n_taken, 12);
    assert_int_equal(n_refused, 38);
    house_end(h);
}

/* All choices of a request or none: those that found a place are given back when one does not. */
static void takes_all_choices_or_none(void **state)
{
    (void)state;
    house *h = make_slow();
    h->engine_params.running_max = 4;
    h->engine_params.queue_max = 3;
    house_open(h);
    reply r = request_post(h->address, COMPLETION, EIGHT "}");
    assert_error(&r, 429, "queue_full", NULL);
    reply_free(&r);
    house_assert_idle(h);
    r = request_post(h->address, COMPLETION, "{\"prompt\":[5],\"max_tokens\":3,\"n\":7}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    house_end(h);
}

/*
 * O3: who waits for longer than the limit is told 503, is out of the queue, and was never computed.
 */
static void o3_waiting_has_an_end(void **state)
{
    (void)state;
    house *h = make_slow();
    h->engine_params.running_max = 1;
    h->engine_params.queue_timeout_us = 50000; /* a fraction of what the one before takes */
    house_open(h);
    for (int streams = 0; streams < 2; streams++) {
        client busy = client_open(h->address);
        client_post(&busy, COMPLETION, ONE ",\"logprobs\":20,\"stream\":true}");
        assert_true(client_sees(&busy, "data: ", WAIT_MS));
        double prompts = house_metric(h, "evenkeel_prompt_tokens_total");
        int64_t start = now_ms();
        reply r = request_post(h->address, COMPLETION,
                               streams ? "{\"prompt\":[5,6,7],\"max_tokens\":1,\"stream\":true}"
                                       : "{\"prompt\":[5,6,7],\"max_tokens\":1}");
        assert_error(&r, 503, "queue_timeout", NULL);
        assert_true(now_ms() - start >= 50);
        assert_true(house_metric(h, "evenkeel_prompt_tokens_total") == prompts);
        assert_true(house_metric(h, "evenkeel_requests_waiting") == 0);
        reply_free(&r);
        r = client_reply(&busy, WAIT_MS);
        stream s = stream_parse(r.body, r.n_body);
        assert_null(s.error);
        stream_free(&s);
        reply_free(&r);
        client_close(&busy);
    }
    house_end(h);
}

/* While a stream waits for its first token it is pinged; then it goes on like any other. */
static void pings_while_nothing_comes(void **state)
{
    (void)state;
    house *h = make_slow();
    h->engine_params.running_max = 1;
    h->gateway_params.ping_us = 100000;
    house_open(h);
    client busy = client_open(h->address);
    client_post(&busy, COMPLETION, EIGHT "}"); /* one choice after the other */
    assert_true(house_awaits(h, "evenkeel_requests_running", 1, WAIT_MS));
    client waiting = client_open(h->address);
    client_post(&waiting, COMPLETION, ONE ",\"stream\":true}");
    assert_true(client_sees(&waiting, ": ping\n\n", WAIT_MS));
    reply r = client_reply(&waiting, WAIT_MS);
    assert_int_equal(r.status, 200);
    stream s = stream_parse(r.body, r.n_body);
    assert_true(s.n_pings > 0);
    assert_true(s.done);
    assert_null(s.error);
    assert_string_equal(s.choice[0].finish, "length");
    stream_free(&s);
    reply_free(&r);
    client_close(&waiting);
    client_close(&busy);
    house_end(h);
}

/*
 * What fails after a ping has a status already: the error is a frame, and the stream still ends as
 * it should.
 */
static void fails_after_a_ping_in_a_frame(void **state)
{
    (void)state;
    house *h = make_slow();
    h->engine_params.running_max = 1;
    h->gateway_params.ping_us = 100000;
    h->gateway_params.request_timeout_us = 700000;
    house_open(h);
    client busy = client_open(h->address);
    client_post(&busy, COMPLETION, EIGHT "}");
    assert_true(house_awaits(h, "evenkeel_requests_running", 1, WAIT_MS));
    client waiting = client_open(h->address);
    client_post(&waiting, COMPLETION, EIGHT ",\"stream\":true}");
    reply r = client_reply(&waiting, WAIT_MS);
    assert_int_equal(r.status, 200);
    stream s = stream_parse(r.body, r.n_body);
    assert_true(s.n_pings > 0);
    assert_true(s.done);
    assert_non_null(s.error);
    assert_string_equal(json_string_value(json_object_get(s.error, "code")), "request_timeout");
    stream_free(&s);
    reply_free(&r);
    client_close(&waiting);
    client_close(&busy);
    house_end(h);
}

/*
 * A request's own time: without an answer yet it is 504 and not to be repeated, in a stream it is a
 * frame.
 */
static void ends_requests_that_take_too_long(void **state)
{
    (void)state;
    house *h = make_slow();
    h->gateway_params.request_timeout_us = 200000;
    house_open(h);
    reply r = request_post(h->address, COMPLETION, EIGHT ",\"logprobs\":5}");
    assert_error(&r, 504, "request_timeout", NULL);
    assert_true(reply_header_is(&r, "x-should-retry", "false"));
    reply_free(&r);
    r = request_post(h->address, COMPLETION, EIGHT ",\"logprobs\":5,\"stream\":true}");
    assert_int_equal(r.status, 200);
    stream s = stream_parse(r.body, r.n_body);
    assert_non_null(s.error);
    assert_true(s.done);
    stream_free(&s);
    reply_free(&r);
    house_end(h);
}

/*
 * H1: hundreds of open requests and a full queue leave health as quick as ever, on both addresses.
 */
static void h1_health_answers_under_load(void **state)
{
    (void)state;
    enum { N = 500 };
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
    setrlimit(RLIMIT_NOFILE, &files);
    house *h = make_slow();
    h->engine_params.queue_max = N - 8;
    house_open(h);
    static client c[N];
    for (int i = 0; i < N; i++) {
        c[i] = client_open_small(h->address);
        client_post(&c[i], COMPLETION, ONE ",\"stream\":true,\"logprobs\":20}");
    }
    assert_true(house_awaits(h, "evenkeel_http_generations_open", N, WAIT_MS) ||
                house_metric(h, "evenkeel_http_generations_open") > 400);
    const char *const addresses[] = {h->address, h->health};
    for (int k = 0; k < 2; k++) {
        int64_t best = WAIT_MS, worst = 0;
        for (int i = 0; i < 20; i++) {
            int64_t start = now_ms();
            reply r = request_get(addresses[k], "/livez");
            int64_t took = now_ms() - start;
            assert_int_equal(r.status, 200);
            reply_free(&r);
            if (took < best) best = took;
            if (took > worst) worst = took;
        }
        print_message("/livez with %d requests open: best %d ms, worst %d ms\n",
                      (int)house_metric(h, "evenkeel_http_requests_open"), (int)best, (int)worst);
        assert_true(best < 50);
        assert_true(worst < 5000);
    }
    reply r = request_get(h->health, "/metrics");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    for (int i = 0; i < N; i++)
        client_close(&c[i]);
    house_end(h);
}

/*
 * H3: a step that lasts longer than the watchdog allows makes the process unhealthy, and only that
 * long.
 */
static void h3_notices_an_engine_that_is_stuck(void **state)
{
    (void)state;
    house *h = make_slow();
    h->engine_params.step_watchdog_us = 1;
    house_open(h);
    reply r = request_get(h->health, "/livez");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    client c = client_open(h->address);
    client_post(&c, COMPLETION, EIGHT ",\"logprobs\":20}");
    bool live_seen = false, ready_seen = false;
    int64_t end = now_ms() + WAIT_MS;
    while (!(live_seen && ready_seen) && now_ms() < end) {
        r = request_get(h->health, live_seen ? "/readyz" : "/livez");
        bool unhealthy = r.status == 503 && strstr(r.body, "unhealthy");
        if (unhealthy && live_seen) ready_seen = true;
        if (unhealthy) live_seen = true;
        reply_free(&r);
    }
    assert_true(live_seen && ready_seen);
    client_close(&c);
    assert_true(house_awaits(h, "evenkeel_requests_running", 0, WAIT_MS));
    bool healthy = false;
    for (end = now_ms() + WAIT_MS; !healthy && now_ms() < end;
         sleep_ms(2)) { /* after its last step */
        r = request_get(h->health, "/livez");
        healthy = r.status == 200;
        reply_free(&r);
    }
    assert_true(healthy);
    house_end(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(o1_refuses_what_does_not_fit),
        cmocka_unit_test(takes_all_choices_or_none),
        cmocka_unit_test(o3_waiting_has_an_end),
        cmocka_unit_test(pings_while_nothing_comes),
        cmocka_unit_test(fails_after_a_ping_in_a_frame),
        cmocka_unit_test(ends_requests_that_take_too_long),
        cmocka_unit_test(h1_health_answers_under_load),
        cmocka_unit_test(h3_notices_an_engine_that_is_stuck),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
