// SPDX-License-Identifier: Apache-2.0
// The reference: attention over a local KV cache, every product and sum in float64, softmax in two passes. It
// shares no code with the cluster's kernels, so that a mistake there cannot hide here.
#ifndef EXAMPLES_ATTENTION64_H
#define EXAMPLES_ATTENTION64_H

#include <stdint.h>

#include "client/banyan.h"
#include "examples/llama.h"

struct attention64; // opaque: the cache of all layers

// Keys and values are rounded to `kv_type` on their way in, as the cluster holds them. NULL when memory is
// short.
struct attention64 *attention64_new(const struct llama_config *config, struct pool *pool,
                                    banyan_kv_type kv_type, uint64_t capacity);
void attention64_free(struct attention64 *cache); // NULL is allowed

// A llama_attend_fn; arg is the cache. Stores k, v at [first, first + rows), then attends.
enum common_code attention64_attend(void *arg, uint32_t layer, uint64_t first, uint32_t rows, const float *q,
                                    const float *k, const float *v, float *o, struct common_error *err);

#endif
