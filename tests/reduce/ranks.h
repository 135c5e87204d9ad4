// SPDX-License-Identifier: Apache-2.0
// A tree of stand-in workers for engine tests: each rank has a loop thread, a real server on a unix socket,
// its own edges and a group of the engine under test.
#ifndef TESTS_REDUCE_RANKS_H
#define TESTS_REDUCE_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "reduce/edge.h"
#include "reduce/engine.h"
#include "tests/reduce/expected.h"

struct ranks;

// Ranks that are processes of their own, for engines that need that. One process a rank, rank 0 runs the
// tests; the others serve it over a unix socket at `path`, made by rank 0, until it hangs up.
void ranks_processes_lead(const char *path, uint32_t n); // returns when all are there
void ranks_processes_dismiss(void);                      // they end
int ranks_processes_serve(const char *path, uint32_t rank,
                          const struct reduce_engine_ops *ops); // an exit code

struct ranks_options {
    const struct reduce_engine_ops *ops;
    uint32_t n;
    const int32_t *parents; // [n] pre-order
    uint32_t edge_frames_max, edge_queue_max;
    uint32_t absent; // this rank is never started; NO_RANK: none
};

struct ranks *ranks_start(const struct ranks_options *options);
void ranks_stop(struct ranks *ranks);

// Runs a step on the root, which does with it what the script says. The step stays until ranks_wait returns.
struct ranks_call;
struct ranks_call *ranks_begin(struct ranks *ranks, const struct proto_step *step);
void ranks_cancel(struct ranks_call *call);
// Cancels one and begins another on one stack: nothing else runs on the root's loop in between.
struct ranks_call *ranks_cancel_and_begin(struct ranks_call *cancel, const struct proto_step *step);
// Waits for the outcome, which the caller owns, and frees the call.
void ranks_wait(struct ranks_call *call, struct reduce_outcome *out);
void ranks_run(struct ranks *ranks, const struct proto_step *step,
               struct reduce_outcome *out); // begin and wait

// Closes a rank's server and group, as if its process had died.
void ranks_vanish(struct ranks *ranks, uint32_t rank);

// Closes the root's group: steps in it end.
void ranks_close_root(struct ranks *ranks);

void outcome_clear(struct reduce_outcome *outcome);

struct ranks_counts {
    uint64_t steps, with_kv, cancelled;
    bool out_of_order; // a frame came after one with a higher number
};
void ranks_counts_get(struct ranks *ranks, uint32_t rank, struct ranks_counts *out);
// Waits (the test's own time limit is the only one) until the rank has seen so many cancelled steps.
void ranks_await_cancelled(struct ranks *ranks, uint32_t rank, uint64_t count);
// Statistics of the edge from a rank to its child.
void ranks_edge_stats(struct ranks *ranks, uint32_t rank, uint32_t child, struct reduce_edge_stats *out);
// Waits until it has no frame outstanding and none waiting.
void ranks_await_idle(struct ranks *ranks, uint32_t rank, uint32_t child);

#endif
