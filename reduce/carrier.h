// SPDX-License-Identifier: Apache-2.0
// How results come up in an engine that follows the plan's own tree (tree.h) but does not answer over the
// stream edges: the frame goes down as always, and what answers it is an acknowledgement without numbers. A
// child acknowledges when its result is on its way, so the acknowledgement is a doorbell, too; a child that
// fails or goes answers with an error, or its link breaks: then no result comes. Loop thread.
#ifndef REDUCE_CARRIER_H
#define REDUCE_CARRIER_H

#include "proto/rpc/step.h"

struct reduce_carrier;
struct reduce_parcel; // a result that is expected from a child; the carrier's

struct reduce_carrier_ops {
    // Before the frame goes to the child of that rank. `arrived` runs once, never on this stack, unless the
    // parcel is forgotten; from then on it is gone. What arrives is of this step (term, plan, epoch, step,
    // attempt), its counts are within the step's, its one tensor (or none) is aligned to 64;
    // DEADLINE_EXCEEDED when the step's time is over. `bytes`: of the packed partials; `traces`: the most
    // that the child's subtree has. RESOURCE_EXHAUSTED, UNAVAILABLE (the engine is lost).
    enum common_code (*expect)(struct reduce_carrier *carrier, const struct proto_step *step, uint32_t rank,
                               size_t bytes, uint32_t traces, proto_step_done_fn arrived, void *arg,
                               struct reduce_parcel **out, struct common_error *err);
    void (*forget)(struct reduce_carrier *carrier, struct reduce_parcel *parcel);
    // Nothing but parcels is missing here: look out for them.
    void (*look)(struct reduce_carrier *carrier);
    // The child says that this one is on its way: take what is there. `arrived` may run on this stack.
    void (*ring)(struct reduce_carrier *carrier, struct reduce_parcel *parcel);
    // Sends the result to the parent; both are copied. partials NULL: no item saw a key.
    enum common_code (*send)(struct reduce_carrier *carrier, const struct proto_step *step,
                             const struct proto_step_result *result, const struct common_blob *partials,
                             struct common_error *err);
    void (*close)(struct reduce_carrier *carrier); // every parcel has arrived or was forgotten
};

struct reduce_carrier {
    const struct reduce_carrier_ops *ops;
};

#endif
