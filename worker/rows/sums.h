// SPDX-License-Identifier: Apache-2.0
// Seals of chunks, computed from what the memory has now (ChunkSum): for the coordinator, which stores what holders agree
// on, and compares it later (docs/reference/wire.md, "Seals").
//
//   ChunkSum ──▶ WAITING ──its turn──▶ SUMMING ──a slice at a time, below the rate──▶ answered: OK
//                   └─────────────────────┴── the chunk or a row is not here, nobody waits ──▶ answered: failed
//
// A sum that differs from the coordinator's is looked for in the worker's files (worker/disk/reread.h), where
// there are any: one chunk at a time, whose file is read beside the loop, and others are summed up meanwhile.
//
// One chunk at a time, in the order in which they were asked for, and of it at most 1 MiB at a time: small slices on the
// loop's thread, others as one task of the team, so that a step waits for one slice at most. One that is in haste (no
// rate) goes before all that are not, also before one that has begun, which goes on afterwards; the others keep below
// the rate of the one whose turn it is. Everything here is the loop thread's.
#ifndef WORKER_SUMS_H
#define WORKER_SUMS_H

struct worker;
struct worker_sums;
struct proto_request;

struct worker_sums *worker_sums_new(struct worker *worker); // NULL: out of memory
// Those that wait fail: UNAVAILABLE. None is with the team. NULL is allowed.
void worker_sums_free(struct worker_sums *sums);

// Handler; arg: the worker.
void worker_handle_chunk_sum(void *arg, struct proto_request *request);

#endif
