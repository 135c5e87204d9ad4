// SPDX-License-Identifier: Apache-2.0
// The device under test and ggml's log, for the programs of this folder.
#ifndef TESTS_LLAMA_DEVICE_H
#define TESTS_LLAMA_DEVICE_H

#include <stdbool.h>

#include "tests/llama/cache.h"

// Loads the plug-in `path` with workers that it starts on this machine (BANYAN_LOCAL=2 unless the environment
// says otherwise), and takes its device Banyan0. "CPU" in the path's place: ggml's CPU is the device, to test
// the harness. Ends the program where that fails.
void device_open(const char *path);
void device_close(void);

struct cache_devices device_pair(void);
bool device_is_cpu(void);

// What ggml and its backends logged as warnings and errors since the last call of device_log_clear.
const char *device_log(void);
void device_log_clear(void);

#endif
