// SPDX-License-Identifier: Apache-2.0
// What the hermetic tests of the coordinator share. They are one program (main.c), a file for each theme: the
// whole coordinator in one thread, on simulated time, links and disk, with real workers (tests/sim). The last
// group asks whether every edge of every state machine was taken, and looked at by a test (SHOWS).
#ifndef TESTS_COORDINATOR_HERMETIC_H
#define TESTS_COORDINATOR_HERMETIC_H

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/check/regain.h"
#include "coordinator/check/seals.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/limits.h"
#include "coordinator/place/move.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/state.h"
#include "coordinator/steps/item.h"
#include "coordinator/sync/repair.h"
#include "coordinator/sync/visit.h"
#include "tests/sim/sim_cluster.h"
#include "tests/sim/sim_edges.h"

#define METHOD(name) BANYAN__PB__METHOD__METHOD_##name

// Waits for a call and says what it said when that is not what was wanted.
#define ENDS(want, made)                                                                                     \
    do {                                                                                                     \
        struct sim_call *ends = (made);                                                                      \
        enum common_code got = sim_wait(ends);                                                               \
        if (got != (want))                                                                                   \
            fail_msg("%s: %s: %s (%s)", #made, common_code_name(got), ends->text, ends->reason);             \
    } while (0)
#define OK(made) ENDS(COMMON_OK, made)

// This test has taken an edge of a machine: SHOWS(item, "new", "queued").
#define SHOWS(machine, from, to)                                                                             \
    do {                                                                                                     \
        if (!sim_edge_taken(&coordinator_##machine##_machine, from, to))                                     \
            fail_msg("no %s went from %s to %s", #machine, from, to);                                        \
    } while (0)

// What a read at the last of `rows` positions must answer: the mean of the values below it.
#define READS(cluster, session, rows, sum)                                                                   \
    do {                                                                                                     \
        struct sim_call *reads = sim_read((cluster)->client, session, 0, (rows)-1, 1);                       \
        OK(reads);                                                                                           \
        assert_float_equal(reads->o, (float)(sum) / (float)(rows), 1e-4f);                                   \
    } while (0)

struct sim_cluster *cluster_of(uint32_t workers);

// A session over all workers, with so many tokens of value 1 in layer 0, 16 in each chunk.
uint64_t session_of(struct sim_cluster *cluster, uint32_t tokens);

// One with so many holders of each chunk, made by appends.
uint64_t filled_of(struct sim_cluster *cluster, uint32_t replicas, uint32_t tokens);

struct coordinator_session *kept_of(struct sim_cluster *cluster, uint64_t session); // the coordinator's own
uint64_t length_of(struct sim_cluster *cluster, uint64_t session);
uint64_t tokens_held(struct sim_cluster *cluster, uint64_t session); // by all workers
struct sim_worker *holder_of(struct sim_cluster *cluster, uint64_t session,
                             uint64_t position);                                          // the only one
struct sim_worker *copy_of(struct sim_cluster *cluster, uint64_t session, uint32_t index, // of the chunk
                           uint32_t copy);

// The worker's state, as an operator sees it.
void state_is(struct sim_cluster *cluster, const struct sim_worker *worker, const char *state);

// A rule for the next requests of a method, at all workers.
void rule_all(struct sim_cluster *cluster, uint32_t method, struct sim_rule rule);
uint32_t held_all(struct sim_cluster *cluster);
void let_go_all(struct sim_cluster *cluster);

void restart(struct sim_cluster *cluster); // of the coordinator, which was killed

// The groups. Each returns how many tests failed.
int hermetic_appends(void);
int hermetic_audits(void);
int hermetic_born(void);
int hermetic_commits(void);
int hermetic_copies(void);
int hermetic_edges(void); // the last one
int hermetic_events(void);
int hermetic_fairness(void);
int hermetic_forget(void);
int hermetic_frames(void);
int hermetic_holders(void);
int hermetic_items(void);
int hermetic_watches(void);
int hermetic_limits(void);
int hermetic_moments(uint32_t least, uint32_t most); // holders of each chunk
int hermetic_moves(void);
int hermetic_partial(void);
int hermetic_placing(void);
int hermetic_plans(void);
int hermetic_prefixes(void);
int hermetic_quotas(void);
int hermetic_reading(void);
int hermetic_reconcile(void);
int hermetic_restarts(void);
int hermetic_restoring(void);
int hermetic_returned(void);
int hermetic_room(void);
int hermetic_scrub(void);
int hermetic_seals(void);
int hermetic_sessions(void);
int hermetic_slow(void);
int hermetic_successors(void);
int hermetic_truncates(void);
int hermetic_visits(void);
int hermetic_workers(void);

#endif
