// SPDX-License-Identifier: Apache-2.0
// What audits put together and judge, one query row and head at a time, in float64: parts over disjoint keys, as workers
// have computed them with the reference, become the exact answer, and what was answered is held to the promise
// (docs/internals/precision.md, "Computing: the bound"). Pure.
#ifndef COORDINATOR_AUDIT_SUM_H
#define COORDINATOR_AUDIT_SUM_H

#include <stdint.h>

struct coordinator_audit_sum {
    double top, s;       // largest lse of a part; Σ e^(lse − top)
    double x_abs, v_abs; // largest |logit| and |v| of a key that was seen
    double keys;         // seen
    double *o;           // [v_dim] Σ e^(lse − top) o: the caller's memory
};

// o: [v_dim], which it overwrites.
void coordinator_audit_sum_init(struct coordinator_audit_sum *sum, double *o, uint32_t v_dim);

// A part: [PROTO_AUDIT_HEAD + v_dim] numbers as in the answer to an Audit.
void coordinator_audit_sum_add(struct coordinator_audit_sum *sum, const double *part, uint32_t v_dim);

struct coordinator_audit_verdict {
    double
        error; // the largest, as a fraction of what is allowed: above 1 is wrong; infinite: nothing is allowed
    double got, want; // where it is
    double allowed;   // there
    int32_t dim;      // there: of o; -1: it is lse
};

// Ends the sum. sink: the head's, -INFINITY where it has none. o [v_dim] and lse as they were answered.
struct coordinator_audit_verdict coordinator_audit_sum_judge(struct coordinator_audit_sum *sum, double sink,
                                                             const float *o, float lse, uint32_t v_dim);

#endif
