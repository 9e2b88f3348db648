#include "sys/cpu.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

/* CPUID.1:ECX */
#define ECX1_FMA     (1u << 12)
#define ECX1_OSXSAVE (1u << 27)
#define ECX1_AVX     (1u << 28)
#define ECX1_F16C    (1u << 29)
/* CPUID.7.0 */
#define EBX7_AVX2     (1u << 5)
#define EBX7_AVX512F  (1u << 16)
#define EBX7_AVX512DQ (1u << 17)
#define EBX7_AVX512CD (1u << 28)
#define EBX7_AVX512BW (1u << 30)
#define EBX7_AVX512VL (1u << 31)
#define ECX7_VBMI     (1u << 1)
#define ECX7_VNNI     (1u << 11)
/* CPUID.7.1:EAX */
#define EAX71_BF16 (1u << 5)
/* XCR0: SSE and AVX state; with opmask and the upper halves of ZMM for AVX-512 */
#define XCR0_AVX    UINT64_C(0x06)
#define XCR0_AVX512 UINT64_C(0xe6)

/* The intrinsic would need -mxsave for this whole file. */
static uint64_t read_xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return ((uint64_t)hi << 32) | lo;
}

static bool has_all(uint32_t bits, uint32_t wanted)
{
    return (bits & wanted) == wanted;
}

uint32_t ek_sys_cpu_flags(void)
{
    uint32_t eax, ebx, ecx, edx, ebx7, ecx7;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return 0;
    if (!has_all(ecx, ECX1_OSXSAVE | ECX1_AVX | ECX1_FMA | ECX1_F16C)) return 0;
    uint64_t xcr0 = read_xcr0(); /* OSXSAVE says that the instruction exists */
    if ((xcr0 & XCR0_AVX) != XCR0_AVX) return 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx7, &ecx7, &edx)) return 0;
    if (!(ebx7 & EBX7_AVX2)) return 0;
    uint32_t flags = EK_CPU_AVX2;
    uint32_t core = EBX7_AVX512F | EBX7_AVX512DQ | EBX7_AVX512CD | EBX7_AVX512BW | EBX7_AVX512VL;
    if ((xcr0 & XCR0_AVX512) != XCR0_AVX512 || !has_all(ebx7, core)) return flags;
    flags |= EK_CPU_AVX512;
    if (ecx7 & ECX7_VNNI) flags |= EK_CPU_AVX512_VNNI;
    if (ecx7 & ECX7_VBMI) flags |= EK_CPU_AVX512_VBMI;
    /* EAX of leaf 7.0 is the highest subleaf. */
    if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & EAX71_BF16))
        flags |= EK_CPU_AVX512_BF16;
    return flags;
}

static void read_brand(char out_brand[49])
{
    uint32_t r[12] = {0};
    for (uint32_t i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3]))
            break;
    memcpy(out_brand, r, 48);
    out_brand[48] = '\0';
}

#else

uint32_t ek_sys_cpu_flags(void)
{
    return 0;
}

static void read_brand(char out_brand[49])
{
    snprintf(out_brand, 49, "unknown");
}

#endif

void ek_sys_cpu_name(char out_name[64])
{
    char brand[49];
    read_brand(brand);
    size_t n = 0;
    for (const char *c = brand; *c; c++) { /* brands come padded with blanks, in front and inside */
        bool blank = *c == ' ';
        if (!blank || (n > 0 && out_name[n - 1] != ' ')) out_name[n++] = *c;
    }
    while (n > 0 && out_name[n - 1] == ' ')
        n--;
    out_name[n] = '\0';
    if (n == 0) snprintf(out_name, 64, "unknown");
}
