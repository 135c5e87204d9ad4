// SPDX-License-Identifier: Apache-2.0
// Where a session's tokens lie: its chunks in order of position, each with its holder, and what a step over
// the first n tokens must cover. Pure: no network, no clock.
//
//   index      0         1         2                   4
//          ┌─────────┬─────────┬─────────┐        ┌─────────┐
//          │ id 17   │ id 18   │ id 21   │        │ id 30   │
//          │ holder a│ holder b│ holder a│        │ holder b│
//          └─────────┴─────────┴─────────┘        └─────────┘
//   sums   0         s₀        s₀+s₁     s₀+s₁+s₂
//
// Chunks are sparse: an attach may start anywhere. The sums are prefix sums of coverage over the chunks from 0
// on, up to the first hole.
#ifndef COORDINATOR_LAYOUT_H
#define COORDINATOR_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator_worker;

// A chunk is known when it was placed in this life of the coordinator, or when its holder has said since the
// start which rows it has.
struct coordinator_chunk {
    uint64_t id;
    uint32_t index; // covers positions [index × chunk_tokens, (index + 1) × chunk_tokens)
    bool ready;     // durable, and its holder has acknowledged it: steps and tickets may name it
    bool known;     // its committed rows are known in this life (see below)
    bool untold;    // a commit of its rows is durable, and its holder may not have heard so
    bool lost;      // its holder came back without it
    uint64_t stamp; // of the last visit of its holder that asked for it, or whose inventory named it
    struct coordinator_worker *holder; // not owned
};

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
