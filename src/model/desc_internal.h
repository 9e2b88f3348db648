/* What the halves of the description's loader share: keys (desc.c), tensors (desc_tensors.c). */
#ifndef EK_MODEL_DESC_INTERNAL_H
#define EK_MODEL_DESC_INTERNAL_H

#include "model/arch.h"
#include "model/desc.h"

typedef struct ek_model_loader {
    const ek_gguf *gguf;
    const ek_arch *arch;
    ek_model *model; /* being filled */
    ek_arena *perm;
    ek_err *err;
} ek_model_loader;

/**
 * Find, check and bind every tensor, fill the sums over them. Parameters are complete but n_vocab.
 * @return EK_OK; EK_EFORMAT; EK_EUNSUPPORTED; EK_ENOMEM
 */
EK_MUST ek_status ek_model_tensors_bind(ek_model_loader *loader);

#endif
