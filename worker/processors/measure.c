// SPDX-License-Identifier: Apache-2.0
#include "worker/processors/measure.h"

#include <stdatomic.h>
#include <string.h>

#include "common/base/clock.h"
#include "kernels/attention.h"
#include "kernels/partial.h"
#include "worker/memory/memory.h"

enum { Q_HEADS = 32, KV_HEADS = 8, DIM = 128, RUN_ROWS = 256, SLICES = 5, SLICE_NS = 20 * 1000 * 1000 };

static const struct kernels_spec spec = {.kv_type = KERNELS_KV_BF16,
                                         .k_dim = DIM,
                                         .v_dim = DIM,
                                         .q_heads = Q_HEADS,
                                         .kv_heads = KV_HEADS,
                                         .scale = 0.08838834764831845f};

struct bench {
    const struct kernels_attention *kernel;
    const uint8_t *data;
    uint32_t runs;
    uint64_t deadline_ns;
    atomic_uint next;
    atomic_ullong bytes;
    float q[WORKER_MEASURE_Q_FLOATS];
};
_Static_assert(WORKER_MEASURE_Q_FLOATS == Q_HEADS / KV_HEADS * DIM &&
                   WORKER_MEASURE_RUN_BYTES == RUN_ROWS * DIM * 2 * 2,
               "what the header says");

void worker_measure_run(const struct kernels_attention *kernel, const uint8_t *data, const float *q,
                        void *scratch)
{
    float m[Q_HEADS / KV_HEADS], s[Q_HEADS / KV_HEADS], o[Q_HEADS / KV_HEADS * DIM];
    struct kernels_run run = {
        .k = data, .v = data + WORKER_MEASURE_RUN_BYTES / 2, .first = 0, .rows = RUN_ROWS};
    struct kernels_job job = {
        .spec = &spec,
        .rows = 1,
        .q_first = RUN_ROWS - 1,
        .visible = RUN_ROWS,
        .q = q,
        .q_row_stride = (uint64_t)Q_HEADS * DIM,
        .q_head_stride = DIM,
        .runs = &run,
        .run_count = 1,
        .out = {.rows = 1, .heads = Q_HEADS / KV_HEADS, .dv = DIM, .m = m, .s = s, .o = o}};
    kernel->run(&job, 1, scratch);
}

void worker_measure_query(float *q)
{
    for (size_t i = 0; i < WORKER_MEASURE_Q_FLOATS; i++)
        q[i] = 0.01f * (float)(i % 7);
}

const struct kernels_attention *worker_measure_default(void)
{
    return kernels_attention_default(&spec);
}

uint64_t worker_measure_scratch(const struct kernels_attention *kernel)
{
    return kernels_attention_scratch(kernel, &spec, 1, 1);
}

static void task(void *arg, uint32_t index, void *scratch)
{
    struct bench *bench = arg;
    (void)index;
    do {
        uint32_t at = atomic_fetch_add(&bench->next, 1) % bench->runs;
        worker_measure_run(bench->kernel, bench->data + at * WORKER_MEASURE_RUN_BYTES, bench->q, scratch);
        atomic_fetch_add(&bench->bytes, WORKER_MEASURE_RUN_BYTES);
    } while (common_clock_ns() < bench->deadline_ns);
}

static const struct kernels_attention *kernel_of(struct common_error *err)
{
    const struct kernels_attention *kernel = kernels_attention_default(&spec);
    if (!kernel)
        common_error_set(
            err, COMMON_FAILED_PRECONDITION,
            "BANYAN_KERNEL names no attention kernel that works on this machine: unset it or name another");
    return kernel;
}

const char *worker_measure_kernel(struct common_error *err)
{
    const struct kernels_attention *kernel = kernel_of(err);
    return kernel ? kernel->name : NULL;
}

enum common_code worker_measure(struct worker_team *team, uint64_t memory_bytes, struct worker_speed *out,
                                struct common_error *err)
{
    const size_t run_bytes = WORKER_MEASURE_RUN_BYTES;
    size_t bytes = (size_t)64 << 20; // beyond the caches of what this runs on
    if (bytes > memory_bytes)
        bytes = memory_bytes < run_bytes ? run_bytes : memory_bytes - memory_bytes % run_bytes;
    struct bench bench = {.kernel = kernel_of(err), .runs = (uint32_t)(bytes / run_bytes)};
    if (!bench.kernel)
        return COMMON_FAILED_PRECONDITION;
    struct worker_memory *memory = worker_memory_host(bytes, worker_team_place(team)); // as K and V lie
    uint8_t *data = memory ? worker_memory_alloc(memory, bytes, UINT64_MAX) : NULL;
    if (!data) {
        worker_memory_free(memory);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "the system has no memory to measure the kernel with");
    }
    memset(data, 0x3c, bytes); // small numbers, and every page is touched
    worker_measure_query(bench.q);
    bench.data = data;
    double best = 0; // others on this machine take from a slice, and none gives
    bool ok = true;
    for (int slice = 0; ok && slice < SLICES; slice++) {
        uint64_t start = common_clock_ns();
        bench.deadline_ns = start + SLICE_NS;
        atomic_store(&bench.bytes, 0);
        struct worker_job job = {.tasks = worker_team_threads(team),
                                 .scratch_bytes = worker_measure_scratch(bench.kernel),
                                 .run = task,
                                 .arg = &bench};
        ok = worker_team_run(team, &job);
        double rate = (double)atomic_load(&bench.bytes) * 1e9 / (double)(common_clock_ns() - start);
        best = rate > best ? rate : best;
    }
    worker_memory_release(memory, data);
    worker_memory_free(memory);
    if (!ok)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "the system has no memory to measure the kernel with");
    out->bytes_per_s = (uint64_t)best;
    out->kernel = bench.kernel->name;
    return COMMON_OK;
}
