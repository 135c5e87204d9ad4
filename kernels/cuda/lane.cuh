// SPDX-License-Identifier: Apache-2.0
// The instructions that C++ has no name for, each for one lane. g = lane / 4, t = lane % 4.
//
// The tests compile the kernels for the host against another file of this name, with the same functions.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#define LANE_DEVICE __device__ __forceinline__

// Whether codes of fp8 become binary16 in one instruction, NaN included.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define LANE_FP8 1
#else
#define LANE_FP8 0
#endif

extern __shared__ __align__(1024) uint4 lane_shared_memory[];

LANE_DEVICE char *lane_shared()
{
    return reinterpret_cast<char *>(lane_shared_memory);
}

// Marks an address as one of global memory for the compiler.
template <class T> LANE_DEVICE T *lane_global(T *p)
{
    return static_cast<T *>(__cvta_global_to_generic(reinterpret_cast<uint64_t>(p)));
}

// A place in shared memory, to count bytes from.
typedef uint32_t lane_place;

LANE_DEVICE lane_place lane_place_of(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Starts a copy of 16 bytes from global to shared memory, past L1; zeros if not `wanted` (from is not read
// then).
LANE_DEVICE void lane_copy16(lane_place to, const void *from, bool wanted)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(wanted ? 16 : 0)
                 : "memory");
}

LANE_DEVICE void lane_copy4(lane_place to, const void *from, bool wanted)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(wanted ? 4 : 0)
                 : "memory");
}

LANE_DEVICE void lane_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until at most n of this lane's groups are under way.
template <int n> LANE_DEVICE void lane_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

// The same, not before `tie` is there: for copies alone ptxas moves the wait in front of products that need
// none of them, and they wait with it. Whatever the value, it waits for no less.
template <int n> LANE_DEVICE void lane_copy_wait_after(uint32_t tie)
{
    asm volatile("{.reg .pred p; setp.ne.u32 p, %0, 0xffffffff; @p cp.async.wait_group %1; "
                 "@!p cp.async.wait_group 0;}" ::"r"(tie),
                 "n"(n)
                 : "memory");
}

// d[16][8] = a[16][16] b[16][8] + c, two 16-bit elements a register:
//     a0: a[g][2t, 2t+1]  a1: a[g+8][2t, 2t+1]  a2: a[g][2t+8, 2t+9]  a3: a[g+8][2t+8, 2t+9]
//     b0: b[2t, 2t+1][g]  b1: b[2t+8, 2t+9][g]
//     d0, d1: d[g][2t, 2t+1]  d2, d3: d[g+8][2t, 2t+1]
struct lane_a {
    uint32_t x0, x1, x2, x3;
};

// Four matrices of 8 x 8 elements of 16 bits: lane i names row i % 8 of matrix i / 8, 16 bytes; x0 .. x3 are
// elements [g][2t, 2t+1] of each, or [2t, 2t+1][g].
LANE_DEVICE lane_a lane_matrices(lane_place row)
{
    lane_a a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a.x0), "=r"(a.x1), "=r"(a.x2), "=r"(a.x3)
                 : "r"(row)
                 : "memory");
    return a;
}

LANE_DEVICE lane_a lane_matrices_transposed(lane_place row)
{
    lane_a a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a.x0), "=r"(a.x1), "=r"(a.x2), "=r"(a.x3)
                 : "r"(row)
                 : "memory");
    return a;
}

LANE_DEVICE void lane_mma_bf16(float (&d)[4], const lane_a &a, uint2 b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a.x0), "r"(a.x1), "r"(a.x2), "r"(a.x3), "r"(b.x), "r"(b.y));
}

LANE_DEVICE void lane_mma_f16(float (&d)[4], const lane_a &a, uint2 b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a.x0), "r"(a.x1), "r"(a.x2), "r"(a.x3), "r"(b.x), "r"(b.y));
}

// An 8 x 8 matrix of 16-bit elements, row g, columns 2t and 2t+1 in each lane: transposed.
LANE_DEVICE uint32_t lane_transpose(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// binary16, two a register, rounded to nearest.
LANE_DEVICE uint32_t lane_f16x2_pack(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

LANE_DEVICE float lane_f16_low(uint32_t x)
{
    float y;
    asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(y) : "r"(x));
    return y;
}

LANE_DEVICE float lane_f16_high(uint32_t x)
{
    float y;
    asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(y) : "r"(x));
    return y;
}

LANE_DEVICE uint32_t lane_f16x2_sub(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

LANE_DEVICE uint32_t lane_f16x2_mul(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

#if LANE_FP8
// Two codes of fp8 (e4m3), the first in the low byte.
LANE_DEVICE uint32_t lane_fp8_widen(uint32_t codes)
{
    uint32_t y;
    asm("{.reg .b16 c; cvt.u16.u32 c, %1; cvt.rn.f16x2.e4m3x2 %0, c;}" : "=r"(y) : "r"(codes));
    return y;
}
#endif
