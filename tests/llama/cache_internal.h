// SPDX-License-Identifier: Apache-2.0
// What the files of the cache (cache.h) share.
#ifndef TESTS_LLAMA_CACHE_INTERNAL_H
#define TESTS_LLAMA_CACHE_INTERNAL_H

#include "tests/llama/cache.h"

// Ends the program with `what` unless it holds.
void cache_must(bool holds, const char *what);

// Uniform in [-limit, limit).
float cache_random(uint64_t *seed, float limit);

// n values into a type of ggml, and back.
void cache_to_type(enum ggml_type type, const float *values, void *out, int64_t n);
void cache_from_type(enum ggml_type type, const void *in, float *out, int64_t n);

// Lets the scheduler see the largest graph, as llama.cpp does when it makes a context.
void cache_reserve(struct cache *cache);

#endif
