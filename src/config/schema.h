/*
 * The one table of configuration keys.
 *
 * Reading a file, the environment and `--set`, printing the effective configuration and the
 * reference in docs/CONFIG.md all walk this table; a new key is one row here and one field in its
 * room's params.
 */
#ifndef EK_CONFIG_SCHEMA_H
#define EK_CONFIG_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/span.h"

typedef enum ek_config_type {
    EK_CONFIG_TEXT,     /* const char *; "" is the same as not set: NULL */
    EK_CONFIG_BOOL,     /* bool */
    EK_CONFIG_INT,      /* int32_t */
    EK_CONFIG_DURATION, /* int64_t, microseconds */
    EK_CONFIG_SIZE,     /* int64_t or size_t, bytes */
    EK_CONFIG_REAL,     /* double, with at most six decimals; min and max in millionths */
    EK_CONFIG_CHOICE,   /* an enum, or an int32_t that only has certain values */
} ek_config_type;

typedef struct ek_config_choice {
    const char *name;
    int32_t value;
} ek_config_choice;

typedef struct ek_config_key {
    const char *section;
    const char *name;
    ek_config_type type;
    size_t offset;             /* of the field in ek_config */
    const char *default_value; /* as a file would have it; NULL: a text that is not set */
    int64_t min, max;          /* of numbers; a text with min 1 has to be there */
    /*
     * Word for the value 0 where 0 means something else ("auto"), or NULL. A real number is then 0
     * or in its range, the others have 0 in theirs.
     */
    const char *zero;
    const ek_config_choice *choices; /* of EK_CONFIG_CHOICE, up to the one without a name */
    const char *unset; /* what an unset text means, for the reference; NULL: cannot be unset */
    const char *help;  /* one sentence or two, for docs/CONFIG.md */
    bool is_list;      /* a text that a file may also have as a list; its commas separate */
} ek_config_key;

typedef struct ek_config_section {
    const char *name;
    const char *help;
} ek_config_section;

extern const ek_config_key ek_config_keys[];
extern const int32_t ek_config_n_keys;
/** In the order of a printed file; keys of one section stand together, in the same order. */
extern const ek_config_section ek_config_sections[];
extern const int32_t ek_config_n_sections;

#define EK_CONFIG_KEYS_MAX     128 /* more rows need more room in the file reader's table */
#define EK_CONFIG_SECTIONS_MAX 16

/** Index of a section, or -1. */
int32_t ek_config_section_find(ek_str name);
/** Index of a key, or -1. */
int32_t ek_config_key_find(ek_str section, ek_str name);

#endif
