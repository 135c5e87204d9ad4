// SPDX-License-Identifier: Apache-2.0
// Hashes that cross the wire or reach the disk: their values are part of the format.
#ifndef COMMON_HASH_H
#define COMMON_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

// A bijection on 64 bits with good avalanche (the finaliser of splitmix64, Steele et al. 2014).
static inline uint64_t common_mix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t common_xxh3(const void *data, size_t len, uint64_t seed); // XXH3 64-bit of libxxhash
uint64_t common_xxh3_gather(const struct iovec *pieces,
                            size_t n); // with seed 0, of pieces that follow each other

bool common_cpu_avx2(void); // whether code compiled for AVX2 may run

#endif
