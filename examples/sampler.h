// SPDX-License-Identifier: Apache-2.0
// Chooses a token from logits: greedy at temperature 0, else from the smallest set of tokens whose
// probability reaches top_p.
#ifndef EXAMPLES_SAMPLER_H
#define EXAMPLES_SAMPLER_H

#include <stdint.h>

struct sampler {
    double temperature; // 0: greedy, the lowest token among equals
    double top_p;       // (0, 1]
    uint64_t state;     // of the generator: the seed, then rises with each choice
};

// 0 on success and *token set; −1 when no logit is a number or memory is short.
int sampler_choose(struct sampler *sampler, const float *logits, uint32_t n, uint32_t *token);

#endif
