// SPDX-License-Identifier: Apache-2.0
#include "proto/model/footprint.h"

#include "common/memory/blob.h"
#include "proto/model/kv.h"
#include "proto/model/spec.h"

// As worker/memory/arena.h has them; and at least what worker/store/chunk.h and worker/session/session.h
// count.
#define MAPPING      (UINT64_C(64) << 20)
#define EXTENT       (UINT64_C(2) << 20)
#define CHUNK_TABLES 512
#define LAYER_ENTRY  16  // of each of the spec's layers
#define LAYER_TABLES 384 // of a layer with rows, and 3 bytes for 2 tokens: states and pages

// A layer's rows lie as one block: each part of each head begins at a multiple of 64.
static uint64_t block_bytes(const Banyan__Pb__Spec *spec, const struct proto_layer *layer)
{
    uint64_t tokens = spec->chunk_tokens, element = proto_kv_element_bytes(spec->kv_type),
             scale = proto_kv_scaled(spec->kv_type) ? sizeof(float) : 0;
    uint64_t head = common_align64(tokens * layer->k_dim * element) + common_align64(tokens * scale);
    if (!layer->v_in_k)
        head += common_align64(tokens * layer->v_dim * element) + common_align64(tokens * scale);
    return layer->kv_heads * head;
}

// A block, and its part of what is left over at a mapping's end: no block lies across two, and an extent
// counts whole.
static uint64_t mapped_bytes(uint64_t block)
{
    uint64_t n = block < MAPPING ? MAPPING / block : 1, whole = (n * block + EXTENT - 1) / EXTENT * EXTENT;
    return (whole + n - 1) / n;
}

uint64_t proto_footprint_chunk(const Banyan__Pb__Spec *spec)
{
    uint64_t bytes = CHUNK_TABLES + (uint64_t)spec->layers * LAYER_ENTRY;
    for (uint32_t l = 0; l < spec->layers; l++) {
        if (!proto_spec_stores(spec, l))
            continue;
        struct proto_layer layer = proto_spec_layer(spec, l);
        bytes +=
            mapped_bytes(block_bytes(spec, &layer)) + LAYER_TABLES + spec->chunk_tokens * UINT64_C(3) / 2;
    }
    return bytes;
}

uint64_t proto_footprint_slack(uint64_t capacity_bytes)
{
    return capacity_bytes / 64 < EXTENT ? capacity_bytes / 64 : EXTENT;
}
