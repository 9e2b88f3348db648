#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "sys/cpu.h"
#include "sys/thread.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

void ek_bench_add(ek_bench_samples *samples, double value)
{
    if (samples->n < EK_BENCH_SAMPLES_MAX) samples->value[samples->n++] = value;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double ek_bench_quantile(ek_bench_samples *samples, double q)
{
    if (samples->n == 0) return 0.0;
    qsort(samples->value, (size_t)samples->n, sizeof samples->value[0], compare);
    return samples->value[(int32_t)(q * (samples->n - 1) + 0.5)];
}

void ek_bench_print_machine(void)
{
    char name[64];
    ek_sys_cpu_name(name);
    printf("machine: %s, %d CPUs, %s\n", name, ek_sys_cpu_count(), COMPILER);
}

void ek_bench_print_machine_json(void)
{
    char name[64];
    ek_sys_cpu_name(name);
    printf("\"machine\":");
    ek_bench_print_json_string(name);
    printf(",\"cpus\":%d,\"compiler\":\"%s\"", ek_sys_cpu_count(), COMPILER);
}

void ek_bench_print_json_string(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < 0x20)
            printf("\\u%04x", c);
        else if (c == '"' || c == '\\')
            printf("\\%c", c);
        else
            putchar(c);
    }
    putchar('"');
}
