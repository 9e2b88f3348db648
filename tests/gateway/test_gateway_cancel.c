/*
 * Clients that leave, and clients that do not read: what they asked for ends at once, what others
 * asked for goes on, and every gauge comes back to exactly 0. Cases S1, S2, S4, S17. The engine
 * runs on the reference kernels and eight choices per request, so that there is something to leave
 * in the middle of.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "house.h"
#include "http/client.h"
#include "stream.h"
#include "sys/clock.h"
#include "sys/thread.h"

#define CHAT       "/v1/chat/completions"
#define COMPLETION "/v1/completions"
#define LONG       "{\"prompt\":[5],\"n\":8,\"max_tokens\":500,\"ignore_eos\":true,\"logprobs\":5"
#define WAIT_MS    120000

/*
 * A cancel has to arrive within 200 ms; a machine that runs other tests too may need longer to
 * notice.
 */
#define CANCEL_MS 5000

static house *open_slow(void)
{
    house *h = house_make();
    h->engine_params.kernels = EK_KERNELS_REFERENCE;
    house_open(h);
    return h;
}

/* The engine comes to stop computing: the count of tokens stands still. */
static void assert_decoding_stops(const house *h)
{
    int64_t end = now_ms() + WAIT_MS;
    double before, tokens = -1;
    do {
        assert_true(now_ms() < end);
        before = tokens;
        sleep_ms(200);
        tokens = house_metric(h, "evenkeel_completion_tokens_total");
    } while (tokens != before);
}

static double cancelled(const house *h)
{
    return house_metric(h, "evenkeel_http_cancelled_total");
}

/* S1, S17: a stream's client leaves after a few chunks, by either kind of end. */
static void s1_a_stream_ends_with_its_client(void **state)
{
    (void)state;
    house *h = open_slow();
    for (int kind = 0; kind < 3; kind++) {
        double before = cancelled(h);
        double gone = house_metric(h, "evenkeel_http_requests_total{code=\"499\"}");
        client c = client_open(h->address);
        client_post(&c, COMPLETION, LONG ",\"stream\":true}");
        assert_true(client_sees(&c, "data: ", WAIT_MS));
        assert_true(house_metric(h, "evenkeel_requests_running") > 0);
        int64_t start = now_ms();
        if (kind == 0) {
            client_reset(&c);
        } else {
            if (kind == 2) sleep_ms(20);
            client_close(&c);
        }
        assert_true(house_awaits(h, "evenkeel_requests_running", 0, CANCEL_MS));
        print_message("free after %d ms\n", (int)(now_ms() - start));
        assert_decoding_stops(h);
        assert_true(house_awaits(h, "evenkeel_http_requests_open", 0, WAIT_MS));
        assert_true(cancelled(h) == before + 1);
        assert_true(house_metric(h, "evenkeel_http_requests_total{code=\"499\"}") == gone + 1);
    }
    house_end(h);
}

/* S2: the same for a client that waits for a plain answer, and for one that waits for a place. */
static void s2_a_plain_request_ends_with_its_client(void **state)
{
    (void)state;
    house *h = open_slow();
    client c = client_open(h->address);
    client_post(&c, COMPLETION, LONG "}");
    assert_true(house_awaits(h, "evenkeel_requests_running", 8, WAIT_MS));
    client queued = client_open(h->address);
    client_post(&queued, COMPLETION, LONG "}");
    assert_true(house_awaits(h, "evenkeel_requests_waiting", 8, WAIT_MS));
    client_close(&queued);
    assert_true(house_awaits(h, "evenkeel_requests_waiting", 0, CANCEL_MS));
    assert_true(house_metric(h, "evenkeel_requests_running") == 8); /* the other one goes on */
    client_close(&c);
    assert_true(house_awaits(h, "evenkeel_requests_running", 0, CANCEL_MS));
    assert_decoding_stops(h);
    assert_true(cancelled(h) == 2);
    house_end(h);
}

/*
 * A client that does not read: the server holds a bounded piece of its stream and stops taking
 * tokens from the engine, others are served meanwhile; when the client reads at last, nothing is
 * missing.
 */
