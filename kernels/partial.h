// SPDX-License-Identifier: Apache-2.0
// The algebra of partial attention results, and the coverage that proves which keys a result has seen.
//
// What a set of keys K says about one query row and head is the triple
//
//     m = max x_j      s = sum exp(x_j - m)      o = sum exp(x_j - m) v_j          (float32, natural base)
//
// over the logits x_j of its visible keys. Triples of disjoint sets merge into the triple of their union, so
// partials climb a tree in any shape. (Tree Attention, arXiv 2408.04093: exp(m) s is the partition function,
// o/s its gradient.)
//
// Rules, each with a test in tests/kernels/partial_test.c:
//  - The identity is (-inf, +0, 0...). A side with s == 0 holds no mass: it is skipped, never multiplied,
//    whatever its m (unless NaN) and o hold. Nothing else marks emptiness: no finite sentinel, no +inf.
//  - A NaN in m or s, or in the o of a side with s != 0, comes out again. Who computes a partial with s == 0
//    and a NaN in o (0 times a NaN or infinite value) makes s NaN too.
//  - m = +inf (a logit of +inf) is IEEE's inf - inf: s and o are NaN. A logit of -inf has weight zero. A
//    kernel that saw keys, all of them at -inf, says s = -0: skipped beside any mass, and 0/0 = NaN when
//    finished alone, as IEEE has it. So a row that saw nothing gives zeros, and a row whose weights all
//    vanished gives NaN.
//  - Bits are those of this build on every CPU of an architecture: no libm, no contraction, no dispatch
//    inside.
//
// Nothing here allocates, blocks or logs; all functions may be called from any thread on distinct blocks.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/hash/coverage.h"

// A view of a block of partials: m[rows][heads], s[rows][heads], o[rows][heads][dv]. The memory is the
// caller's.
struct kernels_partial {
    uint32_t rows, heads, dv;
    float *m, *s, *o;
};

// Packed block, the layout on the wire: m, then s, then o, each padded with zeros to a multiple of 64 bytes.
// Bytes of one, or 0 if a dimension is 0 or the size passes 2^62 (so the sum of a few never wraps).
uint64_t kernels_partial_bytes(uint32_t rows, uint32_t heads, uint32_t dv);

// Lays a view over a packed block of kernels_partial_bytes() > 0 bytes, aligned to 64. Writes nothing.
void kernels_partial_view(void *block, uint32_t rows, uint32_t heads, uint32_t dv,
                          struct kernels_partial *out);

// Zeroes the padding of a packed block of kernels_partial_bytes() > 0 bytes, so that equal partials are equal
// bytes.
void kernels_partial_pad(void *block, uint32_t rows, uint32_t heads, uint32_t dv);

// Sets every partial to the identity.
void kernels_partial_reset(const struct kernels_partial *p);

// into = into + from. Shapes must be equal. Not commutative in its bits: merge in plan order.
void kernels_partial_merge(const struct kernels_partial *into, const struct kernels_partial *from);

// The same for a narrower block: from's head h and row r are merged into into's head first_head + h and row
// first_row + r.
void kernels_partial_merge_at(const struct kernels_partial *into, uint32_t first_row, uint32_t first_head,
                              const struct kernels_partial *from);

// Ends a reduction: o[rows][heads][dv] = p.o / p.s, lse[rows][heads] = p.m + log(p.s). Rows that saw nothing:
// zeros and -inf. sinks: NULL, or per head a logit that takes mass and gives no value ([heads]); it enters
// here, once, at the root alone. p is not altered; o may be p.o itself.
void kernels_partial_finish(const struct kernels_partial *p, const float *sinks, float *o, float *lse);

// What a result has seen: tokens counted, and the sum (mod 2^64) of a 64-bit mix for each (chunk, rows,
// epoch). Sums do not depend on order; a chunk that is counted twice, left out, cut short or stale makes
// another sum.
struct kernels_coverage {
    uint64_t tokens;
    uint64_t sum;
};

// The mix itself is in common/hash/coverage.h: the coordinator demands what we count.
static inline uint64_t kernels_coverage_mix(uint64_t chunk_id, uint64_t rows, uint64_t epoch)
{
    return common_coverage_mix(chunk_id, rows, epoch);
}

// Counts `rows` tokens of one chunk. Zero rows change nothing.
void kernels_coverage_count(struct kernels_coverage *c, uint64_t chunk_id, uint64_t rows, uint64_t epoch);

void kernels_coverage_add(struct kernels_coverage *into, const struct kernels_coverage *from);

bool kernels_coverage_equal(const struct kernels_coverage *a, const struct kernels_coverage *b);
