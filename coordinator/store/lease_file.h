// SPDX-License-Identifier: Apache-2.0
// The three records of a lease (lease.h), in a small file beside the store: PATH-lease. A record is 64 bytes in a sector
// of its own, with a checksum: one that is torn or was never written is absent. The simulator has another one of these
// (tests/sim/sim_lease.c).
//
// What is supported: processes of one machine, on a local file system. There a write is seen by the next read of any
// process, whoever is stopped in between. Network file systems do not promise that, nor does SQLite work on them.
#ifndef COORDINATOR_LEASE_FILE_H
#define COORDINATOR_LEASE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

enum coordinator_lease_slot {
    COORDINATOR_LEASE_OWNER,
    COORDINATOR_LEASE_BEAT,
    COORDINATOR_LEASE_WATCH,
    COORDINATOR_LEASE_SLOTS
};

enum { COORDINATOR_LEASE_HELD = 1, COORDINATOR_LEASE_TAKING = 2 }; // number of OWNER

struct coordinator_lease_record {
    uint64_t owner;  // OWNER, BEAT: who writes; WATCH: who is watched
    uint64_t number; // OWNER: HELD or TAKING; BEAT: the counter
    uint64_t flags;  // BEAT: 1: it knows that it is watched
    uint64_t pid;    // of who writes, for people
    uint64_t boot;   // of the machine that it runs on, and its start
};

struct coordinator_lease_file;

// Makes it where it is absent (mode 0600). shared: for a coordinator that may stand by; refused on a file system that is
// not known to be local (FAILED_PRECONDITION). UNAVAILABLE, RESOURCE_EXHAUSTED.
enum common_code coordinator_lease_file_open(const char *store_path, bool shared,
                                             struct coordinator_lease_file **out, struct common_error *err);
void coordinator_lease_file_close(struct coordinator_lease_file *file); // unlocks; NULL is allowed

// Any thread. False: absent, or it cannot be read.
bool coordinator_lease_file_read(const struct coordinator_lease_file *file, enum coordinator_lease_slot slot,
                                 struct coordinator_lease_record *out);
// pid and boot are filled in. durable: it survives a power loss. False: it was not written.
bool coordinator_lease_file_write(struct coordinator_lease_file *file, enum coordinator_lease_slot slot,
                                  const struct coordinator_lease_record *record, bool durable);

// The starters' lock: held by who opens or takes the store, until it is theirs. Does not block. False: another has it.
bool coordinator_lease_file_lock(struct coordinator_lease_file *file);
void coordinator_lease_file_unlock(struct coordinator_lease_file *file);

uint64_t coordinator_lease_file_boot(void); // of this machine, as in the records

#endif
