// SPDX-License-Identifier: Apache-2.0
// The float64 reference: what an exact answer is. Naive and two-pass; for tests, and for checks of served
// output.
#pragma once

#include "kernels/attention.h"

// What is needed to judge a row's error: see kernels_reference_bound_o and _lse.
struct kernels_reference_row {
    double lse;    // natural base, sinks included
    double x_abs;  // largest |logit| of a seen key
    double v_abs;  // largest |v| of a seen key
    double o_abs;  // largest |o|
    uint64_t keys; // keys seen
};

// The exact attention of a job's rows over all its keys: o[rows][group][v_dim] and rows[rows][group]. sinks:
// NULL, or [q_heads]. job->out is not used. A row that sees nothing: zeros and -inf. Allocates nothing.
void kernels_reference(const struct kernels_job *job, const float *sinks, double *o,
                       struct kernels_reference_row *rows);

// The project's promise: |o - ref| and |lse - ref| of any kernel, over any partition, stay within these.
double kernels_reference_bound_o(const struct kernels_reference_row *row);
double kernels_reference_bound_lse(const struct kernels_reference_row *row);
