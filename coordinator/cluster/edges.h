// SPDX-License-Identifier: Apache-2.0
// Edges that are down: a worker says in its heartbeats which children it does not reach, though both are
// ACTIVE. Plans that use such an edge are retired, and the next ones over the same members have another tree
// (reduce_plan_avoid). No worker is lost for it: what the two compute without each other continues. An edge
// is forgotten a minute after it was last reported, or when one of its workers registers again; plans that
// avoid it stay. Where no tree avoids all that are remembered, the one that was reported longest ago is tried
// again first, and the next one when that is reported once more.
#ifndef COORDINATOR_EDGES_H
#define COORDINATOR_EDGES_H

#include <stdbool.h>

#include "coordinator/cluster/cluster.h"
#include "reduce/plan.h"

// A heartbeat's edges_down. What is not known yet is logged. Its plans are retired, but for those of the last seconds where it
// is known. A child whose own heartbeats are late is not looked at: it may be stopped.
void coordinator_edges_report(struct coordinator_worker *from, char *const *endpoints, size_t n);

#define COORDINATOR_EDGE_TEXT 132
// "FROM TO" of those that are down by a report of the last seconds. Returns how many.
uint32_t coordinator_edges_names(const struct coordinator_cluster *cluster,
                                 char texts[COORDINATOR_EDGES_MAX][COORDINATOR_EDGE_TEXT]);

// Whether this member's parent is remembered not to reach it, while the plan is the best one: the same step would fail
// again.
bool coordinator_edges_cut(const struct coordinator_plan *plan, const struct coordinator_worker *child);

// Whether one of the two does not reach the other: they are not to work on the same session, if others can.
bool coordinator_edges_apart(const struct coordinator_cluster *cluster, const struct coordinator_worker *a,
                             const struct coordinator_worker *b);

// Of the edges between these workers: fills avoid[COORDINATOR_EDGES_MAX] with their indices, the one that was reported last
// first; returns how many.
uint32_t coordinator_edges_between(const struct coordinator_cluster *cluster,
                                   struct coordinator_worker *const *workers, uint32_t n,
                                   struct reduce_avoid *avoid);

#endif
