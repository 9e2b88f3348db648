#include "expert/overlay.h"

#include <math.h>
#include <stdio.h>

#include "model/gguf.h"
#include "sys/file.h"
#include "sys/mem.h"

#define EDGE_BYTES   ((size_t)4096) /* hashed at either end of a tensor */
#define OVERLAY_NAME "evenkeel.overlay."

struct ek_gate_overlay {
    ek_model model;
    ek_model_layer *layers; /* (n_layers) */
    char method[EK_OVERLAY_METHOD_MAX];
    char sha256[EK_SHA256_HEX_BYTES];
    ek_sys_map map;       /* owned */
    ek_sys_region region; /* owned; this struct lies in it */
};

/* ---- fingerprint ---- */

static bool lies_in(const ek_span *shard, const void *data)
{
    return (const uint8_t *)data >= shard->data && (const uint8_t *)data < shard->data + shard->len;
}

/* Metadata and directory: what comes before the first tensor's data, or all of it. */
static size_t head_bytes(const ek_span *shard, const ek_gguf *gguf)
{
    size_t bytes = shard->len;
    int64_t n = ek_model_gguf_tensor_count(gguf);
    for (int64_t i = 0; i < n; i++) {
        const ek_tensor *t = ek_model_gguf_tensor_at(gguf, i);
        if (!lies_in(shard, t->data)) continue;
        size_t at = (size_t)((const uint8_t *)t->data - shard->data);
        bytes = at < bytes ? at : bytes;
    }
    return bytes;
}

static bool is_gate(const ek_model *model, const ek_tensor *tensor)
{
    for (int32_t l = 0; l < model->params.n_layers; l++)
        if (tensor == model->layers[l].gate || tensor == model->layers[l].gate_bias) return true;
    return false;
}

static void add_tensor(ek_sys_sha256 *hash, const ek_tensor *t, bool whole)
{
    const uint8_t *data = t->data;
    if (whole || t->bytes <= 2 * EDGE_BYTES) {
        ek_sys_sha256_add(hash, data, t->bytes);
        return;
    }
    ek_sys_sha256_add(hash, data, EDGE_BYTES);
    ek_sys_sha256_add(hash, data + t->bytes - EDGE_BYTES, EDGE_BYTES);
}

ek_status ek_expert_fingerprint(const ek_span *shards, int32_t n_shards, const ek_model *model,
                                char out_hex[EK_SHA256_HEX_BYTES])
{
    ek_sys_sha256 hash;
    ek_status status = ek_sys_sha256_open(&hash);
    if (status != EK_OK) return status;
    for (int32_t i = 0; i < n_shards; i++)
        ek_sys_sha256_add(&hash, shards[i].data, head_bytes(&shards[i], model->gguf));
    int64_t n = ek_model_gguf_tensor_count(model->gguf);
    for (int64_t i = 0; i < n; i++) {
        const ek_tensor *t = ek_model_gguf_tensor_at(model->gguf, i);
        add_tensor(&hash, t, is_gate(model, t));
    }
    ek_sys_sha256_close(&hash, out_hex);
    return EK_OK;
}

/* ---- checks ---- */

static ek_status check_kind(const ek_gguf *gguf, ek_err *err)
{
    ek_str arch;
    ek_status status = ek_model_gguf_str(gguf, "general.architecture", &arch, err);
    if (status != EK_OK || !ek_str_eqz(arch, EK_OVERLAY_ARCH))
        return ek_err_set(err, EK_EFORMAT,
                          "is no gate overlay; `evenkeel calibrate` makes them from a model");
    int64_t version;
    status = ek_model_gguf_int(gguf, OVERLAY_NAME "version", 0, UINT32_MAX, &version, err);
    if (status != EK_OK) return ek_err_set(err, EK_EFORMAT, OVERLAY_NAME "version: missing");
    if (version != EK_OVERLAY_VERSION)
        return ek_err_set(err, EK_EUNSUPPORTED,
                          OVERLAY_NAME "version: is %lld, this program reads %d",
                          (long long)version, EK_OVERLAY_VERSION);
    return EK_OK;
}

static ek_status check_base(const ek_gguf *gguf, const char *base_sha256, ek_err *err)
{
    ek_str said;
    ek_status status = ek_model_gguf_str(gguf, OVERLAY_NAME "base_sha256", &said, err);
    if (status != EK_OK) return ek_err_set(err, EK_EFORMAT, OVERLAY_NAME "base_sha256: missing");
    if (!ek_str_eqz(said, base_sha256))
        return ek_err_set(err, EK_EINVAL,
                          "was made for another model (fingerprint %.12s, this one has %.12s); "
                          "calibrate this model, or serve it without the overlay",
                          said.len >= 12 ? said.data : "short", base_sha256);
    return EK_OK;
}

/* A method is shown to people and put into JSON: printable ASCII, or it is left out. */
static void copy_method(ek_gate_overlay *o, const ek_gguf *gguf)
{
    ek_str method = EK_STR("unknown");
    ek_str said;
    if (ek_model_gguf_str(gguf, OVERLAY_NAME "method", &said, NULL) == EK_OK) method = said;
    bool plain = method.len > 0 && method.len < sizeof o->method;
    for (size_t i = 0; plain && i < method.len; i++)
        plain = method.data[i] >= '!' && method.data[i] <= '~' && method.data[i] != '"' &&
                method.data[i] != '\\';
    snprintf(o->method, sizeof o->method, "%.*s", EK_STR_ARG(plain ? method : EK_STR("unknown")));
}

