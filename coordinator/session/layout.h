// SPDX-License-Identifier: Apache-2.0
// Where a session's tokens lie: its chunks in order of position, each with its holders, and what a step over
// the first n tokens must cover. Pure: no network, no clock.
//
//   index      0         1         2                   4
//          ┌─────────┬─────────┬─────────┐        ┌─────────┐
//          │ id 17   │ id 18   │ id 21   │        │ id 30   │
//          │ serves a│ serves b│ serves a│        │ serves b│
//          │ has b   │ has a   │ has c   │        │ has c   │
//          └─────────┴─────────┴─────────┘        └─────────┘
//   sums   0         s₀        s₀+s₁     s₀+s₁+s₂
//
// Chunks are sparse: an attach may start anywhere. The sums are prefix sums of coverage over the chunks from 0
// on, up to the first hole.
#ifndef COORDINATOR_LAYOUT_H
#define COORDINATOR_LAYOUT_H

#include <stddef.h>

#include "coordinator/session/copy.h"

#define COORDINATOR_REPLICAS_MAX 3 // that a session may ask for
#define COORDINATOR_COPIES_MAX   4 // of a chunk: one more while it goes from one holder to another

// A chunk has one copy at least, each at a holder of its own. Copy 0 *serves*: its holder computes. The others
// *follow*: they are written as it is, and each may serve in its place. All copies of this list are in sync, as the
// store says: who has missed a write is struck off the list before the write counts (failover.h).
//
// A chunk is known when it was placed in this life of the coordinator, or when all its holders have said since the
// start which rows they have.
struct coordinator_chunk {
    uint64_t id;
    uint32_t index; // covers positions [index × chunk_tokens, (index + 1) × chunk_tokens)
    bool ready;     // durable, and its holders have acknowledged it: steps and tickets may name it
    bool known;     // its committed rows are known in this life (see below)
    bool lost;      // its last holder came back without it
    bool moving;    // a move has it (move.h)
    bool open;      // appends are to fill it: what they have not is in its holders' open_bytes
    bool refused;   // a holder had no memory for rows of it: it goes elsewhere while it has none (placing.h)
    uint8_t n_copies;
    uint32_t
        asked; // number of who wants its copies compared now, and not when it is their turn (seals.h); 0: nobody
    bool losing;       // that it is lost is being stored (seals.h)
    bool regaining;    // a worker came back with it after it was lost (regain.h)
    uint8_t checking;  // so many checks of it are under way: one, and another in haste
    bool differ;       // it has no seal: they were compared, and nobody can tell which are right
    uint64_t seal;     // durable: what all copies of the full chunk must have; 0: it is not sealed
    uint64_t check_ns; // no comparing before, unless asked
    // [n_copies], one at least; behind them, where a move brings another one, that one, COMING
    struct coordinator_copy copies[COORDINATOR_COPIES_MAX];
};

static inline uint32_t coordinator_chunk_copies(const struct coordinator_chunk *chunk)
{
    return chunk->n_copies;
}

// One more copy in the list, SYNC. There are fewer than COORDINATOR_COPIES_MAX, and none is COMING.
void coordinator_chunk_add(struct coordinator_chunk *chunk, struct coordinator_worker *w,
                           enum coordinator_copy_report report);

// A move brings another copy: there are fewer than COORDINATOR_COPIES_MAX, and no other one is COMING. It
// ends in the list, in this state, or is called off (nothing where none is COMING).
void coordinator_chunk_expect(struct coordinator_chunk *chunk, struct coordinator_worker *w);
void coordinator_chunk_arrive(struct coordinator_chunk *chunk, enum coordinator_copy_state state);
void coordinator_chunk_call_off(struct coordinator_chunk *chunk);

// The worker that it is coming to; NULL: no copy is COMING.
static inline struct coordinator_worker *coordinator_chunk_coming(const struct coordinator_chunk *chunk)
{
    return chunk->n_copies < COORDINATOR_COPIES_MAX ? chunk->copies[chunk->n_copies].worker : NULL;
}

static inline struct coordinator_worker *coordinator_chunk_holder(const struct coordinator_chunk *chunk,
                                                                  uint32_t copy)
{
    return chunk->copies[copy].worker;
}

// Who computes.
static inline struct coordinator_worker *coordinator_chunk_serves(const struct coordinator_chunk *chunk)
{
    return chunk->copies[0].worker;
}

