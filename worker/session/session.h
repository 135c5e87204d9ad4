// SPDX-License-Identifier: Apache-2.0
// What a worker keeps of a session: its spec, where its history stands, and which of its chunks are held
// here. Belongs to the loop thread.
#ifndef WORKER_SESSION_H
#define WORKER_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "proto/banyan.pb-c.h"
#include "worker/memory/map.h"
#include "worker/session/appended.h"
#include "worker/session/frozen.h"
#include "worker/store/keep.h"
#include "worker/store/store.h"

#define WORKER_SESSIONS_MAX       65536u
#define WORKER_SESSION_CHUNKS_MAX (1u << 20)
#define WORKER_POSITIONS_MAX      (UINT64_C(1) << 40) // tokens of a session: sums of two positions never wrap
#define WORKER_CHUNK_TOKENS_MAX   4096u

struct worker_kind {                        // of layers that are computed alike
    struct kernels_spec kernels;            // alibi points into the spec's message
    const struct kernels_attention *kernel; // NULL: a device computes
    uint64_t kernel_digest;
};

struct worker_spec { // checked; immutable and shared with computations that outlive the session
    unsigned refs;
    struct worker_shape *shape; // a reference
    size_t packed_bytes;
    uint8_t *packed; // the message, to compare with
    Banyan__Pb__Spec *pb;
    struct worker_kind kinds[]; // [pb->n_kinds]; where layers are alike, one
};

struct worker_session_chunk {
    struct worker_chunk *chunk; // a reference
    bool compute;
    bool incoming; // its rows are being fetched (pull.h): it is no holder yet
    bool copy;     // a truncation has it made of the chunk beside it: it lacks what will be cut off
};

struct worker_session {
    uint64_t id, incarnation, epoch;
    // Of the coordinator's store that laid it out last (coordinator/store.h); 0: it did not say.
    uint64_t life;
    struct worker_spec *spec;
    uint64_t write_term, write; // of the newest append seen
    uint64_t *forgotten;        // [spec's layers] rows below are forgone; NULL: the spec forgets nothing
    uint64_t writes_over;       // appends with a write up to this one are over
    struct worker_appended *appended; // [spec's layers]
    uint32_t n_chunks;
    struct worker_session_chunk *chunks; // ascending by (first, id)
    struct worker_frozen frozen;         // by commits under way
    uint64_t tickets, tickets_term;      // of that term: those with a lower number are old
    uint64_t settled;                    // its commits with lower numbers are over; see worker.settled, too
    // Rows that are PUT, by worker.attach_clock_ns (expire.c); 0: there are none
    uint64_t put_at_ns;
    uint64_t expire_from,
        expired_rows; // the round that drops them has come to this position, and dropped so many
    bool expire_left; // and passed by some
    // Of chunks whose rows are gone here (lose.c). lacks: they have not been reported to the coordinator, and
    // no layout counts before it has asked. short_of_rows: its layout is not one that it made of that, and no
    // step is done.
    bool lacks, short_of_rows;
    bool names_lost; // one of these is still in `chunks`: there was no memory to leave it out (lose.c)
    // Its files may lack rows that were acknowledged: the machine has lost its power, or a log had a torn
    // end. Until a layout has come from a coordinator that has all rows, and they are here. It is in the
    // session's file.
    bool doubtful;
    struct worker_logged logged; // its file
    // A replacing layout that comes in several messages collects here until the last one.
    bool staging;
    uint64_t staging_term, staging_incarnation, staging_epoch;
    uint32_t n_staged, cap_staged;
    struct worker_layout_entry *staged; // as they came
};

struct worker_layout_entry {
    uint64_t chunk, first;
    bool compute, incoming, copy;
};

// INVALID_ARGUMENT with what is wrong; UNIMPLEMENTED when no kernel here, or not the device, computes it;
// RESOURCE_EXHAUSTED. device: NULL for the processor.
enum common_code worker_spec_new(const Banyan__Pb__Spec *pb, const struct worker_device *device,
                                 struct worker_spec **out, struct common_error *err);
