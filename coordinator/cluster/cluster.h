// SPDX-License-Identifier: Apache-2.0
// The room of the cluster: which workers are there, how to call them, and the plans (trees) over them. It
// stands on the store; it has no notion of sessions and steps.
//
//   worker.c      a worker: its record, states and calls      membership.c  Register, Heartbeat, links, loss
//   room.c        the start and the end
//   plan.c        trees over sets of workers; planning.c       engine.c      what carries partials up a tree
//   edges.c       edges that are down, which trees avoid      gather.c      waiting for several answers
//   pace.c        who computes far slower than planned: pure   slow.c        what becomes of that here
#ifndef COORDINATOR_CLUSTER_H
#define COORDINATOR_CLUSTER_H

#include "common/base/list.h"
#include "coordinator/core.h"

#define COORDINATOR_WORKERS_MAX 4096
#define COORDINATOR_EDGES_MAX   64 // that are down

struct coordinator_plan;
struct coordinator_store;
struct coordinator_worker;

// An edge that is down (edges.h): from ends[0] to ends[1].
struct coordinator_edge {
    struct coordinator_edge_end {
        uint32_t slot, life; // of a worker
    } ends[2];
    uint64_t reported_ns; // last
};

struct coordinator_cluster {
    struct coordinator_core *core;
    struct coordinator_store *store;
    struct coordinator_worker *workers[COORDINATOR_WORKERS_MAX]; // by slot
    uint32_t n_workers;                                          // slots in use, NULLs included
    uint32_t lives;          // Registers; starts at term << 16, so that ids of an earlier life are foreign
    uint64_t speeds;         // rises when a worker becomes slow, or well again (slow.h)
    uint64_t looks, look_ns; // at how fast workers compute; the next one
    uint64_t slow_verdicts, refused_placements; // so far
    // Rises when a worker becomes ACTIVE, ceases to be or is LOST: what was derived from that is old.
    uint64_t changes;
    struct common_list changed; // these workers, for the phase of workers: worker.changed
    // Workers whose inventory must be read and layouts sent: worker.joining. Taken by sessions.
    struct common_list joining;

    struct coordinator_edge edges[COORDINATOR_EDGES_MAX];
    uint32_t n_edges;
    uint64_t no_tree_ns; // when it was last logged that no tree avoids them all

    struct coordinator_plan *plans; // list
    uint32_t n_plans;
    uint64_t plans_made;
    struct common_list plans_dirty;   // for the phase of plans: plan.dirty
    struct common_list plans_changed; // READY or RETIRED since they were taken: plan.changed. Taken by steps
};

#endif
