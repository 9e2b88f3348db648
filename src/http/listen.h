/*
 * Listening sockets: "127.0.0.1:8080", "[::1]:8080", "localhost:8080", ":0" (every IPv4 interface).
 */
#ifndef EK_HTTP_LISTEN_H
#define EK_HTTP_LISTEN_H

#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"

#define EK_LISTEN_TEXT_MAX 80 /* bytes of an address as text */

/**
 * Bind and listen, non-blocking.
 * @param out_text the address in use, port 0 replaced by the one the kernel chose
 * @return EK_OK; EK_EINVAL not an address; EK_EINUSE; EK_EACCESS; EK_EIO; the text names the
 *          address
 */
EK_MUST ek_status ek_http_listen(const char *address, int *out_fd,
                                 char out_text[EK_LISTEN_TEXT_MAX], ek_err *err);

/**
 * Take the next waiting connection, non-blocking and close-on-exec.
 * @param out_ip the client's address, IPv4 mapped into IPv6
 * @return EK_OK; EK_AGAIN none waits; EK_EFULL the process has no descriptor left; EK_EIO that one
 *          failed
 */
EK_MUST ek_status ek_http_accept(int listener, int *out_fd, uint8_t out_ip[16]);

/** An address as in ek_http_accept, as text ("192.0.2.1", "2001:db8::1"). */
#define EK_IP_TEXT_MAX 46
void ek_http_ip_text(const uint8_t ip[16], char out_text[EK_IP_TEXT_MAX]);

#endif
