// SPDX-License-Identifier: Apache-2.0
// The things that are timed, each on the same threads: an attention call, a plain read of the bytes that it
// needs, and the FMA units. Nanoseconds, wall clock.
#ifndef BENCH_ATTENTION_RUN_H
#define BENCH_ATTENTION_RUN_H

#include "bench/attention_data.h"
#include "bench/reader.h"

struct attention_call { // an attention call that may be repeated
    const struct attention_data *data;
    struct attention_team *team;
    struct kernels_spec spec;
    struct kernels_item item;
    struct kernels_split split;
    void *workspace, *block;
    char *scratch; // of all threads
    uint64_t scratch_stride;
    struct kernels_partial out;
    float *o, *lse; // [rows][q_heads][dim] and [rows][q_heads], after attention_call_finish
};

// False: no memory, said on stderr; fini is right either way. data must stay as it is.
bool attention_call_init(struct attention_call *call, const struct attention_data *data,
                         const struct kernels_attention *kernel, struct attention_team *team);
void attention_call_fini(struct attention_call *call);

// Lays out the tasks, runs them (each thread takes the next one, as a worker's threads do), merges.
uint64_t attention_call_run(struct attention_call *call);
void attention_call_finish(struct attention_call *call); // o and lse of the last run

// Compares some rows of the last run with the float64 reference; the largest |error| / bound, <= 1 if all is
// right (NaN if not a number).
double attention_call_error(struct attention_call *call);

struct attention_reading { // how memory is read
    const struct reader *reader;
    uint64_t piece; // bytes that a thread takes at a time
};

uint64_t attention_read_run(struct attention_team *team, const char *memory, uint64_t bytes,
                            const struct attention_reading *how);

// Tries the readers of `isa` and below (the portable ones only if there are no others) over these bytes and
// takes the fastest: all once, then the best few in turns, since noise must not choose.
struct attention_reading attention_read_choose(struct attention_team *team, const char *memory,
                                               uint64_t bytes, enum reader_isa isa);

// float32 flops per second of all threads together, over about a millisecond.
double attention_fma_run(struct attention_team *team, enum reader_isa isa);

double attention_median(const double *samples, uint32_t n); // n <= 64

#endif
