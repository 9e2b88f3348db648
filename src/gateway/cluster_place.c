/*
 * POST /v1/cluster/place: a placement for the workers while they serve. On workers of the server.
 */
#include "gateway/cluster.h"
#include "gateway/handlers.h"
#include "gateway/request_json.h"
#include "gateway/state.h"
#include "sys/log.h"
#include "sys/mem.h"

#define EXPERT_MAX  65535 /* whatever the model: who has the workers looks again */
#define WORKERS_MAX 1024  /* likewise */

typedef struct place_request {
    json_t *root;             /* owned, like the arrays; workers' names are its texts */
    int32_t *slot_expert;     /* (n_layers, n_slots) */
    ek_gateway_device *named; /* (n_named) */
    ek_gateway_placement placement;
} place_request;

static bool no_memory(ek_fault *fault)
{
    return ek_http_fault_set(fault, &ek_http_fault_overloaded, NULL, "no memory for the request");
}

static bool is_whole(const json_t *value, int64_t low, int64_t high)
{
    return json_is_integer(value) && json_integer_value(value) >= low &&
           json_integer_value(value) <= high;
}

/* One layer's slots, behind those of the layers before. */
static bool read_layer(place_request *request, const json_t *layer, ek_fault *fault)
{
    ek_gateway_placement *p = &request->placement;
    if (!json_is_array(layer) || json_array_size(layer) != (size_t)p->n_slots)
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "placement",
                                 "layer %d is not an array of as many slots as layer 0 has, %d",
                                 (int)p->n_layers, (int)p->n_slots);
    int32_t *slot = request->slot_expert + (int64_t)p->n_layers * p->n_slots;
    for (int32_t s = 0; s < p->n_slots; s++) {
        const json_t *expert = json_array_get(layer, (size_t)s);
        if (!is_whole(expert, -1, EXPERT_MAX))
            return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "placement",
                                     "slot %d of layer %d has no expert: a whole number, or -1 for "
                                     "none",
                                     (int)s, (int)p->n_layers);
        slot[s] = (int32_t)json_integer_value(expert);
    }
    p->n_layers++;
    return true;
}

/* "placement": [[0, 1, -1], [...]] in a body of so many bytes */
static bool read_placement(place_request *request, size_t body_bytes, ek_fault *fault)
{
    const json_t *layers = json_object_get(request->root, "placement");
    size_t n_layers = json_array_size(layers), n_slots = json_array_size(json_array_get(layers, 0));
    if (n_layers == 0 || n_slots == 0)
        return ek_http_fault_set(
            fault, &ek_gateway_fault_missing_parameter, "placement",
            "placement is an array with an array for each layer: the expert of each slot");
    /* Each number is a byte at least; a longer first layer is not that of a rectangle. */
    if (n_layers > body_bytes / n_slots)
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "placement",
                                 "not every layer is an array of as many slots as layer 0 has, %zu",
                                 n_slots);
    request->slot_expert = ek_sys_calloc(n_layers * n_slots, sizeof *request->slot_expert);
    if (!request->slot_expert) return no_memory(fault);
    request->placement.n_slots = (int32_t)n_slots;
    request->placement.slot_expert = request->slot_expert;
    for (size_t l = 0; l < n_layers; l++)
        if (!read_layer(request, json_array_get(layers, l), fault)) return false;
    return true;
}

/* "devices": {"host:port": 1}, which may be left out */
static bool read_devices(place_request *request, ek_fault *fault)
{
    json_t *devices = json_object_get(request->root, "devices");
    size_t n = json_object_size(devices);
    if (devices && (!json_is_object(devices) || n > WORKERS_MAX))
        return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "devices",
                                 "devices is an object: a worker's address and its device");
    if (n == 0) return true;
    request->named = ek_sys_calloc(n, sizeof *request->named);
    if (!request->named) return no_memory(fault);
    const char *worker;
    json_t *device;
    json_object_foreach(devices, worker, device)
    {
        if (!is_whole(device, 0, WORKERS_MAX))
            return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "devices",
                                     "the device of %.100s is not a whole number", worker);
        request->named[request->placement.n_named++] =
            (ek_gateway_device){.worker = worker, .device = (int32_t)json_integer_value(device)};
    }
    request->placement.named = request->named;
    return true;
}

static bool read_request(ek_call *call, place_request *request, ek_fault *fault)
{
    ek_str body = ek_http_buf_str(&call->http.body);
    return ek_gateway_json_load(body, call->gateway->params.json_depth_max, &request->root,
                                fault) &&
           read_placement(request, body.len, fault) && read_devices(request, fault);
}

static bool place(const ek_gateway_cluster *cluster, const place_request *request, ek_fault *fault)
{
    ek_err err = {0};
    ek_status status = cluster->place(cluster->ctx, &request->placement, &err);
    if (status == EK_OK) return true;
    bool is_unknown = status == EK_ENOTFOUND;
    return ek_http_fault_set(
        fault, is_unknown ? &ek_gateway_fault_not_found : &ek_gateway_fault_invalid_value,
        is_unknown ? "devices" : "placement", "%s", err.text);
}

void ek_gateway_run_cluster_place(ek_call *call)
{
    const ek_gateway_cluster *cluster = ek_gateway_call_cluster(call);
    place_request request = {0};
    ek_fault fault;
    if (!cluster) return;
    if (read_request(call, &request, &fault) && place(cluster, &request, &fault)) {
        ek_log(EK_LOG_INFO, "gateway", "workers_placed", "layers=%d slots=%d id=%s",
               (int)request.placement.n_layers, (int)request.placement.n_slots,
               call->http.request_id);
        cluster->report(cluster->ctx, &call->http.reply.body);
        ek_gateway_call_json(call);
    } else {
        ek_gateway_call_fault(call, &fault);
    }
    json_decref(request.root);
    ek_sys_free(request.slot_expert);
    ek_sys_free(request.named);
}