// Which copy this worker holds; COORDINATOR_COPIES_MAX: none.
static inline uint32_t coordinator_chunk_copy_at(const struct coordinator_chunk *chunk,
                                                 const struct coordinator_worker *w)
{
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        if (coordinator_chunk_holder(chunk, i) == w)
            return i;
    return COORDINATOR_COPIES_MAX;
}

// Whether the worker is to have it, as far as is known now: neither lost nor gone.
static inline bool coordinator_chunk_held_by(const struct coordinator_chunk *chunk,
                                             const struct coordinator_worker *w)
{
    uint32_t copy = coordinator_chunk_copy_at(chunk, w);
    return copy < COORDINATOR_COPIES_MAX && !chunk->lost &&
           chunk->copies[copy].state != COORDINATOR_COPY_GONE;
}

// The copies of the list that are in one of these states, as bits.
static inline uint32_t coordinator_chunk_where(const struct coordinator_chunk *chunk, uint32_t states)
{
    uint32_t where = 0;
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        where |= (uint32_t)coordinator_copy_is(&chunk->copies[i], states) << i;
    return where;
}

// Likewise those whose holders have said which rows they have, and those that may lack some.
static inline uint32_t coordinator_chunk_heard(const struct coordinator_chunk *chunk)
{
    uint32_t heard = 0;
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        heard |= (uint32_t)coordinator_copy_heard(&chunk->copies[i]) << i;
    return heard;
}

static inline uint32_t coordinator_chunk_doubtful(const struct coordinator_chunk *chunk)
{
    uint32_t doubtful = 0;
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        doubtful |= (uint32_t)coordinator_copy_doubtful(&chunk->copies[i]) << i;
    return doubtful;
}

// These copies (bits) of the list are in this state now.
void coordinator_chunk_set(struct coordinator_chunk *chunk, uint32_t copies,
                           enum coordinator_copy_state state);

// Nobody is asked about these copies any more.
static inline uint32_t coordinator_chunk_unfit(const struct coordinator_chunk *chunk)
{
    return coordinator_chunk_where(chunk, COORDINATOR_UNFIT);
}

static inline bool coordinator_chunk_all_unfit(const struct coordinator_chunk *chunk)
{
    return coordinator_chunk_unfit(chunk) == (1u << coordinator_chunk_copies(chunk)) - 1;
}

// After a restart, copies whose holders may have lost rows (a loss of power, docs/operating/store.md), as long as
// others without that doubt may say, or have said, what counts: these copies neither count nor are used until all
// have.
static inline uint32_t coordinator_chunk_doubted(const struct coordinator_chunk *chunk)
{
    uint32_t all = (1u << coordinator_chunk_copies(chunk)) - 1,
             doubtful = chunk->known || chunk->lost ? 0 : coordinator_chunk_doubtful(chunk),
             sure = all & ~(coordinator_chunk_unfit(chunk) | doubtful);
    return sure ? doubtful : 0;
}

// Strikes the copies of these bits off, and lets `serves` of the others serve. Not all of them, and not `serves`.
void coordinator_chunk_strike(struct coordinator_chunk *chunk, uint32_t struck, uint32_t serves);

struct coordinator_layout {
    uint64_t epoch;
    uint32_t chunk_tokens;
    uint32_t n, cap;
    struct coordinator_chunk *chunks; // owned, ascending by index
    uint64_t *sums;                   // owned: sums[i] over chunks [0, i), i <= n_sums
    uint32_t n_sums;
};

void coordinator_layout_init(struct coordinator_layout *layout, uint32_t chunk_tokens, uint64_t epoch);
void coordinator_layout_fini(struct coordinator_layout *layout);
void coordinator_layout_set_epoch(struct coordinator_layout *layout, uint64_t epoch);

// The chunk with this index, or NULL. Valid until the layout is altered.
struct coordinator_chunk *coordinator_layout_find(const struct coordinator_layout *layout, uint64_t index);

// Where in `chunks` the first chunk with at least this index is; n: none.
uint32_t coordinator_layout_lower(const struct coordinator_layout *layout, uint64_t index);

// Adds a chunk or replaces the one with its index. NULL: out of memory.
struct coordinator_chunk *coordinator_layout_put(struct coordinator_layout *layout,
                                                 const struct coordinator_chunk *chunk);
void coordinator_layout_remove(struct coordinator_layout *layout, uint32_t index); // a missing one is ignored

// What a step with keys [0, visible) must cover. False when a chunk below `visible` is not placed. Amortised
// O(1) for growing layouts.
bool coordinator_layout_cover(struct coordinator_layout *layout, uint64_t visible, uint64_t *tokens,
                              uint64_t *sum);

#endif
