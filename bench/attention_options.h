// SPDX-License-Identifier: Apache-2.0
// What bench/attention is asked for.
#ifndef BENCH_ATTENTION_OPTIONS_H
#define BENCH_ATTENTION_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/lists.h"
#include "bench/reader.h"
#include "common/base/status.h"

enum { ATTENTION_SAMPLES_MOST = 64 };

struct attention_options {
    struct lists_values context, kv, group, rows;
    uint64_t kv_heads, dim, v_dim, threads, samples;
    uint64_t window, mask_chunk, block;
    const char *kernel, *peers; // NULL: not given
    enum reader_isa isa;
    bool v_in_k, not_causal, json, probe, cost;
};

// COMMON_CANCELLED after --help; INVALID_ARGUMENT once the mistake has been reported on stderr.
enum common_code attention_options_parse(int argc, char **argv, struct attention_options *o);

// Whether a list of names separated by commas holds this one.
bool attention_options_has(const char *names, const char *name);

#endif
