// SPDX-License-Identifier: Apache-2.0
// What of a worker's K and V outlives its process (--store): a directory with a file for each session and each chunk.
// What the files look like: docs/operating/store.md.
//
//     chunk:     nothing ──rows──▶ LOG ──it is full, and quiet for a second──▶ SEALED
//                                  ▲ └── more than it needs: rewritten   ──┐      │
//                                  └──────────────────────────────────────┘◀──────┘ rows of it go, or come again
//
// Two kinds of changes:
// - rows that come, rows that a commit freezes, and the chunks of a session are in the files before they are in
//   memory, or the call that brings them fails, and has changed nothing;
// - all else (rows go or are committed, appends are over) the coordinator sends again to returning workers,
// so it
//   may be late: what the files do not take is written later.
//
// So a process that starts on the directory has what the one before it had at some moment after its last answer,
// like a worker whose link was broken for a while. What is not in a file any more is not in what it says it holds.
//
// Nothing here waits for a disk once the worker serves: what does is done by threads of the disk's own,
// changes in the order in which they are made here (queue.h), whatever --fsync says. So that something is in
// the files is known when worker_disk_wait's `done` runs; with --fsync always all of it is on the disk then.
// What could not be done is rewritten from memory, and worker_disk_took says of which sessions that was.
//
// All functions belong to the loop thread; what the threads have done is looked after by a timer. disk NULL: nothing happens, and what can fail succeeds.
#ifndef WORKER_DISK_DISK_H
#define WORKER_DISK_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/base/status.h"
#include "common/loop/loop.h"
#include "common/metrics/buckets.h"
#include "common/secure/secret.h"
#include "worker/memory/map.h"
#include "worker/store/store.h"

enum worker_fsync {
    WORKER_FSYNC_ALWAYS,   // before anything is answered that must outlive a loss of power
    WORKER_FSYNC_INTERVAL, // every second, beside the loop
    WORKER_FSYNC_NEVER,    // when the system likes
};

#define WORKER_WAITING_BYTES (UINT64_C(256) << 20)

struct worker_disk; // opaque

struct worker_disk_wait { // of the waiter; zeroed: none
    struct common_list link;
    uint64_t batch;
    void (*done)(void *arg);
    void *arg;
};
struct worker_files;
struct worker_session;

struct worker_disk_options {
    const char *path; // for messages; copied
    const char *name; // of the worker
    const struct common_secret *secret;
    enum worker_fsync fsync;
    uint64_t waiting;   // bytes of changes that wait for the disk at most; 0: WORKER_WAITING_BYTES
    const char *boot;   // which start of the machine this is; NULL: as the system says
    uint64_t scrub_ns;  // in which all files are read once; 0: they are not
    uint64_t *term;     // the worker's highest, kept
    uint64_t attach_ns; // when rows count as put that were (worker.attach_clock_ns)
    // A file is damaged whose rows memory has not, or not all: all references to the chunk must be dropped.
    // On the loop, never on the stack of a call. NULL: no notification, nor by the other.
    void (*damaged)(void *arg, struct worker_chunk *chunk);
    void (*sealed)(void *arg); // chunks were sealed: more may leave memory (worker/store/cold.h)
    // The chunk's file must be rewritten, and rows of it are on disk only: they must come into memory, where
    // they stay until it is. Called again as long as they have not. NULL: the loop reads them.
    void (*wanted)(void *arg, struct worker_chunk *chunk);
    void *arg;
};

struct worker_disk_stats {
    uint64_t bytes;               // of chunks' and sessions' files
    uint64_t refused;             // times that a file did not take what it had to
    uint64_t damaged;             // files that were found damaged, now and at the start
    uint64_t sealed;              // chunks that were sealed
    uint64_t lost;                // chunks of which only a damaged file had all rows, since the start
    uint64_t waiting;             // bytes of memory that changes take which wait for the disk
    bool failing;                 // the files lack something
    struct common_buckets synced; // how long files took to be on the disk, one at a time
};

// Takes the files over, even by a failure. FAILED_PRECONDITION: the directory is another worker's, or of another
// cluster; others.
enum common_code worker_disk_new(struct common_loop *loop, struct worker_files *files,
                                 const struct worker_disk_options *options, struct worker_disk **out,
                                 struct common_error *err);
// Reads what is there into store and sessions, which are empty, and which it keeps. What is damaged is put into
// quarantine/ and logged. RESOURCE_EXHAUSTED: the store has no room for all. Then it begins to work.
enum common_code worker_disk_load(struct worker_disk *disk, struct worker_store *store,
                                  struct worker_map *sessions, struct common_error *err);
