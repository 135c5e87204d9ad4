// SPDX-License-Identifier: Apache-2.0
// Rows of K and V between ggml's types and those that a session holds.
//
// cache        session         same values
// f32          BANYAN_F32      yes
// f16          BANYAN_F16      yes
// bf16         BANYAN_BF16     yes
// q8_0         BANYAN_INT8     no (BANYAN_Q8=int8): a scale for each head's row in place of one for 32 elements
// any other    BANYAN_F32      yes, the float32 that ggml makes of it: of q8_0 a scale times a code, in four times the memory
// Where K and V are of different types, both are held as BANYAN_F32.
#ifndef BANYAN_LLAMA_ROWS_H
#define BANYAN_LLAMA_ROWS_H

#include <ggml.h>

#include "client/banyan.h"

// The session's type for a cache whose keys and values have these types; 0: there is none.
banyan_kv_type rows_kv_type(enum ggml_type k, enum ggml_type v, bool q8_as_int8);

// Growing memory of the caller's; free(it->at) at the end. rows_room: false without memory.
struct rows_memory {
    void *at;
    size_t bytes;
};
bool rows_room(struct rows_memory *memory, size_t bytes);

// Rows as SET_ROWS brings them: `rows` rows of heads * dim elements of type from (f32 or f16), `stride` bytes
// apart, as the cache of type `cache` would keep them and the session holds them: *out points to
// [rows][heads][dim] elements, of float32 cache into the source itself where it lies densely. scales
// [rows][heads] of BANYAN_INT8, else NULL. false: no memory.
bool rows_make(const void *data, size_t stride, enum ggml_type from, uint64_t rows, uint32_t heads,
               uint32_t dim, enum ggml_type cache, banyan_kv_type held, struct rows_memory *memory,
               struct rows_memory *scale_memory, const void **out, const float **scales);

// A cache's rows (heads * dim elements each, as ggml stores them) to what a session holds, and back. Both
// exact, BANYAN_INT8 apart. false: no memory.
bool rows_from_cache(const void *cells, uint64_t rows, uint32_t heads, uint32_t dim, enum ggml_type cache,
                     banyan_kv_type held, void *out, float *scales);
bool rows_to_cache(const void *held_rows, const float *scales, uint64_t rows, uint32_t heads, uint32_t dim,
                   enum ggml_type cache, banyan_kv_type held, void *cells);

size_t rows_bytes(banyan_kv_type held, uint64_t elements); // without scales

#endif
