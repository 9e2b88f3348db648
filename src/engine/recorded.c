#include "engine/recorded.h"

#include <string.h>

#include "sys/file.h"
#include "sys/mem.h"

#define PATH_BYTES 4096

struct ek_recorded {
    ek_sys_map map[EK_RECORDED_FILES_MAX];
    ek_mrt mrt[EK_RECORDED_FILES_MAX];
    int32_t n;
    ek_sys_region region; /* of the replay's sequences */
    ek_trace_replay replay;
};

static ek_status open_file(ek_recorded *r, ek_str word, ek_err *err)
{
    char path[PATH_BYTES];
    if (r->n == EK_RECORDED_FILES_MAX)
        return ek_err_set(err, EK_EINVAL, "routing.recorded: at most %d files",
                          EK_RECORDED_FILES_MAX);
    if (word.len == 0 || word.len >= sizeof path)
        return ek_err_set(err, EK_EINVAL, "routing.recorded: a path is empty or too long");
    memcpy(path, word.data, word.len);
    path[word.len] = '\0';
    ek_sys_map *map = &r->map[r->n];
    ek_status status = ek_sys_map_open(path, map, err);
    if (status != EK_OK) return status;
    status = ek_trace_mrt_open(map->bytes, path, &r->mrt[r->n], err);
    r->n++; /* close has to see it in any case */
    return status;
}

static ek_status index_sequences(ek_recorded *r, const ek_model_params *model, ek_err *err)
{
    if (ek_sys_region_open(ek_trace_replay_bytes(r->mrt, r->n), 0, &r->region) != EK_OK)
        return ek_err_set(err, EK_ENOMEM, "no memory for recorded routing");
    ek_arena arena = ek_sys_region_arena(&r->region);
    ek_status status = ek_trace_replay_make(r->mrt, r->n, model->n_layers, model->n_experts,
                                            model->top_k, &arena, &r->replay);
    if (status != EK_OK) return ek_err_set(err, status, "routing.recorded: a file has no tokens");
    return EK_OK;
}

ek_status ek_engine_recorded_open(const char *paths, const ek_model_params *model,
                                  ek_recorded **out_recorded, ek_err *err)
{
    ek_recorded *r = ek_sys_calloc(1, sizeof *r);
    if (!r) return ek_err_set(err, EK_ENOMEM, "no memory for recorded routing");
    ek_status status = EK_OK;
    for (const char *at = paths; status == EK_OK;) {
        const size_t len = strcspn(at, ",");
        status = open_file(r, (ek_str){at, len}, err);
        if (at[len] == '\0') break;
        at += len + 1;
    }
    if (status == EK_OK) status = index_sequences(r, model, err);
    if (status != EK_OK) {
        ek_engine_recorded_close(r);
        return status;
    }
    *out_recorded = r;
    return EK_OK;
}

void ek_engine_recorded_close(ek_recorded *recorded)
{
    if (!recorded) return;
    for (int32_t i = 0; i < recorded->n; i++)
        ek_sys_map_close(&recorded->map[i]);
    ek_sys_region_close(&recorded->region);
    ek_sys_free(recorded);
}

const ek_trace_replay *ek_engine_recorded_replay(const ek_recorded *recorded)
{
    return recorded ? &recorded->replay : NULL;
}
