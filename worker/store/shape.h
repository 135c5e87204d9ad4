// SPDX-License-Identifier: Apache-2.0
// How rows of K and V of a session's layers lie in memory, and how long they are on their way. Equal for all
// chunks of a session; layers may differ. Immutable; counts who refers to it. Belongs to the loop thread, its
// contents to any.
#ifndef WORKER_SHAPE_H
#define WORKER_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/banyan.pb-c.h"

#define WORKER_PAGE_TOKENS  16u
#define WORKER_CHUNK_TOKENS 256u // where a spec says nothing

enum worker_part { // what a head's memory consists of, in order
    WORKER_PART_K,
    WORKER_PART_V,       // unless V lies in K
    WORKER_PART_K_SCALE, // scaled types only, as the next
    WORKER_PART_V_SCALE,
    WORKER_PARTS
};

struct worker_head { // a head's memory in a page or in a block
    uint64_t at[WORKER_PARTS], bytes;
};

struct worker_form { // of the rows of a layer
    uint32_t kv_heads;
    uint32_t row[WORKER_PARTS]; // bytes of one row of one head; 0: there is no such part
    enum worker_part parts[WORKER_PARTS];
    uint32_t n_parts;      // that there are
    size_t k_wire, v_wire; // bytes of a token's K and V, all heads (proto/model/kv.h)
    struct worker_head in_page, in_block;
    uint64_t page_bytes, block_bytes;
};

struct worker_shape {
    unsigned refs;
    uint32_t layers, chunk_tokens; // a multiple of 16
    uint32_t kv_type;              // enum kernels_kv_type
    size_t k_wire, v_wire;         // the largest of any layer
    struct worker_form *forms;
    uint32_t n_forms;
    uint8_t form_of[]; // [layers] index into forms; WORKER_FORM_NONE: the layer has no rows of its own
};

#define WORKER_FORM_NONE UINT8_MAX

// Of a spec that was checked. NULL: out of memory.
struct worker_shape *worker_shape_new(const Banyan__Pb__Spec *spec);
struct worker_shape *worker_shape_ref(struct worker_shape *shape);
void worker_shape_unref(struct worker_shape *shape); // NULL is allowed
bool worker_shape_equal(const struct worker_shape *a, const struct worker_shape *b);
uint64_t worker_shape_bytes(const struct worker_shape *shape); // of itself

// NULL: the layer has no rows of its own.
static inline const struct worker_form *worker_shape_form(const struct worker_shape *shape, uint32_t layer)
{
    return shape->form_of[layer] == WORKER_FORM_NONE ? NULL : &shape->forms[shape->form_of[layer]];
}

#endif
