/*
 * The step thread: takes requests in, runs step after step, tells users what is new, and sleeps
 * on its inbox when nobody can run.
 */
#ifndef EK_ENGINE_LOOP_H
#define EK_ENGINE_LOOP_H

/**
 * The thread's function; ctx is the ek_engine. Returns when the engine is stopping, everybody
 * dismissed.
 */
void ek_engine_loop_run(void *ctx);

#endif
