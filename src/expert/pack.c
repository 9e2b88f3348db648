#include "expert/pack.h"

#include "base/assert.h"
#include "base/size.h"
#include "kernels/pack.h"
#include "sys/clock.h"
#include "sys/mem.h"

enum {
    EXPERT_MATS = 3,   /* of a layer's routed experts: the first ones in layer_mats */
    LAYER_MATS = 10,   /* of a layer that may be packed */
    CHUNK_PANELS = 16, /* that a thread takes at once */
};

/*
 * One tensor on its way; threads share out its panels: those of experts with a home among the
 * threads of that node, all others among all. A queue is a list of experts, node by node, with
 * those of no node at the end.
 */
typedef struct pack_job {
    const ek_tensor *from;
    uint8_t *to;
    int64_t n_panels;                              /* of one expert, or of the whole tensor */
    int32_t n_nodes;                               /* 0: anyone takes anything */
    int32_t queue_beg[EK_EXPERT_HOMES_MAX + 2];    /* in expert */
    ek_sys_ticket ticket[EK_EXPERT_HOMES_MAX + 1]; /* chunks of each queue */
    int64_t until_us;
} pack_job;

struct ek_packed_model {
    ek_model model;
    ek_model_layer *layers;      /* (n_layers) */
    ek_tensor *tensors;          /* (n_tensors) those that can be packed */
    const ek_tensor **originals; /* (n_tensors) */
    uint8_t **home;              /* (n_tensors) where each will lie packed */
    int32_t *expert_layer;       /* (n_tensors) whose routed experts it has; -1: dense */
    const uint64_t *wanted;      /* of ek_model_part, borrowed until all is packed; NULL: all */
    int32_t n_tensors;
    int32_t n_packed; /* tensors; the next one is on its way */
    bool has_job;     /* and begun */
    ek_pack_progress progress;
    const ek_expert_homes *homes; /* borrowed until all is packed; NULL: none */
    int32_t *expert;              /* (n_experts) in the job's queues */
    pack_job job;
    ek_sys_region weights;   /* owned */
    ek_sys_region described; /* owned; this struct lies in it */
};

static bool can_pack(const ek_kernels *kernels, const ek_tensor *tensor)
{
    return tensor && kernels->act_int8[tensor->type] && ek_kernels_pack_dwords(tensor->type) > 0 &&
           tensor->dim[1] % EK_PACK_ROWS == 0;
}

/* The fields of a layer that hold matrices. */
static void layer_mats(ek_model_layer *layer, const ek_tensor **out_mat[LAYER_MATS])
{
    const ek_tensor **mat[LAYER_MATS] = {
        &layer->expert_gate, &layer->expert_up,  &layer->expert_down, &layer->attn_q,
        &layer->attn_k,      &layer->attn_v,     &layer->attn_out,    &layer->shared_gate,
        &layer->shared_up,   &layer->shared_down};
    for (int i = 0; i < LAYER_MATS; i++)
        out_mat[i] = mat[i];
}

/*
 * Visit every matrix that can be packed: add up its bytes and, with an arena, put a tensor of our
 * own in its place, which has a home there.
 */
static size_t mats_describe(ek_packed_model *packed, const ek_model_part *part,
                            const ek_kernels *kernels, ek_arena *weights)
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
            bool is_expert = l < model->params.n_layers && i < EXPERT_MATS;
            bool is_wanted = !part || (is_expert ? part->experts != NULL : part->dense);
            if (!is_wanted || !can_pack(kernels, from)) continue;
            bytes += ek_size_align(from->bytes, EK_CACHE_LINE);
            if (!weights) continue;
            ek_tensor *own = &packed->tensors[packed->n_tensors];
            *own = *from;
            uint8_t *home = ek_arena_try_raw(weights, from->bytes, 1, EK_CACHE_LINE);
            ek_assert(home != NULL); /* counted before */
            packed->home[packed->n_tensors] = home;
            packed->expert_layer[packed->n_tensors] = is_expert ? l : -1;
            packed->originals[packed->n_tensors++] = from;
            packed->progress.total_bytes += (int64_t)from->bytes;
            *mat[i] = own;
        }
    }
    return bytes;
}

