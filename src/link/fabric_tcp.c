#include "link/fabric_tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/assert.h"
#include "link/net.h"
#include "sys/clock.h"
#include "sys/mem.h"

#define SCRAP_BYTES 16384  /* that are thrown away at once: one TLS record */
#define LINGER_US   500000 /* for a peer to read why it was refused */

typedef struct tcp_fabric {
    ek_fabric base;
    SSL_CTX *tls; /* owned; NULL: bare */
} tcp_fabric;

struct ek_listener {
    const tcp_fabric *fabric; /* borrowed */
    int fd;
    uint16_t port;
};

typedef struct tcp_link {
    ek_link base;
    int fd;
    SSL *ssl; /* owned; NULL: bare */
    bool is_server;
    bool is_refused;       /* the peer was let no further than the handshake */
    bool reads_want_write; /* TLS has to send before it can read, and the reverse */
    bool writes_want_read;

    ek_wire_header in;
    size_t in_done; /* bytes of the header, then of the body */
    bool in_body;

    ek_wire_header out;
    ek_span out_part[1 + EK_FABRIC_PARTS_MAX]; /* header first; what is left of each */
    int32_t out_n;                             /* parts */
    int32_t out_at;                            /* first part that is not out; = out_n: idle */
} tcp_link;

/* ---- errors ---- */

static ek_status break_link(tcp_link *link, ek_status status, const char *why)
{
    if (link->base.broken.status == EK_OK) ek_err_set(&link->base.broken, status, "%s", why);
    return status;
}

/* The reason that OpenSSL has for the last failure, in its words; what it queued is taken. */
static void tls_reason(SSL *ssl, char *out_text, size_t bytes)
{
    unsigned long code = ERR_peek_last_error();
    long verify = ssl ? SSL_get_verify_result(ssl) : X509_V_OK;
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    if (verify != X509_V_OK)
        snprintf(out_text, bytes, "the peer's certificate is refused: %s",
                 X509_verify_cert_error_string(verify));
    else
        snprintf(out_text, bytes, "%s", reason ? reason : "the peer closed the connection");
    ERR_clear_error();
}

/* What a failed call of OpenSSL means for the link. */
static ek_status tls_failed(tcp_link *link, int rc, bool reading)
{
    char why[EK_ERR_TEXT_MAX];
    switch (SSL_get_error(link->ssl, rc)) {
    case SSL_ERROR_WANT_READ: link->writes_want_read = !reading; return EK_AGAIN;
    case SSL_ERROR_WANT_WRITE: link->reads_want_write = reading; return EK_AGAIN;
    case SSL_ERROR_ZERO_RETURN: return break_link(link, EK_EPEER, "the peer closed the connection");
    case SSL_ERROR_SYSCALL:
        if (ERR_peek_error() == 0) {
            ek_status status = break_link(
                link, EK_EPEER, errno ? strerror(errno) : "the peer closed the connection");
            return status;
        }
        /* fall through */
    default: tls_reason(NULL, why, sizeof why); return break_link(link, EK_EPEER, why);
    }
}

/* ---- bytes ---- */

