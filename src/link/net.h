/*
 * Addresses and sockets: the little of TCP that both fabrics need. Sockets are non-blocking, closed
 * in child processes, and send at once.
 */
#ifndef EK_LINK_NET_H
#define EK_LINK_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/status.h"

#define EK_NET_HOST_MAX 256

/**
 * Take "host:port" or "[ipv6]:port" apart.
 * @param out_host without brackets, NUL-terminated
 * @return EK_OK; EK_EINVAL, the text shows how it is written
 */
EK_MUST ek_status ek_link_net_split(const char *address, char out_host[EK_NET_HOST_MAX],
                                    uint16_t *out_port, ek_err *err);

/** @return EK_OK; EK_EINVAL; EK_EINUSE; EK_EACCESS; EK_EIO */
EK_MUST ek_status ek_link_net_listen(const char *address, int *out_fd, uint16_t *out_port,
                                     ek_err *err);

/**
 * @param out_peer "127.0.0.1:4711", bytes of room
 * @return EK_OK; EK_ETIMEOUT; EK_EFULL no descriptors or memory; EK_EIO
 */
EK_MUST ek_status ek_link_net_accept(int listener, int64_t timeout_us, int *out_fd, char *out_peer,
                                     size_t bytes);

/** Resolve and connect. @return EK_OK; EK_EINVAL the address is none; EK_EPEER; EK_ETIMEOUT */
EK_MUST ek_status ek_link_net_connect(const char *address, int64_t deadline_us, int *out_fd,
                                      ek_err *err);

/** Wait until the socket can be read or written. @return false: deadline_us passed */
bool ek_link_net_wait(int fd, bool for_write, int64_t deadline_us);

/** Is this host this machine, whatever networks it has: 127.x.y.z, ::1, localhost? */
bool ek_link_net_is_loopback(const char *host);

#endif
