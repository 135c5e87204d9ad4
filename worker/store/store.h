// SPDX-License-Identifier: Apache-2.0
// K and V by chunk, layer and KV head, and the account of the memory that they take.
//
// A chunk's layer is held in pages of 16 tokens, allocated as rows come:
//
//     page:   | head 0: K [16][k_dim], V [16][v_dim], scales of K [16], of V [16] | head 1: K, V, ... | ...
//
// and, once all of its rows are there, as one block, which streams better:
//
//     block:  | head 0: K [chunk_tokens][k_dim], V [chunk_tokens][v_dim], scales of K, of V | head 1 | ...
//
// V only where it does not lie in K, scales (float32, one a row) of INT8 and FP8 only, and each part at a
// multiple of 64 bytes. A page is as
// long as a kernel's block of keys (kernels/attention.h), so both give the same bits.
//
//                put                 prepare                 commit
//     ABSENT ──────────▶ PUT ──────────────────▶ PREPARED ──────────▶ COMMITTED
//        │                │ ▲       abort           │                  ▲
//        │ append         │ └───────────────────────┘                  │ commit
//        └──────────▶ APPENDED ────────────────────────────────────────┘
//          ◀─────────  (also from PUT, and from PREPARED with the same bytes)
//          withdraw (where a commit has frozen it: PREPARED)
//
// ABSENT ──▶ COMMITTED at once: rows that another worker holds so (pull.h).
//
// FORGOTTEN: of a whole layer of the chunk, whatever its rows were. They were committed, nobody asks for them any
// more (worker_store_forgo), and their memory was given back; for good, but for who has them fetched (recall).
// PUT rows that nobody commits become ABSENT after a time, and their memory is freed (expire.c).
// Which commits have prepared a row: frozen.h; the last to let go aborts it.
// PUT rows may be overwritten. PREPARED and COMMITTED rows' bytes never change. An APPENDED row serves like a
// committed one, but a newer append may replace it where the coordinator says that it was never acknowledged.
//
// All functions belong to the loop thread. Memory that other threads read is pinned: while a chunk is pinned,
// no byte of a ready row moves or changes; what is replaced or released meanwhile is freed with the last pin,
// and counts until then.
#ifndef WORKER_STORE_H
#define WORKER_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "kernels/attention.h"
#include "worker/store/row.h"
#include "worker/store/shape.h"

struct kernels_device_run;
struct worker_backing;
struct worker_device;
struct worker_keep;
struct worker_memory;
struct worker_store;
struct worker_chunk;

struct worker_cold_stats {    // cold.h; since the start, but for bytes
    uint64_t bytes;           // of K and V that are in files alone
    uint64_t evicted, loaded; // layers of chunks
    uint64_t loaded_bytes, load_ns;
};

// memory: for pages and blocks, taken over even by a failure. NULL: out of memory, or memory is NULL.
struct worker_store *worker_store_new(uint64_t limit_bytes, struct worker_memory *memory);
void worker_store_free(struct worker_store *store); // nothing may be held or pinned; NULL is allowed

// What refusals call it: "worker w0". Kept; none by default.
void worker_store_set_name(struct worker_store *store, const char *name);
// Where all that comes is kept as well, from now on (backing.h). Before it holds anything; kept.
void worker_store_set_backing(struct worker_store *store, struct worker_backing *backing);
struct worker_backing *worker_store_backing(const struct worker_store *store); // NULL: nowhere

// What computes where K and V lie; NULL: this process.
struct worker_device *worker_store_device(const struct worker_store *store);
// UNAVAILABLE: the memory of K and V is lost, for good. Writes and copies check by themselves.
enum common_code worker_store_check(const struct worker_store *store, struct common_error *err);
uint64_t worker_store_limit(const struct worker_store *store);
uint64_t worker_store_refused(const struct worker_store *store); // times that there was no room for rows
uint64_t worker_store_used(const struct worker_store *store);
uint64_t worker_store_chunks(const struct worker_store *store);
// Of what is used, as much is in quarantine: refusals for want of memory say so.
void worker_store_set_quarantined(struct worker_store *store, uint64_t bytes);
// Gives memory back to the system that has been empty since before `before_ns` (common_clock_ns).
void worker_store_tidy(struct worker_store *store, uint64_t before_ns);
// Counts memory that belongs to what is stored but is held elsewhere (sessions). False: it does not fit.
bool worker_store_take(struct worker_store *store, uint64_t bytes);
void worker_store_give(struct worker_store *store, uint64_t bytes);

