#include "http/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/span.h"

#define BACKLOG 1024

/*
 * What the kernel keeps for a client that does not read. Left alone it grows to megabytes per
 * stream, and tokens are computed for nobody; this is a few hundred tokens' worth of frames.
 */
#define SEND_BYTES 131072

/* An IPv4 address inside of an IPv6 one begins with these. */
static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

typedef union any_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} any_address;

static bool parse_port(ek_str text, uint16_t *out_port)
{
    uint32_t port = 0;
    if (text.len == 0 || text.len > 5) return false;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        port = port * 10 + (uint32_t)(text.data[i] - '0');
    }
    if (port > UINT16_MAX) return false;
    *out_port = (uint16_t)port;
    return true;
}

static bool parse_address(const char *address, any_address *out_any, socklen_t *out_len)
{
    const char *colon = strrchr(address, ':');
    char host[64];
    uint16_t port;
    if (!colon || (size_t)(colon - address) >= sizeof host) return false;
    if (!parse_port(ek_str_from(colon + 1), &port)) return false;
    size_t n_host = (size_t)(colon - address);
    memcpy(host, address, n_host);
    host[n_host] = '\0';
    any_address any = {0};
    if (n_host >= 2 && host[0] == '[' && host[n_host - 1] == ']') {
        host[n_host - 1] = '\0';
        any.v6.sin6_family = AF_INET6;
        any.v6.sin6_port = htons(port);
        if (inet_pton(AF_INET6, host + 1, &any.v6.sin6_addr) != 1) return false;
        *out_len = sizeof any.v6;
    } else {
        const char *name = strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
        any.v4.sin_family = AF_INET;
        any.v4.sin_port = htons(port);
        any.v4.sin_addr.s_addr = htonl(INADDR_ANY);
        if (name[0] && inet_pton(AF_INET, name, &any.v4.sin_addr) != 1) return false;
        *out_len = sizeof any.v4;
    }
    *out_any = any;
    return true;
}

static bool set_flags(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
           fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

static void print_address(int fd, char out_text[EK_LISTEN_TEXT_MAX])
{
    any_address any = {0};
    socklen_t len = sizeof any;
    char host[INET6_ADDRSTRLEN] = "?";
    getsockname(fd, &any.any, &len);
    if (any.any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &any.v6.sin6_addr, host, sizeof host);
        snprintf(out_text, EK_LISTEN_TEXT_MAX, "[%s]:%u", host, ntohs(any.v6.sin6_port));
    } else {
        inet_ntop(AF_INET, &any.v4.sin_addr, host, sizeof host);
        snprintf(out_text, EK_LISTEN_TEXT_MAX, "%s:%u", host, ntohs(any.v4.sin_port));
    }
}

static ek_status bind_failure(const char *address, int error, ek_err *err)
{
    if (error == EADDRINUSE)
        return ek_err_set(err, EK_EINUSE, "cannot listen on %s: the address is in use", address);
    if (error == EACCES || error == EPERM)
        return ek_err_set(err, EK_EACCESS, "cannot listen on %s: permission denied", address);
    if (error == EADDRNOTAVAIL || error == EAFNOSUPPORT)
        return ek_err_set(err, EK_EINVAL, "cannot listen on %s: this machine has no such address",
                          address);
    return ek_err_set(err, EK_EIO, "cannot listen on %s: error %d", address, error);
}

ek_status ek_http_listen(const char *address, int *out_fd, char out_text[EK_LISTEN_TEXT_MAX],
                         ek_err *err)
{
    any_address any;
    socklen_t len;
    if (!parse_address(address, &any, &len))
        return ek_err_set(err, EK_EINVAL,
                          "\"%s\" is not an address to listen on: write HOST:PORT with a numeric "
                          "host, as 127.0.0.1:8080 or [::1]:8080",
                          address);
    int fd = socket(any.any.sa_family, SOCK_STREAM, 0);
    if (fd < 0) return bind_failure(address, errno, err);
    const int on = 1;
    ek_status status = EK_OK;
    if (!set_flags(fd) || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, &any.any, len) != 0 || listen(fd, BACKLOG) != 0) {
        status = bind_failure(address, errno, err);
        close(fd);
        return status;
    }
    print_address(fd, out_text);
    *out_fd = fd;
    return EK_OK;
}

void ek_http_ip_text(const uint8_t ip[16], char out_text[EK_IP_TEXT_MAX])
{
    bool is_v4 = memcmp(ip, mapped, sizeof mapped) == 0;
    const void *address = is_v4 ? ip + sizeof mapped : ip;
    if (!inet_ntop(is_v4 ? AF_INET : AF_INET6, address, out_text, EK_IP_TEXT_MAX))
        out_text[0] = '\0';
}

ek_status ek_http_accept(int listener, int *out_fd, uint8_t out_ip[16])
{
    any_address any = {0};
    socklen_t len = sizeof any;
    int fd = accept(listener, &any.any, &len);
    if (fd < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) return EK_AGAIN;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            return EK_EFULL;
        return EK_EIO;
    }
    const int on = 1;
    const int send_bytes = SEND_BYTES;
    if (!set_flags(fd)) {
        close(fd);
        return EK_EIO;
    }
    /*
     * A token is sent the moment it exists; and a peer that vanished without a word is found out.
     */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
    if (any.any.sa_family == AF_INET6) {
        memcpy(out_ip, &any.v6.sin6_addr, 16);
    } else {
        memcpy(out_ip, mapped, sizeof mapped);
        memcpy(out_ip + 12, &any.v4.sin_addr, 4);
    }
    *out_fd = fd;
    return EK_OK;
}
