// SPDX-License-Identifier: Apache-2.0
// What bench/device is asked for.
#ifndef BENCH_DEVICE_OPTIONS_H
#define BENCH_DEVICE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/lists.h"
#include "common/base/status.h"

enum { DEVICE_SAMPLES_MOST = 64 };

struct device_options {
    struct lists_values context, kv, group, rows, batch;
    uint64_t kv_heads, dim, v_in_k, samples, rotate_bytes;
    char name[32]; // of the module: "cuda"
    uint32_t index;
    const char *module; // NULL: not given
    bool json, check;
};

// COMMON_CANCELLED after --help; INVALID_ARGUMENT once the mistake has been reported on stderr.
enum common_code device_options_parse(int argc, char **argv, struct device_options *o);

const char *device_options_kv_name(uint64_t kv); // "f32", "f16", "bf16", "int8", "fp8"

#endif
