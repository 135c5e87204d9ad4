// SPDX-License-Identifier: Apache-2.0
// Inputs for kernel tests: a job with its keys, made from a recipe and a seed, cut into runs as asked. Each
// run has allocations of its own, exactly as long as it is, so a sanitizer sees a read past its end.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/attention.h"

enum data_mode {
    DATA_RANDOM,     // q, k, v normal, logits about +-4
    DATA_LARGE,      // the same with logits up to +-1e4
    DATA_NEAR_TIES,  // all logits within a few units in the last place of 1e4 and of each other
    DATA_DOMINANT,   // one key far above the rest
    DATA_EQUAL,      // all keys and all values equal
    DATA_CANCEL,     // equal keys, values that sum to about zero
    DATA_ASCENDING,  // each key a little above the one before
    DATA_SMALL_RISE, // the same, by less than an ulp or two each
    DATA_MODES
};

struct data {
    const char *name;
    struct kernels_spec spec; // one KV head; alibi may point to a table of q_heads
    enum data_mode mode;
    uint32_t rows, keys;
    uint64_t key_first, q_first, visible; // keys stand at positions key_first ..
    uint64_t block_first, block_end;
    // made by data_make
    float *q, *k, *v; // float32 masters: [rows][q_heads][k_dim], [keys][k_dim], [keys][v_dim]
    struct kernels_run *runs;
    uint32_t run_count;
};

// A reproducible stream of numbers.
struct data_random {
    uint64_t state;
};
uint64_t data_random_u64(struct data_random *r);
uint32_t data_random_below(struct data_random *r, uint32_t n);
float data_random_normal(struct data_random *r);

const char *data_mode_name(enum data_mode mode);

// Fills the masters by the recipe and cuts one run over all keys.
void data_make(struct data *d, uint64_t seed);
void data_free(struct data *d);

// Cuts the keys again: runs of lengths[i % n] keys until none are left.
void data_cut(struct data *d, const uint32_t *lengths, uint32_t n);
// Frees the runs and leaves none.
void data_uncut(struct data *d);
// Puts a copy of keys first .. first + rows - 1 of the master into a run (freed by data_run_free); with
// v_in_k, no values.
struct kernels_run data_run(const struct data *d, uint32_t first, uint32_t rows);
void data_run_free(struct kernels_run *run);
void data_shuffle_runs(struct data *d, uint64_t seed);

struct kernels_job data_job(const struct data *d);

// Owned partial blocks.
struct kernels_partial data_partial(uint32_t rows, uint32_t heads, uint32_t dv);
void data_partial_free(struct kernels_partial *p);

// Runs a kernel with scratch of the size it asked for, full of NaN.
void data_run_kernel(const struct kernels_attention *kernel, const struct kernels_job *job);