static ek_status read_some(tcp_link *link, void *out, size_t bytes, size_t *out_n)
{
    *out_n = 0;
    if (link->base.broken.status != EK_OK) return EK_EPEER;
    if (link->ssl) {
        ERR_clear_error();
        errno = 0;
        link->reads_want_write = false;
        int rc = SSL_read_ex(link->ssl, out, bytes, out_n);
        return rc > 0 ? EK_OK : tls_failed(link, rc, true);
    }
    ssize_t n = recv(link->fd, out, bytes, 0);
    if (n > 0) {
        *out_n = (size_t)n;
        return EK_OK;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return EK_AGAIN;
    return break_link(link, EK_EPEER, n < 0 ? strerror(errno) : "the peer closed the connection");
}

/* Bytes that went out of the parts that are left. */
static void advance(tcp_link *link, size_t n)
{
    link->base.bytes_sent += n;
    while (n > 0) {
        ek_span *part = &link->out_part[link->out_at];
        size_t taken = n < part->len ? n : part->len;
        part->data += taken;
        part->len -= taken;
        n -= taken;
        if (part->len == 0) link->out_at++;
    }
    while (link->out_at < link->out_n && link->out_part[link->out_at].len == 0)
        link->out_at++;
}

static ek_status write_tls(tcp_link *link)
{
    const ek_span *part = &link->out_part[link->out_at];
    size_t n = 0;
    ERR_clear_error();
    errno = 0;
    link->writes_want_read = false;
    int rc = SSL_write_ex(link->ssl, part->data, part->len, &n);
    if (rc <= 0) return tls_failed(link, rc, false);
    advance(link, n);
    return EK_OK;
}

static ek_status write_bare(tcp_link *link)
{
    struct iovec iov[1 + EK_FABRIC_PARTS_MAX];
    struct msghdr message = {.msg_iov = iov};
    for (int32_t i = link->out_at; i < link->out_n; i++) {
        iov[message.msg_iovlen].iov_base = (void *)(uintptr_t)link->out_part[i].data;
        iov[message.msg_iovlen++].iov_len = link->out_part[i].len;
    }
    ssize_t n = sendmsg(link->fd, &message, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return EK_AGAIN;
    if (n < 0) return break_link(link, EK_EPEER, strerror(errno));
    advance(link, (size_t)n);
    return EK_OK;
}

/* ---- messages ---- */

static ek_status link_flush(ek_link *base)
{
    tcp_link *link = (tcp_link *)base;
    /* A peer that sent nonsense can still be told so. */
    if (base->broken.status == EK_EPEER || base->broken.status == EK_ETIMEOUT) return EK_EPEER;
    while (link->out_at < link->out_n) {
        ek_status status = link->ssl ? write_tls(link) : write_bare(link);
        if (status != EK_OK) return status;
    }
    return EK_OK;
}

static ek_status link_send(ek_link *base, const ek_wire_header *header, const ek_span *parts,
                           int32_t n_parts)
{
    tcp_link *link = (tcp_link *)base;
    ek_assert(link->out_at == link->out_n); /* the one before is out */
    ek_assert(n_parts >= 0 && n_parts <= EK_FABRIC_PARTS_MAX);
    link->out = *header;
    link->out_part[0] = (ek_span){(const uint8_t *)&link->out, sizeof link->out};
    link->out_at = 0;
    link->out_n = 1;
    for (int32_t i = 0; i < n_parts; i++)
        if (parts[i].len > 0) link->out_part[link->out_n++] = parts[i];
    return link_flush(base);
}

static ek_status link_header(ek_link *base, ek_wire_header *out_header)
{
    tcp_link *link = (tcp_link *)base;
    ek_assert(!link->in_body); /* the body before is taken */
    while (link->in_done < sizeof link->in) {
        size_t n;
        ek_status status = read_some(link, (uint8_t *)&link->in + link->in_done,
                                     sizeof link->in - link->in_done, &n);
        if (status != EK_OK) return status;
        link->in_done += n;
    }
    base->bytes_received += sizeof link->in;
    ek_err err = {0};
    ek_status status = ek_link_wire_check(&link->in, EK_WIRE_BODY_BYTES_MAX, &err);
    if (status != EK_OK) return break_link(link, status, err.text);
    link->in_body = true;
    link->in_done = 0;
    *out_header = link->in;
    return EK_OK;
}

static ek_status link_body(ek_link *base, void *out_body)
{
    tcp_link *link = (tcp_link *)base;
    uint8_t scrap[SCRAP_BYTES];
    ek_assert(link->in_body);
    while (link->in_done < link->in.body_bytes) {
        size_t n, left = link->in.body_bytes - link->in_done;
        uint8_t *to = out_body ? (uint8_t *)out_body + link->in_done : scrap;
        if (!out_body && left > sizeof scrap) left = sizeof scrap;
        ek_status status = read_some(link, to, left, &n);
        if (status != EK_OK) return status;
        link->in_done += n;
        base->bytes_received += n;
    }
    link->in_body = false;
    link->in_done = 0;
    return EK_OK;
}

static void link_wish(ek_link *base, ek_link_wish *out_wish)
{
    const tcp_link *link = (const tcp_link *)base;
    bool sends = link->out_at < link->out_n;
    *out_wish = (ek_link_wish){
        .fd = link->fd,
        .read = true,
        .write = (sends && !link->writes_want_read) || link->reads_want_write,
    };
}

static void link_interrupt(ek_link *base)
{
    shutdown(((tcp_link *)base)->fd, SHUT_RDWR);
}

/*
 * Closing with bytes unread resets the connection, and the peer may lose what it was sent last: why
 * its certificate was refused (in TLS 1.3 it has sent its first message by then), or itself.
 */
static void linger(const tcp_link *link)
{
    uint8_t scrap[SCRAP_BYTES];
    int64_t until_us = ek_sys_now_us() + LINGER_US;
    shutdown(link->fd, SHUT_WR);
    while (ek_link_net_wait(link->fd, false, until_us) &&
           recv(link->fd, scrap, sizeof scrap, 0) > 0 && ek_sys_now_us() < until_us)
        continue;
}

static void link_close(ek_link *base)
{
    tcp_link *link = (tcp_link *)base;
    if (link->ssl) {
        ERR_clear_error();
        if (base->broken.status == EK_OK)
            SSL_shutdown(link->ssl); /* a word of farewell, if it fits */
        SSL_free(link->ssl);
    }
    if (base->lingers) linger(link);
    close(link->fd);
    ek_sys_free(link);
}

/* ---- who is it ---- */

/* Behind the address: the name in the peer's certificate, and what that is good for. */
static void name_peer(tcp_link *link)
{
    char name[64] = "";
    X509 *cert = SSL_get0_peer_certificate(link->ssl);
    if (cert) {
        X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, name, sizeof name);
        /* UINT32_MAX: it says nothing of what it is good for. */
        uint32_t usage = X509_get_extended_key_usage(cert);
        link->base.is_worker = usage != UINT32_MAX && (usage & XKU_SSL_SERVER) != 0;
    }
    for (char *c = name; *c; c++)
        if (*c < 0x21 || *c > 0x7e) *c = '?';
    size_t n = strlen(link->base.peer);
    snprintf(link->base.peer + n, sizeof link->base.peer - n, " %s", name);
}

static ek_status link_handshake(ek_link *base, int64_t deadline_us, ek_err *err)
{
    tcp_link *link = (tcp_link *)base;
    if (!link->ssl) return EK_OK;
    for (;;) {
        ERR_clear_error();
        errno = 0;
        int rc = SSL_do_handshake(link->ssl);
        if (rc == 1) break;
        int error = SSL_get_error(link->ssl, rc);
        if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
            char why[EK_ERR_TEXT_MAX / 2];
            tls_reason(link->ssl, why, sizeof why);
            break_link(link, EK_EPEER, why);
            base->lingers = link->is_server;
            return ek_err_set(err, EK_EPEER, "%s", why);
        }
        if (!ek_link_net_wait(link->fd, error == SSL_ERROR_WANT_WRITE, deadline_us)) {
            break_link(link, EK_ETIMEOUT, "no handshake in time");
            return ek_err_set(err, EK_ETIMEOUT, "no TLS handshake in time");
        }
    }
    name_peer(link);
    return EK_OK;
}

