// SPDX-License-Identifier: Apache-2.0
// How partials climb the tree. The step frame goes down the stream tree with every engine; an engine decides
// how the partials come up. Everything here runs on the worker's loop thread; callbacks come on it too. An
// engine sees no protobuf type and no session.
#ifndef REDUCE_ENGINE_H
#define REDUCE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop/loop.h"
#include "common/secure/secret.h"
#include "kernels/partial.h"
#include "proto/rpc/step.h"

struct kernels_device_item; // kernels/device.h
struct kernels_device_sink;
struct reduce_edges; // the worker's stream edges to its children, shared by all its groups (edge.h)

// What an engine may use of its worker. Lives as long as the worker.
struct reduce_env {
    struct common_loop *loop;
    const char *name;                   // of this worker; every pointer here outlives the groups
    const struct common_secret *secret; // for edges
    struct common_tls *tls;             // for those to tls:// endpoints; NULL: there are none
    uint32_t edge_frames_max;           // step frames outstanding on one edge; more wait (credits); 0: 16
    uint32_t edge_queue_max;            // waiting frames on one edge; more are RESOURCE_EXHAUSTED; 0: 4096
    struct reduce_edges *edges;         // set from reduce_edges_new, which reads what stands above
};

// Makes the pool of edges; free it after the last group is closed. On the loop's thread, or before it runs.
enum common_code reduce_edges_new(const struct reduce_env *env, struct reduce_edges **out);
void reduce_edges_free(struct reduce_edges *edges); // NULL is allowed

// Endpoints of the edges that have been down for 1 s or longer, or whose child has been found silent in the
// last 5 s, at most `most`; they live as long as the edges. Returns how many. Their channels go on dialling,
// and a child that is back is found within a second; behind something that swallows hellos, too, within six.
uint32_t reduce_edges_down(const struct reduce_edges *edges, char **endpoints, uint32_t most);

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
    // Owned by the engine from contribute on. n_items as in the step; its own trace, if any, has its rank.
    struct proto_step_result *result;
    // Reference given to the engine; it merges into it. NULL when no item is OK. Not read where the engine's
    // sink has taken what it stands for.
    struct common_blob *partials;
    uint64_t ready_ns; // when it was ready: the trace's wait time starts here
};

// The subtree's result, handed to `done` exactly once. On ranks above which the engine itself carries
// partials (collectives), partials is NULL. The bytes of an item whose code is not OK are the identity.
//
// A child that does not answer fails every item of the step: its code (UNAVAILABLE, DEADLINE_EXCEEDED, ...),
// reason "WORKER_LOST" for these two, "OLD_PLAN" for ABORTED, its name as `worker`. So does one whose answer
// does not fit the step: INTERNAL.
struct reduce_outcome {
    // Not OK: the step as a whole failed here (cancelled, engine broken, no memory); the rest is NULL.
    enum common_code code;
    char text[256];
    struct proto_step_result *result; // owned by the receiver
    struct common_blob *partials;     // owned by the receiver
};

typedef void (*reduce_done_fn)(void *arg, struct reduce_outcome *outcome);

struct reduce_group; // an engine's view of one plan
struct reduce_op;    // one step in it

struct reduce_engine_ops {
    const char *name;
    // The same data and plan give the same bits. An engine that is not repeatable may never be the default.
    bool repeatable;
    // INVALID_ARGUMENT: members that are no pre-order tree, an endpoint that cannot be dialled.
    enum common_code (*open)(const struct reduce_env *env, const struct reduce_group_spec *spec,
                             struct reduce_group **out, struct common_error *err);
    // Steps in it end with CANCELLED, on this stack. NULL is allowed.
    void (*close)(struct reduce_group *group);
    // Sends the frame to the children (without k and v where no appended row is held below) and waits for
    // contribute. The step is borrowed until done. done never runs on this stack. On failure nothing was
    // begun: INVALID_ARGUMENT (shapes whose partials pass PROTO_PAYLOAD_MAX), RESOURCE_EXHAUSTED, CANCELLED
    // (closing).
    enum common_code (*begin)(struct reduce_group *group, const struct proto_step *step, reduce_done_fn done,
                              void *arg, struct reduce_op **out, struct common_error *err);
    // Exactly once, unless cancelled. done may run on this stack; from done on the op is gone.
    void (*contribute)(struct reduce_op *op, const struct reduce_local *local);
    void (*cancel)(struct reduce_op *op); // done runs on this stack with CANCELLED
    // Optional; NULL, and an answer of NULL: the partials come to the host. Between begin and contribute, at
    // most once: where a device is to leave this step's partials, which the engine carries on from there.
    // `items`, [n], are what the device will compute, each with its `out` inside of `partials`; what none of
    // them writes is read from `partials` on this stack. The sink is the op's: once the op has ended nothing
    // may be submitted with it. What is submitted with it ends well, or the device is lost.
    const struct kernels_device_sink *(*sink)(struct reduce_op *op, const struct common_blob *partials,
                                              const struct kernels_device_item *items, uint32_t n);
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

// Whether no item saw a key (cover_tokens 0, or not OK): then all partials are the identity, and need not
// travel.
bool reduce_result_empty(const struct proto_step_result *result);

// Items that failed become the identity: what they hold is not worth sending, and may be memory never
// written.
void reduce_clear_failed(const struct proto_step *step, const struct proto_step_result *result,
                         struct common_blob *partials);

// Merges what a child answered into `into`/`result`, item by item: partials where both are OK, coverage,
// appends, digest; the first failure in rank order wins. A child's partial that saw no key is the identity
// and is not read; with an empty result child_partials may be NULL. Traces are left alone. Both blocks have
// reduce_partials_bytes of the step and are aligned to 64; both results have its number of items. `into`
// NULL: the partials are carried elsewhere, all else is merged. Also merged: what the result says of a
// communicator.
void reduce_merge(const struct proto_step *step, struct common_blob *into, struct proto_step_result *result,
                  const void *child_partials, const struct proto_step_result *child);

#endif
