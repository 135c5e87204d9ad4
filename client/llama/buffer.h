// SPDX-License-Identifier: Apache-2.0
// Buffers of the backend: addresses that take memory only where they are written. A buffer that llama.cpp
// makes its KV cache in has a cache (cache.h) behind it; others hold what operations compute.
#ifndef BANYAN_LLAMA_BUFFER_H
#define BANYAN_LLAMA_BUFFER_H

#include <ggml-backend.h>
#include <stdbool.h>

#include "client/llama/cache.h"

ggml_backend_buffer_type_t buffer_type(void); // the device's only one

// The cache that the tensor is K or V of; NULL: it is none's.
struct cache *buffer_cache(const struct ggml_tensor *root);
// An operation over a cache whose buffer is of no size (llama.cpp only measures).
bool buffer_is_cache(const struct ggml_tensor *op);

#endif