static void a_slow_reader_pauses_its_own_stream(void **state)
{
    (void)state;
    house *h = open_slow();
    client slow = client_open_small(h->address);
    client_post(
        &slow, CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":450,"
        "\"ignore_eos\":true,\"logprobs\":true,\"top_logprobs\":20,\"n\":4,\"stream\":true}");
    int64_t end = now_ms() + WAIT_MS;
    while (house_metric(h, "evenkeel_http_stream_stalls_total") == 0 && now_ms() < end)
        sleep_ms(10);
    assert_true(house_metric(h, "evenkeel_http_stream_stalls_total") > 0);
    assert_decoding_stops(h);
    assert_true(house_metric(h, "evenkeel_completion_tokens_total") < 4 * 450);
    reply other = request_post(h->address, COMPLETION, "{\"prompt\":[5],\"max_tokens\":5}");
    assert_int_equal(other.status, 200);
    reply_free(&other);
    reply r = client_reply(&slow, WAIT_MS);
    assert_int_equal(r.status, 200);
    stream s = stream_parse(r.body, r.n_body);
    assert_true(s.done);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(s.choice[i].finish, "length");
        assert_int_equal(s.choice[i].n_logprobs, 450);
    }
    stream_free(&s);
    reply_free(&r);
    client_close(&slow);
    house_end(h);
}

/* And one that never reads again is given up, with everything it held. */
static void a_reader_that_stops_is_given_up(void **state)
{
    (void)state;
    house *h = house_make();
    h->engine_params.kernels = EK_KERNELS_REFERENCE;
    h->gateway_params.idle_timeout_us = 1000000;
    house_open(h);
    client slow = client_open_small(h->address);
    client_post(&slow, COMPLETION, LONG ",\"stream\":true}");
    int64_t end = now_ms() + WAIT_MS;
    while (house_metric(h, "evenkeel_http_stream_stalls_total") == 0 && now_ms() < end)
        sleep_ms(10);
    assert_true(house_awaits(h, "evenkeel_http_requests_open", 0, WAIT_MS));
    assert_true(cancelled(h) == 1);
    client_close(&slow);
    house_end(h);
}

/* ---- S4: many at once ---- */

#define STORM_CLIENTS 64

typedef struct storm {
    house *h;
    int n_requests; /* of each client */
    uint64_t seed;
    int n_whole; /* answers that were read to their end */
    int n_refused;
} storm;

static const char *const storm_texts[] = {
    "Where is my parcel?",
    "\xe6\x88\x91\xe7\x9a\x84\xe8\xae\xa2\xe5\x8d\x95\xe5\x88\xb0\xe5\x93\xaa\xe9\x87\x8c\xe4\xba"
    "\x86"
    "\xef\xbc\x9f",
    "for (int i = 0; i < n; i++) { sum += a[i]; }",
    "\xe8\xbf\x99\xe4\xb8\xaa error \xe6\x80\x8e\xe4\xb9\x88\xe5\x8a\x9e: \\\"EPIPE\\\"?",
    "def f(x):\\n    return x * 2  # \xe4\xb9\x98",
};

static int storm_body(ek_rng *rng, bool streams, char *out_body, size_t bytes)
{
    return snprintf(out_body, bytes,
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":%d,"
                    "\"ignore_eos\":true,\"n\":%d,\"stream\":%s,\"seed\":%d}",
                    storm_texts[ek_rng_below(rng, 5)], 1 + (int)ek_rng_below(rng, 60),
                    1 + (int)ek_rng_below(rng, 2), streams ? "true" : "false",
                    (int)ek_rng_below(rng, 1000));
}

/*
 * One request that is left at a random moment: while sending, while waiting, in the stream, or not
 * at all.
 */
