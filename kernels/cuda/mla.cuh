// SPDX-License-Identifier: Apache-2.0
// Attention over latents (MLA, absorbed): keys of 576 elements of bfloat16 or binary16, one KV head, whose
// first 512 are the values. A block of threads has a tile of 16 or 32 (row, query head) pairs and a unit of
// keys; each key is loaded once, for logits and values.
//
//     X^T [16 keys][width] = K [16][576] Q^T [576][width]     warp w: dims 144 w .. 144 w + 143, all pairs
//     softmax of 8 pairs a warp, over the sum of the four warps' parts
//     O^T [512][width]    += (first 512 of K)^T [512][16] P^T  warp w: dims 128 w .. 128 w + 127, all pairs
//
// So a fragment of keys is read from shared memory once for the logits and once for o, by one warp, where
// warps that share out pairs (tile.cuh) would read each four times; o, 512 x width floats, lies in the
// registers of four warps. Parts of logits, and weights, travel through shared memory:
//
//     copies are here, the last block is done | parts of logits | all parts | weights | all weights | o
//     wait, barrier; start copies                                 barrier               barrier
//
// Exactness is tile.cuh's: q and the weights are sums of 3 bfloat16 or 2 binary16, one product each. Tensor
// cores add the terms of 16 dims or keys, the small ones first; float32 additions do the rest: of logits 9 in
// each warp, then the four parts. What is not finite is left to plain arithmetic.
//
// Order of all sums: blocks that the tile sees in order, dims in order within a warp, warps in order. Nothing
// else enters.
#pragma once

#include "kernels/cuda/mla_shape.cuh"
#include "kernels/cuda/tile.cuh"

template <class S> struct mla_lane {    // what a lane keeps
    float o[S::heights][S::columns][4]; // dims (warp * heights + .) * 16 + g (+ 8) x pairs 8n + 2t, 2t+1
};

// m and s of pairs 8 * warp + 2t, 2t+1; s of keys g and g+8 alone. In shared memory, as products have use for
// all registers; each lane's own.
template <class S> LANE_DEVICE float4 &mla_mass(char *shared)
{
    return reinterpret_cast<float4 *>(shared + S::masses)[threadIdx.x];
}

// This warp's part of the logits of a block of keys.
template <class S> LANE_DEVICE void mla_logits(const char *stage, const uint2 *q, float4 *parts)
{
    typedef typename S::base B;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float x[S::columns][4];
#pragma unroll
    for (int n = 0; n < S::columns; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[n][i] = 0;
    }
    const uint32_t row = B::template matrix_row<false>(lane);
#pragma unroll 3
    for (int j = 0; j < S::part; j++) {
        const int step = warp * S::part + j;
        const lane_a keys = lane_matrices(lane_place_of(stage) + B::matrix_at(row, step));
        float sum[S::columns][4];
#pragma unroll
        for (int n = 0; n < S::columns; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[n][i] = 0;
        }
#pragma unroll
        for (int i = B::terms - 1; i >= 0; i--) { // columns do not wait for each other
#pragma unroll
            for (int n = 0; n < S::columns; n++)
                tile_mma<B>(sum[n], keys, q[((n * B::steps + step) * B::terms + i) * 32 + lane]);
        }
#pragma unroll
        for (int n = 0; n < S::columns; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[n][i] += sum[n][i];
        }
    }
#pragma unroll
    for (int n = 0; n < S::columns; n++)
        parts[(n * MLA_WARPS + warp) * 32 + lane] = make_float4(x[n][0], x[n][1], x[n][2], x[n][3]);
}

// The softmax of this warp's 8 pairs: the parts of their logits become their weights, as fragments
// [term][lane].
template <class S> LANE_DEVICE void mla_weights(const tile_task &kept, const tile_note &note, char *shared)
{
    typedef typename S::base B;
    const int lane = threadIdx.x % 32;
    const uint32_t pair = threadIdx.x / 32 * 8 + threadIdx.x % 4 * 2;
    char *mine = shared + S::logits + threadIdx.x / 32 * S::column_bytes;
    const float4 *parts = reinterpret_cast<const float4 *>(mine);
    const float *bends = reinterpret_cast<const float *>(shared + B::q_bytes) + pair;
    const float factor[2] = {bends[S::width], bends[S::width + 1]}, slope[2] = {bends[0], bends[1]};
    float4 &mass = mla_mass<S>(shared);
    const float m[2] = {mass.x, mass.y};
    float s[2] = {mass.z, mass.w}, top[2], fade[2], p[4];
    const float4 a = parts[lane], b = parts[32 + lane], c = parts[64 + lane], d = parts[96 + lane];
    float x[4] = {((a.x + b.x) + c.x) + d.x, ((a.y + b.y) + c.y) + d.y, ((a.z + b.z) + c.z) + d.z,
                  ((a.w + b.w) + c.w) + d.w};
    uint32_t seen = 0; // bits 0, 1: of this lane's pairs
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] *= factor[i & 1];
    if ((note.seen & TILE_SIMPLE) != 0)
        seen = 0xffffffffu;
    else
        tile_bend<S>(kept, note, slope, 0, x, seen);
