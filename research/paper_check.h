// SPDX-License-Identifier: Apache-2.0
// What is exact: the float64 reference over all shards, and how far an answer is from it.
#ifndef RESEARCH_PAPER_CHECK_H
#define RESEARCH_PAPER_CHECK_H

#include "kernels/reference.h"
#include "research/paper_formula.h"

struct paper_exact {                    // of one query row
    double *o;                          // [q_heads][dim]
    struct kernels_reference_row *rows; // [q_heads]
};

bool paper_exact_init(struct paper_exact *exact, const struct paper_geometry *g); // the identity
void paper_exact_fini(struct paper_exact *exact);

// into = into + from, in float64, by the log-sum-exp.
void paper_exact_merge(struct paper_exact *into, const struct paper_exact *from,
                       const struct paper_geometry *g);

struct paper_error {
    double rel;   // max |o - exact| / largest |o| of its head
    double bound; // max |o - exact| / and |lse - exact| / over what kernels/reference.h allows
};
struct paper_error paper_check(const struct paper_exact *exact, const struct paper_geometry *g,
                               const float *o, const float *lse); // lse NULL: not checked

#endif
