/*
 * One step of the batch: compose, compute, sample, and put what came out into the requests'
 * outboxes. Runs on the step thread.
 */
#ifndef EK_ENGINE_STEP_H
#define EK_ENGINE_STEP_H

#include "engine/engine_internal.h"

/** @return true when something was computed; false: nobody can run now */
bool ek_engine_step_run(ek_engine *engine, int64_t now_us);

#endif
