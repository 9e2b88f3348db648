#define _XOPEN_SOURCE 700 /* nftw */
/*
 * Goal: both fabrics carry messages whole and in order, whatever pieces they arrive in; a peer that
 * sends nonsense, goes away or is not who it should be is found out. Method: real sockets on
 * loopback between two threads, certificates made for the test.
 */
#include <ftw.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/attr.h"
#include "link/certs.h"
#include "link/fabric_tcp.h"
#include "link/fabric_ucx.h"
#include "link/net.h"
#include "sys/clock.h"

#define SECOND  INT64_C(1000000)
#define DAY_S   INT64_C(86400)
#define BODY    300000 /* more than a socket takes at once */
#define N_TURNS 20

static char dir[] = "/tmp/evenkeel-fabric-XXXXXX";

static const char *certs_of(const char *name)
{
    static char path[4][128];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof path[0], "%s/%s/%s", dir,
             strcmp(name, "foreign") == 0 || strcmp(name, "liar") == 0 ? "b" : "a", name);
    return out;
}

static void issue(const char *authority, const char *name, ek_certs_role role, const char *host,
                  int64_t from_s, int64_t to_s)
{
    char path[128], text[128];
    ek_certs_authority *a = NULL;
    ek_certs_node node;
    ek_err err = {0};
    snprintf(path, sizeof path, "%s/%s", dir, authority);
    snprintf(text, sizeof text, "%s=%s", name, host);
    if (ek_link_certs_open(path, ek_sys_wall_s(), 10, &a, &err) != EK_OK ||
        ek_link_certs_node_parse(text, role, &node, &err) != EK_OK ||
        ek_link_certs_issue(a, &node, from_s, to_s, 0, &err) != EK_OK)
        fail_msg("%s", err.text);
    ek_link_certs_close(a);
}

static int make_certs(void **state EK_UNUSED)
{
    int64_t now_s = ek_sys_wall_s();
    signal(SIGPIPE, SIG_IGN);
    if (!mkdtemp(dir)) return -1;
    issue("a", "front", EK_CERTS_FRONT, "front", now_s - DAY_S, now_s + DAY_S);
    issue("a", "worker", EK_CERTS_WORKER, "127.0.0.1", now_s - DAY_S, now_s + DAY_S);
    issue("a", "elsewhere", EK_CERTS_WORKER, "10.1.2.3", now_s - DAY_S, now_s + DAY_S);
    issue("a", "old", EK_CERTS_FRONT, "old", now_s - 2 * DAY_S, now_s - DAY_S);
    issue("a", "oldworker", EK_CERTS_WORKER, "127.0.0.1", now_s - 2 * DAY_S, now_s - DAY_S);
    issue("b", "foreign", EK_CERTS_FRONT, "foreign", now_s - DAY_S, now_s + DAY_S);
    issue("b", "liar", EK_CERTS_FRONT, "liar", now_s - DAY_S, now_s + DAY_S);
    /* It knows the authority that it is not of. */
    char from[128], to[128];
    snprintf(from, sizeof from, "%s/a/ca.pem", dir);
    snprintf(to, sizeof to, "%s/b/liar/ca.pem", dir);
    return remove(to) || link(from, to);
}

static int remove_one(const char *path, const struct stat *st EK_UNUSED, int flag EK_UNUSED,
                      struct FTW *ftw EK_UNUSED)
{
    return remove(path);
}

