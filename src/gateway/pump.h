/*
 * The pump: one thread between the engine and the connections.
 *
 * It waits for the engine's news, reads them out, writes frames or collects text, and wakes
 * connections. It alone reads from and releases engine requests. Others ask it to look at a call
 * (kick): when a generation begins, when a slow client made room again, when a client is gone. It
 * also sends pings.
 */
#ifndef EK_GATEWAY_PUMP_H
#define EK_GATEWAY_PUMP_H

#include "base/attr.h"
#include "engine/engine.h"
#include "gateway/call.h"

typedef struct ek_pump ek_pump;

/** Start; the thread sleeps until an engine is attached. @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_gateway_pump_create(ek_pump **out_pump);
void ek_gateway_pump_attach(ek_pump *pump, ek_engine *engine);

/** Have the pump look at a call soon; takes a reference. May be called under the call's lock. */
void ek_gateway_pump_kick(ek_pump *pump, ek_call *call);

/** Give back what is still in the engine, join, free. No kick may come any more. Accepts NULL. */
void ek_gateway_pump_destroy(ek_pump *pump);

#endif
