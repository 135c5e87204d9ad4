// SPDX-License-Identifier: Apache-2.0
// The inside of chaos_test's snapshots: what their client does (chaos_snapshot.c), and the rows
// (chaos_snapshot_rows.c).
#ifndef TESTS_SIM_CHAOS_SNAPSHOT_H
#define TESTS_SIM_CHAOS_SNAPSHOT_H

#include "client/banyan.h"
#include "client/snapshot/snapshot.h"
#include "client/snapshot/snapshot_session.h"
#include "tests/sim/chaos.h"
#include "tests/sim/sim_caller.h"

enum stage { OPENING, PINNING, READING, MAKING, FILLING };

struct snapshotter {
    struct sim_caller *caller; // NULL: none is under way
    banyan_client *client;
    enum stage stage;
    uint32_t n;          // that have begun in this life
    struct model *of;    // the session
    struct model *pin;   // NULL: there is none, or its session has no record
    struct model *made;  // likewise; what is restored
    struct model *fresh; // a session that has just been restored
    bool calm;           // nothing disturbs it
    bool dead;           // its client is
    bool again;          // it was refused for a reason that passes
    bool unheard;        // what the session has lost was never acknowledged: it is to be truncated first
    bool unsure;         // a truncate was under way, or may come late
    bool known;          // want is what the session had
    uint32_t cuts, kills, wrongs; // of the model, of the life
    bool ticketed;                // rows were read, while the coordinator had this life
    uint32_t lives;
    uint32_t prefix;          // acknowledged in all layers before it began
    uint64_t ttl_ns, used_ns; // the pin's; when it was used last, at least
    struct snapshot snapshot;
    struct snapshot_form *form;
    float want[LAYERS][TOKENS], have[LAYERS][TOKENS];
    bool sealed[TOKENS / CHUNK_TOKENS]; // when it was pinned
};
extern struct snapshotter chaos_snapshotter;

// On the caller's stack; they block.
// Stages OPENING to READING. True: it is taken, and *of is a hold of its session, to be closed.
bool chaos_snapshot_take(banyan_session **of);
void chaos_snapshot_restore(const banyan_spec *spec); // MAKING, FILLING; then it is `fresh`

// A call has failed: its code is one that the stage allows, or the run ends.
void chaos_snapshot_refused(const banyan_error *error);
// Its answer does not count: it is dead, or has asked another store.
bool chaos_snapshot_excused(void);
bool chaos_snapshot_cut(void);                           // the session was truncated since, or may have been
bool chaos_snapshot_lost(const struct model *m);         // rows of it may be; NULL is allowed
uint32_t chaos_snapshot_shortest(const struct model *m); // rows that are acknowledged in all layers
void chaos_snapshot_think(void);                         // a disk is slow, or a user is

#endif