// Writes what is behind, syncs, and lets the files be as they are from now on: memory can be freed.
void worker_disk_close(struct worker_disk *disk);
void worker_disk_free(struct worker_disk *disk);              // NULL is allowed
const char *worker_disk_path(const struct worker_disk *disk); // as given; NULL is allowed, and is NULL's
// Another time for a round of all files (scrub_ns), which starts over; the same one changes nothing.
void worker_disk_set_scrub(struct worker_disk *disk, uint64_t scrub_ns);
void worker_disk_get_stats(const struct worker_disk *disk, struct worker_disk_stats *out);

// ---- who answers for what is in the files -----------------------------------------------------------

// Until all that was asked of the files so far is done: `done` runs then, never on this stack. False: it is done already, and
// `done` does not run.
bool worker_disk_wait(struct worker_disk *disk, struct worker_disk_wait *wait, void (*done)(void *arg),
                      void *arg);
void worker_disk_wait_cancel(struct worker_disk_wait *wait); // before its `done`
// In `done`: whether that is so. False: the worker is leaving.
bool worker_disk_waited(const struct worker_disk *disk, const struct worker_disk_wait *wait);
// After a wait, in its `done`: whether the files have what this session brought: its own, and those of the chunks that have
// these positions. RESOURCE_EXHAUSTED, as from the functions below, but memory has it; UNAVAILABLE: the worker is leaving.
enum common_code worker_disk_took(struct worker_disk *disk, const struct worker_session *session,
                                  uint64_t first, uint64_t count, const struct worker_disk_wait *wait,
                                  struct common_error *err);
// The same of worker_disk_layout: what may be written later is no failure.
enum common_code worker_disk_took_layout(struct worker_disk *disk, const struct worker_session *session,
                                         const struct worker_disk_wait *wait, struct common_error *err);
// What was asked of the files begins now, not at the end of the turn: the loop is about to compute.
void worker_disk_start(struct worker_disk *disk);
// Half of what may wait to be written does: large writers wait first.
bool worker_disk_crowded(const struct worker_disk *disk);
// All who wait go on now: the worker is leaving.
void worker_disk_end_waits(struct worker_disk *disk);
// What must go into the files now takes longer than others should wait for it.
bool worker_disk_slow(const struct worker_disk *disk);

// ---- what the store and the sessions say --------------------------------------------------------

// Rows are about to be written to memory (worker_store_write). RESOURCE_EXHAUSTED: the files do not take them.
enum common_code worker_disk_rows(struct worker_disk *disk, const struct worker_rows *pieces, uint32_t n,
                                  enum worker_row to, struct common_error *err);
// Rows of a range that were in state `from` are in state `to`; ABSENT: they are gone.
void worker_disk_states(struct worker_disk *disk, struct worker_chunk *chunk, uint32_t layer, uint32_t row,
                        uint32_t count, enum worker_row from, enum worker_row to);
// Rows of this range have just been frozen. RESOURCE_EXHAUSTED.
enum common_code worker_disk_frozen(struct worker_disk *disk, struct worker_session *session, uint64_t first,
                                    uint64_t count, struct common_error *err);
// All that the chunk has in memory is to be in its files.
enum common_code worker_disk_chunk(struct worker_disk *disk, struct worker_chunk *chunk,
                                   struct common_error *err);
void worker_disk_forget(struct worker_disk *disk, struct worker_chunk *chunk); // no longer referred to
// Memory is short: chunks that are full are sealed at once. False: none is, nor is one being sealed.
bool worker_disk_hurry(struct worker_disk *disk);
// Its file is damaged, and memory has not all of its rows. What is noted is reported from an empty stack:
// then worker_disk_tell_lost may be called, or the timer does it.
void worker_disk_lost(struct worker_disk *disk, struct worker_chunk *chunk);
void worker_disk_tell_lost(struct worker_disk *disk);

// A layout has been set. What the files do not take of it they take before any rows. shares: a chunk is new to the
// session and has rows (a fork's); as long as the files do not take that, RESOURCE_EXHAUSTED: a process that starts
// on them would lack these rows.
enum common_code worker_disk_layout(struct worker_disk *disk, struct worker_session *session, bool shares,
                                    struct common_error *err);
// A part of this append comes here next, by worker_disk_rows.
enum common_code worker_disk_append(struct worker_disk *disk, struct worker_session *session, uint32_t layer,
                                    uint64_t write, uint64_t end, struct common_error *err);
// Something of it has changed that is sent again.
void worker_disk_touch(struct worker_disk *disk, struct worker_session *session);
void worker_disk_drop(struct worker_disk *disk, struct worker_session *session); // it goes

#endif
