/*
 * A model's files, opened, and the manifest that they make: everything of it but the hashes, which
 * are check.h's. One thread.
 */
#ifndef EK_STORE_BUILD_H
#define EK_STORE_BUILD_H

#include "model/desc.h"
#include "store/manifest.h"
#include "sys/file.h"
#include "sys/mem.h"

/** A model's mapped files and what their metadata say. */
typedef struct ek_store_model {
    int32_t n_files;
    char (*names)[EK_STORE_NAME_MAX + 1]; /* (n_files) without directories; in the region */
    ek_sys_map *maps;                     /* (n_files) owned */
    const ek_model *model;                /* in the region */
    ek_sys_region region;                 /* owned */
} ek_store_model;

/**
 * Map all files of a model and read their description.
 * @param path a .gguf file, or the first of a split model
 * @return EK_OK; what sys/file.h, model/gguf.h and model/desc.h return; the text begins with path
 */
EK_MUST ek_status ek_store_model_open(const char *path, ek_store_model *out_model, ek_err *err);
/** Accepts a zeroed or half-opened one. */
void ek_store_model_close(ek_store_model *model);

/**
 * Lay out a model's shards, with everything but their hashes, the identity and the body's hash.
 * @param perm everything lies there and in the model
 * @return EK_OK; EK_ENOMEM; EK_EFORMAT names or layout that a manifest cannot say
 */
EK_MUST ek_status ek_store_lay_out(const ek_store_model *model, ek_arena *perm,
                                   ek_store_manifest *out_manifest, ek_err *err);

#endif