struct worker_spec *worker_spec_ref(struct worker_spec *spec);
void worker_spec_unref(struct worker_spec *spec); // NULL is allowed; loop thread only
bool worker_spec_equal(const struct worker_spec *spec, const Banyan__Pb__Spec *pb);
// NULL: there is no such layer, or it holds nothing and cannot be attended.
const struct worker_kind *worker_spec_kind(const struct worker_spec *spec, uint32_t layer);

// All or nothing. See LayoutSetRequest; the term has been checked.
enum common_code worker_session_layout(struct worker_map *sessions, struct worker_store *store,
                                       const Banyan__Pb__LayoutSetRequest *request, struct common_error *err);
uint64_t worker_session_bytes(const struct worker_session *session); // of its chunks
// Nothing where the session is unknown.
void worker_session_drop(struct worker_map *sessions, struct worker_store *store, uint64_t id);

// The session as it is, without the chunks that `drops` says (without.c). RESOURCE_EXHAUSTED: it stays as it is.
typedef bool (*worker_session_drops_fn)(const void *arg, uint64_t chunk);
enum common_code worker_session_without(struct worker_map *sessions, struct worker_store *store,
                                        struct worker_session *session, worker_session_drops_fn drops,
                                        const void *arg, struct common_error *err);

// The chunks that touch [first, first + count): *n of them from the index returned on.
uint32_t worker_session_span(const struct worker_session *session, uint64_t first, uint64_t count,
                             uint32_t *n);
// Index of the first chunk that ends past this position.
uint32_t worker_session_at(const struct worker_session *session, uint64_t position);
// Rows of the layer below this position are forgotten, or will be when other sessions that share them forget them.
static inline uint64_t worker_session_forgotten(const struct worker_session *session, uint32_t layer)
{
    return session->forgotten ? session->forgotten[layer] : 0;
}

// Chunks of the layer that end here or before are forgotten as a whole. What one that goes on past it has below
// worker_session_forgotten is there: in a session that was born with its floor, what its maker put.
static inline uint64_t worker_session_given_back(const struct worker_session *session, uint32_t layer)
{
    uint64_t forgotten = worker_session_forgotten(session, layer);
    return forgotten - forgotten % session->spec->shape->chunk_tokens;
}

// These rows of the chunk count for the session, though they may be gone: also where another session here has the chunk, and
// waits for rows of it that are on their way (worker_store_recall).
static inline bool worker_session_gave_back(const struct worker_session *session, uint32_t layer,
                                            const struct worker_chunk *chunk)
{
    return worker_chunk_first(chunk) < worker_session_given_back(session, layer);
}

// A commit asks nothing of this chunk's rows: they are on their way here, a truncate's, or given back.
static inline bool worker_session_leaves_out(const struct worker_session *session, uint32_t nth,
                                             uint32_t layer)
{
    const struct worker_session_chunk *entry = &session->chunks[nth];
    return entry->incoming || entry->copy || worker_session_gave_back(session, layer, entry->chunk);
}

// What it had forgotten when it was written down: [spec's layers] positions, as `forgotten`.
void worker_session_restore_forgotten(struct worker_store *store, struct worker_session *session,
                                      const uint64_t *positions);

// NULL: the session does not name this chunk here.
struct worker_session_chunk *worker_session_chunk(const struct worker_session *session, uint64_t chunk_id,
                                                  uint64_t first);

// NOT_FOUND, ABORTED (another incarnation).
enum common_code worker_session_find(const struct worker_map *sessions, uint64_t id, uint64_t incarnation,
                                     struct worker_session **out, struct common_error *err);
// The same for rows of a layer: INVALID_ARGUMENT too (no such layer, or none with rows of its own; an empty or
// absurd range).
enum common_code worker_session_check(const struct worker_map *sessions, uint64_t id, uint64_t incarnation,
                                      uint32_t layer, uint64_t first, uint64_t count,
                                      struct worker_session **out, struct common_error *err);

#endif
