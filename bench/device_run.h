// SPDX-License-Identifier: Apache-2.0
// A device by its module, and the things that are timed on it. Nanoseconds, wall clock.
#ifndef BENCH_DEVICE_RUN_H
#define BENCH_DEVICE_RUN_H

#include <semaphore.h>

#include "bench/device_data.h"

// Loads the module (NULL: banyan-NAME.so beside the program or in ../lib) and opens its device.
enum common_code device_run_open(const char *name, uint32_t index, const char *module,
                                 const struct kernels_device_ops **ops, struct kernels_device **out,
                                 struct common_error *err);

struct device_steps { // steps over the copies of a device_data, in turn
    const struct device_data *data;
    uint32_t in_flight;                // most that may be under way
    uint32_t turn;                     // copy of the next step
    struct kernels_device_item *items; // [in_flight][batch], each with partials of its own
    void *partials;
    uint64_t item_bytes; // of one item's partials
    // Written by the module's thread before it posts
    sem_t ended;
    uint64_t first_ns, last_ns; // when the first and the last step of a row of them ended
    uint32_t count;
    enum common_code code; // the first that is not OK
    struct common_error err;
};

// data, with its queries, must stay as it is. fini is right either way. RESOURCE_EXHAUSTED.
enum common_code device_steps_init(struct device_steps *steps, const struct device_data *data,
                                   uint32_t in_flight, struct common_error *err);
void device_steps_fini(struct device_steps *steps); // zeroed is allowed

// The copy whose turn it is; then it is the next one's.
uint32_t device_steps_turn(struct device_steps *steps);

// One step over a copy, alone: from before submit to done(). outs (may be NULL): its partials, [batch].
enum common_code device_steps_one(struct device_steps *steps, uint32_t copy, double *ns,
                                  struct kernels_partial *outs, struct common_error *err);

// n >= 2 steps over copies in turn, as many of them under way as may be: the time between two of them.
enum common_code device_steps_rate(struct device_steps *steps, uint32_t n, double *ns_per_step,
                                   struct common_error *err);

// n copies from device to device, of the K and V of copies in turn, one wait for all: bytes per second,
// each byte counted as it is read and as it is written.
enum common_code device_steps_copy(struct device_steps *steps, uint32_t n, double *bytes_per_s,
                                   struct common_error *err);

#endif
