// SPDX-License-Identifier: Apache-2.0
#include "examples/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "common/hash/hash.h"

struct candidate {
    uint32_t token;
    double p;
};

static int by_probability(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->p != y->p)
        return x->p < y->p ? 1 : -1;
    return x->token < y->token ? -1 : 1;
}

static int greedy(const float *logits, uint32_t n, uint32_t *token)
{
    int found = -1;
    for (uint32_t i = 0; i < n; i++)
        if (!isnan(logits[i]) && (found < 0 || logits[i] > logits[*token])) {
            *token = i;
            found = 0;
        }
    return found;
}

int sampler_choose(struct sampler *sampler, const float *logits, uint32_t n, uint32_t *token)
{
    uint32_t best = 0;
    if (greedy(logits, n, &best))
        return -1;
    if (sampler->temperature <= 0) {
        *token = best;
        return 0;
    }
    struct candidate *c = malloc(n * sizeof(*c));
    if (!c)
        return -1;
    double total = 0, kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        double x = ((double)logits[i] - (double)logits[best]) / sampler->temperature;
        c[i] = (struct candidate){i, isnan(x) ? 0 : exp(x)};
        total += c[i].p;
    }
    qsort(c, n, sizeof(*c), by_probability);
    uint32_t n_kept = 0;
    while (n_kept < n && (n_kept == 0 || kept < sampler->top_p * total))
        kept += c[n_kept++].p;
    double u = (double)(common_mix64(sampler->state++) >> 11) * 0x1p-53 * kept;
    uint32_t i = 0;
    for (double sum = c[0].p; i + 1 < n_kept && u >= sum; sum += c[i].p)
        i++;
    *token = c[i].token;
    free(c);
    return 0;
}
