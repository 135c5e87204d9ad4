// SPDX-License-Identifier: Apache-2.0
#include "bench/attention_cost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bench/attention_run.h"
#include "common/memory/blob.h"

enum { BATCHES = 60, BATCH_NS = 200000, ADDS = 40000 };

static double thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static double chain_ns(void)
{
    double start = thread_ns();
    uint64_t x = 1, y = 3;
    __asm__ volatile("" : "+r"(y)); // not a constant: some cores add those for nothing
    for (int i = 0; i < ADDS; i += 20) {
#pragma GCC unroll 20
        for (int j = 0; j < 20; j++) {
            x += y;
            __asm__ volatile("" : "+r"(x)); // in order, none folded
        }
    }
    return thread_ns() - start;
}

bool attention_cost_measure(const struct attention_data *data, const struct kernels_attention *kernel,
                            struct attention_cost *out)
{
    struct kernels_spec spec;
    struct kernels_item item;
    attention_data_item(data, kernel, &spec, &item);
    uint32_t group = kernels_spec_group(&spec);
    void *scratch =
        aligned_alloc(KERNELS_ALIGN,
                      common_align64(kernels_attention_scratch(kernel, &spec, item.rows, 1) + 64));
    void *block = aligned_alloc(KERNELS_ALIGN, kernels_partial_bytes(item.rows, group, spec.v_dim));
    if (!scratch || !block) {
        fprintf(stderr, "attention: no memory for a job\n");
        free(scratch);
        free(block);
        return false;
    }
    struct kernels_job job = {.spec = &spec,
                              .rows = item.rows,
                              .q_first = item.q_first,
                              .visible = item.visible,
                              .block_first = item.block_first,
                              .block_end = item.block_end,
                              .q = item.q,
                              .q_row_stride = item.q_row_stride,
                              .q_head_stride = item.q_head_stride,
                              .runs = item.runs,
                              .run_count = item.run_count};
    kernels_partial_view(block, item.rows, group, spec.v_dim, &job.out);
    double ns[BATCHES], chain = INFINITY, least = INFINITY;
    uint32_t repeats = 1;
    for (double took = 0; took < BATCH_NS / 2.0 && repeats < 1u << 20; repeats *= 2) {
        double start = thread_ns();
        for (uint32_t r = 0; r < repeats; r++)
            kernel->run(&job, 1, scratch);
        took = thread_ns() - start;
    }
    for (int i = 0; i < BATCHES; i++) {
        double start = thread_ns();
        for (uint32_t r = 0; r < repeats; r++)
            kernel->run(&job, 1, scratch);
        ns[i] = (thread_ns() - start) / repeats;
        least = fmin(least, ns[i]);
        chain = fmin(chain, chain_ns());
    }
    *out =
        (struct attention_cost){.ns = least, .median_ns = attention_median(ns, BATCHES), .ghz = ADDS / chain};
    free(scratch);
    free(block);
    return true;
}
