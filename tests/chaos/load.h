// SPDX-License-Identifier: Apache-2.0
// Clients of a cluster that is being disturbed. Each thread has a client and sessions of its own, and a model
// of what was acknowledged to it: the rows, and how many holders' copies may have gone. What must hold:
//   - an answer is the float64 reference's over exactly the rows that the model has;
//   - a session of R holders of which fewer than R copies went loses nothing, and its calls end well;
//   - one that may have lost rows says so (DATA_LOSS, or UNAVAILABLE while the holder is away), with ranges inside
//     of what it had; or it has them all;
//   - errors have codes of their call's contract.
// Rows get new bytes whenever a truncate has taken them away: what is stale has other numbers.
#ifndef TESTS_CHAOS_LOAD_H
#define TESTS_CHAOS_LOAD_H

#include <stdbool.h>
#include <stdint.h>

enum { LOAD_CLIENTS = 4, LOAD_SESSIONS = 2, LOAD_FORKS = 2 }; // of each client, forks at a time

struct load_options {
    const char *endpoints[LOAD_CLIENTS]; // of the coordinator, for each client
    uint64_t seed;
    uint32_t replicas; // of every session; 0: 1 to 3, and with types, layers and members that differ
    bool plain;        // appends and reads alone; a truncate where the room ends
    // How long a degraded session is waited for, until it has its copies again; then it is emptied by a
    // truncate.
    uint64_t restore_ns;
};

struct load_counts {
    uint64_t steps;                             // that were answered
    uint64_t attaches, truncates, forks, again; // again: appends sent once more after they were acknowledged
    uint64_t retries;                           // calls that were made again because they had no verdict
    uint64_t failed_steps;  // of sessions that could lose nothing, with time enough to outlast a fault
    uint64_t failed_full;   // likewise, of steps that met a full store, which is what they say
    uint64_t failed_beyond; // likewise after faults on sessions that did not have all their copies any more
    uint64_t wrong;         // answers that are not the reference's
    uint64_t lost_tokens;   // acknowledged ones that are gone although fewer than R copies went
    uint64_t gone_tokens;   // those that had to go
    uint64_t emptied;       // sessions that were truncated to 0 because they were degraded
    uint64_t
        longest_pause_ns; // from the first try of a step to its answer, of sessions that could lose nothing
};

struct load;

// Connects, makes the sessions and starts the threads. Ends the program when it cannot.
struct load *load_start(const struct load_options *options);
// So many copies of every chunk are about to go, at most. Before the fault.
void load_lost(struct load *load, unsigned copies);
// The store is (no longer) full: steps may be refused for that.
void load_store_full(struct load *load, bool full);
// The next fault comes without load_settle: sessions may have fewer copies than they should.
void load_beyond(struct load *load);
// Every session has all its copies, or is emptied and has them then: waits for the threads. Nothing may be
// disturbed meanwhile. False: it takes longer than timeout_ns.
bool load_settle(struct load *load, uint64_t timeout_ns);
void load_get(struct load *load, struct load_counts *out);
void load_forget_pauses(struct load *load); // the longest one starts again
// NULL, or the first thing that must not be.
const char *load_wrong(struct load *load);
// Ends the threads, looks at every session as a whole, deletes them. False: load_wrong has something.
bool load_end(struct load *load);
void load_free(struct load *load);

#endif
