// SPDX-License-Identifier: Apache-2.0
// The seam to an accelerator with memory of its own: code that keeps keys and values there and needs
// attention over them (the worker) on this side, a loadable module (banyan-cuda.so) on the other.
//
//     worker ──dlopen, dlsym(KERNELS_DEVICE_SYMBOL)──▶ struct kernels_device_ops ──open(index)──▶ a device
//
//     write ──▶ pool in device memory ──▶ submit(items) ──▶ partials on the host, done() once
//
// The symbol is a `const struct kernels_device_ops`. The opener of the module compares abi and size before
// anything else, and never unloads it.
//
// Threads. All functions of one device are called by one thread at a time, its owner (a daemon's loop
// thread); different devices know nothing of each other. `done` runs on a thread of the module: it may post a
// message and must not call the device. Nothing here logs or exits; `count` and `open` may take a second.
//
// Order. Writes and copies take effect in the order of the calls, and a step that is submitted after them
// reads what they wrote. They may run beside steps submitted before them: until a step is done, the bytes of
// its runs (rows 0 .. rows - 1) are not written, and their blocks not freed. Rows of a block beyond those
// that a step names may be written at any time.
//
// Bits. A partial is a function of its item alone: the split is a rule of its blocks of KERNELS_BLOCK keys
// and of the shape, the order of merging is fixed. Neither other items nor the load nor addresses nor earlier
// steps enter. A run may be cut at any multiple of KERNELS_BLOCK keys from its start, as in
// kernels/attention.h. Every answer is within the project's bound (kernels/reference.h), NaN and Inf as
// kernels/attention.h has it.
//
// Failure. An error that the device reports after the fact (a fault in a kernel, a device that fell off its
// bus) fails all submissions in flight and makes the device *lost* for good: from then on everything but
// free, lost, info and close answers UNAVAILABLE. No number comes out of a failed step.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "kernels/attention.h"

#define KERNELS_DEVICE_ABI    4u
#define KERNELS_DEVICE_SYMBOL "kernels_device_module_2" // a const struct kernels_device_ops
#define KERNELS_DEVICE_BLOCK  ((uint64_t)256 << 20)     // bytes: the largest block of the pool
#define KERNELS_DEVICE_ALIGN  256u                      // bytes: start of each block of the pool

struct kernels_device; // opaque

struct kernels_device_info {
    char name[96];         // of the device, for people: "NVIDIA H200"
    char kernel[32];       // names what decides the bits: "cuda-1"
    uint64_t digest;       // as kernels_attention_digest(): part of the plan digest
    uint64_t memory_bytes; // that the device has
    uint64_t limit_bytes;  // that this handle may take: pool, workspaces, staging
    uint32_t in_flight;    // submissions that may be under way at once
};

// A rectangle of bytes: `height` rows of `width` bytes, each row `pitch` after the one before. With height 1
// the pitches are not looked at.
struct kernels_device_piece {
    uint64_t device; // an address in the pool
    uint64_t device_pitch;
    void *host; // read by write, filled by read
    uint64_t host_pitch;
    uint64_t width, height;
};

// A rectangle of bytes from block to block: as a piece. `to` and `from` do not overlap.
struct kernels_device_copy {
    uint64_t to, to_pitch, from, from_pitch; // addresses in the pool
    uint64_t width, height;
};

// Consecutive keys at positions first .. first + rows - 1 for all KV heads of an item: head h of k is at
// k + h * head_stride, [rows][k_dim] of the spec's type, v, k_scale and v_scale ([rows] float32) alike. So
// one page or block of the store is one run, whatever its heads.
struct kernels_device_run {
    uint64_t k, v;             // device addresses, multiples of KERNELS_ALIGN
    uint64_t k_scale, v_scale; // for INT8 and FP8, multiples of KERNELS_ALIGN; else not looked at
    // With v_in_k of the spec, v and v_scale are not looked at
    uint64_t head_stride; // bytes, a multiple of KERNELS_ALIGN; not looked at with one KV head
    uint64_t first;
    uint32_t rows; // >= 1
};

// As struct kernels_item in kernels/split.h. All but `out` may be reused when submit has returned.
struct kernels_device_item {
    const struct kernels_spec *spec;
    uint32_t rows;             // query rows
    uint64_t q_first, visible; // as in a job
    uint64_t block_first, block_end;
    const float *q;                        // on the host: [rows][q_heads][k_dim] with strides
    uint64_t q_row_stride, q_head_stride;  // in floats
    uint32_t run_count;                    // 0: the identity
    const struct kernels_device_run *runs; // in any order, but the runs of one chunk stand together; disjoint
    // On the host, rows x q_heads x v_dim; written before done, if code is OK. With a sink: its place in the
    // block that the sink stands for; not written.
    struct kernels_partial out;
};

