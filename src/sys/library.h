/*
 * A shared library that is loaded when it is needed, and only then: what the program can do
 * without.
 */
#ifndef EK_SYS_LIBRARY_H
#define EK_SYS_LIBRARY_H

#include "base/attr.h"
#include "base/err.h"

typedef struct ek_sys_library {
    void *handle; /* owned */
} ek_sys_library;

/** @return EK_OK; EK_ENOTFOUND not there, or it cannot be loaded; the text says which and why */
EK_MUST ek_status ek_sys_library_open(const char *name, ek_sys_library *out_library, ek_err *err);
/** Accepts a zeroed library. Nothing that came from it may be used afterwards. */
void ek_sys_library_close(ek_sys_library *library);

/** A function of it, to be cast to its own type; NULL: it has none of that name. */
void (*ek_sys_library_function(const ek_sys_library *library, const char *name))(void);

/** Set an environment variable of this process, unless it is set; before threads are started. */
void ek_sys_environment_default(const char *name, const char *value);

#endif
