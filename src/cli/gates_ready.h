/*
 * The last step before a server is ready: a short text of the program's own goes through the model,
 * and what its gates choose has to be sane (telemetry/gate_check.h), with an answer for every row
 * that went to a worker.
 */
#ifndef EK_CLI_GATES_READY_H
#define EK_CLI_GATES_READY_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "cluster/front.h"
#include "config/config.h"
#include "engine/engine.h"
#include "gateway/gateway.h"

typedef struct ek_cli_gates {
    const ek_config *config; /* all borrowed for the call */
    ek_engine *engine;       /* nobody has requests inside */
    ek_front *front;         /* NULL: experts are in this process */
    ek_gateway *gateway;     /* is told what it waits for */
    ek_gauge *sane;          /* 1 or 0 */
    bool (*hurry)(void *ctx);
    void *ctx;
} ek_cli_gates;

/**
 * Sample until the gates are sane, or once, as engine.gate_check says. What is wrong is logged when
 * it changes; readiness says it meanwhile.
 * @return EK_OK: be ready; EK_ECANCELED `hurry` became true; EK_ENOMEM
 */
EK_MUST ek_status ek_cli_gates_ready(const ek_cli_gates *gates, ek_err *err);

#endif