static void storm_request(storm *s, ek_rng *rng)
{
    char body[1024], text[2048];
    bool streams = ek_rng_below(rng, 2);
    int n_body = storm_body(rng, streams, body, sizeof body);
    int n =
        snprintf(text, sizeof text,
                 "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", n_body, body);
    client c = client_open(s->h->address);
    uint64_t moment = ek_rng_below(rng, 5);
    size_t n_sent = moment == 0 ? ek_rng_below(rng, (uint64_t)n) : (size_t)n;
    client_send(&c, text, n_sent);
    if (moment == 1) client_receive(&c, (int64_t)ek_rng_below(rng, 5));
    if (moment == 2) client_sees(&c, "\r\n\r\n", WAIT_MS);
    if (moment >= 3) {
        reply r = client_reply(&c, WAIT_MS);
        assert_true(r.status == 200 || r.status == 429);
        if (r.status == 200 && streams) {
            stream parsed = stream_parse(r.body, r.n_body);
            assert_true(parsed.done && !parsed.error);
            stream_free(&parsed);
        }
        s->n_whole += r.status == 200;
        s->n_refused += r.status == 429;
        reply_free(&r);
    }
    if (ek_rng_below(rng, 2)) {
        client_reset(&c);
    } else {
        client_close(&c);
    }
}

/* A failed assertion on this thread ends the program, which is loud enough. */
static void storm_main(void *ctx)
{
    storm *s = ctx;
    ek_rng rng;
    ek_rng_init(&rng, s->seed);
    for (int i = 0; i < s->n_requests; i++)
        storm_request(s, &rng);
}

/* EK_STORM is the number of requests; the acceptance figure is 10000. */
static void s4_nothing_is_left_of_a_storm(void **state)
{
    (void)state;
    const char *wanted = getenv("EK_STORM");
    int n_total = wanted ? (int)strtol(wanted, NULL, 10) : 1000;
    house *h = house_make();
    h->engine_params.queue_max = 32;
    house_open(h);
    static storm s[STORM_CLIENTS];
    ek_sys_thread thread[STORM_CLIENTS] = {0};
    for (int i = 0; i < STORM_CLIENTS; i++) {
        s[i] = (storm){.h = h, .n_requests = n_total / STORM_CLIENTS + 1, .seed = (uint64_t)i + 1};
        assert_int_equal(ek_sys_thread_start(&thread[i], "storm", storm_main, &s[i]), EK_OK);
    }
    int n_whole = 0, n_refused = 0;
    for (int i = 0; i < STORM_CLIENTS; i++) {
        ek_sys_thread_join(&thread[i]);
        n_whole += s[i].n_whole;
        n_refused += s[i].n_refused;
    }
    print_message("%d requests: %d read to their end, %d refused, %d cancelled in the engine\n",
                  STORM_CLIENTS * (n_total / STORM_CLIENTS + 1), n_whole, n_refused,
                  (int)cancelled(h));
    assert_true(n_whole > 0);
    assert_true(cancelled(h) > 0);
    house_assert_idle(h);
    /* And it serves as before. */
    reply r = request_post(h->address, COMPLETION, "{\"prompt\":[5],\"max_tokens\":5}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    house_end(h);
}

/* Everybody at once, each to its end: 64 streams over 8 places. */
static void many_streams_all_end_well(void **state)
{
    (void)state;
    house *h = house_make();
    h->engine_params.queue_max = 128;
    house_open(h);
    client c[64];
    for (int i = 0; i < 64; i++) {
        char body[1024];
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":80,"
                 "\"ignore_eos\":true,\"stream\":true}",
                 storm_texts[i % 5]);
        c[i] = client_open(h->address);
        client_post(&c[i], CHAT, body);
    }
    for (int i = 0; i < 64; i++) {
        reply r = client_reply(&c[i], WAIT_MS);
        assert_int_equal(r.status, 200);
        stream s = stream_parse(r.body, r.n_body);
        assert_true(s.done);
        assert_string_equal(s.choice[0].finish, "length");
        stream_free(&s);
        reply_free(&r);
        client_close(&c[i]);
    }
    house_end(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(s1_a_stream_ends_with_its_client),
        cmocka_unit_test(s2_a_plain_request_ends_with_its_client),
        cmocka_unit_test(a_slow_reader_pauses_its_own_stream),
        cmocka_unit_test(a_reader_that_stops_is_given_up),
        cmocka_unit_test(many_streams_all_end_well),
        cmocka_unit_test(s4_nothing_is_left_of_a_storm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
