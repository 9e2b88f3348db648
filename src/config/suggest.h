/*
 * What to say about a name that no key has: the file reader's and the command line's unknown keys.
 * Pure.
 */
#ifndef EK_CONFIG_SUGGEST_H
#define EK_CONFIG_SUGGEST_H

#include <stdint.h>

#include "base/err.h"
#include "base/span.h"

/**
 * Say that there is no such name, and which one was probably meant, or else which there are.
 * @param section index of the section in which a key was looked for; -1: a section, or a whole
 *                "section.key"
 * @return EK_ECONFIG
 */
ek_status ek_config_refuse_name(int32_t section, ek_str name, ek_err *err);

#endif