static const ek_link_ops link_ops = {
    .send = link_send,
    .flush = link_flush,
    .header = link_header,
    .body = link_body,
    .wish = link_wish,
    .interrupt = link_interrupt,
    .handshake = link_handshake,
    .close = link_close,
};

/* Takes the descriptor over, whatever comes of it. */
static ek_status link_new(const tcp_fabric *fabric, int fd, bool is_server, const char *peer,
                          tcp_link **out_link)
{
    tcp_link *link = ek_sys_calloc(1, sizeof *link);
    if (!link) goto close_fd;
    link->base.ops = &link_ops;
    link->fd = fd;
    link->is_server = is_server;
    snprintf(link->base.peer, sizeof link->base.peer, "%s", peer);
    if (fabric->tls) {
        link->ssl = SSL_new(fabric->tls);
        if (!link->ssl || SSL_set_fd(link->ssl, fd) != 1) goto free_link;
        if (is_server)
            SSL_set_accept_state(link->ssl);
        else
            SSL_set_connect_state(link->ssl);
    }
    *out_link = link;
    return EK_OK;

free_link:
    SSL_free(link->ssl);
    ek_sys_free(link);
close_fd:
    close(fd);
    return EK_ENOMEM;
}

/* ---- the fabric ---- */

static ek_status fabric_listen(ek_fabric *base, const char *address, ek_listener **out_listener,
                               ek_err *err)
{
    ek_listener *listener = ek_sys_calloc(1, sizeof *listener);
    if (!listener) return ek_err_set(err, EK_ENOMEM, "no memory to listen");
    listener->fabric = (const tcp_fabric *)base;
    ek_status status = ek_link_net_listen(address, &listener->fd, &listener->port, err);
    if (status != EK_OK) {
        ek_sys_free(listener);
        return status;
    }
    *out_listener = listener;
    return EK_OK;
}

static ek_status fabric_accept(ek_listener *listener, int64_t timeout_us, ek_link **out_link)
{
    int fd;
    char peer[EK_FABRIC_PEER_TEXT_MAX / 2];
    tcp_link *link;
    ek_status status = ek_link_net_accept(listener->fd, timeout_us, &fd, peer, sizeof peer);
    if (status == EK_OK) status = link_new(listener->fabric, fd, true, peer, &link);
    if (status == EK_OK) *out_link = &link->base;
    return status == EK_ENOMEM ? EK_EFULL : status;
}

static uint16_t fabric_port(const ek_listener *listener)
{
    return listener->port;
}

static void fabric_unlisten(ek_listener *listener)
{
    if (!listener) return;
    close(listener->fd);
    ek_sys_free(listener);
}