// A reference to chunk `id`, which is made when nobody holds it. FAILED_PRECONDITION when it exists with
// another shape or position; RESOURCE_EXHAUSTED.
enum common_code worker_store_hold(struct worker_store *store, uint64_t id, uint64_t first,
                                   struct worker_shape *shape, struct worker_chunk **out,
                                   struct common_error *err);
void worker_store_release(struct worker_store *store, struct worker_chunk *chunk); // the last one frees it
// NULL: nobody holds it.
struct worker_chunk *worker_store_find(const struct worker_store *store, uint64_t id);
// Goes through all that are held: *cursor 0 to begin with; false at the end. None may come or go meanwhile.
bool worker_store_next(const struct worker_store *store, size_t *cursor, struct worker_chunk **chunk);

// Whoever has a reference to the chunk will not ask for rows of this layer again; once for each reference. When all
// who have one have said so, the rows are FORGOTTEN: what they took is free at once, or with the last pin.
void worker_store_forgo(struct worker_store *store, struct worker_chunk *chunk, uint32_t layer);
// Takes that back. Before such a reference is released.
void worker_store_unforgo(struct worker_chunk *chunk, uint32_t layer);
bool worker_chunk_forgotten(const struct worker_chunk *chunk, uint32_t layer);
// Whoever had the chunk has forgotten this layer, and one more has it now, who asks for its rows and is being brought
// them (pull.h): they are ABSENT, and no more FORGOTTEN. Nothing where the layer is not forgotten.
void worker_store_recall(struct worker_chunk *chunk, uint32_t layer);

// The chunk itself stays, whoever lets go of it, and not its rows' bytes.
void worker_store_hold_back(struct worker_chunk *chunk);
void worker_store_let_go(struct worker_store *store, struct worker_chunk *chunk);

void worker_store_pin(struct worker_chunk *chunk);
void worker_store_unpin(struct worker_store *store, struct worker_chunk *chunk);

uint64_t worker_chunk_id(const struct worker_chunk *chunk);
uint64_t worker_chunk_first(const struct worker_chunk *chunk); // position of row 0
const struct worker_shape *worker_chunk_shape(const struct worker_chunk *chunk);
struct worker_keep *worker_chunk_keep(struct worker_chunk *chunk); // its files: for the disk
uint64_t worker_chunk_bytes(const struct worker_chunk *chunk); // of K and V that its layers have memory for
bool worker_chunk_in_block(const struct worker_chunk *chunk, uint32_t layer); // the layer is one block

enum worker_row worker_chunk_row(const struct worker_chunk *chunk, uint32_t layer, uint32_t row);
// How many rows from `row` on, `count` at most, are all in this state or a later one.
uint32_t worker_chunk_rows_at(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                              enum worker_row least);
// Rows from the chunk's start on, without a hole, that are APPENDED, COMMITTED or FORGOTTEN: what a step may
// consider.
uint32_t worker_chunk_ready(const struct worker_chunk *chunk, uint32_t layer);

// Fills in the runs of the first `rows` rows (<= ready, not FORGOTTEN) of heads kv_head .. kv_head + kv_heads - 1, those of
// the i-th at out + i * stride. Returns how many each has: worker_chunk_run_count().
uint32_t worker_chunk_run_count(const struct worker_chunk *chunk, uint32_t layer, uint32_t rows);
uint32_t worker_chunk_runs(const struct worker_chunk *chunk, uint32_t layer, uint32_t kv_head,
                           uint32_t kv_heads, uint32_t rows, size_t stride, struct kernels_run *out);
// As many for a device: each has all heads from kv_head on.
uint32_t worker_chunk_device_runs(const struct worker_chunk *chunk, uint32_t layer, uint32_t kv_head,
                                  uint32_t rows, struct kernels_device_run *out);

// Copies the first `rows` rows (as above) of one head to the host: parts[p] is [rows][bytes of the part], and not looked at where
// there is no such part (enum worker_part).
void worker_chunk_read_head(const struct worker_chunk *chunk, uint32_t layer, uint32_t kv_head, uint32_t rows,
                            uint8_t *const parts[WORKER_PARTS]);

