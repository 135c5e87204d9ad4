// SPDX-License-Identifier: Apache-2.0
// What engines that follow the plan's tree have in common: frames go down the stream edges, children are
// merged in rank order whatever the order of arrival. How results come up is a carrier's; without one they
// are the answers on the edges (the engine `stream`). A step whose frame has a collective sequence is *bare*:
// its partials travel elsewhere, the tree carries statuses, coverage, digests and traces alone, and its
// outcome has no partials. Private to reduce/ and its loadable engines.
#ifndef REDUCE_TREE_H
#define REDUCE_TREE_H

#include "reduce/carrier.h"
#include "reduce/edge.h"
#include "reduce/engine.h"

struct reduce_tree_child {
    uint32_t rank, subtree;
    char name[65];
    struct reduce_edge *edge;
};

struct reduce_group {
    struct reduce_env env;
    struct reduce_carrier *carrier; // NULL: the edges' answers are the results
    bool bare;                      // steps may be: its opener has a communicator. Set before the first step
    uint32_t self, subtree;
    uint32_t n_children;
    struct reduce_tree_child *children; // [n_children] ascending rank
    uint32_t *send_order;               // [n_children] indices
    uint32_t *child_of; // [subtree] index of the child that a rank self + i is below; not for i = 0
    bool *holds;        // [n_children] scratch of begin
    bool closing;
    struct reduce_op *first;  // steps in it
    struct reduce_op *ending; // done, but children have not acknowledged their frames yet
};

// tree_group.c. Without a carrier: set one, if needed, before the first step; it is closed with the
// group.
enum common_code reduce_tree_open(const struct reduce_env *env, const struct reduce_group_spec *spec,
                                  struct reduce_group **out, struct common_error *err);
void reduce_tree_free(struct reduce_group *group); // no step is in it; NULL is allowed

// tree.c: as in struct reduce_engine_ops.
void reduce_tree_close(struct reduce_group *group);
enum common_code reduce_tree_begin(struct reduce_group *group, const struct proto_step *step,
                                   reduce_done_fn done, void *arg, struct reduce_op **out,
                                   struct common_error *err);
void reduce_tree_contribute(struct reduce_op *op, const struct reduce_local *local);
void reduce_tree_cancel(struct reduce_op *op);

// Ends it with that code, as cancel does.
void reduce_tree_fail(struct reduce_op *op, enum common_code code, const char *text);
// Appends how many children have not answered: "; no result from 1 of 3 children". Nothing if all have.
void reduce_tree_missing(const struct reduce_op *op, char *text, size_t cap);
// Whether a child has not been sent its frame, and will not be once the step is cancelled.
bool reduce_tree_unsent(const struct reduce_op *op);

#endif
