// SPDX-License-Identifier: Apache-2.0
// The inside of a worker, shared by the files that handle its calls.
#ifndef WORKER_STATE_H
#define WORKER_STATE_H

#include <inttypes.h>

#include "common/metrics/exemplars.h"
#include "proto/rpc/rpc.h"
#include "proto/rpc/status.h"
#include "reduce/engine.h"
#include "worker/core/membership.h"
#include "worker/core/pace.h"
#include "worker/disk/disk.h"
#include "worker/memory/map.h"
#include "worker/processors/device.h"
#include "worker/processors/engine.h"
#include "worker/processors/team.h"
#include "worker/session/follow.h"
#include "worker/session/session.h"
#include "worker/store/store.h"

#define WORKER_PLANS_MAX  4096u
#define WORKER_STEPS_MAX  1024u // in hand at a time
#define WORKER_MASSES_MAX 64u   // likewise
#define WORKER_AUDITS_MAX 4u    // likewise: a coordinator sends one, and gives up on it, at a time
#define WORKER_NAME_MAX   64

struct worker_plan {
    uint64_t id, epoch, digest;
    uint32_t self, n;
    size_t packed_bytes; // of the request that installed it
    uint8_t *packed;
    const struct reduce_engine_ops *engine;
    struct reduce_group *group;
};

struct worker_clean;
struct worker_empty;
struct worker_farewell;
struct worker_probe;
struct worker_pulls;
struct worker_step;
struct worker_sums;
struct worker_warm;

struct worker_listing { // the sessions' ids in order, while an inventory is being read; zeroed: none
    uint64_t *ids;
    size_t n;
    uint64_t changes; // of worker.sessions when it was made
};

struct worker {
    struct common_loop *loop;
    char name[WORKER_NAME_MAX + 1], host[WORKER_NAME_MAX + 1];
    struct common_secret secret;
    char *token;                // that clients may present in the place of a pass; NULL: none
    bool demands_pass;          // clients must present one of the two
    uint64_t term;              // the highest seen
    uint64_t clock_zero_ns;     // worker/rows/ticket.h; 0: the coordinator has not said
    uint64_t visit_term, visit; // the last that an inventory was asked for
    uint64_t plans_term;        // the one that `plans` belong to
    uint64_t settled;           // commits with lower numbers are over
    uint64_t life; // of the store that its coordinator has: sessions of other lives are in quarantine
    struct worker_store *store;
    struct worker_disk *disk; // NULL: memory alone
    uint64_t attach_ttl_ns;   // 0: rows that are put stay until they are committed
    uint64_t attach_clock_ns; // runs while heartbeats do; starts at 1
    uint64_t attach_seen_ns;  // when it was looked at last
    struct worker_map sessions, plans;
    struct worker_listing listing;
    uint64_t listings;      // made so far
    size_t inventory_bytes; // where a page of an inventory ends; tests take smaller ones
    struct worker_team *team;
    struct worker_device *device; // NULL: the team computes
    struct worker_engine *engine; // NULL: stream alone
    bool engine_told;             // that it is lost
    void (*failed)(void *arg, const struct common_error *err);
    void *failed_arg;
    struct reduce_env env;
    struct proto_server *public_server, *edge_server;
    struct worker_membership *membership;
    struct worker_pulls *pulls;
    struct worker_sums *sums;
    uint64_t
        *lost; // [n_lost] ids of chunks whose rows are gone here, and have not returned: the newest (lose.c)
    uint32_t n_lost;
    struct worker_warm *warm;
    struct worker_clean *clean;
    uint64_t started_ns;
    uint64_t inline_madds;
    void (*registered)(void *arg);
    void *registered_arg;
    // steps
    struct worker_step *steps;              // in hand, a list
    struct worker_follows follows;          // of these: what waits behind what
    uint32_t n_steps, n_prepares;           // in hand: what the team may still work on
    uint32_t n_masses, n_audits;            // counted in n_prepares, too
    uint64_t flight_bytes, flight_limit;    // of frames, partials and workspaces in hand
    uint64_t flight_refused, steps_refused; // times that there was no room for another
    void *scratch;                          // the loop thread's, for inline computation
    uint64_t scratch_bytes;
    uint64_t steps_done, last_compute_ns, attached_bytes;
    struct common_buckets queue, compute, tree; // of steps: until computing began, computing, until merged
    struct common_exemplars queue_last, compute_last, tree_last; // of those that were traced
    struct common_tracer *tracer;                                // of steps' spans; NULL: none
    struct common_tls *tls;                                      // a reference; NULL: none
    struct worker_pace pace;
    struct worker_probe *probe; // a measurement under way; NULL: none
    // leaving
    struct worker_empty *empty;       // NULL: not requested
    struct worker_farewell *farewell; // NULL: not said yet
    bool draining;
    struct common_timer *drain_timer;
    void (*drained)(void *arg);
    void *drained_arg;
};

// Answers a failure with the reason that goes with its code (see docs/reference/wire.md), "" for none.
void worker_fail(struct proto_request *request, const struct common_error *err, enum proto_reason reason);

void worker_hand_emptied(struct worker *worker); // after a step or a prepare has ended

#endif
