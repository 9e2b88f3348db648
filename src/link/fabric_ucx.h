/*
 * The fabric `ucx`: messages as active messages of UCX, over whatever that finds (RDMA, shared
 * memory, TCP). The library is loaded when this fabric is asked for, and only then: it takes over
 * signals and memory calls of a process that merely links it.
 *
 * Links of this fabric meet by addresses that are exchanged over the control link; there is no
 * listener, which a few bytes of nonsense would end the process by. Nothing is encrypted: use it on
 * an isolated segment. UCX opens ports on all interfaces unless UCX_NET_DEVICES says otherwise.
 */
#ifndef EK_LINK_FABRIC_UCX_H
#define EK_LINK_FABRIC_UCX_H

#include "base/attr.h"
#include "base/err.h"
#include "link/fabric.h"

/** @return EK_OK; EK_EUNSUPPORTED the library is not there, or cannot begin; EK_ENOMEM */
EK_MUST ek_status ek_link_fabric_ucx(ek_fabric **out_fabric, ek_err *err);

#endif
