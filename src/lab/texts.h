/*
 * Texts that come with the program, for a lab that is given none: what customers of a shop write,
 * in Chinese and English, code, and questions after parcels. Written for this project, and under
 * its licence. Pure data.
 */
#ifndef EK_LAB_TEXTS_H
#define EK_LAB_TEXTS_H

#include "lab/schedule.h"

/** Of each kind, ended by NULL. */
extern const char *const *const ek_lab_texts[EK_LAB_N_KINDS];

#endif
