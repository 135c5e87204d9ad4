// SPDX-License-Identifier: Apache-2.0
// Stands for kernels/cuda/wgmma_lane.cuh when the kernels are compiled for the host. Descriptors are the
// device's, bit for bit, with addresses from the start of the block's shared memory;
// tests/emulation/cuda/warpgroup.cc reads matrices through them.
#pragma once

#include "kernels/cuda/lane.cuh"
#include "tests/emulation/cuda/warpgroup.h"

#define WGMMA_ROWS 1024u

LANE_DEVICE uint64_t wgmma_matrix(const void *p)
{
    const uint64_t eight = WGMMA_ROWS / 16;
    const uint64_t at = static_cast<uint64_t>(static_cast<const char *>(p) - lane_shared());
    return (at & 0x3ffffu) >> 4 | eight << 16 | eight << 32 | uint64_t{1} << 62;
}
LANE_DEVICE uint64_t wgmma_further(uint64_t matrix, uint32_t bytes)
{
    return (matrix & ~uint64_t{0xffffffff}) | (static_cast<uint32_t>(matrix) + bytes / 16);
}
LANE_DEVICE void wgmma_shared()
{
    emulated_group_shared();
}
LANE_DEVICE void wgmma_fence()
{
    emulated_group_fence();
}
LANE_DEVICE void wgmma_commit()
{
    emulated_group_commit();
}
template <int n> LANE_DEVICE void wgmma_wait(float (&)[32])
{
    emulated_group_wait(n);
}
template <bool bf16, bool add> LANE_DEVICE void wgmma_rows(float (&d)[32], uint64_t a, uint64_t b)
{
    emulated_group_product({bf16, add, false, {}, a, b, d});
}
template <bool bf16, bool add> LANE_DEVICE void wgmma_columns(float (&d)[32], const lane_a &a, uint64_t b)
{
    emulated_group_product({bf16, add, true, {a.x0, a.x1, a.x2, a.x3}, 0, b, d});
}
