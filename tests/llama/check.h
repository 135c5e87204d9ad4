// SPDX-License-Identifier: Apache-2.0
// What the tests of this folder say of an answer.
#ifndef TESTS_LLAMA_CHECK_H
#define TESTS_LLAMA_CHECK_H

#include "tests/llama/cache.h"

// Largest errors as fractions of the bound of docs/internals/precision.md, over the answers since
// check_begin.
struct check_errors {
    double own;    // of the device
    double single; // of ggml's CPU backend over the same values in float32
    double typed;  // of ggml's CPU backend in the cache's own types; 0 where K's and V's differ
};

void check_begin(void);
struct check_errors check_errors(void);

// Fails the test unless every attention of the answer is within the bound, and ggml's CPU in float32 agrees
// with it, too. Frees the answer.
void check_answer(const struct cache *cache, struct cache_answer *answer);

// Appends `rows` rows to every stream and checks the answer.
void check_append(struct cache *cache, int rows);

// Runs a step that must succeed, and checks the answer.
void check_step(struct cache *cache, const struct cache_step *step);

// Runs a step that must fail and say a sentence with `names` in it.
void check_refused(struct cache *cache, const struct cache_step *step, const char *names);

#endif
