/*
 * Compiler attributes, the only place that names them.
 *
 * Everything here is a macro over gcc and clang attributes and has no run-time cost.
 */
#ifndef EK_BASE_ATTR_H
#define EK_BASE_ATTR_H

/** The result is a status (or an owned pointer) that the caller has to look at. */
#define EK_MUST __attribute__((warn_unused_result))

/** `fmt` is parameter number f of a printf-like function, its values start at number v. */
#define EK_PRINTF(f, v) __attribute__((format(printf, f, v)))

#define EK_NORETURN    __attribute__((noreturn))
#define EK_COLD        __attribute__((cold))
#define EK_ALIGNED(n)  __attribute__((aligned(n)))
#define EK_LIKELY(x)   __builtin_expect(!!(x), 1)
#define EK_UNLIKELY(x) __builtin_expect(!!(x), 0)

/** Marks a parameter that an interface demands and this implementation does not read. */
#define EK_UNUSED __attribute__((unused))

/** Alignment of a type, in the word of whichever language reads this header. */
#ifdef __cplusplus
#define EK_ALIGN_OF(type) alignof(type)
#else
#define EK_ALIGN_OF(type) _Alignof(type)
#endif

#define EK_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/** Bytes of one cache line: what two threads must not share by accident. */
#define EK_CACHE_LINE 64

#endif
