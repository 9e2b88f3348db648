/*
 * One configuration value: text to number and back, and its place in an ek_config. Pure.
 */
#ifndef EK_CONFIG_VALUE_H
#define EK_CONFIG_VALUE_H

#include "base/arena.h"
#include "base/err.h"
#include "config/config.h"
#include "config/schema.h"

#define EK_CONFIG_VALUE_TEXT_MAX \
    32 /* bytes of a printed number, duration, size or choice, with the NUL */
#define EK_CONFIG_RANGE_TEXT_MAX 96
#define EK_CONFIG_TEXT_BYTES_MAX 4096 /* bytes of a text value */

/**
 * Check a value as the key's row demands, and store it.
 * @param perm a copy of a text lives there
 * @return EK_OK; EK_ECONFIG (err: "engine.threads is x; ..."), config untouched; EK_ENOMEM perm is
 *         full
 */
EK_MUST ek_status ek_config_value_apply(const ek_config_key *key, ek_str text, ek_arena *perm,
                                        ek_config *config, ek_err *err);

/** The stored value as a file would have it, for all types but EK_CONFIG_TEXT. */
void ek_config_value_print(const ek_config_key *key, const ek_config *config,
                           char out_text[EK_CONFIG_VALUE_TEXT_MAX]);
/** A number of the key's type as a file would have it ("30s", "4MiB", "0.85", "auto"). */
void ek_config_number_print(const ek_config_key *key, int64_t value,
                            char out_text[EK_CONFIG_VALUE_TEXT_MAX]);
/** What a number of the key may be, in words: "1 to 1024, or auto". */
void ek_config_range_print(const ek_config_key *key, char out_text[EK_CONFIG_RANGE_TEXT_MAX]);
/** The stored text, NULL when not set. */
const char *ek_config_value_text(const ek_config_key *key, const ek_config *config);

/** Append the names of a key's choices, comma-separated and cut at `bytes`. */
void ek_config_choices_print(const ek_config_key *key, char *out_text, size_t bytes);

#endif
