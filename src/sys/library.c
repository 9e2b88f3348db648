#include "sys/library.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

ek_status ek_sys_library_open(const char *name, ek_sys_library *out_library, ek_err *err)
{
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return ek_err_set(err, EK_ENOTFOUND, "%s: %s", name, dlerror());
    out_library->handle = handle;
    return EK_OK;
}

void ek_sys_library_close(ek_sys_library *library)
{
    if (library->handle) dlclose(library->handle);
    library->handle = NULL;
}

void (*ek_sys_library_function(const ek_sys_library *library, const char *name))(void)
{
    /* POSIX lets a function's address pass through a data pointer; ISO C has no words for it. */
    void *data = dlsym(library->handle, name);
    void (*function)(void);
    memcpy(&function, &data, sizeof function);
    return function;
}

void ek_sys_environment_default(const char *name, const char *value)
{
    setenv(name, value, 0);
}
