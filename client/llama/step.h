// SPDX-License-Identifier: Apache-2.0
// A graph's part that the scheduler gave to this backend: appends to a cache (SET_ROWS) and attentions over
// it (FLASH_ATTN_EXT).
#ifndef BANYAN_LLAMA_STEP_H
#define BANYAN_LLAMA_STEP_H

#include <ggml-backend.h>
#include <stdbool.h>

#include "client/llama/cache.h"

// Computes it. Keys and values that are set are sent with the attention that reads them, in one banyan_attend
// an operation: an item for each stream. Blocks. false: why, a sentence; what was appended before stays, and
// is truncated when llama.cpp writes the cells again.
bool step_compute(struct ggml_cgraph *graph, char why[CACHE_WHY]);

// The operation's layer is learnt and can be served, or it is one that step_compute fails with a sentence, so
// that llama.cpp does not abort: any other operation over a cache. false: it is none of a cache's.
bool step_claims(const struct ggml_tensor *op);

#endif