#pragma unroll
    for (int i = 0; i < 2; i++)
        top[i] = fmaxf(x[i], x[2 + i]); // a NaN comes up in the weights
#pragma unroll
    for (int j = 4; j <= 16; j *= 2) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], j));
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = fmaxf(top[i], m[i]);
        float base = top[i] == -INFINITY ? 0.0f : top[i];
        fade[i] = number_exp(m[i] - base);
        p[i] = number_exp(x[i] - base);
        p[2 + i] = number_exp(x[2 + i] - base);
        s[i] = fmaf(s[i], fade[i], p[i] + p[2 + i]);
    }
    mass = make_float4(top[0], top[1], s[0], s[1]);
    if (lane < 4) {
        float *fades = reinterpret_cast<float *>(shared + S::fades) + pair;
        fades[0] = fade[0];
        fades[1] = fade[1];
        reinterpret_cast<uint32_t *>(shared + S::seen)[pair / 2] |= seen;
    }
    __syncwarp(); // parts were read
    uint2 *weights = reinterpret_cast<uint2 *>(mine);
    constexpr float up = B::bf16 ? 1.0f : 16384.0f; // weights of binary16 up to 2^14
    uint32_t low[3], high[3];
    number_split<B::bf16>(p[0] * up, p[1] * up, low);
    number_split<B::bf16>(p[2] * up, p[3] * up, high);
#pragma unroll
    for (int i = 0; i < B::terms; i++)
        weights[i * 32 + lane] = make_uint2(lane_transpose(low[i]), lane_transpose(high[i]));
}

// o = o * fade + V^T weights, this warp's dims.
template <class S>
LANE_DEVICE void mla_values(const char *stage, const char *weights, const float *fades, mla_lane<S> &st)
{
    typedef typename S::base B;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
    const uint32_t row = B::matrix_at(B::template matrix_row<true>(lane), warp * S::heights);
    uint2 w[S::columns][B::terms];
    float fade[S::columns][2];
#pragma unroll
    for (int n = 0; n < S::columns; n++) {
        const uint2 *from = reinterpret_cast<const uint2 *>(weights + n * S::column_bytes);
#pragma unroll
        for (int i = 0; i < B::terms; i++)
            w[n][i] = from[i * 32 + lane];
        float2 f = reinterpret_cast<const float2 *>(fades)[n * 4 + t];
        fade[n][0] = f.x;
        fade[n][1] = f.y;
    }
#pragma unroll
    for (int j = 0; j < S::heights; j++) {
        const lane_a values = lane_matrices_transposed(lane_place_of(stage) + B::matrix_at(row, j));
        float sum[S::columns][4];
#pragma unroll
        for (int n = 0; n < S::columns; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[n][e] = 0;
        }
#pragma unroll
        for (int i = B::terms - 1; i >= 0; i--) { // columns do not wait for each other
#pragma unroll
            for (int n = 0; n < S::columns; n++)
                tile_mma<B>(sum[n], values, w[n][i]);
        }
#pragma unroll
        for (int n = 0; n < S::columns; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                st.o[j][n][e] = fmaf(st.o[j][n][e], fade[n][e & 1], sum[n][e]);
        }
        if (S::columns > 2 && !B::bf16) // or the compiler has more sums under way than there are registers
            __syncwarp();
    }
}

// Writes the tile's partial. Returns whether this lane met what is not finite.
template <class S> LANE_DEVICE bool mla_end(const task &t, char *shared, const mla_lane<S> &st)
{
    typedef typename S::base B;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const float4 mass = mla_mass<S>(shared);
    bool bad = false;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        float m = i == 0 ? mass.x : mass.y, s = i == 0 ? mass.z : mass.w;
#pragma unroll
        for (int j = 4; j <= 16; j *= 2)
            s += __shfl_xor_sync(0xffffffffu, s, j);
        uint32_t p = warp * 8 + c * 2 + i;
        if (warp >= S::columns || p >= t.pairs)
            continue;
        bool seen = (reinterpret_cast<const uint32_t *>(shared + S::seen)[warp * 4 + c] >> i & 1) != 0;
        bad = bad || !number_finite(s) || (seen && !(s > 0 && number_finite(m)));
        if (g == 0) {
            t.out[p] = m;
            t.out[S::width + p] = s;
        }
    }