static int remove_certs(void **state EK_UNUSED)
{
    return nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- a peer ---- */

typedef struct peer {
    ek_fabric *fabric;
    ek_listener *listener;
    ek_status status;
    ek_err err;
    int turns;
    pthread_t thread;
} peer;

static ek_fabric *open_fabric(const char *certs)
{
    ek_fabric *fabric = NULL;
    ek_err err = {0};
    ek_status status = certs ? ek_link_fabric_tls(certs_of(certs), &fabric, &err)
                             : ek_link_fabric_tcp(&fabric, &err);
    if (status != EK_OK) fail_msg("%s", err.text);
    return fabric;
}

/* Echoes messages until the other side goes. */
static void *echo(void *ctx)
{
    peer *p = ctx;
    ek_link *link = NULL;
    uint8_t *body = malloc(BODY);
    p->status = p->fabric->ops->accept(p->listener, 5 * SECOND, &link);
    if (p->status == EK_OK)
        p->status = link->ops->handshake(link, ek_sys_now_us() + 5 * SECOND, &p->err);
    while (p->status == EK_OK) {
        ek_wire_header header;
        int64_t until_us = ek_sys_now_us() + 5 * SECOND;
        p->status = ek_link_receive(link, &header, body, BODY, until_us);
        if (p->status == EK_OK)
            p->status = ek_link_send(link, &header, (ek_span){body, header.body_bytes}, until_us);
        p->turns += p->status == EK_OK;
        if (p->status != EK_OK && !p->err.text[0]) p->err = link->broken;
    }
    ek_link_close(link);
    free(body);
    return NULL;
}

static void start(peer *p, const char *certs)
{
    ek_err err = {0};
    *p = (peer){.fabric = open_fabric(certs)};
    if (p->fabric->ops->listen(p->fabric, "127.0.0.1:0", &p->listener, &err) != EK_OK)
        fail_msg("%s", err.text);
    assert_int_equal(pthread_create(&p->thread, NULL, echo, p), 0);
}

static void finish(peer *p)
{
    pthread_join(p->thread, NULL);
    p->fabric->ops->unlisten(p->listener);
    ek_link_fabric_destroy(p->fabric);
}

static ek_status call(const peer *p, ek_fabric *fabric, ek_link **out_link, ek_err *err)
{
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)p->fabric->ops->port(p->listener));
    return fabric->ops->connect(fabric, address, ek_sys_now_us() + 5 * SECOND, out_link, err);
}

/* ---- messages ---- */

static void carry(const char *server, const char *client)
{
    peer p;
    ek_link *link = NULL;
    ek_err err = {0};
    uint8_t *out = malloc(BODY), *in = malloc(BODY);
    start(&p, server);
    ek_fabric *fabric = open_fabric(client);
    if (call(&p, fabric, &link, &err) != EK_OK) fail_msg("%s", err.text);
    for (int turn = 0; turn < N_TURNS; turn++) {
        size_t n = turn == 0 ? 0 : (size_t)(BODY >> (turn % 7));
        ek_wire_header header = ek_link_wire_header(EK_WIRE_DISPATCH, 3), back;
        header.seq = (uint64_t)turn;
        header.body_bytes = (uint32_t)n;
        for (size_t i = 0; i < n; i++)
            out[i] = (uint8_t)(i * 31 + (size_t)turn);
        int64_t until_us = ek_sys_now_us() + 5 * SECOND;
        assert_int_equal(ek_link_send(link, &header, (ek_span){out, n}, until_us), EK_OK);
        assert_int_equal(ek_link_receive(link, &back, in, BODY, until_us), EK_OK);
        assert_memory_equal(&header, &back, sizeof header);
        assert_memory_equal(out, in, n);
    }
    assert_true(link->bytes_sent > BODY && link->bytes_sent == link->bytes_received);
    ek_link_close(link);
    finish(&p);
    assert_int_equal(p.turns, N_TURNS);
    assert_int_equal(p.status, EK_EPEER); /* it saw that we went */
    ek_link_fabric_destroy(fabric);
    free(out);
    free(in);
}

static void carries_bare(void **state EK_UNUSED)
{
    carry(NULL, NULL);
}

static void carries_encrypted(void **state EK_UNUSED)
{
    carry("worker", "front");
}

