#include "expert/pack.h"

#include "base/assert.h"
#include "base/size.h"
#include "kernels/pack.h"
#include "sys/mem.h"

enum {
    LAYER_MATS = 10, /* of a layer that may be packed */
    FIRST_EXPERT_MAT = 4,
    LAST_EXPERT_MAT = 6,
    CHUNK_PANELS = 64, /* that a thread takes at once */
};

struct ek_packed_model {
    ek_model model;
    ek_model_layer *layers;      /* (n_layers) */
    ek_tensor *tensors;          /* (n_tensors) the packed ones */
    const ek_tensor **originals; /* (n_tensors) */
    int32_t *expert_layer;       /* (n_tensors) layer of experts' matrices; -1: of no expert */
    int32_t n_tensors;
    ek_sys_region weights;   /* owned */
    ek_sys_region described; /* owned; this struct lies in it */
};

/*
 * One tensor on its way; threads share out its panels: those of experts with a home among the
 * threads of that node, all others among all.
 */
typedef struct pack_job {
    const ek_tensor *from;
    const ek_tensor *to;
    int64_t n_panels;                          /* of one expert, or of the whole tensor */
    int32_t n_experts;                         /* 1: the tensor is taken as a whole */
    const ek_expert_homes *homes;              /* NULL: anyone takes anything */
    const int32_t *expert_node;                /* (n_experts) */
    ek_sys_ticket anyone;                      /* chunks of experts without a home */
    ek_sys_ticket ticket[EK_EXPERT_HOMES_MAX]; /* chunks of each node's */
} pack_job;

static bool can_pack(const ek_kernels *kernels, const ek_tensor *tensor)
{
    return tensor && kernels->act_int8[tensor->type] && ek_kernels_pack_dwords(tensor->type) > 0 &&
           tensor->dim[1] % EK_PACK_ROWS == 0;
}

/* The fields of a layer that hold matrices. */
static void layer_mats(ek_model_layer *layer, const ek_tensor **out_mat[LAYER_MATS])
{
    const ek_tensor **mat[LAYER_MATS] = {
        &layer->attn_q,      &layer->attn_k,     &layer->attn_v,      &layer->attn_out,
        &layer->expert_gate, &layer->expert_up,  &layer->expert_down, &layer->shared_gate,
        &layer->shared_up,   &layer->shared_down};
    for (int i = 0; i < LAYER_MATS; i++)
        out_mat[i] = mat[i];
}

/*
 * Visit every matrix that can be packed: add up its bytes and, with an arena, put a tensor in its
 * place whose data lie there.
 */
static size_t mats_describe(ek_packed_model *packed, const ek_kernels *kernels, ek_arena *weights)
{
    size_t bytes = 0;
    ek_model *model = &packed->model;
    for (int32_t l = 0; l <= model->params.n_layers; l++) {
        const ek_tensor **mat[LAYER_MATS] = {&model->output};
        int n_mats = model->output != model->token_embd;
        if (l < model->params.n_layers) {
            layer_mats(&packed->layers[l], mat);
            n_mats = LAYER_MATS;
        }
        for (int i = 0; i < n_mats; i++) {
            const ek_tensor *from = *mat[i];
            if (!can_pack(kernels, from)) continue;
            bytes += ek_size_align(from->bytes, EK_CACHE_LINE);
            if (!weights) continue;
            ek_tensor *own = &packed->tensors[packed->n_tensors];
            *own = *from;
            own->data = ek_arena_try_raw(weights, from->bytes, 1, EK_CACHE_LINE);
            own->packed = true;
            packed->expert_layer[packed->n_tensors] =
                n_mats == LAYER_MATS && i >= FIRST_EXPERT_MAT && i <= LAST_EXPERT_MAT ? l : -1;
            ek_assert(own->data != NULL); /* counted before */
            packed->originals[packed->n_tensors++] = from;
            *mat[i] = own;
        }
    }
    return bytes;
}

