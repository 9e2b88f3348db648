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
#define EXPERTS_MAX 4096

const ek_gateway_cluster *ek_gateway_call_cluster(ek_call *call)
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
    const ek_gateway_cluster *cluster = ek_gateway_call_cluster(call);
    if (!cluster) return;
    cluster->report(cluster->ctx, &call->http.reply.body);
    ek_gateway_call_json(call);
}

/* A member of a body that has to be a text. */
static bool read_text(const json_t *root, const char *key, const char *what, char *out_text,
                      size_t room, ek_fault *fault)
{
    const char *text = json_string_value(json_object_get(root, key));
    size_t n = text ? strlen(text) : 0;
    bool ok = n > 0 && n < room;
    if (ok)
        memcpy(out_text, text, n + 1);
    else
        ek_http_fault_set(fault, &ek_gateway_fault_missing_parameter, key, "%s is a string, %s",
                          key, what);
    return ok;
}

/* {"worker": "host:port"}, and {"experts": "0:3,5"} where there is room for it */
static bool read_body(ek_call *call, char out_address[ADDRESS_MAX], char *out_experts,
                      ek_fault *fault)
{
    json_t *root;
    if (!ek_gateway_json_load(ek_http_buf_str(&call->http.body),
                              call->gateway->params.json_depth_max, &root, fault))
        return false;
    bool ok =
        read_text(root, "worker", "the address of a worker as cluster.workers has it", out_address,
                  ADDRESS_MAX, fault) &&
        (!out_experts || read_text(root, "experts", "LAYERS:EXPERTS, as worker.experts has it",
                                   out_experts, EXPERTS_MAX, fault));
    json_decref(root);
    return ok;
}

static void change(ek_call *call, bool drain)
{
    const ek_gateway_cluster *cluster = ek_gateway_call_cluster(call);
    char address[ADDRESS_MAX];
    ek_fault fault;
    ek_err err = {0};
    if (!cluster) return;
    if (!read_body(call, address, NULL, &fault)) {
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

static void move(ek_call *call, bool release)
{
    const ek_gateway_cluster *cluster = ek_gateway_call_cluster(call);
    char address[ADDRESS_MAX], experts[EXPERTS_MAX];
    ek_fault fault;
    ek_err err = {0};
    if (!cluster) return;
    if (!read_body(call, address, experts, &fault)) {
        ek_gateway_call_fault(call, &fault);
        return;
    }
    ek_status status = cluster->move(cluster->ctx, address, experts, release, &err);
    if (status != EK_OK) {
        bool is_unknown = status == EK_ENOTFOUND;
        ek_http_fault_set(
            &fault, is_unknown ? &ek_gateway_fault_not_found : &ek_gateway_fault_invalid_value,
            is_unknown ? "worker" : "experts", "%s", err.text);
        ek_gateway_call_fault(call, &fault);
        return;
    }
    ek_log(EK_LOG_INFO, "gateway", release ? "worker_releases" : "worker_acquires",
           "worker=\"%s\" experts=\"%s\" id=%s", address, experts, call->http.request_id);
    cluster->report(cluster->ctx, &call->http.reply.body);
    ek_gateway_call_json(call);
}

void ek_gateway_run_cluster_acquire(ek_call *call)
{
    move(call, false);
}

void ek_gateway_run_cluster_release(ek_call *call)
{
    move(call, true);
}
