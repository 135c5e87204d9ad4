// SPDX-License-Identifier: Apache-2.0
// Plans: one a set of members, shared by all sessions that live on exactly that set. A plan has the tree, and
// the queues of what is to go down it.
//
//   INSTALLING ──all members answered──▶ READY ──a member went, or refused──▶ RETIRED ──nothing refers to
//   it──▶ (freed)
//        └──────────────────────────────────────────────────────────────────────▲
#ifndef COORDINATOR_PLANS_H
#define COORDINATOR_PLANS_H

#include "coordinator/state.h"

#define COORDINATOR_ENGINE_STREAM "stream"
#define COORDINATOR_BIG_FRAMES    4 // frames of cut items that may be in flight on a plan

enum coordinator_plan_state {
    COORDINATOR_PLAN_INSTALLING,
    COORDINATOR_PLAN_READY,
    COORDINATOR_PLAN_RETIRED,
    COORDINATOR_PLAN_STATES
};

struct coordinator_plan {
    struct coordinator_plan *next; // in coordinator.plans
    struct coordinator *c;
    enum coordinator_plan_state state;
    uint64_t id, epoch, digest;
    char engine[16], group[65];          // group: whose collectives it uses, "" with stream
    struct coordinator_worker **workers; // [n] by rank; 0 is the root
    uint32_t n;
    struct reduce_plan *tree;
    char why[288];                 // tree and engine in words
    struct reduce_member *members; // as given to the planner: tree->nodes[].member is an index
    uint32_t refs;                 // sessions
    uint64_t idle_since_ns;        // refs fell to 0
    uint32_t in_flight;            // frames, and the installation
    struct coordinator_item_list small, big;
    uint32_t small_in_flight, big_in_flight;
    struct coordinator_plan *dirty_next; // in coordinator.dirty
    bool dirty;
};

// The plan of the session's members that are ACTIVE: an existing one or a new one that is being installed. A
// reference is kept in session->plan. NULL with the reason: nobody is there, or too many plans.
struct coordinator_plan *coordinator_plan_of(struct coordinator_session *s, struct proto_status *status);
void coordinator_plan_release(struct coordinator_plan *plan);

uint32_t coordinator_plan_rank(const struct coordinator_plan *plan,
                               const struct coordinator_worker *w); // UINT32_MAX: no member

// No step may go this way any more; those that wait for it are sent another way.
void coordinator_plan_retire(struct coordinator_plan *plan);
void coordinator_plan_landed(
    struct coordinator_plan *plan); // a frame (or the installation) came back: in_flight falls; may free it

void coordinator_plans_worker_changed(struct coordinator_worker *w);
// Retires plans whose engine is not the one that they would get now, where their members are of that group.
void coordinator_plans_engine_changed(struct coordinator *c, const char *group);
void coordinator_plans_tick(struct coordinator *c, uint64_t now_ns); // drops what nobody uses
void coordinator_plans_free(struct coordinator *c);

#endif
