// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/slab.h"

static uint64_t pad64(uint64_t bytes)
{
    return (bytes + 63) & ~UINT64_C(63);
}

uint64_t coordinator_slab_partial_bytes(uint64_t rows, uint64_t heads, uint64_t v_dim)
{
    return 2 * pad64(rows * heads * sizeof(float)) + pad64(rows * heads * v_dim * sizeof(float));
}

// Splits n evenly into the fewest parts of at most `most`: the size of the largest.
static uint32_t even(uint32_t n, uint32_t most)
{
    uint32_t parts = (n + most - 1) / most;
    return (n + parts - 1) / parts;
}

void coordinator_slabs_cut(uint32_t rows, uint32_t kv_heads, uint32_t group, uint32_t v_dim,
                           uint64_t limit_bytes, struct coordinator_slabs *out)
{
    uint32_t heads = kv_heads, slab_rows = rows;
    while (heads > 1 && coordinator_slab_partial_bytes(rows, (uint64_t)heads * group, v_dim) > limit_bytes)
        heads--;
    while (slab_rows > 1 &&
           coordinator_slab_partial_bytes(slab_rows, (uint64_t)heads * group, v_dim) > limit_bytes)
        slab_rows--;
    heads = even(kv_heads, heads);
    slab_rows = even(rows, slab_rows);
    uint32_t across = (kv_heads + heads - 1) / heads;
    *out = (struct coordinator_slabs){.rows = rows,
                                      .kv_heads = kv_heads,
                                      .slab_rows = slab_rows,
                                      .slab_kv_heads = heads,
                                      .across = across,
                                      .n = across * ((rows + slab_rows - 1) / slab_rows)};
}

void coordinator_slabs_at(const struct coordinator_slabs *slabs, uint32_t nth, struct coordinator_slab *out)
{
    out->row = nth / slabs->across * slabs->slab_rows;
    out->kv_head = nth % slabs->across * slabs->slab_kv_heads;
    out->rows = slabs->rows - out->row < slabs->slab_rows ? slabs->rows - out->row : slabs->slab_rows;
    out->kv_heads = slabs->kv_heads - out->kv_head < slabs->slab_kv_heads ? slabs->kv_heads - out->kv_head
                                                                          : slabs->slab_kv_heads;
}
