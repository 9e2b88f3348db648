/*
 * What runs for each route. A handler fills the call's reply (ek_gateway_call_json,
 * ek_gateway_call_fault) or, for the two that generate, leaves the call waiting for the pump. Which
 * thread runs it is said in routes.c.
 */
#ifndef EK_GATEWAY_HANDLERS_H
#define EK_GATEWAY_HANDLERS_H

#include "gateway/call.h"

/* generate.c */
void ek_gateway_run_chat(ek_call *call);
void ek_gateway_run_completion(ek_call *call);

/* tokens.c */
void ek_gateway_run_tokenize(ek_call *call);
void ek_gateway_run_detokenize(ek_call *call);

/* info.c */
void ek_gateway_run_models(ek_call *call);
void ek_gateway_run_model(ek_call *call);
void ek_gateway_run_version(ek_call *call);
void ek_gateway_run_load(ek_call *call);
void ek_gateway_run_props(ek_call *call);
void ek_gateway_run_metrics(ek_call *call);
void ek_gateway_run_live(ek_call *call);
void ek_gateway_run_ready(ek_call *call);

/* experts.c */
void ek_gateway_run_experts(ek_call *call);

/* cluster.c */
void ek_gateway_run_cluster(ek_call *call);
void ek_gateway_run_cluster_drain(ek_call *call);
void ek_gateway_run_cluster_resume(ek_call *call);
void ek_gateway_run_cluster_acquire(ek_call *call);
void ek_gateway_run_cluster_release(ek_call *call);

/** What the gateway asks of the cluster; NULL: there is none, and the call has its fault. */
const struct ek_gateway_cluster *ek_gateway_call_cluster(ek_call *call);

/* cluster_place.c */
void ek_gateway_run_cluster_place(ek_call *call);

/* page.c */
void ek_gateway_run_page(ek_call *call);

#endif