ek_status ek_expert_pack_create(const ek_model *model, const ek_kernels *kernels,
                                ek_packed_model **out_packed, ek_err *err)
{
    size_t n_layers = (size_t)model->params.n_layers;
    size_t n_tensors = n_layers * LAYER_MATS + 1;
    ek_sys_region described;
    ek_status status = ek_sys_region_open(
        sizeof(ek_packed_model) + n_layers * sizeof(ek_model_layer) +
            n_tensors * (sizeof(ek_tensor) + sizeof(ek_tensor *) + sizeof(int32_t)) +
            5 * (size_t)EK_CACHE_LINE,
        0, &described);
    if (status != EK_OK) return ek_err_set(err, status, "no memory to describe packed weights");
    ek_arena arena = ek_sys_region_arena(&described);
    ek_packed_model *packed = ek_new(&arena, ek_packed_model, 1);
    packed->layers = ek_new(&arena, ek_model_layer, n_layers);
    packed->tensors = ek_new(&arena, ek_tensor, n_tensors);
    packed->originals = ek_new(&arena, const ek_tensor *, n_tensors);
    packed->expert_layer = ek_new(&arena, int32_t, n_tensors);
    packed->described = described;
    packed->model = *model;
    packed->model.layers = packed->layers;
    for (size_t l = 0; l < n_layers; l++)
        packed->layers[l] = model->layers[l];
    size_t bytes = mats_describe(packed, kernels, NULL) + EK_CACHE_LINE;
    status = ek_sys_region_open(bytes, 1, &packed->weights);
    if (status != EK_OK) {
        ek_expert_pack_destroy(packed);
        return ek_err_set(err, status, "no memory for %zu bytes of packed weights", bytes);
    }
    ek_arena weights = ek_sys_region_arena(&packed->weights);
    mats_describe(packed, kernels, &weights);
    *out_packed = packed;
    return EK_OK;
}

static void pack_panels(const pack_job *job, int64_t beg, int64_t end)
{
    const ek_tensor *t = job->from;
    size_t row_bytes = ek_quant_row_bytes(t->type, t->dim[0]);
    size_t panel_bytes = row_bytes * EK_PACK_ROWS;
    uint8_t *to = (uint8_t *)(uintptr_t)job->to->data; /* in our own region */
    for (int64_t p = beg; p < end; p++) {
        const uint8_t *rows = (const uint8_t *)t->data + (size_t)p * panel_bytes;
        ek_kernels_pack(t->type, (int32_t)t->dim[0], rows, row_bytes, to + (size_t)p * panel_bytes);
    }
}

/* Chunk after chunk of the experts whose node this is, as long as the ticket has some. */
static void pack_experts_of(const pack_job *job, ek_sys_ticket *ticket, int32_t node)
{
    int64_t n_chunks = (job->n_panels + CHUNK_PANELS - 1) / CHUNK_PANELS, passed = 0;
    int64_t next = ek_sys_ticket_take(ticket);
    for (int32_t e = 0; e < job->n_experts; e++) {
        if ((job->homes ? job->expert_node[e] : -1) != node) continue;
        for (; next < passed + n_chunks; next = ek_sys_ticket_take(ticket)) {
            int64_t beg = (next - passed) * CHUNK_PANELS, end = beg + CHUNK_PANELS;
            int64_t first = e * job->n_panels;
            pack_panels(job, first + beg, first + (end < job->n_panels ? end : job->n_panels));
        }
        passed += n_chunks;
    }
}

static void pack_share(void *ctx, int32_t thread_idx)
{
    pack_job *job = ctx;
    if (job->homes) {
        int32_t node = job->homes->thread_node[thread_idx];
        pack_experts_of(job, &job->ticket[node], node);
    }
    pack_experts_of(job, &job->anyone, -1);
}

void ek_expert_pack_run(ek_packed_model *packed, ek_sys_pool *pool, const ek_expert_homes *homes)
{
    for (int32_t i = 0; i < packed->n_tensors; i++) {
        const ek_tensor *from = packed->originals[i];
        int32_t layer = packed->expert_layer[i], n_experts = packed->model.params.n_experts;
        bool by_expert = homes && layer >= 0;
        pack_job job = {.from = from,
                        .to = &packed->tensors[i],
                        .n_panels = from->dim[1] / EK_PACK_ROWS * from->dim[2] * from->dim[3],
                        .n_experts = 1};
        if (by_expert) {
            job.n_experts = n_experts;
            job.n_panels /= n_experts;
            job.homes = homes;
            job.expert_node = homes->expert_node + (int64_t)layer * n_experts;
        }
        ek_sys_pool_run(pool, pack_share, &job);
        ek_sys_mem_forget(from->data, from->bytes);
    }
}

const ek_model *ek_expert_pack_model(const ek_packed_model *packed)
{
    return &packed->model;
}

void ek_expert_pack_destroy(ek_packed_model *packed)
{
    if (!packed) return;
    ek_sys_region described = packed->described; /* a copy, since packed lies in it */
    ek_sys_region_close(&packed->weights);
    ek_sys_region_close(&described);
}
