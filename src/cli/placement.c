#include "cli/placement.h"

#include "place/place.h"
#include "sys/file.h"
#include "sys/mem.h"

#define FILE_BYTES_MAX ((size_t)256 << 20)

ek_status ek_cli_table_read(const char *path, double min, bool integer, ek_arena *perm,
                            ek_place_table *out_table, ek_err *err)
{
    ek_str text;
    ek_status status = ek_sys_file_read(path, FILE_BYTES_MAX, &text, err);
    if (status != EK_OK) return status;
    status = ek_place_csv_parse(text, min, integer, path, perm, out_table, err);
    ek_sys_free((void *)(uintptr_t)text.data);
    return status;
}

static ek_status take_table(const char *path, const ek_place_table *table, ek_arena *perm,
                            ek_engine_params *params, ek_err *err)
{
    int32_t asked = params->keel.n_slots;
    if (asked > 0 && asked != table->n_columns)
        return ek_err_set(err, EK_EINVAL,
                          "%s has %d slots for each layer, but experts.slots is %d; leave "
                          "experts.slots to the file (auto), or make a placement for so many",
                          path, (int)table->n_columns, (int)asked);
    int64_t n = (int64_t)table->n_rows * table->n_columns;
    int32_t *placement = ek_try_new(perm, int32_t, n);
    if (!placement) return ek_err_set(err, EK_ENOMEM, "%s: no memory for it", path);
    for (int64_t i = 0; i < n; i++)
        placement[i] = (int32_t)table->value[i];
    params->keel.n_slots = table->n_columns;
    params->placement = placement;
    params->placement_layers = table->n_rows;
    return EK_OK;
}

ek_status ek_cli_placement_load(const char *path, ek_arena *perm, ek_engine_params *params,
                                ek_err *err)
{
    ek_place_table table;
    ek_status status = ek_cli_table_read(path, EK_PLACE_EMPTY, true, perm, &table, err);
    if (status == EK_OK) status = take_table(path, &table, perm, params, err);
    return status;
}
