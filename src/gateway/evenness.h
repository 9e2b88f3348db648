/*
 * The part of /v1/experts that tells how even experts are kept: devices and the replicas on them,
 * routing, rebalancing, alerts.
 */
#ifndef EK_GATEWAY_EVENNESS_H
#define EK_GATEWAY_EVENNESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "engine/watch.h"
#include "http/buf.h"

/**
 * Append ,"devices":{...},"routing":{...},"rebalance":...,"alerts":[...] to an open object.
 * @param window_us that counts look back on; 0: all
 * @return false: no memory, and nothing was appended
 */
EK_MUST bool ek_gateway_evenness_add(ek_engine *engine, int64_t window_us, ek_buf *json);

#endif
