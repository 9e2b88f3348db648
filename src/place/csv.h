/*
 * The CSV forms of loads and placements: one line per layer, numbers separated by commas, no
 * header. Loads are tokens per logical expert; placements are the expert of each physical slot (-1:
 * empty). docs/formats/placement.md describes both. Works on spans; errors name line and column.
 * Pure.
 */
#ifndef EK_PLACE_CSV_H
#define EK_PLACE_CSV_H

#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/span.h"

#define EK_PLACE_LAYERS_MAX  4096
#define EK_PLACE_COLUMNS_MAX 16384

/** A rectangle of numbers. */
typedef struct ek_place_table {
    int32_t n_rows;
    int32_t n_columns;
    double *value; /* (n_rows, n_columns) in perm */
} ek_place_table;

/**
 * @param text   UTF-8, lines ended by \n or \r\n; empty lines at the end are ignored
 * @param min    smallest value allowed; @param integer whether fractions are errors
 * @param origin shown in errors ("loads.csv")
 * @return EK_OK; EK_EFORMAT (not a number, out of range, ragged, empty; "origin:line:column: ...");
 *         EK_ENOMEM
 */
EK_MUST ek_status ek_place_csv_parse(ek_str text, double min, bool integer, const char *origin,
                                     ek_arena *perm, ek_place_table *out_table, ek_err *err);

#endif
