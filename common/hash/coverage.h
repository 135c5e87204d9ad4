// SPDX-License-Identifier: Apache-2.0
// The mix behind coverage (docs/internals/architecture.md, "A step" 5): who demands a coverage (the
// coordinator) and who counts one (kernels/partial.h) must agree on it to the bit. Its values cross the wire.
#ifndef COMMON_COVERAGE_H
#define COMMON_COVERAGE_H

#include <stdint.h>

// The finaliser of MurmurHash3 in its variant 13 (Stafford 2011), as in splitmix64: a bijection of 64 bits.
static inline uint64_t common_coverage_scramble(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

// Of `rows` keys of one chunk in a layout of this epoch. Each input passes through a bijection before the
// next is added, so inputs that differ in one field never collide.
static inline uint64_t common_coverage_mix(uint64_t chunk_id, uint64_t rows, uint64_t epoch)
{
    uint64_t x = common_coverage_scramble(chunk_id + UINT64_C(0x9e3779b97f4a7c15));
    return common_coverage_scramble(common_coverage_scramble(x + rows) + epoch);
}

#endif
