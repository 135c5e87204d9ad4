// SPDX-License-Identifier: Apache-2.0
// A disk for SQLite, in memory, that loses and tears what was not synced. While it is there it is SQLite's
// default; files are known by their paths, and are what they were when a store is opened again.
//
//   xWrite, xTruncate ──▶ pending ──xSync──▶ durable
//                            │ crash
//                            ▼
//              killed: all of it is there;  power lost: each write is there, is not, or parts of it are
#ifndef TESTS_COORDINATOR_TORN_DISK_H
#define TESTS_COORDINATOR_TORN_DISK_H

#include <stdbool.h>
#include <stdint.h>

void torn_disk_begin(uint64_t seed);
void torn_disk_end(void);
uint64_t torn_disk_random(uint64_t n); // below n, from the seed; for a caller without an open store

// The process dies at the nth write, truncation, sync or deletion from now (0: now): nothing that it does
// from then on reaches the disk. UINT64_MAX: it does not.
void torn_disk_die_at(uint64_t nth);
bool torn_disk_dead(void);

// Of the syncs from now on, n fail once `after` have succeeded. What was written stays pending.
void torn_disk_fail_syncs(uint32_t after, uint32_t n);

// The next process: what has survived of the one before. No file may be open.
void torn_disk_restart(bool power_lost);

#endif
