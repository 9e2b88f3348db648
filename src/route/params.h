/*
 * What a configuration may say about routing.
 */
#ifndef EK_ROUTE_PARAMS_H
#define EK_ROUTE_PARAMS_H

typedef enum ek_route_policy {
    EK_ROUTE_POLICY_STATIC, /* the model's own choice */
} ek_route_policy;

typedef struct ek_route_params {
    ek_route_policy policy; /* default static */
} ek_route_params;

#endif
