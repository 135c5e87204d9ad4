// SPDX-License-Identifier: Apache-2.0
// What a session's Spec says of each of its layers. Layers are alike, or each is of one of several kinds
// (docs/reference/wire.md, "Layers that differ"):
//
//     layer        0        1        2        3        4
//     layer_kind   window   full     window   -        window
//     shares                                           layer 2
//                  K V      K V      K V      holds    reads 2's
//                  0        1        2        nothing  K and V
//
// Shapes, masks and the bytes of a row come from here. Pure, any thread.
#ifndef PROTO_SPEC_H
#define PROTO_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "proto/banyan.pb-c.h"

#define PROTO_LAYER_LOCAL UINT32_MAX // in Spec.layer_kind: the layer holds nothing here

struct proto_layer {
    uint32_t q_heads, kv_heads, k_dim, v_dim; // all 0: it holds nothing, and cannot be attended
    float scale, soft_cap;
    uint64_t window, mask_chunk;
    bool not_causal, v_in_k;
    uint32_t source;            // the layer whose K and V it reads: itself, unless it shares another's
    const float *alibi, *sinks; // NULL or [q_heads], in the spec
    // Bytes of K and of V of one token, as they travel and are held (proto/model/kv.h); v_row is 0 with
    // v_in_k.
    size_t k_row, v_row;
};

// INVALID_ARGUMENT with the rule that it breaks. What the functions below assume.
enum common_code proto_spec_check(const Banyan__Pb__Spec *spec, struct common_error *err);

// A scale of 0 is left to the dimension of a key.
float proto_spec_scale(float scale, uint32_t k_dim);
// Writes it down wherever it is left.
void proto_spec_fill(Banyan__Pb__Spec *spec);

// layer < spec->layers.
struct proto_layer proto_spec_layer(const Banyan__Pb__Spec *spec, uint32_t layer);

static inline bool proto_layer_local(const struct proto_layer *layer)
{
    return layer->q_heads == 0;
}

// The layer whose K and V this one reads: proto_layer.source.
uint32_t proto_spec_source(const Banyan__Pb__Spec *spec, uint32_t layer);

// Whether a layer has rows of its own: takes appends and attaches, and counts for the session's length.
bool proto_spec_stores(const Banyan__Pb__Spec *spec, uint32_t layer);

// The first key that the layer's row at this position sees, where it lies in no block: the rule of
// kernels/attention.h. Never lower for a higher position.
uint64_t proto_layer_from(const struct proto_layer *layer, uint64_t position);

// Of a layer with rows of its own, where a session's floor is `floor`: no row at or past it, of this layer or
// of one that shares it, sees a key below the position returned. 0: the session forgets nothing of the layer.
uint64_t proto_spec_forgotten(const Banyan__Pb__Spec *spec, uint32_t layer, uint64_t floor);

// Whether rows of the layer are there for as long as the session is: it has rows of its own, and none is ever
// forgotten, however high the floor. Of such layers a chunk's seal is.
bool proto_spec_keeps(const Banyan__Pb__Spec *spec, uint32_t layer);

uint64_t proto_spec_token_bytes(const Banyan__Pb__Spec *spec); // K and V of one token, all layers
uint32_t proto_spec_first_layer(const Banyan__Pb__Spec *spec); // that has rows of its own
uint32_t
proto_spec_heavy_layer(const Banyan__Pb__Spec *spec); // whose rows have the most bytes; the first of them
uint32_t proto_spec_most_q_heads(const Banyan__Pb__Spec *spec); // of any layer

#endif