static ek_status check_finite(const ek_tensor *t, ek_err *err)
{
    const float *value = t->data;
    int64_t n = t->dim[0] * t->dim[1];
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(value[i]))
            return ek_err_set(err, EK_EFORMAT, "tensor %.*s: element %lld is not a finite number",
                              EK_STR_ARG(t->name), (long long)i);
    return EK_OK;
}

static ek_status bind_tensor(ek_gate_overlay *o, const ek_tensor *t, ek_err *err)
{
    const ek_model_params *p = &o->model.params;
    for (int32_t l = 0; l < p->n_layers; l++) {
        char gate[64], bias[64];
        snprintf(gate, sizeof gate, "blk.%d.ffn_gate_inp.weight", l);
        snprintf(bias, sizeof bias, "blk.%d.exp_probs_b.bias", l);
        bool is_weight = ek_str_eqz(t->name, gate);
        if (!is_weight && !ek_str_eqz(t->name, bias)) continue;
        int64_t d0 = is_weight ? p->d_model : p->n_experts, d1 = is_weight ? p->n_experts : 1;
        if (t->type != EK_TYPE_F32 || t->dim[0] != d0 || t->dim[1] != d1 || t->dim[2] != 1 ||
            t->dim[3] != 1)
            return ek_err_set(err, EK_EFORMAT, "tensor %.*s: must be F32 of %lld x %lld",
                              EK_STR_ARG(t->name), (long long)d0, (long long)d1);
        if (is_weight)
            o->layers[l].gate = t;
        else
            o->layers[l].gate_bias = t;
        return check_finite(t, err);
    }
    return ek_err_set(err, EK_EFORMAT, "tensor %.*s: is no gate of a model with %d layers",
                      EK_STR_ARG(t->name), p->n_layers);
}

static ek_status bind_all(ek_gate_overlay *o, const ek_gguf *gguf, ek_err *err)
{
    int64_t n = ek_model_gguf_tensor_count(gguf);
    if (n == 0) return ek_err_set(err, EK_EFORMAT, "has no gate");
    ek_status status = EK_OK;
    for (int64_t i = 0; i < n && status == EK_OK; i++)
        status = bind_tensor(o, ek_model_gguf_tensor_at(gguf, i), err);
    return status;
}

static ek_status fill(ek_gate_overlay *o, const char *base_sha256, ek_arena *perm, ek_err *err)
{
    ek_gguf *gguf;
    ek_status status = ek_model_gguf_parse(&o->map.bytes, 1, perm, &gguf, err);
    if (status == EK_OK) status = check_kind(gguf, err);
    if (status == EK_OK) status = check_base(gguf, base_sha256, err);
    if (status == EK_OK) status = bind_all(o, gguf, err);
    if (status != EK_OK) return status;
    copy_method(o, gguf);
    return ek_sys_sha256_of(o->map.bytes.data, o->map.bytes.len, o->sha256);
}

ek_status ek_expert_overlay_open(const char *path, const ek_model *base, const char *base_sha256,
                                 ek_gate_overlay **out_overlay, ek_err *err)
{
    ek_sys_map map;
    ek_status status = ek_sys_map_open(path, &map, err);
    if (status != EK_OK) return status;
    size_t n_layers = (size_t)base->params.n_layers;
    ek_sys_region region;
    status = ek_sys_region_open(sizeof(ek_gate_overlay) + n_layers * sizeof(ek_model_layer) +
                                    ek_model_gguf_perm_bytes_max(map.bytes.len) +
                                    4 * (size_t)EK_CACHE_LINE,
                                0, &region);
    if (status != EK_OK) {
        ek_sys_map_close(&map);
        return ek_err_set(err, status, "%s: no memory for it", path);
    }
    ek_arena perm = ek_sys_region_arena(&region);
    ek_gate_overlay *o = ek_new(&perm, ek_gate_overlay, 1);
    o->layers = ek_new(&perm, ek_model_layer, n_layers);
    memcpy(o->layers, base->layers, n_layers * sizeof *o->layers);
    o->model = *base;
    o->model.layers = o->layers;
    o->map = map;
    o->region = region;
    status = fill(o, base_sha256, &perm, err);
    if (status != EK_OK) {
        ek_err_prefix(err, "%s", path);
        ek_expert_overlay_close(o);
        return status;
    }
    *out_overlay = o;
    return EK_OK;
}

void ek_expert_overlay_close(ek_gate_overlay *overlay)
{
    if (!overlay) return;
    ek_sys_map_close(&overlay->map);
    ek_sys_region region = overlay->region; /* a copy, since overlay lies in it */
    ek_sys_region_close(&region);
}

const ek_model *ek_expert_overlay_model(const ek_gate_overlay *overlay)
{
    return &overlay->model;
}

const char *ek_expert_overlay_method(const ek_gate_overlay *overlay)
{
    return overlay->method;
}

const char *ek_expert_overlay_sha256(const ek_gate_overlay *overlay)
{
    return overlay->sha256;
}
