/*
 * Reading an object's fields by a table: name, type, range, place. One loop for every request there
 * is, so that an unknown name, a wrong type and a value out of range are told in the same words
 * everywhere.
 *
 * null counts as absent, as OpenAI's clients expect. Fields that we know but cannot serve are
 * refused by name unless their value asks for nothing; fields that need nothing from us are
 * accepted. Pure.
 */
#ifndef EK_GATEWAY_FIELDS_H
#define EK_GATEWAY_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/fault.h"

typedef enum ek_field_kind {
    EK_FIELD_BOOL,     /* bool */
    EK_FIELD_INT,      /* int64_t, in [min, max] */
    EK_FIELD_NUMBER,   /* double, in [min, max] or as `open` says */
    EK_FIELD_TEXT,     /* ek_str, borrowed from the object */
    EK_FIELD_CUSTOM,   /* parse() does it */
    EK_FIELD_ACCEPTED, /* known, changes nothing here */
    EK_FIELD_REFUSED,  /* known, not supported: only the values in `neutral` are taken */
} ek_field_kind;

typedef enum ek_field_open { EK_FIELD_CLOSED, EK_FIELD_OPEN_MIN, EK_FIELD_OPEN_MAX } ek_field_open;

/** Parses a value that is not null into the target. @return false: the fault is set */
typedef bool (*ek_field_parse)(const json_t *value, void *target, ek_fault *fault);

typedef struct ek_field {
    const char *name;
    ek_field_kind kind;
    size_t offset; /* of the value in the target */
    double min, max;
    ek_field_open open; /* which border is not part of the range */
    ek_field_parse parse;
    const char *neutral; /* words separated by blanks: none false 0 [] {} '' */
} ek_field;

typedef struct ek_field_set {
    const ek_field *field; /* (n_fields) */
    size_t n_fields;
} ek_field_set;

/**
 * Read all fields of an object.
 * @param sets      (n_sets) tables that together know the names
 * @param where     place of the object for params ("messages[0]."), or ""
 * @param strict    an unknown name is a fault; else it is counted in *n_unknown
 * @return false: the fault is set; the target may be partly written
 */
EK_MUST bool ek_gateway_fields_read(const ek_field_set *sets, size_t n_sets, const json_t *object,
                                    const char *where, bool strict, void *target,
                                    int32_t *n_unknown, ek_fault *fault);

/** Fault for a value of the wrong type: "temperature is a string; a number is expected". */
bool ek_gateway_fields_wrong_type(ek_fault *fault, const char *param, const json_t *value,
                                  const char *expected);

#endif
