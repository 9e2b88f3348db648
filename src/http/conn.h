/*
 * The connections of one HTTP server: a fixed table of slots.
 *
 * A slot's life:
 *
 *   FREE -> HEAD     accepted; the door peeks until a whole head is there. The socket is the
 *                    door's.
 *   HEAD -> SERVED   head checked; libmicrohttpd (MHD) got the socket, and reads, runs and answers
 *                    the request.
 *   SERVED -> IDLE   reply sent; MHD's connection is suspended, the door waits for the next head,
 *   IDLE -> SERVED   and checks it in the same way before MHD is resumed. So MHD never reads a head
 *                    that was not checked.
 *   HEAD, IDLE -> LINGER   the door answered by itself (a bad head, a time limit); it swallows what
 *                    still comes, so that a reset does not overtake the reply, and then closes.
 *   any -> CLOSING   MHD was told to close; its callback frees the slot.
 *
 * Slots are guarded by the server's lock, never move, and carry a generation, so that an event for
 * a connection that is gone finds nothing. The socket is closed by its owner (`mhd_owns`), and only
 * after the slot left the table: under the lock, `fd` is always this connection's.
 */
#ifndef EK_HTTP_CONN_H
#define EK_HTTP_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/status.h"
#include "http/head.h"

struct MHD_Connection;
struct ek_exchange;

typedef enum ek_conn_state {
    EK_CONN_FREE,
    EK_CONN_HEAD,
    EK_CONN_SERVED,
    EK_CONN_IDLE,
    EK_CONN_LINGER,
    EK_CONN_CLOSING,
} ek_conn_state;

typedef struct ek_conn {
    ek_conn_state state;
    uint32_t generation; /* counts the uses of this slot */
    int32_t slot;
    int fd;
    bool mhd_owns;                /* MHD closes fd */
    struct MHD_Connection *mhd;   /* NULL until MHD has taken it up; MHD's own thread ends it */
    struct ek_exchange *exchange; /* borrowed from MHD's reference until the request completes */
    uint8_t ip[16];               /* IPv4 mapped */
    int64_t deadline_us;          /* of the state; 0: none */

    char *head_text; /* owned, (head_cap): the current request's head, which `head` borrows from */
    size_t head_cap;
    size_t scanned; /* bytes of the next head looked at so far */
    ek_head head;
    bool head_known; /* `head` is the current request's */
    bool head_fresh; /* checked and not yet taken by the handler: one request per checked head */
    bool answering;  /* the request is complete: from now on a hang-up means that nobody waits */
    bool hung_up;
    bool answered; /* the door has answered this request by itself: MHD must not */
    bool closing;  /* the connection ends with this reply */
    uint64_t
        bytes_due; /* socket bytes up to the end of the current request, all requests counted */
    int32_t next;  /* in the free list, or in the address's chain */
    int32_t prev;  /* in the address's chain */
    int32_t ip_bucket;
} ek_conn;

typedef struct ek_conn_table {
    ek_conn *slot; /* owned, (n_slots) */
    int32_t n_slots;
    int32_t n_used;
    int32_t free_head;
    int32_t *bucket; /* owned, (n_buckets): chains of connections by address; -1 ends one */
    int32_t n_buckets;
    int32_t *slot_of_fd; /* owned, (n_fds): -1 none */
    int32_t n_fds;
} ek_conn_table;

/** @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_http_conns_init(ek_conn_table *table, int32_t n_slots);
void ek_http_conns_fini(ek_conn_table *table);

/** Take a slot for a socket. @return NULL: table full or no memory */
ek_conn *ek_http_conns_take(ek_conn_table *table, int fd, const uint8_t ip[16]);
/** Give it back; the socket itself is the caller's business. */
void ek_http_conns_release(ek_conn_table *table, ek_conn *conn);

/** The connection with this slot and generation; NULL: gone. */
ek_conn *ek_http_conns_find(ek_conn_table *table, int32_t slot, uint32_t generation);
ek_conn *ek_http_conns_by_fd(ek_conn_table *table, int fd);

/** How many connections an address has, counted up to max. */
int32_t ek_http_conns_of_ip(const ek_conn_table *table, const uint8_t ip[16], int32_t max);

/** Keep a copy of a head in the slot. @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_http_conn_keep_head(ek_conn *conn, ek_str text);

#endif
