// SPDX-License-Identifier: Apache-2.0
// Private to kernels/cuda: a device, and what its files ask of each other.
//
//     submit ── plan (pure) ──▶ slot's pinned buffer ──▶ upload stream ──event──▶ compute stream
//                                 └─ compute stream, in order, from a graph where it repeats:
//                                    one launch a kernel, merge (which writes to pinned memory), event
//     waiter (a thread) ── waits for the event ──▶ copies partials out ──▶ done()
//
//     write ──▶ pinned segments ──▶ copy stream ──event──▶ compute stream, where a step comes after it
#pragma once

#include <cuda_runtime.h>
#include <pthread.h>

#include "kernels/cuda/args.h"
#include "kernels/device.h"

// ---- plan.c: items in, sizes and the argument buffer out; pure -------------------------------------------

struct cuda_plan_item {
    uint32_t class_index, pass, place; // place: among all items, sorted by pass and class
    uint32_t width, tiles, unit_blocks, unit_count, round_units, pieces;
    uint64_t q, alibi, units, runs, partial, carry, out; // as in struct cuda_item
};

struct cuda_plan_pass {
    struct cuda_header header;
    uint32_t rounds;
    uint64_t floats;                // of the workspace
    uint32_t longest[CUDA_CLASSES]; // units of a class's items, in blocks of keys
};

struct cuda_plan {
    struct cuda_plan_item *items; // capacity item_cap
    struct cuda_plan_pass *passes;
    uint32_t item_cap, pass_count, pass_cap;
    uint64_t args_bytes, out_floats;
    uint64_t read_bytes;     // of K and V, each row once: more than masks let be read
    uint64_t partial_floats; // of the workspace: the largest pass's
};

// NULL if steps of this (valid) spec can be computed, else why not.
const char *cuda_plan_spec_problem(const struct kernels_spec *spec);
// Lays out a launch. INVALID_ARGUMENT, or RESOURCE_EXHAUSTED (its own table, or too many tasks).
enum common_code cuda_plan_make(struct cuda_plan *plan, const struct kernels_device_item *items, uint32_t n,
                                const struct kernels_device_sink *sink, struct common_error *err);
// Fills a buffer of args_bytes.
void cuda_plan_fill(const struct cuda_plan *plan, const struct kernels_device_item *items, uint32_t n,
                    void *args);
void cuda_plan_fini(struct cuda_plan *plan);
uint32_t cuda_plan_element(enum kernels_kv_type type); // bytes
uint32_t cuda_plan_round_grid(uint32_t n);             // up, by at most an eighth
// The blocks of threads to launch for a class's tasks. resident: how many the device holds at once, of a kernel
// whose blocks go on from task to task; 0: of another.
uint32_t cuda_plan_grid(const struct cuda_plan_pass *pass, uint32_t class_index, uint32_t resident);
// The kernel of a class. wgmma: products of a warpgroup where there are any (wgmma.cuh).
const struct cuda_kernel *cuda_plan_kernel(uint32_t class_index, bool wgmma);
// Whether a device of this compute capability computes so: 9.0 alone, and where BANYAN_CUDA_WGMMA is 1.
bool cuda_plan_wgmma(int major, int minor);

// ---- pool.c: blocks in few large regions ----------------------------------------------------------------

#define CUDA_GRANULE 4096u
#define CUDA_REGION  KERNELS_DEVICE_BLOCK // bytes, where there are as many; the largest block

struct cuda_pool;

struct cuda_pool *cuda_pool_new(void);
void cuda_pool_free(struct cuda_pool *pool); // NULL is allowed
// A block of bytes > 0 in a region that is there already. 0: there is none.
uint64_t cuda_pool_take(struct cuda_pool *pool, uint64_t bytes);
void cuda_pool_give(struct cuda_pool *pool, uint64_t address);
// Adds a region of device memory, a multiple of CUDA_GRANULE. False: no memory for its table.
bool cuda_pool_add(struct cuda_pool *pool, uint64_t base, uint64_t bytes);
uint64_t cuda_pool_used(const struct cuda_pool *pool);
uint32_t cuda_pool_regions(const struct cuda_pool *pool);
uint64_t cuda_pool_region(const struct cuda_pool *pool, uint32_t i);
// The block that an address lies in. False: in none.
bool cuda_pool_block(const struct cuda_pool *pool, uint64_t address, uint64_t *start, uint64_t *end);

