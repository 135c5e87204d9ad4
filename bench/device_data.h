// SPDX-License-Identifier: Apache-2.0
// Keys, values and queries of one point, the keys and values in a device's pool as a worker puts them there:
// runs of 256 keys, all heads of a run together,
//
//     | head 0: K [256][dim], V [256][dim] (, K scale [256], V scale [256]) | head 1: ... |
//
// each part at a multiple of 64 bytes. A point that is small lies there in several copies with different
// contents. As many bytes again are room to copy into.
//
// Contents come from a pool of random elements on the host, where the reference reads them, too.
#ifndef BENCH_DEVICE_DATA_H
#define BENCH_DEVICE_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/device.h"

#define DEVICE_CHUNK 256u // keys

struct device_shape {
    enum kernels_kv_type kv;
    uint32_t context, kv_heads, group, rows, dim, batch;
    uint32_t v_in_k; // values are the first elements of keys, so many; 0: they have `dim` of their own
};

uint32_t device_shape_v_dim(const struct device_shape *shape);

struct device_data {
    const struct kernels_device_ops *ops;
    struct kernels_device *handle;
    struct device_shape shape;
    struct kernels_spec spec;
    uint32_t copies, chunks; // chunks: of one sequence
    uint64_t head_stride, chunk_stride, per_block, blocks_n;
    uint64_t *blocks;                // [2 * blocks_n]: K and V, then the room to copy into
    struct kernels_device_run *runs; // [copies][batch][chunks]
    void *pool;                      // elements of the KV type
    float *scales, *q;               // q: [batch][rows][q_heads][dim]
};

// Bytes of K, V and scales that a step must read, and those that a copy takes in the pool with its padding.
uint64_t device_shape_bytes(const struct device_shape *shape);
uint64_t device_shape_stored(const struct device_shape *shape);

// Fills the device with `copies` copies. fini is right either way. RESOURCE_EXHAUSTED, or as ops->write.
enum common_code device_data_init(struct device_data *data, const struct kernels_device_ops *ops,
                                  struct kernels_device *handle, const struct device_shape *shape,
                                  uint32_t copies, struct common_error *err);
void device_data_fini(struct device_data *data); // zeroed is allowed

// Other queries over the same keys and values: group and rows of shape. RESOURCE_EXHAUSTED.
enum common_code device_data_queries(struct device_data *data, const struct device_shape *shape,
                                     struct common_error *err);

// The items of a step over one copy, [batch]; out is left to the caller.
void device_data_items(const struct device_data *data, uint32_t copy, struct kernels_device_item *items);

// Starts a copy of one copy's K and V into the room beside. Returns its bytes in *bytes.
enum common_code device_data_copy(const struct device_data *data, uint32_t copy, uint64_t *bytes,
                                  struct common_error *err);
// Waits for all copies.
enum common_code device_data_wait(const struct device_data *data, struct common_error *err);

// Compares a step's partials over one copy, [batch], with the float64 reference: all of a small step, some
// rows and heads of a large one. The largest |error| / bound: <= 1 if all is right, NaN if not a number or
// no memory.
double device_data_error(const struct device_data *data, uint32_t copy, const struct kernels_partial *outs);

#endif
