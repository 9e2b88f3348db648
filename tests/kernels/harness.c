#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "kcheck.h"

enum {
    CANARY = 0xa5,
    FAILURES_SHOWN = 20,
};

void kc_case(kc *k, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(k->context, sizeof k->context, fmt, args);
    va_end(args);
    k->n_cases++;
}

void kc_fail(kc *k, const char *fmt, ...)
{
    if (k->n_failures++ >= FAILURES_SHOWN) return;
    va_list args;
    va_start(args, fmt);
    printf("%s: %s: ", k->table->name, k->context);
    vprintf(fmt, args);
    printf("\n");
    va_end(args);
}

void *kc_alloc(kc *k, size_t bytes, size_t slack)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t map_bytes = (bytes + slack + page - 1) / page * page + 2 * page;
    uint8_t *map =
        mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ek_assert(map != MAP_FAILED);
    ek_assert(k->n_guards < KC_GUARDS);
    memset(map, CANARY, map_bytes - page);
    int rc = mprotect(map + map_bytes - page, page, PROT_NONE);
    ek_assert(rc == 0);
    uint8_t *data = map + map_bytes - page - slack - bytes;
    k->guard[k->n_guards++] = (kc_guard){map, map_bytes, data, bytes};
    return data;
}

static bool is_canary(const uint8_t *beg, const uint8_t *end)
{
    for (const uint8_t *at = beg; at < end; at++)
        if (*at != CANARY) return false;
    return true;
}

void kc_release(kc *k)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < k->n_guards; i++) {
        kc_guard *g = &k->guard[i];
        if (!is_canary(g->map, g->data)) kc_fail(k, "wrote before buffer %d", i);
        if (!is_canary(g->data + g->data_bytes, g->map + g->map_bytes - page))
            kc_fail(k, "wrote behind buffer %d", i);
        munmap(g->map, g->map_bytes);
    }
    k->n_guards = 0;
}

void kc_near(kc *k, int64_t idx, float got, double expected, double bound)
{
    if (isnan(expected) && isnan(got)) return;
    if (isinf(expected) && (double)got == expected) return;
    if (fabs((double)got - expected) <= bound) return;
    kc_fail(k, "[%lld] is %.9g, expected %.9g, off by %.3g, bound %.3g", (long long)idx,
            (double)got, expected, fabs((double)got - expected), bound);
}

void kc_same(kc *k, const char *what, const void *got, const void *expected, size_t bytes)
{
    const uint8_t *a = got, *b = expected;
    for (size_t i = 0; i < bytes; i++) {
        if (a[i] == b[i]) continue;
        kc_fail(k, "%s: byte %zu of %zu is %02x, expected %02x", what, i, bytes, a[i], b[i]);
        return;
    }
}

const char *kc_pattern_name(kc_pattern pattern)
{
    static const char *const name[KC_PATTERNS] = {"uniform", "zero",  "denormal", "large",
                                                  "mixed",   "spike", "ties",     "full"};
    return name[pattern];
}

double kc_uniform(kc *k, double low, double high)
{
    return low + (high - low) * ek_rng_unit(&k->rng);
}

static float element_of(kc *k, kc_pattern pattern, int64_t i)
{
    double sign = ek_rng_below(&k->rng, 2) ? 1.0 : -1.0;
    switch (pattern) {
    case KC_ZERO: return sign > 0 ? 0.0f : -0.0f;
    case KC_DENORMAL: return (float)(sign * pow(2.0, kc_uniform(k, -149.0, -110.0)));
    case KC_LARGE: return (float)(sign * kc_uniform(k, 1e17, 1e18));
    case KC_MIXED: return (float)(sign * pow(10.0, kc_uniform(k, -6.0, 6.0)));
    case KC_SPIKE: return i % 37 == 5 ? (float)(sign * 3.0) : 0.0f;
    /* 127 in each block of 32 makes the scale 1, so that halves are ties. */
    case KC_TIES: return i % 32 == 0 ? 127.0f : (float)ek_rng_below(&k->rng, 200) * 0.5f - 50.0f;
    case KC_FULL: return 3.0f;
    case KC_UNIFORM:
    case KC_PATTERNS: break;
    }
    return (float)kc_uniform(k, -1.0, 1.0);
}

void kc_fill(kc *k, kc_pattern pattern, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = element_of(k, pattern, i);
}
