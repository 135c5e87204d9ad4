// SPDX-License-Identifier: Apache-2.0
// Attention of one row in float64, over keys and values that come piece by piece: what an answer is compared
// with. Plain loops and no kernel of ours, so that a defect of theirs is not repeated. Pure; one thread at a
// time on a row.
//
// Formulas: x = scale q·k; soft cap c tanh(x/c); ALiBi − slope (position − key); o = Σ e^(x−m) v / Σ e^(x−m),
// sinks in the denominator; lse = m + ln Σ.
#ifndef CLIENT_EXACT_H
#define CLIENT_EXACT_H

#include <stdint.h>

#include "client/banyan.h"
#include "proto/model/spec.h"

struct exact_row;

// q [q_heads][k_dim] stays the caller's, and what the layer points to, until the row is freed. NULL: out of
// memory.
struct exact_row *exact_row_new(const struct proto_layer *layer, banyan_kv_type type, uint64_t position,
                                uint64_t visible, const float *q);
// It lies in a block of rows that see each other, [first, end). Before exact_row_from.
void exact_row_in_block(struct exact_row *row, uint64_t visible, uint64_t first, uint64_t end);
void exact_row_free(struct exact_row *row); // NULL is allowed

uint64_t exact_row_from(const struct exact_row *row); // the first key that it sees
uint64_t exact_row_to(const struct exact_row *row);   // behind the last one; not below exact_row_from
// Keys at [first, first + count), in any order of pieces; those that the row does not see are left out. k, v,
// k_scale, v_scale as banyan_read_rows gives them.
void exact_row_add(struct exact_row *row, uint64_t first, uint64_t count, const void *k, const float *k_scale,
                   const void *v, const float *v_scale);

struct exact_verdict {
    uint64_t keys;    // seen
    double o, lse;    // largest error by the bound (docs/internals/precision.md): above 1 is wrong
    uint32_t head;    // where o was, or else lse, or both 0
    double got, want; // there
};
// o [q_heads][v_dim] and lse [q_heads] as they were answered. Once, at the end.
struct exact_verdict exact_row_judge(struct exact_row *row, const float *o, const float *lse);

#endif
