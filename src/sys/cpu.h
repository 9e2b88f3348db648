/*
 * What the processor and the OS together can do. A flag is set only when CPUID has the feature
 * *and* XCR0 says that the OS saves its registers. Flags are a value: tests mask them, kernels take
 * them as argument.
 */
#ifndef EK_SYS_CPU_H
#define EK_SYS_CPU_H

#include <stdint.h>

#include "base/cpu_flags.h"

uint32_t ek_sys_cpu_flags(void);

/** Processor name as the CPU says it ("AMD EPYC ..."), NUL-terminated. */
void ek_sys_cpu_name(char out_name[64]);

#endif
