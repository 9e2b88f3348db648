/*
 * The lists of the step thread: who waits, who runs, who is through. One owner, the step thread.
 */
#ifndef EK_ENGINE_CREW_H
#define EK_ENGINE_CREW_H

#include "engine/engine_internal.h"

/** A new request joins the end of the queue. */
void ek_engine_crew_queue(ek_engine *engine, ek_request *request);

/** Let waiting requests join while the scheduler admits them; paused ones give way to them. */
void ek_engine_crew_admit(ek_engine *engine, int64_t now_us);

/** Describe the running requests to the scheduler, in step.view. */
void ek_engine_crew_view(ek_engine *engine);

/** Take running request idx out of the batch and back to the queue, its blocks freed. */
void ek_engine_crew_give_up(ek_engine *engine, int32_t idx, int64_t now_us);

/**
 * A request that waits or runs is through: its blocks are freed, its last words are in its
 * outbox. The user learns of it at the next delivery.
 */
void ek_engine_crew_finish(ek_engine *engine, ek_request *request, ek_finish finish,
                           int64_t now_us);

/** Finish those whose time is up or whose user gave up. */
void ek_engine_crew_drop(ek_engine *engine, int64_t now_us);

/** Finish everybody: the engine stops. */
void ek_engine_crew_dismiss(ek_engine *engine, int64_t now_us);

/** When somebody's time is up, at the earliest. */
int64_t ek_engine_crew_due(const ek_engine *engine);

/** Publish the state of things, then tell users what is new. */
void ek_engine_crew_deliver(ek_engine *engine);

#endif