#pragma unroll
    for (uint32_t n = 0; n < S::columns; n++) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t p = n * 8 + c * 2 + i;
            if (p >= t.pairs)
                continue;
            float *o = t.out + 2 * S::width + p * CUDA_MLA_V_DIM + warp * (S::heights * 16) + g;
#pragma unroll
            for (uint32_t j = 0; j < S::heights * 2; j++) {
                float y = st.o[j / 2][n][j % 2 * 2 + i] * (B::bf16 ? 1.0f : 1 / 16384.0f);
                bad = bad || !number_finite(y);
                o[j * 8] = y;
            }
        }
    }
    return bad;
}

template <int type, int width>
__global__ void __launch_bounds__(CUDA_THREADS, mla_shape<type, width>::resident)
    mla_kernel(const cuda_launch launch)
{
    typedef mla_shape<type, width> S;
    typedef typename S::base B;
    task t;
    if (!task_find(launch, blockIdx.x, t))
        return;
    const uint32_t warp = threadIdx.x / 32;
    char *shared = lane_shared();
    uint2 *q = reinterpret_cast<uint2 *>(shared);
    float *scales = reinterpret_cast<float *>(shared + B::q_bytes);
    tile_task &kept = *reinterpret_cast<tile_task *>(shared + S::kept);
    tile_note *notes = reinterpret_cast<tile_note *>(shared + S::notes);
    char *logits = shared + S::logits, *ring = shared + S::rings;
    float *fades = reinterpret_cast<float *>(shared + S::fades);
    if (threadIdx.x == 0)
        tile_keep(kept, t, 0);
    __syncthreads();
    tile_walk walk;
    walk.run = t.run;
    walk.row = walk.end = 0;
    constexpr int ahead = S::stages - 1;
#pragma unroll
    for (int i = 0; i < ahead; i++) { // on their way while q is split
        tile_load<S>(kept, walk, notes + i, ring + i * S::stage, threadIdx.x);
        lane_copy_commit();
    }
    bool more; // the later parts of q are multiplied in any case
    tile_queries<B, width>(launch, t, threadIdx.x, q, scales, more);

    mla_lane<S> st;
    if (threadIdx.x < width / 2)
        reinterpret_cast<uint32_t *>(shared + S::seen)[threadIdx.x] = 0;
    if (threadIdx.x < width) { // for logits: slopes, and what they are multiplied with
        scales[width + threadIdx.x] *= t.item->scale;
        scales[threadIdx.x] = 0;
        if (t.item->alibi != 0)
            scales[threadIdx.x] =
                task_at<const float>(launch.args,
                                     t.item->alibi)[t.head * t.item->group +
                                                    (t.pair + min(threadIdx.x, t.pairs - 1)) % t.item->group];
    }
    mla_mass<S>(shared) = make_float4(-INFINITY, -INFINITY, 0, 0);
#pragma unroll
    for (int j = 0; j < S::heights; j++) {
#pragma unroll
        for (int n = 0; n < S::columns; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                st.o[j][n][i] = 0;
        }
    }

    for (int use = 0, fill = ahead;;) {
        lane_copy_wait<ahead - 1>();
        __syncthreads(); // this block of keys is here, and the one before is done with
        const char *stage = ring + use * S::stage;
        const tile_note &note = notes[use];
        if (note.seen == 0)
            break;
        // The thread's number, in a way that the compiler cannot see through: or it keeps addresses of
        // copies, which never change, in registers, of which there are none left
        const uint32_t loader = threadIdx.x + (kept.simple & 1u);
        tile_load<S>(kept, walk, notes + fill, ring + fill * S::stage, loader);
        lane_copy_commit();
        mla_logits<S>(stage, q, reinterpret_cast<float4 *>(logits));
        __syncthreads();
        if (warp < S::columns)
            mla_weights<S>(kept, note, shared);
        __syncthreads();
        mla_values<S>(stage, logits, fades, st);
        fill = use; // its keys are done with when all have passed the barrier
        use = use + 1 == S::stages ? 0 : use + 1;
    }
    lane_copy_wait<0>();
    bool bad = mla_end<S>(kept.t, shared, st);
    if (__syncthreads_or(bad)) {
        t = kept.t;
        __syncthreads(); // plain arithmetic writes where the task was
        plain_task<type>(launch, t);
    }
}

template <int type, int width> struct mla_entry {
    static cuda_kernel get()
    {
        cuda_kernel k = {reinterpret_cast<const void *>(&mla_kernel<type, width>),
                         static_cast<uint32_t>(mla_shape<type, width, TILE_ROOM_90>::shared),
                         static_cast<uint32_t>(mla_shape<type, width, TILE_ROOM_80>::shared), 0};
        return k;
    }
};
