/*
 * From the bytes of a request body to a JSON object, with every limit checked before memory is
 * spent. Pure but for the heap that Jansson uses; runs on workers, never on an event loop. Fuzzed.
 */
#ifndef EK_GATEWAY_REQUEST_JSON_H
#define EK_GATEWAY_REQUEST_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/span.h"
#include "http/fault.h"

/**
 * Parse an object. Keys that appear twice are refused, so that nobody can read another value than
 * we do.
 * @param depth_max deepest nesting of arrays and objects; found without recursion before the parser
 *                  runs
 * @param out_root  owned by the caller, json_decref
 * @return false: the fault is set; it says where, never what
 */
EK_MUST bool ek_gateway_json_load(ek_str body, int32_t depth_max, json_t **out_root,
                                  ek_fault *fault);

/** A JSON string's bytes; borrowed from the value. */
ek_str ek_gateway_json_text(const json_t *value);

/** "an object", "a string", "null": for messages. */
const char *ek_gateway_json_type_name(const json_t *value);

#endif