ek_status ek_expert_pack_create(const ek_model *model, const ek_model_part *part,
                                const ek_kernels *kernels, ek_packed_model **out_packed,
                                ek_err *err)
{
    size_t n_layers = (size_t)model->params.n_layers;
    size_t n_tensors = n_layers * LAYER_MATS + 1;
    ek_sys_region described;
    ek_status status = ek_sys_region_open(
        sizeof(ek_packed_model) + n_layers * sizeof(ek_model_layer) +
            n_tensors *
                (sizeof(ek_tensor) + sizeof(ek_tensor *) + sizeof(uint8_t *) + sizeof(int32_t)) +
            (size_t)model->params.n_experts * sizeof(int32_t) + 7 * (size_t)EK_CACHE_LINE,
        0, &described);
    if (status != EK_OK) return ek_err_set(err, status, "no memory to describe packed weights");
    ek_arena arena = ek_sys_region_arena(&described);
    ek_packed_model *packed = ek_new_aligned(&arena, ek_packed_model, 1);
    packed->layers = ek_new(&arena, ek_model_layer, n_layers);
    packed->tensors = ek_new(&arena, ek_tensor, n_tensors);
    packed->originals = ek_new(&arena, const ek_tensor *, n_tensors);
    packed->home = ek_new(&arena, uint8_t *, n_tensors);
    packed->expert_layer = ek_new(&arena, int32_t, n_tensors);
    packed->expert = ek_new(&arena, int32_t, (size_t)model->params.n_experts);
    packed->wanted = part ? part->experts : NULL;
    packed->described = described;
    packed->model = *model;
    packed->model.layers = packed->layers;
    for (size_t l = 0; l < n_layers; l++)
        packed->layers[l] = model->layers[l];
    size_t bytes = mats_describe(packed, part, kernels, NULL) + EK_CACHE_LINE;
    status = ek_sys_region_open(bytes, 1, &packed->weights);
    if (status != EK_OK) {
        ek_expert_pack_destroy(packed);
        return ek_err_set(err, status, "no memory for %zu bytes of packed weights", bytes);
    }
    ek_arena weights = ek_sys_region_arena(&packed->weights);
    mats_describe(packed, part, kernels, &weights);
    *out_packed = packed;
    return EK_OK;
}

/* ---- packing ---- */

static int64_t queue_chunks(const pack_job *job, int32_t queue)
{
    int64_t n_chunks = (job->n_panels + CHUNK_PANELS - 1) / CHUNK_PANELS;
    return n_chunks * (job->queue_beg[queue + 1] - job->queue_beg[queue]);
}

static void pack_chunk(const ek_packed_model *packed, int32_t queue, int64_t idx)
{
    const pack_job *job = &packed->job;
    const ek_tensor *t = job->from;
    int64_t n_chunks = (job->n_panels + CHUNK_PANELS - 1) / CHUNK_PANELS;
    int64_t expert = packed->expert[job->queue_beg[queue] + idx / n_chunks];
    int64_t beg = idx % n_chunks * CHUNK_PANELS, end = beg + CHUNK_PANELS;
    if (end > job->n_panels) end = job->n_panels;
    size_t row_bytes = ek_quant_row_bytes(t->type, t->dim[0]);
    size_t panel_bytes = row_bytes * EK_PACK_ROWS;
    for (int64_t p = expert * job->n_panels + beg; p < expert * job->n_panels + end; p++) {
        const uint8_t *rows = (const uint8_t *)t->data + (size_t)p * panel_bytes;
        ek_kernels_pack(t->type, (int32_t)t->dim[0], rows, row_bytes,
                        job->to + (size_t)p * panel_bytes);
    }
}

static void pack_queue(ek_packed_model *packed, int32_t queue)
{
    int64_t n = queue_chunks(&packed->job, queue);
    do {
        int64_t i = ek_sys_ticket_take(&packed->job.ticket[queue]);
        if (i >= n) return;
        pack_chunk(packed, queue, i);
    } while (ek_sys_now_us() < packed->job.until_us);
}

/* As a pool function. */
static void pack_share(void *ctx, int32_t thread_idx)
{
    ek_packed_model *packed = ctx;
    if (packed->job.n_nodes > 0) pack_queue(packed, packed->homes->thread_node[thread_idx]);
    pack_queue(packed, packed->job.n_nodes);
}

static bool is_wanted(const ek_packed_model *packed, int32_t layer, int32_t expert)
{
    size_t words = ((size_t)packed->model.params.n_experts + 63) / 64;
    if (!packed->wanted) return true;
    return packed->wanted[(size_t)layer * words + (size_t)expert / 64] >> (expert % 64) & 1;
}

/* List the experts that are wanted: those of each node, and last those of none. */
static void fill_queues(ek_packed_model *packed, int32_t layer)
{
    pack_job *job = &packed->job;
    int32_t n_experts = packed->model.params.n_experts;
    const int32_t *expert_node =
        packed->homes ? packed->homes->expert_node + (int64_t)layer * n_experts : NULL;
    int32_t n = 0;
    for (int32_t q = 0; q <= job->n_nodes; q++) {
        int32_t node = q < job->n_nodes ? q : -1;
        job->queue_beg[q] = n;
        for (int32_t e = 0; e < n_experts; e++)
            if ((expert_node ? expert_node[e] : -1) == node && is_wanted(packed, layer, e))
                packed->expert[n++] = e;
    }
    job->queue_beg[job->n_nodes + 1] = n;
}

