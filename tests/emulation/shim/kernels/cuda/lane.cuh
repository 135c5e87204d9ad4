// SPDX-License-Identifier: Apache-2.0
// Stands for kernels/cuda/lane.cuh when the kernels are compiled for the host: the same functions, and what
// of CUDA C++ the kernels use. Lanes are fibers; what a warp does together is done when its last lane arrives
// (tests/emulation/cuda/warp.cc).
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/tensor/float16.h"
#include "common/tensor/float8.h"
#include "tests/emulation/cuda/warp.h"

#ifndef LANE_FP8 // builds with a sanitizer compute as sm_80 does, others as sm_90
#define LANE_FP8 1
#endif

#define __device__
#define __global__
#define __launch_bounds__(...)
#define LANE_DEVICE inline
#define threadIdx   (emulated_self->thread)
#define blockIdx    (emulated_self->block)
#define gridDim     (emulated_self->grid)

using std::max;
using std::min;

struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

LANE_DEVICE uint2 make_uint2(uint32_t x, uint32_t y)
{
    return {x, y};
}
LANE_DEVICE float2 make_float2(float x, float y)
{
    return {x, y};
}
LANE_DEVICE float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
LANE_DEVICE uint32_t __float_as_uint(float x)
{
    return common_float_bits(x);
}
LANE_DEVICE float __uint_as_float(uint32_t x)
{
    return common_float_from_bits(x);
}
LANE_DEVICE uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selectors)
{
    uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    uint32_t y = 0;
    for (int i = 0; i < 4; i++)
        y |= static_cast<uint32_t>(both >> ((selectors >> (4 * i) & 7) * 8) & 0xff) << (8 * i);
    return y;
}
LANE_DEVICE void __syncwarp()
{
    emulated_warp(EMULATED_SYNC, nullptr, 0, nullptr, 0);
}
LANE_DEVICE void __syncthreads()
{
    emulated_block(false);
}
LANE_DEVICE int __syncthreads_or(int x)
{
    return emulated_block(x != 0);
}
LANE_DEVICE bool __any_sync(uint32_t, bool x)
{
    uint32_t in = x, out;
    emulated_warp(EMULATED_ANY, &in, 1, &out, 1);
    return out != 0;
}
LANE_DEVICE uint32_t emulated_shuffle(uint32_t x, uint32_t from)
{
    uint32_t in[2] = {x, from}, out;
    emulated_warp(EMULATED_SHUFFLE, in, 2, &out, 1);
    return out;
}
LANE_DEVICE float __shfl_sync(uint32_t, float x, int from)
{
    return __uint_as_float(emulated_shuffle(__float_as_uint(x), static_cast<uint32_t>(from) % 32));
}
LANE_DEVICE float __shfl_xor_sync(uint32_t, float x, int mask)
{
    return __uint_as_float(
        emulated_shuffle(__float_as_uint(x), threadIdx.x % 32 ^ static_cast<uint32_t>(mask)));
}
LANE_DEVICE int __shfl_xor_sync(uint32_t, int x, int mask)
{
    return static_cast<int>(
        emulated_shuffle(static_cast<uint32_t>(x), threadIdx.x % 32 ^ static_cast<uint32_t>(mask)));
}

LANE_DEVICE int __reduce_max_sync(uint32_t, int x)
{
    for (int i = 16; i > 0; i /= 2)
        x = max(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

LANE_DEVICE char *lane_shared()
{
    return emulated_self->shared;
}
template <class T> LANE_DEVICE T *lane_global(T *p)
{
    return p;
}

typedef char *lane_place;

LANE_DEVICE lane_place lane_place_of(const void *p)
{
    return const_cast<char *>(static_cast<const char *>(p));
}
LANE_DEVICE void lane_copy16(lane_place to, const void *from, bool wanted)
{
    emulated_copy(to, from, 16, wanted);
}
LANE_DEVICE void lane_copy4(lane_place to, const void *from, bool wanted)
{
    emulated_copy(to, from, 4, wanted);
}
LANE_DEVICE void lane_copy_commit()
{
    emulated_copy_commit();
}
template <int n> LANE_DEVICE void lane_copy_wait()
{
    emulated_copy_wait(n);
}
template <int n> LANE_DEVICE void lane_copy_wait_after(uint32_t)
{
    emulated_copy_wait(n);
}

struct lane_a {
    uint32_t x0, x1, x2, x3;
};
LANE_DEVICE lane_a emulated_matrices(enum emulated_operation operation, lane_place row)
{
    uint32_t in[2], out[4];
    std::memcpy(in, &row, sizeof(in));
    emulated_warp(operation, in, 2, out, 4);
    return {out[0], out[1], out[2], out[3]};
}
LANE_DEVICE lane_a lane_matrices(lane_place row)
{
    return emulated_matrices(EMULATED_MATRICES, row);
}
LANE_DEVICE lane_a lane_matrices_transposed(lane_place row)
{
    return emulated_matrices(EMULATED_MATRICES_TRANSPOSED, row);
}
LANE_DEVICE void emulated_mma(enum emulated_operation operation, float (&d)[4], const lane_a &a, uint2 b)
{
    uint32_t in[10] = {a.x0, a.x1, a.x2, a.x3, b.x, b.y}, out[4];
    std::memcpy(in + 6, d, sizeof(d));
    emulated_warp(operation, in, 10, out, 4);
    std::memcpy(d, out, sizeof(d));
}
LANE_DEVICE void lane_mma_bf16(float (&d)[4], const lane_a &a, uint2 b)
{
    emulated_mma(EMULATED_MMA_BF16, d, a, b);
}
LANE_DEVICE void lane_mma_f16(float (&d)[4], const lane_a &a, uint2 b)
{
    emulated_mma(EMULATED_MMA_F16, d, a, b);
}
LANE_DEVICE uint32_t lane_transpose(uint32_t x)
{
    uint32_t y;
    emulated_warp(EMULATED_TRANSPOSE, &x, 1, &y, 1);
    return y;
}
LANE_DEVICE uint32_t lane_f16x2_pack(float low, float high)
{
    return common_f16_from_float(low) | static_cast<uint32_t>(common_f16_from_float(high)) << 16;
}
LANE_DEVICE float lane_f16_low(uint32_t x)
{
    return common_f16_to_float(static_cast<uint16_t>(x));
}
LANE_DEVICE float lane_f16_high(uint32_t x)
{
    return common_f16_to_float(static_cast<uint16_t>(x >> 16));
}
LANE_DEVICE uint32_t lane_f16x2_sub(uint32_t a, uint32_t b)
{
    return lane_f16x2_pack(lane_f16_low(a) - lane_f16_low(b), lane_f16_high(a) - lane_f16_high(b));
}
LANE_DEVICE uint32_t lane_f16x2_mul(uint32_t a, uint32_t b)
{
    return lane_f16x2_pack(lane_f16_low(a) * lane_f16_low(b), lane_f16_high(a) * lane_f16_high(b));
}

#if LANE_FP8
LANE_DEVICE uint32_t lane_fp8_widen(uint32_t codes)
{
    return lane_f16x2_pack(common_fp8_to_float(static_cast<uint8_t>(codes)),
                           common_fp8_to_float(static_cast<uint8_t>(codes >> 8)));
}
#endif
