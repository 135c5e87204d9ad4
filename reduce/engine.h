// SPDX-License-Identifier: Apache-2.0
// How partials climb the tree. The step frame goes down the stream tree with every engine; an engine decides
// how the partials come up. Everything here runs on the worker's loop thread; callbacks come on it too. An
// engine sees no protobuf type and no session.
#ifndef REDUCE_ENGINE_H
#define REDUCE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop.h"
#include "common/secret.h"
#include "kernels/partial.h"
#include "proto/step.h"

// What an engine may use of its worker. Lives as long as the worker.
struct reduce_env {
    struct common_loop *loop;
    const char *name;                   // of this worker
    const struct common_secret *secret; // for edges
    uint32_t edge_frames_max;           // step frames outstanding on one edge; more wait (credits); 0: 16
    uint32_t edge_queue_max;            // waiting frames on one edge; more are RESOURCE_EXHAUSTED; 0: 4096
};

struct reduce_group_member {
    char name[65];
    char edge_endpoint[128];
    int32_t parent; // rank
};

struct reduce_group_spec {
    uint64_t plan, epoch;
    uint32_t self; // rank
    uint32_t n;
    const struct reduce_group_member *members; // [n], pre-order; copied by open
};

// This worker's own part of a step: statuses, coverage, appends and digests by item, and the packed partials
// of all items (kernels/partial.h layout, item after item). An item whose code is not OK contributes the
// identity: its bytes are not read.
struct reduce_local {
    struct proto_step_result *result; // owned by the engine from contribute on
    struct common_blob *partials;     // reference given to the engine; it may merge into it
    uint64_t ready_ns;                // when it was ready: the trace's wait time starts here
};

// The subtree's result, handed to `done` exactly once. On ranks above which the engine itself carries
// partials (collectives), partials is NULL.
struct reduce_outcome {
    enum common_code
        code; // not OK: the step as a whole failed here (cancelled, engine broken); the rest is NULL
    char text[256];
    struct proto_step_result *result; // owned by the receiver
    struct common_blob *partials;     // owned by the receiver
};

typedef void (*reduce_done_fn)(void *arg, struct reduce_outcome *outcome);

struct reduce_group; // an engine's view of one plan
struct reduce_op;    // one step in it

struct reduce_engine_ops {
    const char *name;
    bool repeatable; // the same data and plan give the same bits; an engine that is not may never be the
                     // default
    enum common_code (*open)(const struct reduce_env *env, const struct reduce_group_spec *spec,
                             struct reduce_group **out, struct common_error *err);
    void (*close)(struct reduce_group *group); // steps in it end with CANCELLED
    // Sends the frame to the children (without k and v where no appended row is held below) and waits for
    // contribute. The step is borrowed until done.
    enum common_code (*begin)(struct reduce_group *group, const struct proto_step *step, reduce_done_fn done,
                              void *arg, struct reduce_op **out, struct common_error *err);
    void (*contribute)(struct reduce_op *op,
                       const struct reduce_local *local); // exactly once, unless cancelled
    void (*cancel)(struct reduce_op *op);                 // done runs on this stack with CANCELLED
};

// Registered at start-up (built in) or by a loaded module. ALREADY_EXISTS for a name in use, INVALID_ARGUMENT
// when a required function is missing.
enum common_code reduce_engine_register(const struct reduce_engine_ops *ops);
const struct reduce_engine_ops *reduce_engine_find(const char *name); // NULL: unknown
const struct reduce_engine_ops *reduce_engine_at(unsigned index);     // NULL past the end

// The built-in engine: each parent calls its children over stream edges and merges their answers in rank
// order, whatever the order of arrival.
extern const struct reduce_engine_ops reduce_engine_stream;

// Bytes of the packed partials of all items of a step; false when they wrap or exceed `limit`.
bool reduce_partials_bytes(const struct proto_step *step, size_t limit, size_t *out);

// Merges what a child answered into `into`/`result`: item by item, partials, coverage, appends, digest; first
// failure in rank order wins.
void reduce_merge(const struct proto_step *step, struct common_blob *into, struct proto_step_result *result,
                  const void *child_partials, const struct proto_step_result *child);

#endif
