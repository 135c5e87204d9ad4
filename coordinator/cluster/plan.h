// SPDX-License-Identifier: Apache-2.0
// Plans: a plan is a tree over a set of members, shared by all sessions that live on exactly that set.
//
//   INSTALLING ──all members answered──▶ READY ──a member went, or is idle──▶ RETIRED ──nothing refers to it──▶ (freed)
//        │                                                                       ▲
//        └──────────────a member went, or refused────────────────────────────────┘
#ifndef COORDINATOR_PLANS_H
#define COORDINATOR_PLANS_H

#include "common/loop/machine.h"
#include "coordinator/cluster/cluster.h"
#include "proto/rpc/status.h"
#include "reduce/plan.h"

#define COORDINATOR_ENGINE_STREAM "stream"

#define COORDINATOR_PLANS_MAX 1024

struct coordinator_queue;

enum coordinator_plan_state {
    COORDINATOR_PLAN_INSTALLING,
    COORDINATOR_PLAN_READY,
    COORDINATOR_PLAN_RETIRED,
    COORDINATOR_PLAN_STATES
};
extern const struct common_machine coordinator_plan_machine;

struct coordinator_plan {
    struct coordinator_plan *next; // in cluster.plans
    struct coordinator_cluster *cluster;
    enum coordinator_plan_state state;
    uint64_t id, epoch, digest;
    char engine[16], group[65];          // group: whose collectives it uses, "" with stream
    struct coordinator_worker **workers; // [n] by rank; 0 is the root
    uint32_t n;
    struct reduce_plan *tree;
    char why[288];                   // tree and engine in words
    struct reduce_member *members;   // as given to the planner: tree->nodes[].member is an index
    uint32_t refs;                   // sessions
    uint64_t made_ns, idle_since_ns; // idle: refs fell to 0
    uint32_t in_flight;              // frames, and the installation
    struct coordinator_queue *queue; // of the room of steps; the plan lives as long
    bool told;                       // its members have been sent what its state demands
    struct common_list dirty;        // in cluster.plans_dirty
    struct common_list changed;      // in cluster.plans_changed
};

// Gives a reference back (planning.h).
void coordinator_plan_release(struct coordinator_plan *plan);

uint32_t coordinator_plan_rank(const struct coordinator_plan *plan,
                               const struct coordinator_worker *w); // UINT32_MAX: no member

// No step may go this way any more; those that wait for it are sent another way.
void coordinator_plan_retire(struct coordinator_plan *plan);

// A frame (or the installation) came back: in_flight falls.
void coordinator_plan_landed(struct coordinator_plan *plan);

// For planning.c: its members are to be told, or it may be freed; it is READY or RETIRED.
void coordinator_plan_mark(struct coordinator_plan *plan);
void coordinator_plan_changed(struct coordinator_plan *plan);
void coordinator_plan_free(struct coordinator_plan *plan);

// The queue is being freed.
void coordinator_plan_queue_gone(struct coordinator_plan *plan);

// The next plan that has become READY or RETIRED; NULL: none is left.
struct coordinator_plan *coordinator_plans_take_changed(struct coordinator_cluster *cluster);

// Retires plans in which the one is the other's parent, and that were made until then.
void coordinator_plans_edge_down(struct coordinator_cluster *cluster, const struct coordinator_worker *from,
                                 const struct coordinator_worker *to, uint64_t until_ns);
// Retires those that it is a member of, where there are others: the next tree is made for its new speed.
void coordinator_plans_worker_slow(const struct coordinator_worker *w);
// Retires all: a worker drops the plans of a term when it hears of a later one.
void coordinator_plans_term_raised(struct coordinator_cluster *cluster);
void coordinator_plans_tick(struct coordinator_cluster *cluster, uint64_t now_ns); // drops what nobody uses
void coordinator_plans_free(struct coordinator_cluster *cluster);

// The only way to alter a state; a transition that the diagram lacks is our bug.
void coordinator_plan_set_state(struct coordinator_plan *plan, enum coordinator_plan_state state);

#endif
