/*
 * Limits that the system sets to this process.
 */
#ifndef EK_SYS_LIMIT_H
#define EK_SYS_LIMIT_H

#include <stdint.h>

/**
 * Let the process have n open descriptors: raises the soft limit as far as the hard one allows and
 * never lowers it. Call before threads start.
 * @return how many it may have now; fewer than n when the hard limit is lower
 */
uint64_t ek_sys_descriptors_allow(uint64_t n);

#endif
