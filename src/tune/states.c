#include "tune/states.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/size.h"

#define MAGIC   "GSR1"
#define VERSION 1

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "arrays are written as they lie");

/* As it lies in the file. */
typedef struct head {
    char magic[4];
    uint32_t version;
    uint32_t n_tokens;
    uint32_t n_layers;
    uint32_t n_experts;
    uint32_t d_model;
    uint32_t top_k;
    uint32_t n_chunks;
    uint64_t n_seen;
    char model[EK_STATES_MODEL_CHARS];
    uint8_t reserved[24]; /* zeros */
} head;

static_assert(sizeof(head) == 128, "GSR1 head");
static_assert(offsetof(head, n_seen) == 32 && offsetof(head, model) == 40, "GSR1 head");

static bool within(int64_t value, int64_t low, int64_t high)
{
    return value >= low && value <= high;
}

size_t ek_tune_states_bytes(const ek_states_shape *s)
{
    size_t row, bytes;
    bool good = within(s->n_tokens, 1, EK_STATES_TOKENS_MAX) &&
                within(s->n_layers, 1, EK_STATES_LAYERS_MAX) &&
                within(s->n_experts, 1, EK_STATES_EXPERTS_MAX) &&
                within(s->d_model, 1, EK_STATES_WIDTH_MAX) && within(s->top_k, 1, s->n_experts) &&
                s->n_chunks >= 1 && s->n_seen >= s->n_tokens;
    if (!good) return 0;
    row = (size_t)(s->d_model + s->n_experts) * sizeof(float);
    if (!ek_size_mul(row, (size_t)s->n_layers, &bytes) ||
        !ek_size_add(bytes, sizeof(uint32_t), &bytes) ||
        !ek_size_mul(bytes, (size_t)s->n_tokens, &bytes) ||
        !ek_size_add(bytes, sizeof(head), &bytes))
        return 0;
    return bytes;
}

void ek_tune_states_begin(const ek_states_shape *s, const char *model, uint8_t *mem)
{
    head h = {
        .version = VERSION,
        .n_tokens = (uint32_t)s->n_tokens,
        .n_layers = (uint32_t)s->n_layers,
        .n_experts = (uint32_t)s->n_experts,
        .d_model = (uint32_t)s->d_model,
        .top_k = (uint32_t)s->top_k,
        .n_chunks = (uint32_t)s->n_chunks,
        .n_seen = (uint64_t)s->n_seen,
    };
    memcpy(h.magic, MAGIC, sizeof h.magic);
    memcpy(h.model, model, sizeof h.model);
    memcpy(mem, &h, sizeof h);
}

uint32_t *ek_tune_states_chunks(const ek_states_shape *shape, uint8_t *mem)
{
    (void)shape;
    return (uint32_t *)(void *)(mem + sizeof(head));
}

/* Floats of one layer: hidden, then logits. */
static size_t layer_floats(const ek_states_shape *s)
{
    return (size_t)s->n_tokens * (size_t)(s->d_model + s->n_experts);
}

float *ek_tune_states_hidden_of(const ek_states_shape *shape, int32_t layer, uint8_t *mem)
{
    float *layers = (float *)(void *)(mem + sizeof(head)) + shape->n_tokens;
    return layers + (size_t)layer * layer_floats(shape);
}

float *ek_tune_states_logits_of(const ek_states_shape *shape, int32_t layer, uint8_t *mem)
{
    return ek_tune_states_hidden_of(shape, layer, mem) +
           (size_t)shape->n_tokens * (size_t)shape->d_model;
}

static bool is_hex(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!within(text[i], '0', '9') && !within(text[i], 'a', 'f')) return false;
    return true;
}

