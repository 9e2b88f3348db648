/*
 * The dispatcher made of workers: a layer's rows go out in one message per worker and come back in
 * one.
 *
 * The engine's thread packs each worker's tokens and lists into that worker's own buffer, sends,
 * and may compute something else; combine then moves bytes on all links until each answer is there.
 * Rows of a worker that went, or that is late while somebody else could do them, go to another one
 * that has their expert, round after round, until all are done or nobody is left; what becomes of
 * the rest is configured. An answer belongs to exactly one dispatch (epoch of the session, sequence
 * number): any other is thrown away unread.
 *
 * With `exact`, rows come back as they are and are summed here in the order in which one process
 * sums them, so that the result does not depend on which worker computed which row, nor on how many
 * there are: bit for bit that of one process where numbers travel as f32. With `summed`, workers
 * add up their own rows of a token and fewer bytes come back; the order of additions, and with it
 * the last bits, then depends on who computed what.
 *
 * Two micro-batches of a step may be under way at once, each with a layer of its own: a worker gets
 * both dispatches one behind the other, and answers in that order. Losses, rounds and deadlines are
 * a micro-batch's own; a session that ends takes the messages of both with it.
 *
 * All buffers are made with the dispatcher: for its largest step, and for half of it once more. One
 * owner, the engine's thread.
 */
#ifndef EK_CLUSTER_DISPATCH_H
#define EK_CLUSTER_DISPATCH_H

#include "base/attr.h"
#include "base/err.h"
#include "cluster/front.h"
#include "expert/dispatch.h"

/** @return EK_OK; EK_ENOMEM; EK_EINVAL setup->tokens_max is more than workers were told */
EK_MUST ek_status ek_cluster_dispatch_create(ek_front *front, const ek_dispatcher_setup *setup,
                                             ek_dispatcher **out_dispatcher, ek_err *err);

#endif
