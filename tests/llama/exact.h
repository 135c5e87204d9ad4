// SPDX-License-Identifier: Apache-2.0
// Attention in float64, one plain loop over what a cache should hold, and the bound of
// docs/internals/precision.md.
#ifndef TESTS_LLAMA_EXACT_H
#define TESTS_LLAMA_EXACT_H

#include "tests/llama/cache.h"

// The largest error of answer `o` ([streams][rows][heads][v_dim]) of one attention, as a fraction of the
// bound. Of large steps only some rows are computed, the first and the last of each stream among them. A
// number that is not finite makes it infinite.
double exact_error(const struct cache *cache, const struct cache_answer *answer, int attention,
                   const float *o);

// Slope of a head under ALiBi, as ggml has it.
double exact_slope(int heads, float max_bias, int head);

#endif
