/*
 * A whole server for tests: metrics, the real engine on a tiny model, and the gateway, on free
 * ports of 127.0.0.1.
 */
#ifndef EK_TESTS_GATEWAY_HOUSE_H
#define EK_TESTS_GATEWAY_HOUSE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "gateway/gateway.h"
#include "sys/mem.h"
#include "telemetry/metrics.h"

#define HOUSE_MODEL_ID "shop/tiny:1"

typedef struct house {
    ek_gateway_params gateway_params; /* change before house_open */
    ek_engine_params engine_params;
    ek_sys_region region;
    ek_arena *arena; /* over region; the registry grows in it */
    ek_metrics *metrics;
    ek_engine *engine;
    ek_gateway *gateway;
    const char *address;
    const char *health;
} house;

/** Parameters as in a usual configuration, with short times. */
void house_init(house *h);
/** Start the gateway alone: the model "is being loaded". */
void house_open_gateway(house *h);
/** Create the engine on the build's own tiny model and attach it. */
void house_attach(house *h);
/** Both. */
void house_open(house *h);
void house_close(house *h);

/** A house on the heap, initialised; and its end: idle, closed, freed. */
house *house_make(void);
void house_end(house *h);

/**
 * Value of a series in the metrics text, as /metrics shows it: "evenkeel_http_connections" or with
 * labels in braces. Fails the test when there is no such series.
 */
double house_metric(const house *h, const char *series);
/** Wait until a series has a value; false when it does not within the time. */
bool house_awaits(const house *h, const char *series, double value, int64_t timeout_ms);
/**
 * Wait until nothing is open, running or waiting any more, and check that every gauge says exactly
 * 0.
 */
void house_assert_idle(const house *h);

#endif