static ek_status head_read(ek_span bytes, const char *origin, ek_states *s, ek_err *err)
{
    static const uint8_t zeros[sizeof((head *)0)->reserved];
    head h;
    if (bytes.len < sizeof h)
        return ek_err_set(err, EK_ETRUNCATED, "%s: the head takes %zu bytes, the file has %zu",
                          origin, sizeof h, bytes.len);
    memcpy(&h, bytes.data, sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof h.magic) != 0)
        return ek_err_set(err, EK_EFORMAT,
                          "%s: is no recording of gate states; `evenkeel calibrate record` makes "
                          "them",
                          origin);
    if (h.version != VERSION)
        return ek_err_set(err, EK_EFORMAT, "%s: version %u, this program reads %d", origin,
                          h.version, VERSION);
    if (h.n_tokens > EK_STATES_TOKENS_MAX || h.n_layers > EK_STATES_LAYERS_MAX ||
        h.n_experts > EK_STATES_EXPERTS_MAX || h.d_model > EK_STATES_WIDTH_MAX ||
        h.top_k > EK_STATES_EXPERTS_MAX || h.n_chunks > INT32_MAX || h.n_seen > INT64_MAX)
        return ek_err_set(err, EK_EFORMAT, "%s: a number in its head is out of range", origin);
    s->shape = (ek_states_shape){
        .n_tokens = (int32_t)h.n_tokens,
        .n_layers = (int32_t)h.n_layers,
        .n_experts = (int32_t)h.n_experts,
        .d_model = (int32_t)h.d_model,
        .top_k = (int32_t)h.top_k,
        .n_chunks = (int32_t)h.n_chunks,
        .n_seen = (int64_t)h.n_seen,
    };
    size_t wanted = ek_tune_states_bytes(&s->shape);
    if (wanted == 0 || !is_hex(h.model, sizeof h.model) ||
        memcmp(h.reserved, zeros, sizeof zeros) != 0)
        return ek_err_set(err, EK_EFORMAT, "%s: a number in its head is out of range", origin);
    if (bytes.len != wanted)
        return ek_err_set(err, bytes.len < wanted ? EK_ETRUNCATED : EK_EFORMAT,
                          "%s: has %zu bytes, its head says %zu", origin, bytes.len, wanted);
    memcpy(s->model, h.model, sizeof h.model);
    s->model[EK_STATES_MODEL_CHARS] = '\0';
    return EK_OK;
}

static ek_status numbers_check(const ek_states *s, const char *origin, ek_err *err)
{
    for (int32_t t = 0; t < s->shape.n_tokens; t++)
        if (s->chunk[t] >= (uint32_t)s->shape.n_chunks)
            return ek_err_set(err, EK_EFORMAT, "%s: token %d: chunk %u of %d", origin, t,
                              s->chunk[t], s->shape.n_chunks);
    size_t n = layer_floats(&s->shape), n_hidden = (size_t)s->shape.n_tokens;
    n_hidden *= (size_t)s->shape.d_model;
    for (int32_t l = 0; l < s->shape.n_layers; l++) {
        const float *value = s->layers + (size_t)l * n;
        for (size_t i = 0; i < n; i++) {
            if (isfinite(value[i])) continue;
            bool hidden = i < n_hidden;
            size_t width = (size_t)(hidden ? s->shape.d_model : s->shape.n_experts);
            return ek_err_set(err, EK_EFORMAT, "%s: layer %d, token %zu: a %s is not finite",
                              origin, l, (hidden ? i : i - n_hidden) / width,
                              hidden ? "state" : "logit");
        }
    }
    return EK_OK;
}

ek_status ek_tune_states_open(ek_span bytes, const char *origin, ek_states *out_states, ek_err *err)
{
    ek_states s = {0};
    ek_status status = head_read(bytes, origin, &s, err);
    if (status != EK_OK) return status;
    s.chunk = (const uint32_t *)(const void *)(bytes.data + sizeof(head));
    s.layers = (const float *)(const void *)(s.chunk + s.shape.n_tokens);
    status = numbers_check(&s, origin, err);
    if (status == EK_OK) *out_states = s;
    return status;
}

const float *ek_tune_states_hidden(const ek_states *states, int32_t layer)
{
    return states->layers + (size_t)layer * layer_floats(&states->shape);
}

const float *ek_tune_states_logits(const ek_states *states, int32_t layer)
{
    return ek_tune_states_hidden(states, layer) +
           (size_t)states->shape.n_tokens * (size_t)states->shape.d_model;
}
