// SPDX-License-Identifier: Apache-2.0
// The store of a simulation: coordinator/store/store.h in memory. A path names a simulated disk, which
// outlives the coordinators that open it. Batches that wait are written together, each one whole or not at
// all:
//
//   submit ──▶ waiting ──disk free──▶ writing ──sim_disk_delay──▶ durable ──▶ answered on the loop
//                          ▲ stall                                   ▲ silence
//
// A disk has two files, as SQLite's: the store itself, and a log, in which is what was written since the last
// checkpoint, at an open or a close. Each process writes to the log that it has opened, and that has a name
// or has lost it to another process that removed the name: then what is in it dies with its process. A close
// may take as long as a test says, while the process has the hold (coordinator/store/hold.h) and nothing else
// of it runs. SQLite's own lock is not here: what the hold promises must do without.
//
// A disk is made at its first use; ":memory:" is another one at each open. sim_disks_free ends them all.
#ifndef TESTS_SIM_SIM_STORE_H
#define TESTS_SIM_SIM_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

// Of each write; 100 us at the beginning.
void sim_disk_delay(const char *path, uint64_t ns);

// The next n batches are refused with this code (RESOURCE_EXHAUSTED: full, UNAVAILABLE: an error of the disk)
// and nothing of them is written. The reservations of counters are batches, too.
void sim_disk_fail(const char *path, uint32_t n, enum common_code code);

// The next n writes fail at their very end. What was in the first lies on the disk all the same, and a crash
// brings it back; so no answer leaves until a write goes over it, and then it is refused. (SQLite's log: a
// COMMIT whose fsync fails.)
void sim_disk_unsure(const char *path, uint32_t n);

// While it stalls, nothing becomes durable: what is submitted waits, and so does a write under way.
void sim_disk_stall(const char *path, bool on);

// While it is silent, batches become durable and are not answered: the moment between the commit and its
// news.
void sim_disk_silence(const char *path, bool on);

// The process that has it open is killed: what waits is never written; what is durable stays. For the dead
// process everything that it waits for ends with UNAVAILABLE (so that it can be freed), and so does what it
// submits from now on.
void sim_disk_crash(const char *path);

// Of one that is open. Its next stop takes so long, and returns at once: what was submitted is written in its
// own time, then it waits, then it is closed. While a store is being stopped it is still open.
struct coordinator_store;
void sim_store_stops_slowly(struct coordinator_store *store, uint64_t ns);
bool sim_store_is_open(const struct coordinator_store *store);
// As sim_disk_crash, where two processes may have the disk open.
void sim_store_crash(struct coordinator_store *store);

// For wrong, older and empty stores: `to` becomes what `from` is now. Neither may be open.
void sim_disk_copy(const char *from, const char *to);
void sim_disk_wipe(const char *path);
void sim_disk_without_id_key(const char *path); // made before there were any, still empty

uint64_t sim_disk_batches(const char *path); // submitted so far
uint64_t sim_disk_waiting(const char *path); // submitted and not durable
void sim_disks_free(void);                   // none may be open

#endif
