/*
 * Gate overlays: other gates for a model, in a small GGUF file of their own
 * (docs/formats/overlay.md).
 *
 * `evenkeel calibrate` writes them. Opening one makes a description of the model whose gates and
 * selection biases are the overlay's and whose every other tensor is the base's; the base file is
 * neither read nor written for it. An overlay is bound to its base by the base's fingerprint, so
 * that it cannot end up in front of experts that it was not made for.
 *
 * Immutable once open; any thread may read.
 */
#ifndef EK_EXPERT_OVERLAY_H
#define EK_EXPERT_OVERLAY_H

#include "base/err.h"
#include "base/span.h"
#include "model/desc.h"
#include "sys/sha256.h"

#define EK_OVERLAY_ARCH       "evenkeel-gate-overlay" /* its general.architecture */
#define EK_OVERLAY_VERSION    1
#define EK_OVERLAY_METHOD_MAX 32

typedef struct ek_gate_overlay ek_gate_overlay;

/**
 * The fingerprint that an overlay carries of its base: a SHA-256 over every shard's metadata and
 * tensor directory, over all gates, and over the first and last 4 KiB of each other tensor. So it
 * costs milliseconds for a model of any size, and two trainings of one architecture differ in it;
 * what it cannot see is a change in the middle of a tensor and nowhere else.
 * @param shards (n_shards) the model's mapped files, in order; the model's tensors lie in them
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_expert_fingerprint(const ek_span *shards, int32_t n_shards,
                                        const ek_model *model, char out_hex[EK_SHA256_HEX_BYTES]);

/**
 * @param base        borrowed until close
 * @param base_sha256 its fingerprint
 * @return EK_OK; EK_EINVAL made for another model; EK_EFORMAT no overlay, or a tensor that does not
 *         belong into one or into this model; what reading the file gave; the text names the file
 */
EK_MUST ek_status ek_expert_overlay_open(const char *path, const ek_model *base,
                                         const char *base_sha256, ek_gate_overlay **out_overlay,
                                         ek_err *err);
/** Accepts NULL. */
void ek_expert_overlay_close(ek_gate_overlay *overlay);

/** The model with the overlay's gates; lives as long as the overlay and the base. */
const ek_model *ek_expert_overlay_model(const ek_gate_overlay *overlay);
/** How its gates were made: "bias", "router" or what a later version wrote. */
const char *ek_expert_overlay_method(const ek_gate_overlay *overlay);
/** SHA-256 of the overlay's own file, in hexadecimal. */
const char *ek_expert_overlay_sha256(const ek_gate_overlay *overlay);

#endif
