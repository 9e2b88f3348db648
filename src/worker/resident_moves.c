/*
 * Experts that a worker gets and gives up while it computes with others.
 */
#include "base/assert.h"
#include "worker/resident.h"

#define PAGE_BYTES 4096

/* A layer's matrices as they lie in the file, whatever was packed of them. */
static void mats_of(const ek_model *model, int32_t layer, const ek_tensor *out_mat[3])
{
    out_mat[0] = model->layers[layer].expert_gate;
    out_mat[1] = model->layers[layer].expert_up;
    out_mat[2] = model->layers[layer].expert_down;
}

static size_t mat_bytes(const ek_tensor *t)
{
    return t->bytes / (size_t)(t->dim[2] * t->dim[3]);
}

int64_t ek_worker_resident_bytes(const ek_resident *r, int32_t layer)
{
    const ek_tensor *mat[3];
    int64_t bytes = 0;
    mats_of(r->setup.file->model, layer, mat);
    for (int i = 0; i < 3; i++)
        bytes += (int64_t)mat_bytes(mat[i]);
    return bytes;
}

void ek_worker_resident_add(ek_resident *r, int32_t layer, int32_t expert)
{
    const ek_tensor *mat[3];
    if (r->packed) ek_expert_pack_add(r->packed, layer, expert);
    mats_of(r->model, layer, mat);
    for (int i = 0; i < 3; i++) {
        if (mat[i]->packed) continue;
        const volatile uint8_t *data =
            (const uint8_t *)mat[i]->data + (size_t)expert * mat_bytes(mat[i]);
        for (size_t at = 0; at < mat_bytes(mat[i]); at += PAGE_BYTES)
            (void)data[at];
    }
    /* Whoever finds it in the set under the lock sees what was written before. */
    ek_sys_mutex_lock(&r->lock);
    ek_link_set_add(&r->held, layer, expert);
    ek_sys_mutex_unlock(&r->lock);
}

void ek_worker_resident_drop(ek_resident *r, int32_t layer, int32_t expert)
{
    ek_assert(!ek_link_set_has(&r->setup.set, layer, expert));
    ek_sys_mutex_lock(&r->lock);
    ek_link_set_remove(&r->held, layer, expert);
    /* Those who have a ticket found it there; whoever takes one from now on does not. */
    uint64_t last = r->next_ticket;
    while (r->serving < last)
        ek_sys_cond_wait(&r->turn, &r->lock);
    ek_sys_mutex_unlock(&r->lock);
    if (r->packed) ek_expert_pack_drop(r->packed, layer, expert);
    const ek_tensor *mat[3];
    mats_of(r->setup.file->model, layer, mat);
    for (int i = 0; i < 3; i++)
        ek_sys_mem_forget((const uint8_t *)mat[i]->data + (size_t)expert * mat_bytes(mat[i]),
                          mat_bytes(mat[i]));
}