static void carries_over_ucx(void **state EK_UNUSED)
{
    static const size_t sizes[] = {0, 1, 16, 4000, 70000, BODY};
    ek_fabric *fabric = NULL;
    ek_link *half[2] = {NULL};
    uint8_t address[2][EK_WIRE_ADDRESS_MAX], *out = malloc(BODY), *in = malloc(BODY);
    size_t bytes[2];
    ek_err err = {0};
    setenv("UCX_NET_DEVICES", "lo", 0);
    if (ek_link_fabric_ucx(&fabric, &err) != EK_OK) {
        print_message("skipped: %s\n", err.text);
        free(out);
        free(in);
        skip();
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fabric->ops->open(fabric, &half[i], &err), EK_OK);
        bytes[i] = fabric->ops->address(half[i], address[i], sizeof address[i]);
        assert_in_range(bytes[i], 1, sizeof address[i]);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(fabric->ops->meet(half[i], address[1 - i], bytes[1 - i], &err), EK_OK);
    for (size_t s = 0; s < EK_COUNT_OF(sizes); s++) {
        /* Two parts: the second one goes with the header. */
        size_t n = sizes[s], n_tail = n > 4000 ? 4000 : n;
        ek_wire_header header = ek_link_wire_header(EK_WIRE_COMBINE, 3), back = {0};
        header.body_bytes = (uint32_t)n;
        for (size_t i = 0; i < n; i++)
            out[i] = (uint8_t)(i * 7 + s);
        const ek_span parts[] = {{out, n - n_tail}, {out + n - n_tail, n_tail}};
        ek_status sent = half[0]->ops->send(half[0], &header, parts, 2);
        ek_status got = EK_AGAIN, whole = EK_AGAIN;
        memset(in, 0xee, BODY);
        for (int64_t until_us = ek_sys_now_us() + 5 * SECOND; ek_sys_now_us() < until_us;) {
            if (sent == EK_AGAIN) sent = half[0]->ops->flush(half[0]);
            if (got == EK_AGAIN) got = half[1]->ops->header(half[1], &back);
            if (got == EK_OK && whole == EK_AGAIN) whole = half[1]->ops->body(half[1], in);
            if (sent != EK_AGAIN && whole != EK_AGAIN) break;
            ek_link_wait(half, 2, 1000);
        }
        assert_int_equal(sent, EK_OK);
        assert_int_equal(whole, EK_OK);
        assert_memory_equal(&header, &back, sizeof header);
        assert_memory_equal(in, out, n);
    }
    /* One ends, whoever waits on the other side hears of it. */
    half[1]->ops->interrupt(half[1]);
    assert_int_equal(half[1]->ops->header(half[1], &(ek_wire_header){0}), EK_EPEER);
    ek_link_close(half[1]);
    ek_link_close(half[0]);
    ek_link_fabric_destroy(fabric);
    free(out);
    free(in);
}

/* ---- who may not ---- */

/* The handshake fails on one side at least, and whoever refuses says why. */
static void check_refused(const char *server, const char *client, const char *why)
{
    peer p;
    ek_link *link = NULL;
    ek_err err = {0};
    uint8_t body[8];
    start(&p, server);
    ek_fabric *fabric = open_fabric(client);
    ek_status status = call(&p, fabric, &link, &err);
    if (status == EK_OK) {
        /* In TLS 1.3 a client learns with its first read that its certificate was not liked. */
        ek_wire_header header = ek_link_wire_header(EK_WIRE_HELLO, 0);
        (void)!ek_link_send(link, &header, (ek_span){0}, ek_sys_now_us() + SECOND);
        status = ek_link_receive(link, &header, body, sizeof body, ek_sys_now_us() + 5 * SECOND);
        snprintf(err.text, sizeof err.text, "%s", link->broken.text);
    }
    ek_link_close(link);
    finish(&p);
    assert_int_equal(status, EK_EPEER);
    assert_int_equal(p.turns, 0);
    if (!strstr(err.text, why) && !strstr(p.err.text, why))
        fail_msg("server: %s; client: %s; wanted: %s", p.err.text, err.text, why);
    ek_link_fabric_destroy(fabric);
}

static void refuses_strangers(void **state EK_UNUSED)
{
    check_refused("worker", "foreign", "the peer's certificate is refused");
    check_refused("worker", "liar", "unable to get local issuer");
    check_refused("worker", "old", "certificate has expired");
    check_refused("oldworker", "front", "certificate has expired");
    check_refused("elsewhere", "front", "IP address mismatch");
    check_refused("front", "front", "unsuitable certificate purpose");
}

/* Workers call each other, and are known for workers: it is for whoever answers to say to what. */
static void knows_workers(void **state EK_UNUSED)
{
    peer p;
    ek_link *link = NULL;
    ek_err err = {0};
    start(&p, "worker");
    ek_fabric *fabric = open_fabric("worker");
    assert_int_equal(call(&p, fabric, &link, &err), EK_OK);
    assert_true(link->is_worker);
    ek_link_close(link);
    finish(&p);
    ek_link_fabric_destroy(fabric);
}

