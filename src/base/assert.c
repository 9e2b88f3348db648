#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

void ek_assert_fail(const char *expr, const char *file, int line)
{
    fprintf(stderr, "evenkeel: %s:%d: assertion failed: %s\n", file, line, expr);
    abort();
}
