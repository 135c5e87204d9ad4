// SPDX-License-Identifier: Apache-2.0
// What must survive the coordinator: its term, counters, sessions with their layouts, and which rows were
// attached. SQLite in its own thread; the loop thread submits batches (each one atomic) and is called back
// when they are durable. What one turn of the loop submits, and what has come while the disk was busy, is
// committed together. Rows that were appended by steps are not
// here: after a restart their holders say what they have.
//
// Everything here is for the loop thread.
#ifndef COORDINATOR_STORE_H
#define COORDINATOR_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/loop/loop.h"
#include "common/metrics/buckets.h"
#include "coordinator/store/reader.h"

struct coordinator_store;
struct coordinator_batch;

enum coordinator_counter {
    COORDINATOR_COUNTER_GENERATION, // of session ids
    COORDINATOR_COUNTER_CHUNK,      // chunk ids
    COORDINATOR_COUNTERS
};

// Opens or makes the file (mode 0600, its folder 0700), which this process alone has until stop (hold.h),
// raises the term, reads everything. ":memory:" keeps nothing. sync_full: every commit survives a power loss,
// not only the end of the process. Blocks, but never for another process. FAILED_PRECONDITION: another
// process has it, or it was written by a newer version; INVALID_ARGUMENT: not a store; UNAVAILABLE: the file
// system.
enum common_code coordinator_store_open(const char *path, bool sync_full, struct common_loop *loop,
                                        const struct coordinator_store_reader *reader,
                                        struct coordinator_store **out, struct common_error *err);

// Finishes what was submitted (callbacks are posted to the loop), closes the file, and gives it up last of
// all: the next coordinator opens it from then on. It removes no file. What is submitted afterwards comes to
// nothing, at the end of the turn. NULL is allowed.
void coordinator_store_stop(struct coordinator_store *store);
// After the stop, where the loop has ended and runs nothing more: ends what was submitted since, on this
// stack, by its callbacks. False: there was nothing. NULL is allowed.
bool coordinator_store_refuse(struct coordinator_store *store);
// Once the loop has run what was posted; NULL is allowed.
void coordinator_store_free(struct coordinator_store *store);

// Whether it was made from a backup, and no operator has said yet that what workers hold is all there is to
// be found (restore.h): its sessions are not served.
bool coordinator_store_restored(const struct coordinator_store *store);

uint64_t coordinator_store_term(const struct coordinator_store *store);

// Each start of a coordinator on a store is a life with a random number, which the store keeps: they are its
// history. A copy of the file has the lives up to the copying in common with it, and none after.
uint64_t coordinator_store_life(const struct coordinator_store *store); // this one; never 0
bool coordinator_store_knows_life(const struct coordinator_store *store, uint64_t life);
uint64_t coordinator_store_id(const struct coordinator_store *store); // its first life

// The next number of a counter: never given before, in this life or an earlier one. Numbers are reserved in
// blocks; the next block is reserved ahead. False when it is not there in time (the disk does not answer).
bool coordinator_store_next(struct coordinator_store *store, enum coordinator_counter counter, uint64_t *out);

// The number that it would give now. Only next gives it.
uint64_t coordinator_store_upcoming(const struct coordinator_store *store, enum coordinator_counter counter);

// Numbers up to this one are not given any more.
void coordinator_store_skip(struct coordinator_store *store, enum coordinator_counter counter, uint64_t used);

// Batches so far that came to nothing while it was open, and why the last one did ("": none).
uint64_t coordinator_store_failed(const struct coordinator_store *store, const char **why);

// Why the last batch came to nothing, while it was open; NULL: it did not, or there was none.
const char *coordinator_store_trouble(const struct coordinator_store *store);

// How long transactions took, the waiting for the disk included; of NULL none.
void coordinator_store_took(struct coordinator_store *store, struct common_buckets *out);

// ---- batches ----
struct coordinator_batch *coordinator_batch_new(void);
void coordinator_batch_free(struct coordinator_batch *batch); // one that is not submitted; NULL is allowed
void coordinator_batch_term(struct coordinator_batch *batch, uint64_t term);
void coordinator_batch_accept(struct coordinator_batch *batch); // it is as any other store from now on
void coordinator_batch_worker(struct coordinator_batch *batch, const char *name, uint64_t instance);
void coordinator_batch_worker_drop(struct coordinator_batch *batch,
                                   const char *name); // and that it is drained
