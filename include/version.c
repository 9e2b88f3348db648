#include "evenkeel/version.h"

const char *ek_version(void)
{
    return EK_VERSION_STRING;
}
