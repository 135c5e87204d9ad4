// SPDX-License-Identifier: Apache-2.0
// Cutting an item into slabs: query rows × KV heads, each a reduction of its own with a bounded partial, so
// that none waits behind a giant. Pure, and a function of the item's shape alone: what else is in the frame
// never alters the bits of an answer.
//
//              KV heads →                     fewer KV heads first: the rows of one KV head share
//   rows   ┌───┬───┬───┬───┐  heads = 1       the read of its keys. Only when one KV head of all rows
//     ↓    │ 0 │ 1 │ 2 │ 3 │  rows  = half    is still too much, fewer rows.
//          ├───┼───┼───┼───┤
//          │ 4 │ 5 │ 6 │ 7 │
//          └───┴───┴───┴───┘
#ifndef COORDINATOR_SLAB_H
#define COORDINATOR_SLAB_H

#include <stdint.h>

#define COORDINATOR_SLAB_BYTES (256 * 1024) // of packed partial

struct coordinator_slabs {
    uint32_t rows, kv_heads;           // of the item
    uint32_t slab_rows, slab_kv_heads; // of each slab; the last ones may be smaller
    uint32_t across;                   // slabs beside each other
    uint32_t n;                        // slabs
};

struct coordinator_slab {
    uint32_t row, rows, kv_head, kv_heads;
};

// Bytes of a packed partial block (docs/reference/wire.md): m and s [rows][heads], o [rows][heads][v_dim],
// float32, each padded to 64.
uint64_t coordinator_slab_partial_bytes(uint64_t rows, uint64_t heads, uint64_t v_dim);

// group: query heads a KV head. All numbers > 0 and checked against the limits of a spec. A single row of a
// single KV head is never cut.
void coordinator_slabs_cut(uint32_t rows, uint32_t kv_heads, uint32_t group, uint32_t v_dim,
                           uint64_t limit_bytes, struct coordinator_slabs *out);
void coordinator_slabs_at(const struct coordinator_slabs *slabs, uint32_t nth, struct coordinator_slab *out);

#endif
