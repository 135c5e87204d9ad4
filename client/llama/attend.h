// SPDX-License-Identifier: Apache-2.0
// One attention over a cache, and the keys and values that are appended with it. The caller has locked the
// cache. false: cache->why.
#ifndef BANYAN_LLAMA_ATTEND_H
#define BANYAN_LLAMA_ATTEND_H

#include <ggml.h>

#include "client/llama/cache.h"

// A FLASH_ATTN_EXT over a layer of the cache, with the rows that put_k and put_v of the layer set: one
// banyan_attend with an item for each sequence, several where rows of sequences take turns in the batch.
bool attend_compute(struct cache *cache, const struct ggml_tensor *op);

// Keys and values that no attention of this part of a graph reads: they are appended for themselves.
bool attend_append(struct cache *cache, struct cache_layer *layer);

#endif
