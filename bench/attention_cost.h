// SPDX-License-Identifier: Apache-2.0
// What one small job costs when its keys and values are in cache: processor time of the one thread that runs
// it, the least of many batches, so that it can be measured on a machine that does other things, too.
#ifndef BENCH_ATTENTION_COST_H
#define BENCH_ATTENTION_COST_H

#include "bench/attention_data.h"

struct attention_cost {
    double ns, median_ns; // a job: the least and the median batch
    double ghz;           // clock of the core as measured next to it: a chain of additions takes a cycle each
};

// The first KV head of data, all its keys, all query rows. False: no memory, said on stderr.
bool attention_cost_measure(const struct attention_data *data, const struct kernels_attention *kernel,
                            struct attention_cost *out);

#endif
