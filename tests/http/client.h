/*
 * An HTTP client for tests that sends exactly the bytes it is given and takes replies apart by
 * hand, so that what the server does with odd bytes, half requests and sudden ends can be seen.
 * Nothing of it is shared with the server's own parser. A client belongs to one thread.
 */
#ifndef EK_TESTS_HTTP_CLIENT_H
#define EK_TESTS_HTTP_CLIENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct client {
    int fd;     /* -1: closed by us */
    char *data; /* heap: received and not yet taken */
    size_t len;
    size_t cap;
    bool eof; /* the server closed, or the connection was reset */
} client;

typedef struct reply {
    int status; /* 0: the connection ended, or time was up, before a whole reply came */
    char *head; /* heap, NUL-terminated: status line and headers */
    char *body; /* heap, NUL-terminated; chunks joined */
    size_t n_body;
    int32_t n_chunks; /* HTTP chunks of the body */
} reply;

/** Connect to "127.0.0.1:PORT"; fails the test when refused. */
client client_open(const char *address);
/** The same; false when refused. */
bool client_try_open(const char *address, client *out_client);
/** With a receive buffer of a few KiB, so that the server notices when nobody reads. */
client client_open_small(const char *address);
void client_close(client *c);
/** Close so that the server sees a reset. */
void client_reset(client *c);

/** Send bytes; false when the server has closed. */
bool client_send(client *c, const void *bytes, size_t n);
bool client_sendz(client *c, const char *text);
/** POST with Content-Length and a JSON content type. */
bool client_post(client *c, const char *path, const char *body);
bool client_get(client *c, const char *path);

/** Receive until there is something new, the end, or time is up. @return false: nothing came */
bool client_receive(client *c, int64_t timeout_ms);
/** True when `text` has been received within the time; what was received stays. */
bool client_sees(client *c, const char *text, int64_t timeout_ms);
/** True when the server closes within the time. */
bool client_sees_end(client *c, int64_t timeout_ms);

/** Take one whole reply (Content-Length, chunked, or until the end). */
reply client_reply(client *c, int64_t timeout_ms);
/** As client_reply for the answer to a HEAD request, which has no body. */
reply client_reply_head(client *c, int64_t timeout_ms);
void reply_free(reply *r);

/** Value of a header, NULL-terminated heap text (free it), or NULL. */
char *reply_header(const reply *r, const char *name);
bool reply_header_is(const reply *r, const char *name, const char *value);
/** The body as JSON; fails the test when it is none. json_decref it. */
json_t *reply_json(const reply *r);

/** Connect, POST, take the reply, close. */
reply request_post(const char *address, const char *path, const char *body);
reply request_get(const char *address, const char *path);
/** Connect, send these bytes, take the reply, close. */
reply request_raw(const char *address, const char *bytes);

/**
 * The error object of a reply: checks that it has exactly the four keys with their types, the JSON
 * content type, and Retry-After where the status demands it. @return its code (static until the
 * next call), or fails the test
 */
const char *reply_error_code(const reply *r);
/** The same, and compares status, code and param (NULL: null). */
void assert_error(const reply *r, int status, const char *code, const char *param);

int64_t now_ms(void);
void sleep_ms(int64_t ms);

#endif
