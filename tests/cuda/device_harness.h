// SPDX-License-Identifier: Apache-2.0
// A device under test, keys placed in its pool, and the judgement of its answers by the float64 reference.
#pragma once

#include "kernels/device.h"
#include "kernels/reference.h"
#include "tests/kernels/data.h"

extern const struct kernels_device_ops *ops; // of the module under test
extern struct kernels_device *device;        // open in `numbers`

// Opens the module's table. False: the file cannot be opened or is of another kind (a sentence is printed).
bool harness_load(const char *path);

// Kernels that were loaded by their first launch, as the emulated runtime counts them; 0 on a GPU, which does
// not say.
unsigned harness_late_loads(void);

// The keys of several sets of data (one a KV head; equal shapes and positions), encoded for the device and
// for the reference alike, cut into runs of lengths[i % n].
struct placed {
    const struct data *heads;
    uint32_t kv_heads;
    struct kernels_spec spec; // of all heads
    uint8_t **k, **v;         // by head: codes of all keys
    float **k_scale, **v_scale;
    struct kernels_run *whole; // by head: one run over all keys, on the host
    struct kernels_device_run *runs;
    uint64_t *blocks; // of the runs
    uint32_t run_count;
};

struct placed harness_place(const struct data *heads, uint32_t kv_heads, const uint32_t *lengths, uint32_t n);
void harness_cut(struct placed *p, const uint32_t *lengths, uint32_t n); // again
void harness_shuffle(struct placed *p, uint64_t seed);
void harness_remove(struct placed *p);

// An item over all heads; q and out are the harness's until harness_item_free().
struct kernels_device_item harness_item(const struct placed *p);
void harness_item_free(struct kernels_device_item *item);

// Submits and waits.
enum common_code harness_run(const struct kernels_device_item *items, uint32_t n, struct common_error *err);

// The same, to a sink.
enum common_code harness_run_to(const struct kernels_device_sink *sink,
                                const struct kernels_device_item *items, uint32_t n,
                                struct common_error *err);

// Fails the test where a partial is not what the reference says, within the project's bound.
void harness_judge(const struct placed *p, const struct kernels_partial *out, const char *what);
// Largest errors so far, as fractions of the bound.
void harness_print_worst(void);
