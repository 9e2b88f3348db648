#include <string.h>

#include "base/attr.h"
#include "kernels/kernels.h"
#include "kernels/tables.h"

static const struct {
    const char *name;
    ek_kernels_choice choice;
} choice_table[] = {
    {"auto", EK_KERNELS_AUTO},
    {"reference", EK_KERNELS_REFERENCE},
    {"avx2", EK_KERNELS_AVX2},
    {"avx512", EK_KERNELS_AVX512},
};

bool ek_kernels_choice_parse(const char *name, ek_kernels_choice *out_choice)
{
    for (size_t i = 0; i < EK_COUNT_OF(choice_table); i++) {
        if (strcmp(name, choice_table[i].name) != 0) continue;
        *out_choice = choice_table[i].choice;
        return true;
    }
    return false;
}

#ifdef EK_KERNELS_X86

/* AVX-512 processors all have AVX2, but a mask may say otherwise, and the table is built on it. */
static bool has_avx512(uint32_t cpu_flags)
{
    return (cpu_flags & EK_CPU_AVX2) && (cpu_flags & EK_CPU_AVX512);
}

static ek_status fill_x86(ek_kernels_choice choice, uint32_t cpu_flags, ek_kernels *table)
{
    bool allowed = choice == EK_KERNELS_AVX512 ? has_avx512(cpu_flags) : cpu_flags & EK_CPU_AVX2;
    if (!allowed) return EK_EUNSUPPORTED;
    ek_kernels_avx2_fill(table);
    if (choice == EK_KERNELS_AVX2) return EK_OK;
    ek_kernels_avx512_fill(table);
    if (cpu_flags & EK_CPU_AVX512_VNNI) ek_kernels_avx512_vnni_fill(table);
    return EK_OK;
}

static ek_kernels_choice best_choice(uint32_t cpu_flags)
{
    if (has_avx512(cpu_flags)) return EK_KERNELS_AVX512;
    return cpu_flags & EK_CPU_AVX2 ? EK_KERNELS_AVX2 : EK_KERNELS_REFERENCE;
}

#else

static ek_status fill_x86(ek_kernels_choice choice EK_UNUSED, uint32_t cpu_flags EK_UNUSED,
                          ek_kernels *table EK_UNUSED)
{
    return EK_EUNSUPPORTED;
}

static ek_kernels_choice best_choice(uint32_t cpu_flags EK_UNUSED)
{
    return EK_KERNELS_REFERENCE;
}

#endif

ek_status ek_kernels_select(ek_kernels_choice choice, uint32_t cpu_flags, ek_kernels *out_kernels)
{
    if (choice == EK_KERNELS_AUTO) choice = best_choice(cpu_flags);
    ek_kernels table;
    ek_kernels_reference_fill(&table);
    ek_status status = EK_OK;
    if (choice != EK_KERNELS_REFERENCE) status = fill_x86(choice, cpu_flags, &table);
    if (status == EK_OK) *out_kernels = table;
    return status;
}
