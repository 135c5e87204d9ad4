// SPDX-License-Identifier: Apache-2.0
// Kernels are compiled without the thread sanitizer, which would look at each load of their inner loops. In
// its builds this reports, before a kernel runs, all that the kernel is about to read and write: the same
// races are found at a tenth of the cost.
#pragma once

#include "kernels/attention.h"

#ifdef __SANITIZE_THREAD__

extern void __tsan_read_range(void *at, unsigned long bytes); // what compilers call; no header has them
extern void __tsan_write_range(void *at, unsigned long bytes);

static inline void kernels_watched_read(const void *at, uint64_t first, uint64_t n, uint64_t bytes)
{
    if (at && n)
        __tsan_read_range((char *)(uintptr_t)at + first * bytes, n * bytes);
}

// The rows of a run that some query row sees.
static inline void kernels_watched_run(const struct kernels_spec *spec, const struct kernels_run *run,
                                       struct kernels_interval seen)
{
    uint64_t end = run->first + run->rows, from = seen.from > run->first ? seen.from : run->first;
    uint64_t to = seen.to < end ? seen.to : end, n = to > from ? to - from : 0, at = from - run->first;
    uint32_t element = kernels_kv_bytes(spec->kv_type);
    kernels_watched_read(run->k, at, n, (uint64_t)spec->k_dim * element);
    if (kernels_kv_scaled(spec->kv_type))
        kernels_watched_read(run->k_scale, at, n, sizeof(float));
    if (spec->v_in_k)
        return;
    kernels_watched_read(run->v, at, n, (uint64_t)spec->v_dim * element);
    if (kernels_kv_scaled(spec->kv_type))
        kernels_watched_read(run->v_scale, at, n, sizeof(float));
}

static inline void kernels_watched(const struct kernels_attention *kernel, const struct kernels_job *jobs,
                                   uint32_t n, void *scratch)
{
    if (kernel->scratch_bytes)
        __tsan_write_range(scratch, kernel->scratch_bytes(jobs[0].spec, jobs[0].rows, n));
    for (uint32_t i = 0; i < n; i++) {
        const struct kernels_job *job = &jobs[i];
        const struct kernels_partial *out = &job->out;
        struct kernels_mask mask = kernels_job_mask(job);
        struct kernels_interval seen = kernels_row_interval(&mask, job->q_first);
        seen.to = kernels_row_interval(&mask, job->q_first + job->rows - 1).to;
        for (uint32_t r = 0; r < job->run_count; r++)
            kernels_watched_run(job->spec, &job->runs[r], seen);
        uint32_t group = kernels_spec_group(job->spec);
        for (uint32_t row = 0; row < job->rows; row++)
            for (uint32_t h = 0; h < group; h++)
                kernels_watched_read(job->q + row * job->q_row_stride + h * job->q_head_stride, 0, 1,
                                     job->spec->k_dim * sizeof(float));
        uint64_t answers = (uint64_t)job->rows * group;
        __tsan_write_range(out->m, answers * sizeof(float));
        __tsan_write_range(out->s, answers * sizeof(float));
        __tsan_write_range(out->o, answers * job->spec->v_dim * sizeof(float));
    }
}

#else

static inline void kernels_watched(const struct kernels_attention *kernel, const struct kernels_job *jobs,
                                   uint32_t n, void *scratch)
{
    (void)kernel;
    (void)jobs;
    (void)n;
    (void)scratch;
}

#endif
