// SPDX-License-Identifier: Apache-2.0
// Products of a warpgroup (PTX wgmma, compute capability 9.0 alone), each function for one lane of the 128.
//
// The tests compile the kernels for the host against another file of this name, with the same functions.
//
// All products are d[64][64] = a[64][16] b[16][64] (+ d), 16-bit elements, float32 sums. Of d and of an `a` in
// registers warp w has rows 16 w to 16 w + 15:
//     d[4 j], d[4 j + 1]: row g, columns 8 j + 2 t, + 1    d[4 j + 2], d[4 j + 3]: the same of row g + 8
//     a: as in lane_a
// Matrices in shared memory are rows of 128 bytes whose pieces of 16 bytes are swizzled: piece c of row r stands
// at c ^ (r % 8). Eight rows are 1,024 bytes, aligned to as many.
#pragma once

#include "kernels/cuda/lane.cuh"

#define WGMMA_ROWS 1024u // bytes of eight rows

// The descriptor of a matrix in shared memory (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory
// Layout"): address / 16 | leading offset / 16 | stride / 16 | swizzle of 128 bytes. Stride: from eight rows to
// the next. Leading: not used with 64 columns; the same, so that nothing depends on which is which.
LANE_DEVICE uint64_t wgmma_matrix(const void *p)
{
    const uint64_t eight = WGMMA_ROWS / 16;
    uint32_t low = (lane_place_of(p) & 0x3ffffu) >> 4 | static_cast<uint32_t>(eight) << 16;
    asm volatile("" : "+r"(low)); // what is computed from it is not kept in registers from round to round
    return low | eight << 32 | 1ull << 62;
}

// Of what lies `bytes` further on: steps of 32 along a row, of WGMMA_ROWS across.
LANE_DEVICE uint64_t wgmma_further(uint64_t matrix, uint32_t bytes)
{
    return (matrix & ~0xffffffffull) | (static_cast<uint32_t>(matrix) + bytes / 16);
}

// What lanes wrote to shared memory, or had copied, is there for products: between a wait and a barrier.
LANE_DEVICE void wgmma_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Before a product that uses registers which anything but a product touched.
LANE_DEVICE void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

LANE_DEVICE void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

#define WGMMA_32                                                                                             \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "  \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define WGMMA_D(c)                                                                                           \
    c(d[0]), c(d[1]), c(d[2]), c(d[3]), c(d[4]), c(d[5]), c(d[6]), c(d[7]), c(d[8]), c(d[9]), c(d[10]),      \
        c(d[11]), c(d[12]), c(d[13]), c(d[14]), c(d[15]), c(d[16]), c(d[17]), c(d[18]), c(d[19]), c(d[20]),  \
        c(d[21]), c(d[22]), c(d[23]), c(d[24]), c(d[25]), c(d[26]), c(d[27]), c(d[28]), c(d[29]), c(d[30]),  \
        c(d[31])
#define WGMMA_ANEW(x) "=f"(x) // d is not read: no zeros are moved to it
#define WGMMA_MORE(x) "+f"(x)

// Until at most n groups are under way; d is one that is complete then.
template <int n> LANE_DEVICE void wgmma_wait(float (&d)[32])
{
    asm volatile("wgmma.wait_group.sync.aligned %32;" : WGMMA_D(WGMMA_MORE) : "n"(n) : "memory");
}

// Both in shared memory: a by rows of 16 elements and more, b by columns of as many.
#define WGMMA_ROWS_PRODUCT(constraint, add, kind)                                                            \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " add ", 0; "                                                \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." kind " " WGMMA_32                             \
                 ", %32, %33, p, 1, 1, 0, 0;}"                                                               \
                 : WGMMA_D(constraint)                                                                       \
                 : "l"(a), "l"(b)                                                                            \
                 : "memory")

template <bool bf16, bool add> LANE_DEVICE void wgmma_rows(float (&d)[32], uint64_t a, uint64_t b)
{
    if constexpr (bf16 && add)
        WGMMA_ROWS_PRODUCT(WGMMA_MORE, "1", "bf16.bf16");
    else if constexpr (bf16)
        WGMMA_ROWS_PRODUCT(WGMMA_ANEW, "0", "bf16.bf16");
    else if constexpr (add)
        WGMMA_ROWS_PRODUCT(WGMMA_MORE, "1", "f16.f16");
    else
        WGMMA_ROWS_PRODUCT(WGMMA_ANEW, "0", "f16.f16");
}

// a in registers, b in shared memory by its 16 rows of 64 elements.
#define WGMMA_COLUMNS_PRODUCT(constraint, add, kind)                                                         \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " add ", 0; "                                                \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." kind " " WGMMA_32                             \
                 ", {%32, %33, %34, %35}, %36, p, 1, 1, 1;}"                                                 \
                 : WGMMA_D(constraint)                                                                       \
                 : "r"(a.x0), "r"(a.x1), "r"(a.x2), "r"(a.x3), "l"(b)                                        \
                 : "memory")

template <bool bf16, bool add> LANE_DEVICE void wgmma_columns(float (&d)[32], const lane_a &a, uint64_t b)
{
    if constexpr (bf16 && add)
        WGMMA_COLUMNS_PRODUCT(WGMMA_MORE, "1", "bf16.bf16");
    else if constexpr (bf16)
        WGMMA_COLUMNS_PRODUCT(WGMMA_ANEW, "0", "bf16.bf16");
    else if constexpr (add)
        WGMMA_COLUMNS_PRODUCT(WGMMA_MORE, "1", "f16.f16");
    else
        WGMMA_COLUMNS_PRODUCT(WGMMA_ANEW, "0", "f16.f16");
}
