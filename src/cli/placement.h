/*
 * Tables in files: loads and placements (docs/formats/placement.md), and a placement for serve:
 * which expert lies in which slot of each layer when serving begins.
 */
#ifndef EK_CLI_PLACEMENT_H
#define EK_CLI_PLACEMENT_H

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "engine/params.h"
#include "place/csv.h"

/** Read a table. @return as ek_place_csv_parse; what reading the file gave */
EK_MUST ek_status ek_cli_table_read(const char *path, double min, bool integer, ek_arena *perm,
                                    ek_place_table *out_table, ek_err *err);

/**
 * Read a file that `evenkeel place --out` wrote (docs/formats/placement.md) into engine params. As
 * many slots as the file has columns become the params'; whether layers and experts are the
 * model's, the engine says.
 * @param perm holds the placement as long as the params are used
 * @return EK_OK; EK_EFORMAT not a placement (line and column); EK_EINVAL experts.slots says another
 *         number; what reading the file gave
 */
EK_MUST ek_status ek_cli_placement_load(const char *path, ek_arena *perm, ek_engine_params *params,
                                        ek_err *err);

#endif