// XXH3 of K [kv_heads][count][k_dim], then, where it does not lie in K, V [kv_heads][count][v_dim], then of scaled types the scales of K
// [kv_heads][count] and of V, of rows that are all present.
// False: the memory is lost, or there is none for a copy.
bool worker_chunk_hash(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                       uint64_t *hash);

// The sum of these rows (docs/reference/wire.md, "Sums of rows"). False: as above.
bool worker_chunk_sum(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                      uint64_t *sum);

// The same of rows as they travel (proto/model/kv.h): K, and V where it does not lie in K.
uint64_t worker_form_sum(const struct worker_form *form, const uint8_t *const bytes[2], uint64_t first,
                         uint64_t count);

// Either for later: new pins the chunk and notes where the bytes are (adding how many to *bytes; NULL: out
// of memory), run may be called once the rows are at least PREPARED, on any thread where the memory is the
// host's, free unpins.
struct worker_hash;
struct worker_hash *worker_hash_new(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                                    uint64_t *bytes);
bool worker_hash_run(const struct worker_hash *hash, bool sum, uint64_t *out); // false: as above
void worker_hash_free(struct worker_store *store, struct worker_hash *hash);   // NULL is allowed

// Copies rows that are present into k and v, as they travel (proto/model/kv.h).
void worker_chunk_read(const struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                       uint8_t *k, uint8_t *v);

// ---- writing ------------------------------------------------------------------------------------

struct worker_rows { // rows of one layer of one chunk, and where they come from
    struct worker_chunk *chunk;
    uint32_t layer, row, count;
    const uint8_t *k, *v; // [count] rows as they travel (proto/model/kv.h), of any alignment
};

// Writes all pieces or none. `to`: PUT (attach), APPENDED, or COMMITTED: of the same chunk in another worker, which all
// sessions that share it may have. At positions >= replace_from an APPENDED row
// with other bytes is replaced; elsewhere a row beyond PUT must have the same bytes, which changes nothing
// but that an append takes PREPARED rows out of the commit under way: its abort leaves them. Pieces must not
// overlap. FAILED_PRECONDITION: other bytes, or a chunk that several sessions share; RESOURCE_EXHAUSTED:
// memory.
enum common_code worker_store_write(struct worker_store *store, const struct worker_rows *pieces, uint32_t n,
                                    enum worker_row to, uint64_t replace_from, struct common_error *err);
// Whether all of these rows are there, APPENDED or COMMITTED, with these very bytes.
bool worker_store_same(struct worker_store *store, const struct worker_rows *pieces, uint32_t n);

// Each changes the rows of the range that are in the state that it is about, and leaves others alone.
void worker_chunk_prepare(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count);
void worker_chunk_abort(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count);
void worker_chunk_commit(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count);
// PUT rows become ABSENT. In a chunk that several sessions share they stay.
void worker_chunk_discard(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count);
// APPENDED rows become ABSENT, or PREPARED where they were that before. A chunk that several sessions share has no
// such rows, and stays as it is.
void worker_chunk_withdraw(struct worker_chunk *chunk, uint32_t layer, uint32_t row, uint32_t count,
                           enum worker_row to);
// A new incarnation: no commit will come for PUT and PREPARED rows of any layer, so they are ABSENT again. In
// a chunk that several sessions share, frozen ones thaw only.
void worker_chunk_forget(struct worker_chunk *chunk);

// Whether rows may be PUT, or PREPARED and PUT again when their commit comes to nothing.
bool worker_chunk_has_put(const struct worker_chunk *chunk);
// Nobody commits them: PUT rows become ABSENT, and pages and blocks without rows are freed. Returns how many rows. A
// chunk that is pinned, or that several sessions share, stays as it is: another time.
uint64_t worker_store_expire(struct worker_store *store, struct worker_chunk *chunk);

// Copies the APPENDED and COMMITTED ones among the first `rows` rows of all layers, with their states. Rows
// that `to` has already must be the same. *hash: over what the result holds of these rows.
// FAILED_PRECONDITION (also: a layer of `from` is forgotten), RESOURCE_EXHAUSTED, INVALID_ARGUMENT (shapes differ,
// rows).
enum common_code worker_store_copy(struct worker_store *store, struct worker_chunk *from,
                                   struct worker_chunk *to, uint32_t rows, uint64_t *hash,
                                   struct common_error *err);

#endif