static void refuses_those_without_tls(void **state EK_UNUSED)
{
    check_refused("worker", NULL, "");
}

/* ---- nonsense ---- */

static void send_raw(const void *bytes, size_t n, ek_status expected, const char *why)
{
    peer p;
    char address[64];
    int fd;
    ek_err err = {0};
    start(&p, NULL);
    snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)p.fabric->ops->port(p.listener));
    assert_int_equal(ek_link_net_connect(address, ek_sys_now_us() + SECOND, &fd, &err), EK_OK);
    assert_int_equal(send(fd, bytes, n, 0), (ssize_t)n);
    shutdown(fd, SHUT_WR);
    finish(&p);
    close(fd);
    assert_int_equal(p.status, expected);
    if (!strstr(p.err.text, why)) fail_msg("%s; wanted: %s", p.err.text, why);
}

static void sees_through_nonsense(void **state EK_UNUSED)
{
    uint8_t zeros[64] = {0};
    send_raw(zeros, sizeof zeros, EK_EFORMAT, "no message");
    send_raw(zeros, 16, EK_EPEER, "closed");
    static const char http[] =
        "GET /metrics HTTP/1.1\r\nHost: worker-0:7070\r\nUser-Agent: somebody\r\n\r\n";
    send_raw(http, sizeof http - 1, EK_EFORMAT, "no message");
    ek_wire_header header = ek_link_wire_header(EK_WIRE_DISPATCH, 1);
    header.body_bytes = EK_WIRE_BODY_BYTES_MAX; /* the receiver has less */
    send_raw(&header, sizeof header, EK_EFORMAT, "have room");
    header.body_bytes = UINT32_MAX;
    send_raw(&header, sizeof header, EK_EFORMAT, "have room");
    header.body_bytes = 1000; /* which never come */
    send_raw(&header, sizeof header, EK_EPEER, "closed");
    header.version = 9;
    send_raw(&header, sizeof header, EK_EUNSUPPORTED, "version 9");
}

static void reads_addresses(void **state EK_UNUSED)
{
    char host[EK_NET_HOST_MAX];
    uint16_t port;
    assert_int_equal(ek_link_net_split("worker-0.lan:7070", host, &port, NULL), EK_OK);
    assert_string_equal(host, "worker-0.lan");
    assert_int_equal(port, 7070);
    assert_int_equal(ek_link_net_split("[fd00::1]:0", host, &port, NULL), EK_OK);
    assert_string_equal(host, "fd00::1");
    static const char *const wrong[] = {"",        "7070",         ":7070",   "host:", "host:70700",
                                        "host:7x", "fd00::1:7070", "host:-1", "a:b:1", "host: 1"};
    for (size_t i = 0; i < EK_COUNT_OF(wrong); i++)
        if (ek_link_net_split(wrong[i], host, &port, NULL) != EK_EINVAL)
            fail_msg("\"%s\" was taken", wrong[i]);
    assert_true(ek_link_net_is_loopback("127.3.2.1"));
    assert_false(ek_link_net_is_loopback("10.0.0.1"));
}

static void names_missing_files(void **state EK_UNUSED)
{
    ek_fabric *fabric;
    ek_err err = {0};
    assert_int_equal(ek_link_fabric_tls("/nowhere", &fabric, &err), EK_ECONFIG);
    assert_non_null(strstr(err.text, "/nowhere/ca.pem"));
    assert_non_null(strstr(err.text, "cluster init"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(carries_bare),          cmocka_unit_test(carries_encrypted),
        cmocka_unit_test(carries_over_ucx),      cmocka_unit_test(refuses_strangers),
        cmocka_unit_test(knows_workers),         cmocka_unit_test(refuses_those_without_tls),
        cmocka_unit_test(sees_through_nonsense), cmocka_unit_test(reads_addresses),
        cmocka_unit_test(names_missing_files),
    };
    return cmocka_run_group_tests(tests, make_certs, remove_certs);
}
