// SPDX-License-Identifier: Apache-2.0
// An accelerator that holds K and V and computes attention in its own memory, behind a module that is loaded
// at run time (kernels/device.h). Its memory is a worker_memory; its steps are jobs that end on the loop
// thread. All functions belong to the loop thread, or come before it runs.
//
// A device that is lost (a fault in a kernel, a card that fell off its bus) stays so: its jobs end with
// UNAVAILABLE, its memory gives zeros, and `lost` is called once, so that the process can end and be started
// again.
#ifndef WORKER_DEVICE_H
#define WORKER_DEVICE_H

#include "common/base/status.h"
#include "common/loop/loop.h"
#include "kernels/device.h"
#include "proto/model/limits.h"
#include "worker/memory/memory.h"
#include "worker/memory/place.h"

struct worker_device; // opaque

struct worker_device_options {
    const char *wanted;               // "auto", "cpu" or NAME:INDEX as "cuda:0"
    const char *module;               // path; NULL: banyan-NAME.so beside the program or in ../lib, of cuda
    uint64_t limit_bytes;             // of device memory; 0: what is free, less a reserve
    const struct worker_place *place; // with "auto", workers of a host share the devices out; NULL: the first
    const char *dev;                  // where the system's device files are; NULL: /dev
};

// *out is NULL for the processor: with "cpu", and with "auto" where there is no module or no device.
// no_device: why "auto" came to nothing on a machine that has hardware for it (nvidia* among its device files, or the
// driver's library loaded, or a driver that is too old for the module), in printable ASCII; logged as a warning. ""
// otherwise. NULL is allowed.
// INVALID_ARGUMENT: `wanted` is none of those; FAILED_PRECONDITION: no such module or device, or it is of
// another version; UNAVAILABLE, RESOURCE_EXHAUSTED: the module's reason.
enum common_code worker_device_open(const struct worker_device_options *options, struct worker_device **out,
                                    char no_device[PROTO_NO_DEVICE_MAX + 1], struct common_error *err);
void worker_device_close(struct worker_device *device); // no job is under way; NULL is allowed

const struct kernels_device_info *worker_device_info(const struct worker_device *device);
// "cuda:0 (NVIDIA H200)"; NULL device: "cpu".
const char *worker_device_text(const struct worker_device *device);
const char *worker_device_name(const struct worker_device *device); // "cuda:0"; NULL device: NULL
// NULL, or why steps of this spec cannot be computed there.
const char *worker_device_spec_problem(const struct worker_device *device, const struct kernels_spec *spec);
enum common_code worker_device_bandwidth(struct worker_device *device, uint64_t *bytes_per_s,
                                         struct common_error *err);

// For pages and blocks. The device outlives it. NULL: out of memory.
struct worker_memory *worker_memory_of_device(uint64_t limit_bytes, struct worker_device *device);

// Before the first job: where jobs end, and what is called, on no particular stack, when the device is lost.
void worker_device_attach(struct worker_device *device, struct common_loop *loop,
                          void (*lost)(void *arg, const struct common_error *err), void *arg);

struct worker_device_job { // owned by the submitter, untouched until done has run
    const struct kernels_device_item *items;
    uint32_t n;                             // >= 1
    const struct kernels_device_sink *sink; // NULL: to the host
    // On the loop thread, exactly once, never inside submit. OK: the partials are written. CANCELLED;
    // otherwise the device's code and reason.
    void (*done)(void *arg, enum common_code code, const struct common_error *err);
    void *arg;
    // the device's own
    struct worker_device *device;
    struct worker_device_job *next;
    struct common_mail mail; // its end
    bool waiting;
    enum common_code code;
    struct common_error err;
};

void worker_device_submit(struct worker_device *device, struct worker_device_job *job);
// A job that has not begun does not; done still comes.
void worker_device_cancel(struct worker_device *device, struct worker_device_job *job);

#endif