// The worker is to get no chunks (cluster/order.h has the bytes). And no longer.
void coordinator_batch_drain(struct coordinator_batch *batch, const char *worker, const void *order,
                             size_t bytes);
void coordinator_batch_resume(struct coordinator_batch *batch, const char *worker);
void coordinator_batch_session(struct coordinator_batch *batch, uint64_t session, const char *name,
                               const void *spec, size_t spec_bytes, uint64_t incarnation, uint64_t epoch,
                               uint32_t tenant); // 0: the default one
// A new one. With the first of these the store is none that an older coordinator opens: it knows no tenants.
void coordinator_batch_tenant(struct coordinator_batch *batch, uint32_t id, const char *name);
void coordinator_batch_token(struct coordinator_batch *batch, const struct coordinator_token_row *row);
void coordinator_batch_token_used(struct coordinator_batch *batch, uint64_t id, uint64_t used_s);
void coordinator_batch_token_drop(struct coordinator_batch *batch, uint64_t id);
void coordinator_batch_quota(struct coordinator_batch *batch, uint32_t tenant, const char *name,
                             uint64_t max); // 0: no limit any more
void coordinator_batch_numbers(struct coordinator_batch *batch, uint64_t session, uint64_t incarnation,
                               uint64_t epoch);
void coordinator_batch_session_drop(struct coordinator_batch *batch,
                                    uint64_t session); // and all that belongs to it
void coordinator_batch_key(struct coordinator_batch *batch, uint64_t session, uint64_t key);
void coordinator_batch_cut(struct coordinator_batch *batch, uint64_t session, uint64_t cut);
void coordinator_batch_floor(struct coordinator_batch *batch, uint64_t session, uint64_t floor); // forget.h
// The session is kept as cache (prefix/prefix.h), in the incarnation that it has now; replaces what there
// was.
struct coordinator_prefix_row {
    uint64_t incarnation, used_ns, ttl_ns; // used_ns: since 1970; they are read in this order
    bool pinned;
    const void *hashes;
    size_t bytes;
};
void coordinator_batch_prefix(struct coordinator_batch *batch, uint64_t session,
                              const struct coordinator_prefix_row *row);
void coordinator_batch_prefix_used(struct coordinator_batch *batch, uint64_t session, uint64_t used_ns);
void coordinator_batch_member(struct coordinator_batch *batch, uint64_t session, const char *worker);
void coordinator_batch_member_drop(struct coordinator_batch *batch, uint64_t session, const char *worker);
void coordinator_batch_chunk(struct coordinator_batch *batch, uint64_t session, uint32_t index, uint64_t id,
                             bool lost,
                             const char *holder); // adds or replaces: this is its only holder
// One more holder of a chunk that the batch, or an earlier one, has put. It follows.
void coordinator_batch_follower(struct coordinator_batch *batch, uint64_t session, uint32_t index,
                                const char *holder);
// This holder of a chunk that has others is none any more; if it served, one of the others does. A chunk that
// has been dropped or replaced meanwhile is left alone, and so is one with no other holder.
void coordinator_batch_copy_lost(struct coordinator_batch *batch, uint64_t session, uint32_t index,
                                 uint64_t id, const char *holder);
// What all copies of this chunk must have (check/seals.h). One that has been dropped or replaced meanwhile is
// left alone; a chunk that is put again with the same id keeps it.
void coordinator_batch_seal(struct coordinator_batch *batch, uint64_t session, uint32_t index, uint64_t id,
                            uint64_t seal);
// Nobody holds this chunk any more; one that has been dropped or replaced meanwhile is left alone.
void coordinator_batch_chunk_lost(struct coordinator_batch *batch, uint64_t session, uint32_t index,
                                  uint64_t id);
void coordinator_batch_chunk_drop(struct coordinator_batch *batch, uint64_t session, uint32_t index);
// One more committed range: the store keeps the union.
void coordinator_batch_range(struct coordinator_batch *batch, uint64_t session, uint32_t layer,
                             uint64_t first, uint64_t count);
void coordinator_batch_clip(struct coordinator_batch *batch, uint64_t session,
                            uint64_t length); // all layers' ranges

// Takes the batch. `done` (may be NULL) runs on the loop thread, never on this stack: OK when it is durable,
// else nothing of it was written, nor will be found after a crash: while that is unknown, nobody is called
// back.
typedef void (*coordinator_store_fn)(void *arg, enum common_code code, const char *text);
void coordinator_store_submit(struct coordinator_store *store, struct coordinator_batch *batch,
                              coordinator_store_fn done, void *arg);

#endif