static void job_begin(ek_packed_model *packed)
{
    int32_t i = packed->n_packed;
    const ek_tensor *from = packed->originals[i];
    int32_t layer = packed->expert_layer[i];
    pack_job *job = &packed->job;
    job->from = from;
    job->to = packed->home[i];
    job->n_panels = from->dim[1] / EK_PACK_ROWS * from->dim[2] * from->dim[3];
    job->n_nodes = 0;
    if (layer >= 0) {
        job->n_nodes = packed->homes ? packed->homes->n_nodes : 0;
        job->n_panels /= packed->model.params.n_experts;
        fill_queues(packed, layer);
    } else {
        job->queue_beg[0] = 0;
        job->queue_beg[1] = 1;
        packed->expert[0] = 0;
    }
    for (int32_t q = 0; q <= job->n_nodes; q++)
        ek_sys_ticket_reset(&job->ticket[q]);
    packed->has_job = true;
}

/* Chunks are packed once they are taken, so a queue is done when nothing is left to take. */
static bool job_is_done(const pack_job *job)
{
    for (int32_t q = 0; q <= job->n_nodes; q++)
        if (ek_sys_ticket_taken(&job->ticket[q]) < queue_chunks(job, q)) return false;
    return true;
}

static void job_end(ek_packed_model *packed)
{
    int32_t i = packed->n_packed++;
    const ek_tensor *from = packed->originals[i];
    packed->tensors[i].data = packed->home[i];
    packed->tensors[i].packed = true;
    packed->progress.packed_bytes += (int64_t)from->bytes;
    packed->has_job = false;
    if (packed->expert_layer[i] < 0) {
        ek_sys_mem_forget(from->data, from->bytes);
        return;
    }
    size_t bytes = from->bytes / (size_t)packed->model.params.n_experts;
    for (int32_t e = 0; e < packed->model.params.n_experts; e++)
        if (is_wanted(packed, packed->expert_layer[i], e))
            ek_sys_mem_forget((const uint8_t *)from->data + (size_t)e * bytes, bytes);
}

bool ek_expert_pack_some(ek_packed_model *packed, ek_sys_pool *pool, int64_t budget_us)
{
    int64_t now_us = ek_sys_now_us();
    int64_t until_us = budget_us < INT64_MAX - now_us ? now_us + budget_us : INT64_MAX;
    bool changed = false;
    while (packed->n_packed < packed->n_tensors) {
        if (!packed->has_job) job_begin(packed);
        packed->job.until_us = until_us;
        ek_sys_pool_run(pool, pack_share, packed);
        if (job_is_done(&packed->job)) {
            job_end(packed);
            changed = true;
        }
        if (ek_sys_now_us() >= until_us) break;
    }
    return changed;
}

void ek_expert_pack_run(ek_packed_model *packed, ek_sys_pool *pool)
{
    (void)ek_expert_pack_some(packed, pool, INT64_MAX);
}

/* One expert's part of a tensor, on the calling thread. */
static void pack_one(ek_packed_model *packed, int32_t i, int32_t expert)
{
    const ek_tensor *from = packed->originals[i];
    size_t bytes = from->bytes / (size_t)packed->model.params.n_experts;
    size_t row_bytes = ek_quant_row_bytes(from->type, from->dim[0]);
    size_t panel_bytes = row_bytes * EK_PACK_ROWS, at = (size_t)expert * bytes;
    const uint8_t *data = from->data;
    for (size_t end = at + bytes; at < end; at += panel_bytes)
        ek_kernels_pack(from->type, (int32_t)from->dim[0], data + at, row_bytes,
                        packed->home[i] + at);
    ek_sys_mem_forget(data + (size_t)expert * bytes, bytes);
}

void ek_expert_pack_add(ek_packed_model *packed, int32_t layer, int32_t expert)
{
    ek_assert(packed->n_packed == packed->n_tensors);
    for (int32_t i = 0; i < packed->n_tensors; i++)
        if (packed->expert_layer[i] == layer) pack_one(packed, i, expert);
}

void ek_expert_pack_drop(ek_packed_model *packed, int32_t layer, int32_t expert)
{
    ek_assert(packed->n_packed == packed->n_tensors);
    for (int32_t i = 0; i < packed->n_tensors; i++) {
        size_t bytes = packed->originals[i]->bytes / (size_t)packed->model.params.n_experts;
        if (packed->expert_layer[i] == layer)
            ek_sys_mem_forget(packed->home[i] + (size_t)expert * bytes, bytes);
    }
}

void ek_expert_pack_set_homes(ek_packed_model *packed, const ek_expert_homes *homes)
{
    ek_assert(!packed->has_job && homes->n_nodes >= 1 && homes->n_nodes <= EK_EXPERT_HOMES_MAX);
    packed->homes = homes;
}

ek_pack_progress ek_expert_pack_progress(const ek_packed_model *packed)
{
    return packed->progress;
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
