/*
 * The router's own state; for the files of this room that implement route.h.
 *
 * All of it belongs to the router's owner, but for the mailbox, through which anybody may leave
 * other params.
 */
#ifndef EK_ROUTE_ROUTER_H
#define EK_ROUTE_ROUTER_H

#include <stdatomic.h>

#include "route/budget.h"
#include "route/gate.h"
#include "route/policy.h"
#include "route/route.h"

/** What a router knows of one layer. */
typedef struct ek_router_layer {
    ek_policy_bank bank;
    ek_budget budget;
    uint32_t params_version; /* that the bank follows */
    uint32_t policy_version; /* that what the bank knows is of */
    uint64_t view_version;   /* of the last sample taken */
    bool is_current;         /* the bank's penalties follow view_version and params_version */
    int32_t n_half_open;     /* breakers */
    int64_t n_seen; /* tokens planned while something was bent: numbers them for the shadow */
} ek_router_layer;

/* The mailbox of ek_route_switch: who may touch `params`. */
enum { MAIL_EMPTY, MAIL_FULL, MAIL_HELD };

struct ek_router {
    ek_route_gate gate;
    int32_t n_layers;
    ek_policy_core core;
    bool is_plain; /* static and without capacity: the gate alone decides */
    uint32_t params_version;
    uint32_t policy_version; /* changes with the policy, even if it comes back */
    uint64_t view_version;   /* the last one that the controller has seen */
    ek_gate_scratch scratch;
    float *bent_value;       /* (n_experts) */
    uint8_t *groups;         /* (n_groups) */
    int32_t *cap;            /* (n_experts) */
    int32_t *soft;           /* (n_experts) */
    ek_router_layer *layers; /* (n_layers) */
    ek_route_stats stats;    /* owner's */

    _Atomic int32_t mail;
    ek_route_params mail_params; /* of whoever turned `mail` to MAIL_HELD */
};

/** Begin anew with what the policy knows of a layer. */
void ek_route_layer_init(ek_router *router, int32_t layer);

#endif