// Where a submission leaves its partials in place of the host: device memory of the code that passes them on
// from there. It stands for a block of host memory, packed as kernels/partial.h has it, block after block;
// each item's `out` is one such block in it. Only m, s and o of the items are written, no padding.
//
// `before` and `after` run on submit's stack, around the start of the work, with the stream that it is queued
// on (a cudaStream_t): what must be over before the partials are written, and what waits for them. False:
// they could not, which loses the device. done() then means that the partials are where they belong.
struct kernels_device_sink {
    uint64_t out;     // device address of the block, a multiple of KERNELS_ALIGN
    const void *base; // host address that it stands for
    uint64_t bytes;
    bool (*before)(void *arg, void *stream);
    bool (*after)(void *arg, void *stream);
    void *arg;
};

// How a submission ended: OK (all partials are written), or UNAVAILABLE (the device is lost; none is to be
// used). err lives until done returns.
typedef void kernels_device_done(void *arg, enum common_code code, const struct common_error *err);

struct kernels_device_ops {
    uint32_t abi;     // KERNELS_DEVICE_ABI
    uint32_t size;    // sizeof(struct kernels_device_ops)
    const char *name; // "cuda": --device NAME:INDEX

    // Devices that this machine has and the module can use. 0 with a sentence in err when there are none:
    // UNAVAILABLE, also where the driver is missing; FAILED_PRECONDITION where the driver is too old for the
    // module, which says both versions.
    uint32_t (*count)(struct common_error *err);

    // Takes nothing of the pool yet but room for steps. limit_bytes: of device memory, 0 = what is free now
    // less a reserve. UNAVAILABLE: no driver, no such device, too old; RESOURCE_EXHAUSTED: it has no such
    // memory.
    enum common_code (*open)(uint32_t index, uint64_t limit_bytes, struct kernels_device **out,
                             struct common_error *err);
    // Waits for what is in flight; each done comes first. NULL is allowed. The pool goes with it.
    void (*close)(struct kernels_device *device);

    void (*info)(const struct kernels_device *device, struct kernels_device_info *out);
    // Whether it is lost, and why.
    bool (*lost)(struct kernels_device *device, struct common_error *err);
    // Bytes per second of a plain read of device memory. Blocks for some tens of milliseconds; before steps.
    enum common_code (*bandwidth)(struct kernels_device *device, double *bytes_per_s,
                                  struct common_error *err);
    // NULL if steps of this (valid) spec can be computed here, else why not (a static string).
    const char *(*spec_problem)(const struct kernels_spec *spec);

    // ---- the pool: a block's contents are undefined at first ----
    // INVALID_ARGUMENT: no bytes, or more than KERNELS_DEVICE_BLOCK.
    // RESOURCE_EXHAUSTED: it does not fit below the limit, or the device has no more; nothing was changed.
    enum common_code (*alloc)(struct kernels_device *device, uint64_t bytes, uint64_t *address,
                              struct common_error *err);
    void (*free)(struct kernels_device *device, uint64_t address); // a block's address, or 0
    uint64_t (*used)(const struct kernels_device *device);         // bytes in blocks, rounding included

    // Host to device, through pinned buffers: when it returns, the sources may be reused. Waits only where
    // more is under way than the buffers hold. INVALID_ARGUMENT: a piece is not inside one block.
    enum common_code (*write)(struct kernels_device *device, const struct kernels_device_piece *pieces,
                              uint32_t count, struct common_error *err);
    // Device to host, after all writes and copies before it. Blocks until the bytes are there.
    enum common_code (*read)(struct kernels_device *device, const struct kernels_device_piece *pieces,
                             uint32_t count, struct common_error *err);
    // Device to device, all of them at once: no copy reads or writes what another writes. Waits as write
    // does. INVALID_ARGUMENT: one is not inside its blocks; nothing was copied.
    enum common_code (*copy)(struct kernels_device *device, const struct kernels_device_copy *copies,
                             uint32_t count, struct common_error *err);

    // Starts the attention of n >= 1 items, to the host or, where `sink` is not NULL, to a sink, which is
    // read on this stack alone; never waits for the device, and allocates only where a step is larger than
    // any before it.
    //   OK                  done(arg, ...) will be called exactly once, in the order of submission
    //   IN_PROGRESS         info.in_flight submissions are under way: submit again when one is done
    //   RESOURCE_EXHAUSTED  no memory for a step of this size
    //   INVALID_ARGUMENT    a bad item (shape, a run outside of its block, an out that is not in the sink's):
    //                       nothing was started
    //   UNAVAILABLE         the device is lost
    enum common_code (*submit)(struct kernels_device *device, const struct kernels_device_item *items,
                               uint32_t n, const struct kernels_device_sink *sink, kernels_device_done *done,
                               void *arg, struct common_error *err);
};
