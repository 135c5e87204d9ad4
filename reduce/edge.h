// SPDX-License-Identifier: Apache-2.0
// Edges: the stream links from a worker to its children, one an endpoint, shared by all groups of the worker.
// Frames of an edge leave in the order of reduce_edge_send, whatever group they belong to; later frames of a
// session rely on it. Private to reduce/ and its loadable engines. Everything runs on the loop's thread.
#ifndef REDUCE_EDGE_H
#define REDUCE_EDGE_H

#include "reduce/engine.h"

struct reduce_edge;

// Dials at the first acquire, closes at the last release. Release with no call of one's own left.
enum common_code reduce_edge_acquire(struct reduce_edges *edges, const char *endpoint,
                                     struct reduce_edge **out, struct common_error *err);
void reduce_edge_release(struct reduce_edge *edge); // NULL is allowed

enum reduce_edge_call_state { REDUCE_EDGE_CALL_IDLE, REDUCE_EDGE_CALL_WAITING, REDUCE_EDGE_CALL_SENT };

// One frame and its answer. The memory is the caller's, all zero before the first send, and stays until done
// has run or cancel has returned. Fields are edge.c's.
struct reduce_edge_call {
    enum reduce_edge_call_state state;
    struct reduce_edge *edge;
    const struct proto_step *step;
    bool with_kv;
    proto_step_done_fn done;
    void *arg;
    uint64_t id;
    struct reduce_edge_call *prev, *next;
};

// Sends the step, or lets it wait for a credit. done runs exactly once, never on this stack, unless this
// fails or the call is cancelled. At once: UNAVAILABLE (the link is down: lost, or never made within the
// grace), DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED (too many wait), and what proto_step_send says.
enum common_code reduce_edge_send(struct reduce_edge *edge, struct reduce_edge_call *call,
                                  const struct proto_step *step, bool with_kv, proto_step_done_fn done,
                                  void *arg, struct common_error *err);

// Ends the call; done does not run. An idle call is left as it is.
void reduce_edge_cancel(struct reduce_edge_call *call);

struct reduce_edge_stats {
    uint32_t outstanding, waiting; // now
    uint32_t outstanding_max;      // the most so far
    uint64_t sent;                 // frames so far
    uint64_t sent_with_kv;         // those that carried k and v
};
void reduce_edge_stats_get(const struct reduce_edge *edge, struct reduce_edge_stats *out);

// The edge to an endpoint, if a group holds one; NULL otherwise. For metrics and tests.
const struct reduce_edge *reduce_edge_find(const struct reduce_edges *edges, const char *endpoint);

#endif
