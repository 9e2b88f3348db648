#include "link/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/span.h"
#include "sys/clock.h"

#define BACKLOG 64

/* Bytes in flight unacknowledged for so long break a connection: a cut cable, a dead machine. */
#define UNACKED_MS 2000

typedef union any_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} any_address;

ek_status ek_link_net_split(const char *address, char out_host[EK_NET_HOST_MAX], uint16_t *out_port,
                            ek_err *err)
{
    const char *colon = strrchr(address, ':');
    size_t n_host = colon ? (size_t)(colon - address) : 0;
    uint32_t port = 0;
    bool ok = colon && n_host > 0 && n_host < EK_NET_HOST_MAX;
    size_t n_digits = colon ? strspn(colon + 1, "0123456789") : 0;
    ok = ok && n_digits >= 1 && n_digits <= 5 && colon[1 + n_digits] == '\0';
    for (size_t i = 1; ok && i <= n_digits; i++)
        port = port * 10 + (uint32_t)(colon[i] - '0');
    bool in_brackets = ok && n_host > 2 && address[0] == '[' && address[n_host - 1] == ']';
    bool has_colons = ok && memchr(address, ':', n_host) != NULL;
    if (!ok || port > UINT16_MAX || (has_colons && !in_brackets))
        return ek_err_set(err, EK_EINVAL,
                          "\"%s\" is not an address: write HOST:PORT, as worker-0:7070, "
                          "10.0.0.5:7070 or [fd00::5]:7070",
                          address);
    memcpy(out_host, address + in_brackets, n_host - 2 * (size_t)in_brackets);
    out_host[n_host - 2 * (size_t)in_brackets] = '\0';
    *out_port = (uint16_t)port;
    return EK_OK;
}

bool ek_link_net_is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 ||
           strcmp(host, "localhost") == 0;
}

static bool set_up(int fd)
{
    const int on = 1;
    const unsigned int unacked_ms = UNACKED_MS;
    int flags = fcntl(fd, F_GETFL);
    bool ok = flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
              fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
    /* These make it better; without them it works. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked_ms, sizeof unacked_ms);
    return ok;
}

static ek_status resolve(const char *host, uint16_t port, bool to_listen,
                         struct addrinfo **out_list, ek_err *err)
{
    char service[8];
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0),
    };
    snprintf(service, sizeof service, "%u", (unsigned)port);
    int rc = getaddrinfo(host, service, &hints, out_list);
    if (rc == 0) return EK_OK;
    return ek_err_set(err, EK_EPEER, "%s: %s", host, gai_strerror(rc));
}

/* ---- listening ---- */

static ek_status cannot_listen(const char *address, int error, ek_err *err)
{
    ek_status status = error == EADDRINUSE                 ? EK_EINUSE
                       : error == EACCES || error == EPERM ? EK_EACCESS
                       : error == EADDRNOTAVAIL            ? EK_EINVAL
                                                           : EK_EIO;
    return ek_err_set(err, status, "cannot listen on %s: %s", address, strerror(error));
}

static uint16_t port_of(int fd)
{
    any_address any = {0};
    socklen_t len = sizeof any;
    getsockname(fd, &any.any, &len);
    return ntohs(any.any.sa_family == AF_INET6 ? any.v6.sin6_port : any.v4.sin_port);
}

ek_status ek_link_net_listen(const char *address, int *out_fd, uint16_t *out_port, ek_err *err)
{
    char host[EK_NET_HOST_MAX];
    uint16_t port;
    struct addrinfo *list;
    ek_status status = ek_link_net_split(address, host, &port, err);
    if (status == EK_OK) status = resolve(host, port, true, &list, err);
    if (status != EK_OK)
        return status == EK_EPEER ? ek_err_set(err, EK_EINVAL,
                                               "cannot listen on "
                                               "%s: no such host",
                                               address)
                                  : status;
    const int on = 1;
    int fd = socket(list->ai_family, SOCK_STREAM, 0);
    if (fd < 0 || !set_up(fd) || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, list->ai_addr, list->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        status = cannot_listen(address, errno, err);
        if (fd >= 0) close(fd);
    } else {
        *out_fd = fd;
        *out_port = port_of(fd);
    }
    freeaddrinfo(list);
    return status;
}

static void print_peer(const any_address *any, char *out_peer, size_t bytes)
{
    char host[INET6_ADDRSTRLEN] = "?";
    bool is_v6 = any->any.sa_family == AF_INET6;
    const void *ip = is_v6 ? (const void *)&any->v6.sin6_addr : (const void *)&any->v4.sin_addr;
    inet_ntop(any->any.sa_family, ip, host, sizeof host);
    snprintf(out_peer, bytes, is_v6 ? "[%s]:%u" : "%s:%u", host,
             (unsigned)ntohs(is_v6 ? any->v6.sin6_port : any->v4.sin_port));
}

ek_status ek_link_net_accept(int listener, int64_t timeout_us, int *out_fd, char *out_peer,
                             size_t bytes)
{
    any_address any = {0};
    socklen_t len = sizeof any;
    if (!ek_link_net_wait(listener, false, ek_sys_now_us() + timeout_us)) return EK_ETIMEOUT;
    int fd = accept(listener, &any.any, &len);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            return EK_EFULL;
        /* Somebody who has gone again is nobody's fault. */
        return errno == EBADF || errno == EINVAL ? EK_EIO : EK_ETIMEOUT;
    }
    if (!set_up(fd)) {
        close(fd);
        return EK_EIO;
    }
    print_peer(&any, out_peer, bytes);
    *out_fd = fd;
    return EK_OK;
}

/* ---- connecting ---- */

bool ek_link_net_wait(int fd, bool for_write, int64_t deadline_us)
{
    for (;;) {
        int64_t left_us = deadline_us - ek_sys_now_us();
        struct pollfd one = {.fd = fd, .events = for_write ? POLLOUT : POLLIN};
        int64_t ms = left_us <= 0 ? 0 : (left_us + 999) / 1000;
        int rc = poll(&one, 1, ms > 60000 ? 60000 : (int)ms);
        if (rc > 0) return true;
        if (rc == 0 && left_us <= 0) return false;
        if (rc < 0 && errno != EINTR) return true; /* the next call says what is wrong */
    }
}

static int connect_one(const struct addrinfo *to, int64_t deadline_us, int *out_error)
{
    int fd = socket(to->ai_family, SOCK_STREAM, 0);
    int error = 0;
    socklen_t len = sizeof error;
    if (fd < 0 || !set_up(fd)) {
        error = errno;
    } else if (connect(fd, to->ai_addr, to->ai_addrlen) != 0) {
        if (errno != EINPROGRESS)
            error = errno;
        else if (!ek_link_net_wait(fd, true, deadline_us))
            error = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
            error = errno;
    }
    *out_error = error;
    if (error && fd >= 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

ek_status ek_link_net_connect(const char *address, int64_t deadline_us, int *out_fd, ek_err *err)
{
    char host[EK_NET_HOST_MAX];
    uint16_t port;
    struct addrinfo *list;
    int error = ENOENT, fd = -1;
    ek_status status = ek_link_net_split(address, host, &port, err);
    if (status == EK_OK) status = resolve(host, port, false, &list, err);
    if (status != EK_OK) return status;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
        fd = connect_one(a, deadline_us, &error);
    freeaddrinfo(list);
    if (fd < 0)
        return ek_err_set(err, error == ETIMEDOUT ? EK_ETIMEOUT : EK_EPEER,
                          "cannot connect to %s: %s", address, strerror(error));
    *out_fd = fd;
    return EK_OK;
}
