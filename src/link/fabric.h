/*
 * The fabric: how messages come from one process to another. A small table, so that what moves the
 * bytes can be chosen: `tls` and `tcp` (link/fabric_tcp.h) are its first implementations.
 *
 * A *link* is one connection, over which whole messages go both ways in order: a header
 * (link/wire.h) and a body. A body is received straight into the memory where the receiver wants
 * it, once the header has told what it is; it is sent from where it lies. Nothing here allocates
 * once a link is there.
 *
 * A link has one owner thread at a time, who calls everything here but interrupt. Handing it to
 * another thread is the owners' business (release and acquire). Calls do not wait, but for those
 * that take a deadline.
 */
#ifndef EK_LINK_FABRIC_H
#define EK_LINK_FABRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"
#include "base/status.h"
#include "link/wire.h"

#define EK_FABRIC_PEER_TEXT_MAX 128 /* bytes of "127.0.0.1:4711 w0" */
#define EK_FABRIC_PARTS_MAX     2   /* pieces that a body is sent from */

typedef struct ek_link ek_link;

/** What a link waits for. */
typedef struct ek_link_wish {
    int fd;
    bool read;
    bool write;
    bool is_ready; /* it need not wait at all */
} ek_link_wish;

typedef struct ek_link_ops {
    /**
     * Begin to send a message; another one may follow only when it is out.
     * @param parts (n_parts <= EK_FABRIC_PARTS_MAX) the body, header->body_bytes long; unchanged
     *              and there until the message is out
     * @return as flush
     */
    ek_status (*send)(ek_link *self, const ek_wire_header *header, const ek_span *parts,
                      int32_t n_parts);
    /** Go on with it. @return EK_OK all is out; EK_AGAIN not yet; EK_EPEER the link is broken */
    ek_status (*flush)(ek_link *self);
    /**
     * The next message's header, checked. The body has to be taken before the next one.
     * @return EK_OK; EK_AGAIN not yet; EK_EPEER the link is broken, or the peer closed it;
     *         EK_EFORMAT, EK_EUNSUPPORTED the peer sent what no evenkeel of this version sends
     */
    ek_status (*header)(ek_link *self, ek_wire_header *out_header);
    /**
     * Receive its body.
     * @param out_body body_bytes of room; the same each time until it is complete. NULL: throw the
     *                 body away
     * @return EK_OK complete; EK_AGAIN not yet; EK_EPEER
     */
    ek_status (*body)(ek_link *self, void *out_body);
    /** To be asked right before each wait: it may ask for a wake-up. */
    void (*wish)(ek_link *self, ek_link_wish *out_wish);
    /** Any thread: the owner's calls fail from now on, and one that waits returns. */
    void (*interrupt)(ek_link *self);
    /** Finish a connection's opening: who is it? @return EK_OK; EK_EPEER; EK_ETIMEOUT */
    ek_status (*handshake)(ek_link *self, int64_t deadline_us, ek_err *err);
    void (*close)(ek_link *self);
} ek_link_ops;

/** Implementations embed this as their first member. */
struct ek_link {
    const ek_link_ops *ops;
    char peer[EK_FABRIC_PEER_TEXT_MAX]; /* address and, once known, the certificate's name */
    uint64_t bytes_sent;                /* of messages; the owner's */
    uint64_t bytes_received;
    ek_err broken;  /* why it broke, once it did; the owner's */
    bool is_worker; /* the peer's certificate is a worker's; known after the handshake of tls */
    bool lingers;   /* close waits a moment, so that the peer can read what was sent last */
};

typedef struct ek_fabric ek_fabric;
typedef struct ek_listener ek_listener;

typedef struct ek_fabric_ops {
    const char *name; /* "tls" */
    /**
     * @param address "host:port"; port 0 takes a free one
     * @return EK_OK; EK_EINVAL; EK_EINUSE; EK_EACCESS; EK_EIO; EK_ENOMEM
     */
    ek_status (*listen)(ek_fabric *self, const char *address, ek_listener **out_listener,
                        ek_err *err);
    /**
     * The next one who connects; whoever gets the link calls handshake.
     * @return EK_OK; EK_ETIMEOUT; EK_EFULL no descriptors or memory; EK_EIO
     */
    ek_status (*accept)(ek_listener *listener, int64_t timeout_us, ek_link **out_link);
    uint16_t (*port)(const ek_listener *listener);
    void (*unlisten)(ek_listener *listener);
    /**
     * Connect, handshake included.
     * @return EK_OK; EK_EINVAL the address is none; EK_EPEER; EK_ETIMEOUT; EK_ENOMEM
     */
    ek_status (*connect)(ek_fabric *self, const char *address, int64_t deadline_us,
                         ek_link **out_link, ek_err *err);
    void (*destroy)(ek_fabric *self);

    /*
     * Of fabrics whose links meet by addresses that two sides tell each other over a link that they
     * have already; those have no listeners and do not connect. NULL: it is no such fabric.
     */
    /** Half a link. @return EK_OK; EK_EUNSUPPORTED; EK_ENOMEM */
    ek_status (*open)(ek_fabric *self, ek_link **out_link, ek_err *err);
    /** Its address. @return bytes; 0: it has none, or does not fit */
    size_t (*address)(const ek_link *link, uint8_t *out_address, size_t room);
    /**
     * The other half's address: from now on it is a link.
     * @param address unchanged for the call
     * @return EK_OK; EK_EPEER; EK_EFORMAT
     */
    ek_status (*meet)(ek_link *link, const uint8_t *address, size_t bytes, ek_err *err);
} ek_fabric_ops;

/** Implementations embed this as their first member. Any thread, once it is there. */
struct ek_fabric {
    const ek_fabric_ops *ops;
};

/* ---- with patience ---- */

/**
 * Wait until one of the links can go on.
 * @param links (n) NULL entries are passed over
 * @return false: timeout_us passed
 */
bool ek_link_wait(ek_link *const *links, int32_t n, int64_t timeout_us);

/** Send a whole message. @return EK_OK; EK_EPEER; EK_ETIMEOUT (the link is of no use then) */
EK_MUST ek_status ek_link_send(ek_link *link, const ek_wire_header *header, ek_span body,
                               int64_t deadline_us);

/**
 * Receive a whole message of at most `room` bytes; a longer one breaks the link.
 * @return EK_OK; EK_AGAIN nothing has begun to arrive by deadline_us; EK_EPEER; EK_ETIMEOUT it
 *         began and did not end within a second; EK_EFORMAT; EK_EUNSUPPORTED
 */
EK_MUST ek_status ek_link_receive(ek_link *link, ek_wire_header *out_header, void *out_body,
                                  size_t room, int64_t deadline_us);

/** Accepts NULL. */
static inline void ek_link_close(ek_link *link)
{
    if (link) link->ops->close(link);
}

/** Accepts NULL. */
static inline void ek_link_fabric_destroy(ek_fabric *fabric)
{
    if (fabric) fabric->ops->destroy(fabric);
}

#endif
