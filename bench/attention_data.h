// SPDX-License-Identifier: Apache-2.0
// One layer's keys and values as a worker holds them once a chunk is full (worker/store/store.h), and
// queries:
//
//     chunk 0: | head 0: K [256][dim], V [256][v_dim] (, K scale [256], V scale [256]) | head 1: ... | chunk 1:
//     ...
//
// (with v_in_k without V and its scales) each part at a multiple of 64 bytes, all of it in one stretch of
// huge pages, so that what a kernel reads can be read by anything else. Contents come from a pool of random
// elements: the block of K (which = 0) or V (1) of a chunk and head starts at element attention_data_offset()
// of the pool, so another process can make the same.
#ifndef BENCH_ATTENTION_DATA_H
#define BENCH_ATTENTION_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/attention_team.h"
#include "kernels/split.h"

#define ATTENTION_CHUNK 256u
#define ATTENTION_POOL  ((uint64_t)1 << 20) // elements that a block may start at; as many again follow them

struct attention_shape {
    enum kernels_kv_type kv;
    uint32_t context, kv_heads, group, rows, dim, v_dim; // dim: of keys
    bool v_in_k, not_causal;                             // of the spec, as are the next two
    uint64_t window, mask_chunk;
    uint64_t block; // the last positions, which see each other; 0 = none
};

struct attention_data {
    struct attention_shape shape; // what was filled in last; group and rows are those of the queries
    char *memory;                 // huge pages
    uint64_t memory_bytes;
    void *pool;
    float *scales, *q;
    uint64_t q_floats;
    struct kernels_run *runs; // [kv_heads][run_count]
    uint64_t run_most;
};

const char *attention_kv_name(enum kernels_kv_type kv);               // "f32", "f16", "bf16", "int8", "fp8"
enum kernels_kv_type attention_kv_find(const char *name, size_t len); // 0: no such type

// Bytes of K, V and scales that an attention call must read, those of all keys, and what these take with
// their padding.
uint64_t attention_shape_bytes(const struct attention_shape *shape);
uint64_t attention_shape_held(const struct attention_shape *shape);
uint64_t attention_shape_stored(const struct attention_shape *shape);
// 2 a query row, head, seen key and dim of K and of V
uint64_t attention_shape_flops(const struct attention_shape *shape);
uint64_t attention_data_offset(uint64_t chunk, uint32_t kv_heads, uint32_t head, uint32_t which);

// False: no memory, said on stderr. memory_bytes and runs: the most of any shape that will be filled in.
bool attention_data_init(struct attention_data *data, uint64_t memory_bytes, uint64_t runs);
void attention_data_fini(struct attention_data *data); // zeroed is allowed

// Fills in keys and values (when they differ from what is there) and queries, on the team's threads.
bool attention_data_fill(struct attention_data *data, const struct attention_shape *shape,
                         struct attention_team *team);

// An item over all of it, its rows the last of the context (causal). spec is filled in, too; the item points
// to it.
void attention_data_item(const struct attention_data *data, const struct kernels_attention *kernel,
                         struct kernels_spec *spec, struct kernels_item *item);

#endif
