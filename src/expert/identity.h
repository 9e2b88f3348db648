/*
 * What a front and its workers compare to know that they have the same model: SHA-256 over each
 * tensor's name, type and shape and samples of its bytes.
 *
 * Samples make it quick (it reads some KiB of each tensor, not gigabytes) and find what happens by
 * mistake: another model, another fine-tuning, another quantisation. They do not find a single
 * changed weight, and are no defence against somebody who means to deceive; certificates say who
 * may be a worker.
 */
#ifndef EK_EXPERT_IDENTITY_H
#define EK_EXPERT_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/status.h"
#include "model/gguf.h"

#define EK_IDENTITY_BYTES    32
#define EK_IDENTITY_HEX_MAX  (2 * EK_IDENTITY_BYTES + 1)
#define EK_IDENTITY_SAMPLES  32 /* of each tensor */
#define EK_IDENTITY_SAMPLE_B 64 /* bytes of one */

/** @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_expert_identity(const ek_gguf *gguf, uint8_t out_identity[EK_IDENTITY_BYTES]);

/** What ek_expert_identity_print printed. @return false: it is none */
EK_MUST bool ek_expert_identity_scan(const char *text, uint8_t out_identity[EK_IDENTITY_BYTES]);

/** As hexadecimal digits, NUL-terminated. */
void ek_expert_identity_print(const uint8_t identity[EK_IDENTITY_BYTES],
                              char out_text[EK_IDENTITY_HEX_MAX]);

#endif
