// SPDX-License-Identifier: Apache-2.0
// Attention masses: what part of a row's attention each stretch of the context (bin), each worker and the
// sink took (docs/concepts/energy.md). Computed beside a step, when its lse is known: every worker that
// computes keys of the rows is asked what its bins weigh, all must answer, cover what the layout demands, and
// add up to 1.
//
//   coordinator ──Mass(q, lse)──▶ each holder of keys below `visible`
//               ◀──[rows][q_heads][its bins]──        bins of several workers add up, in the layout's order
#ifndef COORDINATOR_MASS_H
#define COORDINATOR_MASS_H

#include "common/base/trace.h"
#include "coordinator/steps/steps.h"
#include "proto/rpc/status.h"

struct coordinator_missing;
struct coordinator_session;

struct coordinator_masses { // what came out. Counts in coordinator_steps.bytes
    struct coordinator_steps *steps;
    struct proto_status failure; // code OK: none; otherwise only rows, heads and visible stand below
    uint32_t rows, heads;        // heads: all query heads, or 1: their mean
    uint32_t bins, n_workers;
    uint64_t bin_tokens, visible;
    char (*names)[65]; // [n_workers], by their first chunk
    uint64_t *tokens;  // [n_workers] keys below `visible`
    float *values;     // [rows][heads][bins | n_workers | sink]
    size_t bytes;      // of all that
};

static inline size_t coordinator_masses_columns(const struct coordinator_masses *m)
{
    return (size_t)m->bins + m->n_workers + 1;
}

void coordinator_masses_free(struct coordinator_masses *masses); // NULL is allowed
// The last row of it, on its own. NULL: out of memory, or more than a watched step may have; or it has
// failed.
struct coordinator_masses *coordinator_masses_last_row(const struct coordinator_masses *masses);

struct coordinator_mass_ask {
    struct coordinator_session *s; // counts in s->shared until `done`
    uint32_t layer, rows, bins;    // bins: at most
    bool heads;                    // of each
    uint64_t first, visible, block_first, block_count, deadline_ns;
    char trace[COMMON_TRACE_ID_TEXT]; // of the step, for the log; "-": none
    // Borrowed until `done`:
    const struct coordinator_missing *missing; // what the step has left out, and its masses do
    const uint8_t *q;                          // [rows][q_heads][k_dim]
    const float *lse;                          // [rows][q_heads]
};

// `done` runs exactly once, never on this stack, and owns what it is given, which is never NULL.
typedef void (*coordinator_mass_fn)(void *arg, struct coordinator_masses *masses);
void coordinator_mass_start(struct coordinator_steps *steps, const struct coordinator_mass_ask *ask,
                            coordinator_mass_fn done, void *arg);

#endif
