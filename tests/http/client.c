#include "client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define REPLY_MS 120000

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void sleep_ms(int64_t ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static bool open_with(const char *address, int receive_bytes, client *out_client)
{
    char host[64];
    const char *colon = strrchr(address, ':');
    assert_non_null(colon);
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    struct sockaddr_in peer = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10))};
    assert_int_equal(inet_pton(AF_INET, host, &peer.sin_addr), 1);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    if (receive_bytes) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    if (connect(fd, (struct sockaddr *)&peer, sizeof peer) != 0) {
        close(fd);
        return false;
    }
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    *out_client = (client){.fd = fd};
    return true;
}

bool client_try_open(const char *address, client *out_client)
{
    return open_with(address, 0, out_client);
}

client client_open_small(const char *address)
{
    client c;
    assert_true(open_with(address, 4096, &c));
    return c;
}

client client_open(const char *address)
{
    client c;
    assert_true(client_try_open(address, &c));
    return c;
}

void client_close(client *c)
{
    if (c->fd >= 0) close(c->fd);
    free(c->data);
    *c = (client){.fd = -1};
}

void client_reset(client *c)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    client_close(c);
}

bool client_send(client *c, const void *bytes, size_t n)
{
    const char *at = bytes;
    while (n > 0) {
        ssize_t sent = send(c->fd, at, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent;
        n -= (size_t)sent;
    }
    return true;
}

bool client_sendz(client *c, const char *text)
{
    return client_send(c, text, strlen(text));
}

bool client_post(client *c, const char *path, const char *body)
{
    char head[512];
    snprintf(head, sizeof head,
             "POST %s HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n",
             path, strlen(body));
    return client_sendz(c, head) && client_sendz(c, body);
}

bool client_get(client *c, const char *path)
{
    char head[512];
    snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: test\r\n\r\n", path);
    return client_sendz(c, head);
}

bool client_receive(client *c, int64_t timeout_ms)
{
    if (c->eof) return false;
    struct pollfd poll_fd = {.fd = c->fd, .events = POLLIN};
    int ready;
    do {
        ready = poll(&poll_fd, 1, (int)timeout_ms);
    } while (ready < 0 && errno == EINTR);
    if (ready <= 0) return false;
    if (c->cap - c->len < 65536) {
        c->cap = c->cap ? c->cap * 2 : 131072;
        c->data = realloc(c->data, c->cap);
        assert_non_null(c->data);
    }
    ssize_t n = recv(c->fd, c->data + c->len, c->cap - c->len - 1, 0);
    if (n <= 0) {
        c->eof = true;
        return false;
    }
    c->len += (size_t)n;
    c->data[c->len] = '\0';
    return true;
}

/* memmem, which POSIX lacks. */
static char *find(char *data, size_t n, const char *text)
{
    size_t n_text = strlen(text);
    for (size_t i = 0; i + n_text <= n; i++)
        if (memcmp(data + i, text, n_text) == 0) return data + i;
    return NULL;
}

bool client_sees(client *c, const char *text, int64_t timeout_ms)
{
    int64_t end = now_ms() + timeout_ms;
    while (!c->data || !find(c->data, c->len, text)) {
        int64_t left = end - now_ms();
        if (left <= 0 || c->eof) return false;
        client_receive(c, left);
    }
    return true;
}

bool client_sees_end(client *c, int64_t timeout_ms)
{
    int64_t end = now_ms() + timeout_ms;
    while (!c->eof && now_ms() < end)
        client_receive(c, end - now_ms());
    return c->eof;
}

static void consume(client *c, size_t n)
{
    assert_true(n <= c->len);
    memmove(c->data, c->data + n, c->len - n);
    c->len -= n;
    c->data[c->len] = '\0';
}

static char *copy_text(const char *text, size_t n)
{
    char *copy = malloc(n + 1);
    assert_non_null(copy);
    if (n) memcpy(copy, text, n);
    copy[n] = '\0';
    return copy;
}

char *reply_header(const reply *r, const char *name)
{
    size_t n_name = strlen(name);
    for (const char *line = strstr(r->head, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        const char *at = line + 2;
        if (strncasecmp(at, name, n_name) != 0 || at[n_name] != ':') continue;
        at += n_name + 1;
        at += strspn(at, " ");
        return copy_text(at, strcspn(at, "\r"));
    }
    return NULL;
}

bool reply_header_is(const reply *r, const char *name, const char *value)
{
    char *found = reply_header(r, name);
    bool same = found && strcmp(found, value) == 0;
    if (!same) print_message("header %s is \"%s\"\n", name, found ? found : "(none)");
    free(found);
    return same;
}

/* Bytes of a body are there, or more are waited for. */
static bool await_bytes(client *c, size_t n, int64_t end)
{
    while (c->len < n)
        if (c->eof || now_ms() >= end || !client_receive(c, end - now_ms())) return c->len >= n;
    return true;
}

static bool await_line(client *c, int64_t end, size_t *out_n)
{
    char *line_end;
    while (!(line_end = c->data ? find(c->data, c->len, "\r\n") : NULL))
        if (c->eof || now_ms() >= end || !client_receive(c, end - now_ms())) return false;
    *out_n = (size_t)(line_end - c->data);
    return true;
}

static void add_body(reply *r, const char *bytes, size_t n)
{
    r->body = realloc(r->body, r->n_body + n + 1);
    assert_non_null(r->body);
    memcpy(r->body + r->n_body, bytes, n);
    r->n_body += n;
    r->body[r->n_body] = '\0';
}

static bool take_chunks(client *c, reply *r, int64_t end)
{
    for (;;) {
        size_t n_line;
        if (!await_line(c, end, &n_line)) return false;
        size_t n = strtoul(c->data, NULL, 16);
        consume(c, n_line + 2);
        if (!await_bytes(c, n + 2, end)) return false;
        assert_memory_equal(c->data + n, "\r\n", 2);
        add_body(r, c->data, n);
        consume(c, n + 2);
        if (n == 0) return true;
        r->n_chunks++;
    }
}

static bool take_body(client *c, reply *r, int64_t end)
{
    char *coding = reply_header(r, "Transfer-Encoding");
    char *length = reply_header(r, "Content-Length");
    bool whole = true;
    add_body(r, "", 0);
    if (coding) {
        whole = take_chunks(c, r, end);
    } else if (length) {
        size_t n = strtoul(length, NULL, 10);
        whole = await_bytes(c, n, end);
        if (whole) add_body(r, c->data ? c->data : "", n);
        if (whole && n) consume(c, n);
    } else {
        while (!c->eof && now_ms() < end)
            client_receive(c, end - now_ms());
        if (c->len) add_body(r, c->data, c->len);
        c->len = 0;
    }
    free(coding);
    free(length);
    return whole;
}

static reply take_reply(client *c, int64_t timeout_ms, bool has_body)
{
    reply r = {0};
    int64_t end = now_ms() + timeout_ms;
    if (!client_sees(c, "\r\n\r\n", timeout_ms)) return r;
    size_t n_head = (size_t)(find(c->data, c->len, "\r\n\r\n") - c->data) + 4;
    r.head = copy_text(c->data, n_head);
    consume(c, n_head);
    assert_int_equal(strncmp(r.head, "HTTP/1.1 ", 9), 0);
    int status = (int)strtol(r.head + 9, NULL, 10);
    if (status == 100) {
        reply_free(&r);
        return take_reply(c, end - now_ms(), has_body);
    }
    if (!has_body || take_body(c, &r, end)) r.status = status;
    return r;
}

reply client_reply(client *c, int64_t timeout_ms)
{
    return take_reply(c, timeout_ms, true);
}

reply client_reply_head(client *c, int64_t timeout_ms)
{
    return take_reply(c, timeout_ms, false);
}

void reply_free(reply *r)
{
    free(r->head);
    free(r->body);
    *r = (reply){0};
}

json_t *reply_json(const reply *r)
{
    json_error_t error;
    assert_int_not_equal(r->status, 0);
    json_t *json = json_loadb(r->body, r->n_body, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!json) print_message("not JSON (%s): %.300s\n", error.text, r->body);
    assert_non_null(json);
    return json;
}

reply request_post(const char *address, const char *path, const char *body)
{
    client c = client_open(address);
    client_post(&c, path, body);
    reply r = client_reply(&c, REPLY_MS);
    client_close(&c);
    return r;
}

reply request_get(const char *address, const char *path)
{
    client c = client_open(address);
    client_get(&c, path);
    reply r = client_reply(&c, REPLY_MS);
    client_close(&c);
    return r;
}

reply request_raw(const char *address, const char *bytes)
{
    client c = client_open(address);
    client_sendz(&c, bytes);
    reply r = client_reply(&c, REPLY_MS);
    client_close(&c);
    return r;
}

static bool is_text_or_null(const json_t *value)
{
    return json_is_string(value) || json_is_null(value);
}

const char *reply_error_code(const reply *r)
{
    static char code[64];
    json_t *root = reply_json(r);
    const json_t *error = json_object_get(root, "error");
    char *type = reply_header(r, "Content-Type");
    assert_non_null(type);
    assert_int_equal(strncmp(type, "application/json", 16), 0);
    free(type);
    assert_int_equal(json_object_size(root), 1);
    assert_true(json_is_object(error));
    assert_int_equal(json_object_size(error), 4);
    assert_true(json_is_string(json_object_get(error, "message")));
    assert_true(json_string_length(json_object_get(error, "message")) > 0);
    assert_true(json_is_string(json_object_get(error, "type")));
    assert_true(is_text_or_null(json_object_get(error, "param")));
    assert_true(is_text_or_null(json_object_get(error, "code")));
    char *id = reply_header(r, "x-request-id");
    assert_non_null(id);
    free(id);
    if (r->status == 429 || r->status == 503) {
        char *retry = reply_header(r, "Retry-After");
        assert_non_null(retry);
        long seconds = strtol(retry, NULL, 10);
        assert_in_range(seconds, 1, 120);
        free(retry);
    }
    snprintf(code, sizeof code, "%s", json_string_value(json_object_get(error, "code")));
    json_decref(root);
    return code;
}

void assert_error(const reply *r, int status, const char *code, const char *param)
{
    if (r->status != status)
        print_message("status %d: %.300s\n", r->status, r->body ? r->body : "");
    assert_int_equal(r->status, status);
    assert_string_equal(reply_error_code(r), code);
    json_t *root = reply_json(r);
    const json_t *named = json_object_get(json_object_get(root, "error"), "param");
    if (param) {
        assert_true(json_is_string(named));
        assert_string_equal(json_string_value(named), param);
    } else {
        assert_true(json_is_null(named));
    }
    json_decref(root);
}
