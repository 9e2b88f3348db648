/*
 * Files of recorded routing that stand in for the model's gate (trace/replay.h): an experiment, for
 * `evenkeel lab incident --routing`. Owned by the engine; what the step thread reads never changes.
 */
#ifndef EK_ENGINE_RECORDED_H
#define EK_ENGINE_RECORDED_H

#include "base/attr.h"
#include "base/err.h"
#include "base/status.h"
#include "model/desc.h"
#include "trace/replay.h"

#define EK_RECORDED_FILES_MAX 8

typedef struct ek_recorded ek_recorded;

/**
 * @param paths MRT1 files, commas between them
 * @return EK_OK; EK_EINVAL more files than EK_RECORDED_FILES_MAX, or one without tokens; EK_ENOMEM;
 *         what opening and reading a file gave
 */
EK_MUST ek_status ek_engine_recorded_open(const char *paths, const ek_model_params *model,
                                          ek_recorded **out_recorded, ek_err *err);
/** Accepts NULL. */
void ek_engine_recorded_close(ek_recorded *recorded);

/** NULL for NULL. */
const ek_trace_replay *ek_engine_recorded_replay(const ek_recorded *recorded);

#endif
