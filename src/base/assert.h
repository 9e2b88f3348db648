/*
 * Contract checks.
 *
 * ek_assert is always on and guards what only a bug in this program can break; ek_dassert is for
 * inner loops and exists in debug builds only. Neither is ever used on what a file, a peer or a
 * user supplied: that gets a status. A failed check prints the place and aborts, so that the first
 * wrong state is the one that is seen.
 */
#ifndef EK_BASE_ASSERT_H
#define EK_BASE_ASSERT_H

#include "base/attr.h"

EK_NORETURN EK_COLD void ek_assert_fail(const char *expr, const char *file, int line);

#define ek_assert(cond) (EK_LIKELY(cond) ? (void)0 : ek_assert_fail(#cond, __FILE__, __LINE__))

#ifdef EK_DEBUG
#define ek_dassert(cond) ek_assert(cond)
#else
#define ek_dassert(cond) ((void)sizeof(cond))
#endif

#endif