// ---- the device ------------------------------------------------------------------------------------------

#define CUDA_SLOTS    4u  // submissions under way
#define CUDA_GRAPHS   16u // a slot
#define CUDA_SEGMENTS 4u
#define CUDA_SEGMENT  ((uint64_t)2 << 20) // bytes

struct cuda_graph { // one shape of step in one slot
    uint64_t key;
    uint64_t used;        // clock of the last use; 0 = free
    cudaGraphExec_t exec; // NULL: seen once
};

struct cuda_buffer { // host side of what travels, and the device's where it has one
    void *host, *device;
    uint64_t bytes;
};

struct cuda_old {
    struct cuda_old *next;
    void *memory;
    bool pinned;
};

struct cuda_slot {
    bool busy;
    struct cuda_buffer args, out;
    cudaEvent_t uploaded, done_event;
    int64_t expected_ns;          // how long its reads take at least
    struct kernels_partial *outs; // where the partials go
    uint32_t out_count, out_cap;
    kernels_device_done *done;
    void *arg;
    struct cuda_graph graphs[CUDA_GRAPHS];
};

struct cuda_segment {
    char *host;
    uint64_t filled;
    cudaEvent_t copied;
    bool pending;
};

struct kernels_device {
    int index;
    struct kernels_device_info info;
    uint64_t taken;   // device memory: regions, workspace, slots
    uint64_t steps;   // of it: workspace, slots
    uint64_t reserve; // of the limit, what regions leave for steps
    bool before_90;   // compute capability 8.x
    bool wgmma;       // cuda_plan_wgmma()
    uint32_t
        resident[CUDA_CLASSES]; // blocks of threads at once, of kernels that go on from task to task; else 0
    bool pooled;                // the runtime frees the workspace in the order of the stream
    double bytes_per_ns;        // that memory reads, as the hardware says; 0: unknown
    struct cuda_pool *pool;
    struct cuda_plan plan;
    cudaStream_t compute, upload, copy;
    cudaEvent_t written;
    bool fresh_writes; // since the last step
    void *workspace;
    uint64_t workspace_bytes;
    uint64_t workspace_most; // that a step asked for, of the last workspace_steps
    uint32_t workspace_steps;
    uint64_t clock;
    struct cuda_old *old; // buffers that were outgrown; they go with the device: freeing waits for it
    struct cuda_segment segments[CUDA_SEGMENTS];
    uint32_t segment;
    struct cuda_slot slots[CUDA_SLOTS];
    // shared with the waiter, under lock
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t waiter;
    bool has_waiter, stop, lost;
    struct common_error reason;
    uint32_t queue[CUDA_SLOTS], queued; // slots in the order of submission
};

// Notes an error of the runtime: OK stays OK, memory is RESOURCE_EXHAUSTED, anything else loses the device.
enum common_code cuda_device_check(struct kernels_device *device, cudaError_t error, const char *what,
                                   struct common_error *err);
// UNAVAILABLE when the device is lost. Else makes it this thread's.
enum common_code cuda_device_enter(struct kernels_device *device, struct common_error *err);
// Device memory within the limit.
enum common_code cuda_device_take(struct kernels_device *device, uint64_t bytes, void **out,
                                  struct common_error *err);

// Dynamic shared memory of a kernel on this device.
uint32_t cuda_device_shared(const struct kernels_device *device, const struct cuda_kernel *kernel);

// ---- step.c, transfer.c -----------------------------------------------------------------------------------

enum common_code cuda_step_init(struct kernels_device *device, struct common_error *err);
void cuda_step_fini(struct kernels_device *device); // waits; NULL parts are fine
enum common_code cuda_step_submit(struct kernels_device *device, const struct kernels_device_item *items,
                                  uint32_t n, const struct kernels_device_sink *sink,
                                  kernels_device_done *done, void *arg, struct common_error *err);

enum common_code cuda_transfer_init(struct kernels_device *device, struct common_error *err);
void cuda_transfer_fini(struct kernels_device *device);
enum common_code cuda_transfer_write(struct kernels_device *device, const struct kernels_device_piece *pieces,
                                     uint32_t count, struct common_error *err);
enum common_code cuda_transfer_read(struct kernels_device *device, const struct kernels_device_piece *pieces,
                                    uint32_t count, struct common_error *err);
enum common_code cuda_transfer_copy(struct kernels_device *device, const struct kernels_device_copy *copies,
                                    uint32_t count, struct common_error *err);
