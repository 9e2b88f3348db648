/*
 * An opened model: its mapped shards, its description and its tokenizer. Whoever keeps weights
 * resident (the engine's front, a worker, a command that looks inside) opens it through here.
 */
#ifndef EK_EXPERT_MODEL_FILE_H
#define EK_EXPERT_MODEL_FILE_H

#include "base/err.h"
#include "expert/overlay.h"
#include "model/chat.h"
#include "model/desc.h"
#include "model/tokenizer.h"

typedef struct ek_model_file {
    const ek_model *model;              /* owned; with the overlay's gates once there is one */
    const ek_gate_overlay *overlay;     /* owned; NULL: the gates are the file's own */
    const ek_tokenizer *tokenizer;      /* owned */
    const ek_chat_format *chat;         /* NULL: the file has no template, or none that is known */
    char chat_problem[EK_ERR_TEXT_MAX]; /* why chat is NULL */
    int64_t file_bytes;                 /* all shards */
} ek_model_file;

/**
 * Map and check a model; weights are read when they are used.
 * @param path        a .gguf file, or the first shard of a split one
 * @param chat_format name that overrides the template; NULL: recognise
 * @return EK_OK; what the file, GGUF, description or tokenizer layer returned; the text starts with
 * the path
 */
EK_MUST ek_status ek_expert_model_open(const char *path, const char *chat_format,
                                       ek_model_file **out_file, ek_err *err);
/**
 * Put an overlay's gates in the place of the model's: `model` is another description from here on.
 * Once, and before anything is built on the model.
 * @return EK_OK; as ek_expert_overlay_open; EK_ENOMEM
 */
EK_MUST ek_status ek_expert_model_overlay(ek_model_file *file, const char *overlay_path,
                                          ek_err *err);

/**
 * The fingerprint of the model as it lies in its files (expert/overlay.h). @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_expert_model_fingerprint(const ek_model_file *file,
                                              char out_hex[EK_SHA256_HEX_BYTES]);

/** Accepts NULL. Nothing borrowed from the model may be used afterwards. */
void ek_expert_model_close(ek_model_file *file);

#endif
