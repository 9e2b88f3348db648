/*
 * The fabrics `tls` and `tcp`: framed messages over TCP, under mutual TLS 1.3 or bare.
 *
 * Both sides of a TLS link show a certificate of the cluster's own authority: a worker one for
 * servers that names the host it is called by, a front one for clients (link/certs.h). Strangers
 * get no further than the handshake. A bare link has no protection of its own: it is for data on a
 * segment that nobody else can reach, and starts with a secret that only somebody on the control
 * link can know.
 */
#ifndef EK_LINK_FABRIC_TCP_H
#define EK_LINK_FABRIC_TCP_H

#include "base/attr.h"
#include "base/err.h"
#include "link/fabric.h"

/**
 * @param certs directory with ca.pem, node.pem and node.key as `evenkeel cluster init` writes
 * @return EK_OK; EK_ECONFIG a file is missing, unreadable or does not fit, the text names it;
 *         EK_ENOMEM
 */
EK_MUST ek_status ek_link_fabric_tls(const char *certs, ek_fabric **out_fabric, ek_err *err);

/** @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_link_fabric_tcp(ek_fabric **out_fabric, ek_err *err);

#endif
