// SPDX-License-Identifier: Apache-2.0
// The task of any shape, type and data: float32 multiply-adds alone, one query at a time. It is the kernel
// for odd dims, and what a tensor-core task falls back to when NaN or Inf came up, or float32 numbers that
// parts do not hold, because 0 * Inf and the parts of a split number do not behave as IEEE has it for the
// numbers themselves.
//
// Block i of 16 keys belongs to warp i % 4; lanes share the dims of a key. Four partials meet in shared
// memory, in the order of the warps.
#pragma once

#include "kernels/cuda/task.cuh"

#define PLAIN_SHARED (4u * (CUDA_LARGEST_DIM + 2u) * 4u) // bytes

LANE_DEVICE float plain_sum(float x)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

// One query, one warp's blocks of keys.
struct plain_state {
    float m, s;
    float o[CUDA_LARGEST_DIM / 32]; // dims lane, lane + 32, ...
    bool seen;
};

template <int type>
LANE_DEVICE void plain_block(const task &t, const cuda_run *run, uint32_t row0, uint32_t low, uint32_t high,
                             const float *q, float slope, uint64_t position, plain_state &st)
{
    const cuda_item *item = t.item;
    const uint32_t lane = threadIdx.x % 32;
    constexpr bool scaled = type == KERNELS_KV_INT8 || type == KERNELS_KV_FP8;
    uint64_t shift = t.head * run->head_stride;
    const char *k = task_at<const char>(run->k, shift), *v = task_at<const char>(run->v, shift);
    const float *k_scale = task_at<const float>(run->k_scale, shift),
                *v_scale = task_at<const float>(run->v_scale, shift);
    uint32_t k_dim = item->k_dim, v_dim = item->v_dim;
    float mine = -INFINITY; // lane j holds key j's logit
    for (uint32_t j = low; j < high; j++) {
        float x = 0, scale = scaled ? k_scale[row0 + j] : 1.0f;
        for (uint32_t d = lane; d < k_dim; d += 32) {
            float element = number_element<type>(k, static_cast<uint64_t>(row0 + j) * k_dim + d);
            x = fmaf(q[d], scaled ? element * scale : element, x);
        }
        x = plain_sum(x);
        x = task_bend(item, x * item->scale, slope, static_cast<int64_t>(position - (run->first + row0 + j)));
        mine = lane == j ? x : mine;
    }
    float top = mine;
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        top = number_top(top, __shfl_xor_sync(0xffffffffu, top, i));
    top = number_top(st.m, top);
    float base = top == -INFINITY ? 0.0f : top;
    float fade = number_exp(st.m - base), weight = number_exp(mine - base);
    st.s = fmaf(st.s, fade, plain_sum(weight));
    st.m = top;
    st.seen = true;
    float sum[CUDA_LARGEST_DIM / 32];
#pragma unroll
    for (uint32_t i = 0; i < CUDA_LARGEST_DIM / 32; i++)
        sum[i] = 0;
    for (uint32_t j = low; j < high; j++) {
        float w = __shfl_sync(0xffffffffu, weight, static_cast<int>(j));
        uint64_t at = static_cast<uint64_t>(row0 + j) * item->v_stride;
#pragma unroll
        for (uint32_t i = 0; i < CUDA_LARGEST_DIM / 32; i++) {
            if (i * 32 < v_dim) {
                float x = i * 32 + lane < v_dim ? number_element<type>(v, at + i * 32 + lane) : 0.0f;
                sum[i] = fmaf(w, scaled ? x * v_scale[row0 + j] : x, sum[i]);
            }
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < CUDA_LARGEST_DIM / 32; i++)
        st.o[i] = fmaf(st.o[i], fade, sum[i]);
}

// What kernels/partial.h requires of a partial: all weights zero is s = -0, or NaN beside a NaN in
// o.
LANE_DEVICE void plain_close(plain_state &st, uint32_t v_dim)
{
    bool nan = false;
#pragma unroll
    for (uint32_t i = 0; i < CUDA_LARGEST_DIM / 32; i++)
        nan = nan || (i * 32 + threadIdx.x % 32 < v_dim && number_nan(st.o[i]));
    nan = __any_sync(0xffffffffu, nan);
    if (st.seen && st.s == 0)
        st.s = nan ? __uint_as_float(0x7fc00000u) : -0.0f;
}

template <int type> LANE_DEVICE void plain_task(const cuda_launch &launch, const task &t)
{
    const cuda_item *item = t.item;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, v_dim = item->v_dim, width = item->width;
    float *shared = reinterpret_cast<float *>(lane_shared()); // m[4], s[4], o[4][v_dim]
    for (uint32_t p = 0; p < t.pairs; p++) {
        const float *q = task_query(launch, t, t.pair + p);
        uint32_t row = (t.pair + p) / item->group;
        kernels_interval sight = task_sight_of(item, row);
        float slope = 0;
        if (item->alibi != 0)
            slope = task_at<const float>(launch.args,
                                         item->alibi)[t.head * item->group + (t.pair + p) % item->group];
        plain_state st;
        st.m = -INFINITY;
        st.s = 0;
        st.seen = false;
#pragma unroll
        for (uint32_t i = 0; i < CUDA_LARGEST_DIM / 32; i++)
            st.o[i] = 0;
        for (const cuda_run *run = t.run; run < t.end; run++) {
            uint32_t blocks = (run->rows + CUDA_BLOCK_KEYS - 1) / CUDA_BLOCK_KEYS;
            for (uint32_t b = (warp - run->block) % 4; b < blocks; b += 4) {
                uint32_t row0 = b * CUDA_BLOCK_KEYS, low, high;
                task_clip(sight, run->first + row0, min(CUDA_BLOCK_KEYS, run->rows - row0), low, high);
                if (low < high)
                    plain_block<type>(t, run, row0, low, high, q, slope, item->q_first + row, st);
            }
        }
        plain_close(st, v_dim);
        __syncthreads(); // shared memory is free
        if (lane == 0) {
            shared[warp] = st.m;
            shared[4 + warp] = st.s;
        }
#pragma unroll
        for (uint32_t i = 0; i < CUDA_LARGEST_DIM / 32; i++) {
            if (i * 32 + lane < v_dim)
                shared[8 + warp * v_dim + i * 32 + lane] = st.o[i];
        }
        __syncthreads();
        float top = -INFINITY, s = 0, factor[4];
        bool mass = false;
        for (int w = 0; w < 4; w++) {
            if (!number_massless(shared[w], shared[4 + w])) {
                top = mass ? number_top(top, shared[w]) : shared[w];
                mass = true;
            }
        }
#pragma unroll
        for (int w = 0; w < 4; w++) {
            bool skip = number_massless(shared[w], shared[4 + w]);
            factor[w] = skip ? 0.0f : number_exp(shared[w] - top);
            if (!skip)
                s = fmaf(shared[4 + w], factor[w], s);
            else if (!mass && (__float_as_uint(shared[4 + w]) >> 31) != 0)
                s = -0.0f;
        }
        if (threadIdx.x == 0) {
            t.out[p] = mass ? top : -INFINITY;
            t.out[width + p] = s;
        }
        for (uint32_t d = threadIdx.x; d < v_dim; d += CUDA_THREADS) {
            float o = 0;
#pragma unroll
            for (int w = 0; w < 4; w++) {
                if (!number_massless(shared[w], shared[4 + w]))
                    o = fmaf(shared[8 + w * v_dim + d], factor[w], o);
            }
            t.out[2 * width + static_cast<uint64_t>(p) * v_dim + d] = o;
        }
    }
}
