// SPDX-License-Identifier: Apache-2.0
// Changes of a worker's files on a thread, in the order in which the loop asks for them, so that the loop never waits for a
// disk. To the loop it is a handle of the directory whose functions return at once; what became of them is heard later.
//
//     loop:    asks ──▶ pending ──the batch before it has ended──▶ batch ──mail──▶ failures, then who waits, then the next
//     thread:                                                      in order; what is synced `soon` at its end, each file once
//
// A file of which something has failed takes nothing more (the same error, without a try) until it is removed, or another
// one is moved in its place: so nothing lands behind a hole, and half a file never replaces a whole one.
//
// So the loop neither writes, renames, removes nor syncs. Reading is not its own either: read, size and list of this handle end
// the process (it is our bug).
//
// A hand-off costs a wake-up of the thread and one of the loop, whatever the batch has in it: a turn's changes are one batch,
// which begins when the turn is over, or before that, where the loop has something to compute meanwhile
// (worker_queue_begin).
#ifndef WORKER_DISK_QUEUE_H
#define WORKER_DISK_QUEUE_H

#include "common/base/clock.h"
#include "common/base/list.h"
#include "common/loop/loop.h"
#include "common/metrics/buckets.h"
#include "worker/disk/disk.h"
#include "worker/files/files.h"

#define WORKER_QUEUE_SLOW_NS (2 * COMMON_NS_PER_MS) // an SSD syncs in less

struct worker_queue; // opaque

struct worker_queue_options {
    struct common_loop *loop;
    uint64_t bytes_max; // of memory for changes that wait; a write beyond it gets -EAGAIN, unless it is alone
    // The file does not have what was asked for: it must be rewritten. batch: calls that wait with this
    // number, or a higher one, waits for it. On the loop.
    void (*failed)(void *arg, const char *name, int why, uint64_t batch);
    void *arg;
};

// files: the thread's, as long as the queue lives. NULL: no memory, or no thread.
struct worker_queue *worker_queue_new(struct worker_files *files, const struct worker_queue_options *options);
// The loop does not run any more: all that was asked for is done here, with its failures. None waits. The
// files are the caller's alone again. NULL is allowed.
void worker_queue_free(struct worker_queue *queue);
struct worker_files *worker_queue_files(struct worker_queue *queue); // as long as the queue lives

// The file's bytes outlive a loss of power before later waiters continue; it may be written before.
int worker_queue_sync_soon(struct worker_queue *queue, const char *name);
// Names of a folder likewise, in order; where that fails, this file has failed. 0 or -ENOMEM.
int worker_queue_sync_names(struct worker_queue *queue, const char *folder, const char *owner);
// Moves, and removes another file only if that could be done; both are done on the thread. 0 or -ENOMEM.
int worker_queue_replace(struct worker_queue *queue, const char *from, const char *to, const char *removed);
// Where this one of the two files has failed, the other one fails too, and takes nothing more. 0 or -ENOMEM.
int worker_queue_needs(struct worker_queue *queue, const char *name, const char *needed);
// What was asked for begins now, unless a batch is under way.
void worker_queue_begin(struct worker_queue *queue);
uint64_t worker_queue_bytes(const struct worker_queue *queue); // that wait, and what changes take of memory
uint64_t worker_queue_next(const struct worker_queue *queue);  // the batch of what is asked for now
uint64_t worker_queue_asked(const struct worker_queue *queue); // the batch of what was asked for last
uint64_t worker_queue_done(const struct worker_queue *queue);  // the last one that is over
bool worker_queue_idle(const struct worker_queue *queue);
// What is under way has taken longer than frames that sessions share should wait.
bool worker_queue_stands(const struct worker_queue *queue);
uint64_t worker_queue_took(const struct worker_queue *queue); // the last batch, in nanoseconds
// Adds what the syncs since the last call took, one at a time.
void worker_queue_take_synced(struct worker_queue *queue, struct common_buckets *out);

// As worker_disk_wait. False: nothing is under way.
bool worker_queue_wait(struct worker_queue *queue, struct worker_disk_wait *wait);
void worker_queue_end_waits(struct worker_queue *queue); // all go on now

#endif
