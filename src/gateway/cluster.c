/*
 * /v1/cluster and what changes it: the workers that have the experts. On workers of the server.
 */
#include "gateway/cluster.h"

#include <string.h>

#include "gateway/handlers.h"
#include "gateway/request_json.h"
#include "gateway/state.h"
#include "sys/log.h"

#define ADDRESS_MAX 256

static const ek_gateway_cluster *cluster_of(ek_call *call)
{
    /* Pairs with attach_cluster. */
    const ek_gateway_cluster *cluster =
        atomic_load_explicit(&call->gateway->cluster, memory_order_acquire);
    ek_fault fault;
    if (cluster) return cluster;
    ek_http_fault_set(&fault, &ek_gateway_fault_not_found, NULL,
                      "all experts are in this process: it has no workers (cluster.workers)");
    ek_gateway_call_fault(call, &fault);
    return NULL;
}

void ek_gateway_run_cluster(ek_call *call)
{
    const ek_gateway_cluster *cluster = cluster_of(call);
    if (!cluster) return;
    cluster->report(cluster->ctx, &call->http.reply.body);
    ek_gateway_call_json(call);
}

/* {"worker": "host:port"} */
static bool read_worker(ek_call *call, char out_address[ADDRESS_MAX], ek_fault *fault)
{
    json_t *root;
    if (!ek_gateway_json_load(ek_http_buf_str(&call->http.body),
                              call->gateway->params.json_depth_max, &root, fault))
        return false;
    const char *worker = json_string_value(json_object_get(root, "worker"));
    size_t n = worker ? strlen(worker) : 0;
    bool ok = n > 0 && n < ADDRESS_MAX;
    if (ok)
        memcpy(out_address, worker, n + 1);
    else
        ek_http_fault_set(fault, &ek_gateway_fault_missing_parameter, "worker",
                          "worker is a string, the address of a worker as cluster.workers has it");
    json_decref(root);
    return ok;
}

static void change(ek_call *call, bool drain)
{
    const ek_gateway_cluster *cluster = cluster_of(call);
    char address[ADDRESS_MAX];
    ek_fault fault;
    ek_err err = {0};
    if (!cluster) return;
    if (!read_worker(call, address, &fault)) {
        ek_gateway_call_fault(call, &fault);
        return;
    }
    if (cluster->drain(cluster->ctx, address, drain, &err) != EK_OK) {
        ek_http_fault_set(&fault, &ek_gateway_fault_not_found, "worker", "%s", err.text);
        ek_gateway_call_fault(call, &fault);
        return;
    }
    ek_log(EK_LOG_INFO, "gateway", drain ? "worker_drained" : "worker_resumed",
           "worker=\"%s\" id=%s", address, call->http.request_id);
    cluster->report(cluster->ctx, &call->http.reply.body);
    ek_gateway_call_json(call);
}

void ek_gateway_run_cluster_drain(ek_call *call)
{
    change(call, true);
}

void ek_gateway_run_cluster_resume(ek_call *call)
{
    change(call, false);
}
