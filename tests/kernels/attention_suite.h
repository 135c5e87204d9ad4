// SPDX-License-Identifier: Apache-2.0
// What the files of the conformance suite share: every kernel that this machine can run beside the float64
// reference.
#ifndef TESTS_KERNELS_ATTENTION_SUITE_H
#define TESTS_KERNELS_ATTENTION_SUITE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/reference.h"
#include "tests/kernels/data.h"

#define SUITE_TYPES 5

extern const enum kernels_kv_type suite_types[SUITE_TYPES];
extern const char *const suite_type_names[SUITE_TYPES];
extern bool suite_wanted[SUITE_TYPES]; // by the arguments

// Kernels that this machine can run, one after the other, from *i = 0 on; NULL: no more.
const struct kernels_attention *suite_next_kernel(uint32_t *i);

struct suite_answer {
    double *o;
    struct kernels_reference_row *rows;
};

struct suite_answer suite_reference(const struct data *d, const float *sinks);
void suite_answer_free(struct suite_answer *a);

// Finite where the reference is, and within the bound; not finite in the same way where it is not. kernel:
// its place in the registry.
void suite_compare(const struct data *d, const struct suite_answer *want, const struct kernels_partial *p,
                   const float *sinks, uint32_t kernel, const char *what);
struct kernels_partial suite_run_whole(const struct data *d, const struct kernels_attention *kernel);
void suite_check(struct data *d, const float *sinks, const char *what); // all kernels

struct kernels_spec suite_spec(enum kernels_kv_type type, uint32_t k_dim, uint32_t v_dim, uint32_t group);

int suite_report(void **state); // the largest errors so far

// Tests: attention_masks.c
void suite_every_mask(void **state);
void suite_latent_attention(void **state);
void suite_random_masks(void **state);
void suite_intervals_rise(void **state);
void suite_windows_behind_short_runs(void **state);
void suite_trap_interleaved_chunks_mask_by_position(void **state);
// attention_numbers.c
void suite_unseen_keys_do_not_leak(void **state);
void suite_causal_rows_do_not_leak(void **state);
void suite_not_finite_flows_through(void **state);
void suite_nan_codes_flow_through(void **state);
void suite_vanished_rows(void **state);
void suite_no_keys_is_the_identity(void **state);
void suite_largest_logit_is_m(void **state);

#endif
