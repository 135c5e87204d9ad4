// SPDX-License-Identifier: Apache-2.0
// Who of two coordinators on one store may act. The *holder* has the store open; one that was started with --standby
// *watches*, and takes the store over when the holder is gone or does not run.
//
// Gone is simple: SQLite's lock on the file ends with the process. A process that is stopped, or whose disk hangs, keeps
// its lock for ever, so a lock alone does not do. Three records beside the store (lease_file.h) do:
//
//   OWNER   whose store this is: a random number of a process; HELD, or TAKING while it is being taken over
//   BEAT    a counter that the holder raises, and whether it knows that it is watched
//   WATCH   whom somebody watches
//
//   holder:   UNWATCHED ──WATCH names it──▶ WATCHED: raises BEAT every COORDINATOR_LEASE_RENEW_NS, then reads OWNER.
//                                           It is itself: valid for COORDINATOR_LEASE_NS from before the BEAT was
//                                           written. It is another: over. The process ends (exit code 5)
//   watcher:  writes WATCH; sees BEAT say "watched"; sees the same BEAT for COORDINATOR_LEASE_NS and a margin, by its
//             own clock; writes OWNER; reads BEAT again: still the same: takes the store (takeover.h). Changed: waits as
//             long once more, for the holder has run, and ends when it next reads OWNER.
//
// Nobody's clock is compared with another's: each measures a time of its own. Until a holder has said that it knows of a
// watcher, nobody takes the store from it, and it writes nothing: without a standby a coordinator does what it ever did,
// however long it or its disk is away.
//
// Why no answer of the old holder can be wrong:
//  1. Each answer to a client or a worker is given while the lease is valid (coordinator.c, proto_server_options.serves).
//     If it is not, the lease is renewed first, or the process ends. When a holder writes BEAT and reads itself in OWNER,
//     then a watcher that writes OWNER afterwards and reads BEAT sees the change, and waits until that validity is over.
//     So at the moment of an answer nobody else has the store, and nothing that it rests on can have been changed by
//     another: not a layout, a length, a session's name, nor who is a holder. The bytes may arrive later, when a process
//     is stopped between this moment and the system call: its caller has been waiting all the time, and an answer that was
//     right during a call may come at the end of the call.
//  2. What is answered because it is durable: the store's thread reads OWNER after each commit, before it says so. The
//     watcher copies the store after it has written OWNER. So a commit is in the copy, or it is never told.
//  3. What the old holder still sends to workers, late: those that the new one has visited refuse its term. At the others
//     a step may store rows, or compute; that is as if its message had been slow and the coordinator killed. It is not
//     answered (1), the visit that comes later finds such rows, and what it alters besides (layouts, drops, commits) was
//     durable before, so that it is in the new one's store (2).
//  4. What the old one writes to its store, late, goes to a file that nobody reads any more (takeover.h).
#ifndef COORDINATOR_LEASE_H
#define COORDINATOR_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "coordinator/store/lease_file.h"

#define COORDINATOR_LEASE_NS        (UINT64_C(1250) * 1000 * 1000)
#define COORDINATOR_LEASE_MARGIN_NS (UINT64_C(250) * 1000 * 1000)
#define COORDINATOR_LEASE_RENEW_NS  (UINT64_C(200) * 1000 * 1000)
#define COORDINATOR_LEASE_WATCH_NS  (UINT64_C(50) * 1000 * 1000) // between two looks of a watcher

// ---- the holder's end: the loop thread, unless said otherwise -------------------------------------------

struct coordinator_lease {
    struct coordinator_lease_file *file; // NULL: nobody can share the store (":memory:")
    uint64_t self, beat;
    uint64_t valid_until_ns; // of a watched one
    bool watched;
};

// The store is ours: says so in OWNER. Who calls this has the store's lock.
bool coordinator_lease_hold(struct coordinator_lease *lease, struct coordinator_lease_file *file,
                            uint64_t self);

// Any thread: whether OWNER still names us. Not when it cannot be read.
bool coordinator_lease_mine(const struct coordinator_lease *lease);

// From time to time, and whenever the lease is not valid. False: it is over, for good.
bool coordinator_lease_renew(struct coordinator_lease *lease, uint64_t now_ns);

static inline bool coordinator_lease_valid(const struct coordinator_lease *lease, uint64_t now_ns)
{
    return !lease->watched || now_ns < lease->valid_until_ns;
}

// ---- the watcher's end ----------------------------------------------------------------------------------

struct coordinator_lease_watch {      // zero at the beginning
    uint64_t self;                    // its OWNER-to-be; random, set by the caller
    uint64_t owner, beat, since_ns;   // what was seen, and since when
    uint64_t taking, taking_since_ns; // an OWNER that was found TAKING
};

enum coordinator_lease_verdict {
    COORDINATOR_LEASE_WAIT,
    COORDINATOR_LEASE_TAKE, // OWNER says TAKING, by us or by one that came to nothing: the store may be taken
    COORDINATOR_LEASE_FOREIGN, // the holder is on another machine
};

// The store is locked by another process. To be called every COORDINATOR_LEASE_WATCH_NS, with the starters' lock
// (coordinator_lease_file_lock), under which the store is then taken.
enum coordinator_lease_verdict coordinator_lease_look(struct coordinator_lease_watch *watch,
                                                      struct coordinator_lease_file *file, uint64_t now_ns);

// Whether a takeover has begun that did not end: the store is not to be opened, but taken, when look says so.
bool coordinator_lease_unfinished(struct coordinator_lease_file *file);

#endif