/* The certificate has to be made out to the host that was called. */
static bool expect_host(SSL *ssl, const char *host)
{
    uint8_t ip[16];
    bool is_ip = inet_pton(AF_INET, host, ip) == 1 || inet_pton(AF_INET6, host, ip) == 1;
    if (is_ip) return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

static ek_status fabric_connect(ek_fabric *base, const char *address, int64_t deadline_us,
                                ek_link **out_link, ek_err *err)
{
    const tcp_fabric *fabric = (const tcp_fabric *)base;
    char host[EK_NET_HOST_MAX];
    uint16_t port;
    int fd;
    tcp_link *link;
    ek_status status = ek_link_net_split(address, host, &port, err);
    if (status == EK_OK) status = ek_link_net_connect(address, deadline_us, &fd, err);
    if (status != EK_OK) return status;
    if (link_new(fabric, fd, false, address, &link) != EK_OK)
        return ek_err_set(err, EK_ENOMEM, "no memory for a connection to %s", address);
    status = link->ssl && !expect_host(link->ssl, host)
                 ? ek_err_set(err, EK_ENOMEM, "no memory for its name")
                 : link_handshake(&link->base, deadline_us, err);
    if (status != EK_OK) {
        ek_err_prefix(err, "%s", address);
        link_close(&link->base);
        return status;
    }
    *out_link = &link->base;
    return EK_OK;
}

static void fabric_destroy(ek_fabric *base)
{
    tcp_fabric *fabric = (tcp_fabric *)base;
    SSL_CTX_free(fabric->tls);
    ek_sys_free(fabric);
}

#define FABRIC_OPS(word)                                                                       \
    {                                                                                          \
        .name = (word), .listen = fabric_listen, .accept = fabric_accept, .port = fabric_port, \
        .unlisten = fabric_unlisten, .connect = fabric_connect, .destroy = fabric_destroy      \
    }

static const ek_fabric_ops tls_ops = FABRIC_OPS("tls");
static const ek_fabric_ops tcp_ops = FABRIC_OPS("tcp");

static ek_status fabric_new(const ek_fabric_ops *ops, tcp_fabric **out_fabric, ek_err *err)
{
    tcp_fabric *fabric = ek_sys_calloc(1, sizeof *fabric);
    if (!fabric) return ek_err_set(err, EK_ENOMEM, "no memory for the fabric");
    fabric->base.ops = ops;
    *out_fabric = fabric;
    return EK_OK;
}

ek_status ek_link_fabric_tcp(ek_fabric **out_fabric, ek_err *err)
{
    tcp_fabric *fabric = NULL;
    ek_status status = fabric_new(&tcp_ops, &fabric, err);
    if (status == EK_OK) *out_fabric = &fabric->base;
    return status;
}

/* ---- certificates ---- */

static ek_status bad_file(const char *path, const char *what, ek_err *err)
{
    char why[EK_ERR_TEXT_MAX / 2];
    tls_reason(NULL, why, sizeof why);
    return ek_err_set(err, EK_ECONFIG, "%s: %s (%s); `evenkeel cluster init` makes one", path, what,
                      why);
}

static ek_status load_files(SSL_CTX *tls, const char *certs, ek_err *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/ca.pem", certs);
    if (SSL_CTX_load_verify_file(tls, path) != 1)
        return bad_file(path, "no authority's certificate", err);
    snprintf(path, sizeof path, "%s/node.pem", certs);
    if (SSL_CTX_use_certificate_chain_file(tls, path) != 1)
        return bad_file(path, "no certificate", err);
    snprintf(path, sizeof path, "%s/node.key", certs);
    if (SSL_CTX_use_PrivateKey_file(tls, path, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(tls) != 1)
        return bad_file(path, "no key to the certificate beside it", err);
    return EK_OK;
}

ek_status ek_link_fabric_tls(const char *certs, ek_fabric **out_fabric, ek_err *err)
{
    tcp_fabric *fabric = NULL;
    ek_status status = fabric_new(&tls_ops, &fabric, err);
    if (status != EK_OK) return status;
    SSL_CTX *tls = SSL_CTX_new(TLS_method());
    fabric->tls = tls;
    if (!tls || SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION) != 1) {
        status = ek_err_set(err, EK_ENOMEM, "no memory for TLS");
    } else {
        SSL_CTX_set_verify(tls, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
        SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_NO_AUTO_CHAIN);
        SSL_CTX_set_session_cache_mode(tls, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_num_tickets(tls, 0); /* links are few and long: nothing is resumed */
        status = load_files(tls, certs, err);
    }
    if (status != EK_OK) {
        fabric_destroy(&fabric->base);
        return status;
    }
    *out_fabric = &fabric->base;
    return EK_OK;
}
