// SPDX-License-Identifier: Apache-2.0
// Attention of a tile of 64 (row, head) pairs over a unit of keys by products of a warpgroup: bfloat16 and
// binary16 keys and values of 64 and 128 dims, compute capability 9.0. What tile.cuh computes with width 64,
// with the same tasks and partials, in other sums. No GPU has run it: BANYAN_CUDA_WGMMA=1 asks for it (plan.c).
//
//     X [64 pairs][64 keys] = Q [64][dim] K^T [dim][64]       Q and K in shared memory
//     O [64][dim]          += P [64][16 keys] V [16][dim]     P in registers, as the softmax leaves it
//
// A round is four blocks of 16 keys, in a ring of stages. All four warps make each product together, 16 pairs
// each, so a row's softmax is within four lanes.
//
// Exactness as in tile.cuh: q and weights are sums of 3 bfloat16 or 2 binary16 numbers, and tensor cores cut
// when they add. So of the large terms no more than 16 products are added up there: each step of 16 dims or
// keys has a sum of its own, which float32 additions take over while the next product is made. A chain over all
// dims would use up the bound by itself (docs/measurements/2026-11-wgmma.md).
#pragma once

#include "kernels/cuda/tile_load.cuh"
#include "kernels/cuda/wgmma_lane.cuh"

#define WGMMA_PANEL  (64 * 128) // bytes: 64 keys or pairs, 64 dims
#define WGMMA_BLOCKS 4          // of 16 keys, in a round

template <int type, int dim> struct wgmma_shape {
    static constexpr bool bf16 = type == KERNELS_KV_BF16, scaled = false, wide = false;
    static constexpr int row = dim * 2, pieces = row / 16; // tile_open()'s and tile_copies'
    static constexpr int key_ways = 1, threads = 128;
    static constexpr int panels = dim / 64, steps = dim / 16, terms = bf16 ? 3 : 2;
    static constexpr int stage = 2 * panels * WGMMA_PANEL; // keys, values
    static constexpr int stages = dim == 64 ? 4 : 2;       // two blocks of threads in the 227 KiB of sm_90
    static constexpr int rings = terms * panels * WGMMA_PANEL;
    static constexpr int scales = rings + stages * stage;
    static constexpr int kept = scales + 2 * 64 * 4;
    static constexpr int notes = kept + (static_cast<int>(sizeof(tile_task)) + 15) / 16 * 16;
    static constexpr int used = notes + stages * WGMMA_BLOCKS * static_cast<int>(sizeof(tile_note));
    static constexpr int shared = used > static_cast<int>(PLAIN_SHARED) ? used
                                                                        : static_cast<int>(PLAIN_SHARED);
};

// q's parts as panels: [term][panel][64 pairs][64 dims], and for each pair the power of two that it was scaled
// by. Returns whether a part but the first is not zero.
template <class S>
LANE_DEVICE bool wgmma_queries(const cuda_launch &launch, const task &t, char *parts, float *scales)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = S::steps * 16;
    uint32_t rests = 0;
    for (uint32_t p = warp; p < 64; p += 4) {
        float most = 0;
        if (!S::bf16 && p < t.pairs) {
            const float *q = task_query(launch, t, t.pair + p);
            for (uint32_t d = lane; d < dim; d += 32)
                most = fmaxf(most, fabsf(q[d]));
#pragma unroll
            for (int i = 16; i > 0; i /= 2)
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, i));
        }
        int e = S::bf16 ? 0 : min(max(number_exponent(most) - 13, -100), 113); // below 2^14
        if (lane == 0) {
            scales[p] = number_power(-e);
            scales[64 + p] = number_power(e);
        }
    }
    __syncthreads();
    for (uint32_t x = threadIdx.x; x < 64 * S::pieces; x += CUDA_THREADS) {
        const uint32_t p = x / S::pieces, c = x % S::pieces;
        float4 q[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
        if (p < t.pairs) {
            const float4 *from = reinterpret_cast<const float4 *>(task_query(launch, t, t.pair + p) + c * 8);
            q[0] = from[0];
            q[1] = from[1];
        }
        const float down = scales[p];
        uint32_t a[4][3];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            number_split<S::bf16>(q[i].x * down, q[i].y * down, a[2 * i]);
            number_split<S::bf16>(q[i].z * down, q[i].w * down, a[2 * i + 1]);
        }
        char *to = parts + c / 8 * WGMMA_PANEL + p * 128 + (c % 8 ^ p % 8) * 16;
#pragma unroll
        for (int i = 0; i < S::terms; i++) {
            const uint4 y = {a[0][i], a[1][i], a[2][i], a[3][i]};
            *reinterpret_cast<uint4 *>(to + i * S::panels * WGMMA_PANEL) = y;
            rests |= i > 0 ? (y.x | y.y | y.z | y.w) & 0x7fff7fffu : 0; // a zero's sign says nothing
        }
    }
    return rests != 0;
}

// Keys and values of a round. Blocks that there are not, and keys that no row sees, are zeros.
template <class S>
LANE_DEVICE void wgmma_load(const tile_task &kept, tile_walk &walk, tile_note *notes, char *stage)
{
    const uint32_t r = threadIdx.x / 8, c = threadIdx.x % 8; // the row of a block, the piece of a panel
    lane_place to = lane_place_of(stage) + (r * 128 + (c ^ r % 8) * 16);
    for (int b = 0; b < WGMMA_BLOCKS; b++, to += 2 * WGMMA_ROWS) {
        uint32_t low = 0, high = 0;
        if (walk.row < walk.end || tile_open<S>(kept, walk, threadIdx.x))
            tile_wanted(walk, walk.row, low, high);
        if (threadIdx.x == 0) {
            const bool all = walk.all_begin <= walk.row && walk.row + CUDA_BLOCK_KEYS <= walk.all_end;
            const tile_note n = {walk.run - 1, walk.row, low | high << 8 | (all ? kept.simple : 0)};
            notes[b] = n;
            if (high == 0)
                notes[b].seen = 0;
        }
        const bool wanted = r - low < high - low;
#pragma unroll
        for (int i = 0; i < S::panels; i++) {
            lane_copy16(to + i * WGMMA_PANEL, walk.k + i * 128, wanted);
            lane_copy16(to + (S::panels + i) * WGMMA_PANEL, walk.v + i * 128, wanted);
        }
        if (high == 0)
            continue;
        walk.row += CUDA_BLOCK_KEYS;
        walk.k += CUDA_BLOCK_KEYS * S::row;
        walk.v += CUDA_BLOCK_KEYS * S::row;
    }
}

template <class S> struct wgmma_state { // what a lane keeps; [r]: pair g + 8 r of its warp
    float o[S::panels][32];
    float m[2], s[2]; // s of this lane's keys alone
    float factor[2], slope[2];
    uint32_t seen;
};

template <class S> LANE_DEVICE uint32_t wgmma_pair(const task &t, int r)
{
    return t.pair +
           min(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * static_cast<uint32_t>(r), t.pairs - 1);
}

// x = q k. one_term: q's parts but the first are zeros. While float32 additions take over a step's large terms,
// its small ones, or the next step's large ones, are made. Not unrolled: the assembler would have more sums
// under way than there are registers.
template <class S, bool one_term> LANE_DEVICE void wgmma_logits(const char *q, const char *k, float (&x)[32])
{
    const uint64_t queries = wgmma_matrix(q), keys = wgmma_matrix(k);
    float large[32], other[32]; // other: the small terms of all steps, or the next step's large ones
#pragma unroll
    for (int i = 0; i < 32; i++)
        x[i] = other[i] = 0;
#pragma unroll 1
    for (uint32_t step = 0; step < S::steps; step += one_term ? 2 : 1) {
        const uint32_t at = step / 4 * WGMMA_PANEL + step % 4 * 32;
        const uint64_t a = wgmma_further(queries, at), b = wgmma_further(keys, at);
        wgmma_fence();
        wgmma_rows<S::bf16, false>(large, a, b);
        wgmma_commit();
        if constexpr (one_term) { // steps 2 i and 2 i + 1 are in one panel
            wgmma_rows<S::bf16, false>(other, wgmma_further(a, 32), wgmma_further(b, 32));
        } else {
#pragma unroll
            for (int i = S::terms - 1; i > 0; i--)
                wgmma_rows<S::bf16, true>(
                    other, wgmma_further(a, static_cast<uint32_t>(i * S::panels * WGMMA_PANEL)), b);
        }
        wgmma_commit();
        wgmma_wait<1>(large);
#pragma unroll
        for (int i = 0; i < 32; i++)
            x[i] += large[i];
        if constexpr (one_term) {
            wgmma_wait<0>(other);
#pragma unroll
            for (int i = 0; i < 32; i++)
                x[i] += other[i];
        }
    }
    if constexpr (!one_term) {
        wgmma_wait<0>(other);
#pragma unroll
        for (int i = 0; i < 32; i++)
            x[i] += other[i];
    }
}

// What is beyond the products, of one block: soft cap, slopes, and keys that rows do not see.
template <class S>
LANE_DEVICE void wgmma_bend(const tile_task &kept, const tile_note &note, int b, wgmma_state<S> &st,
                            float (&x)[32])
{
    const cuda_item *item = kept.t.item;
    const uint32_t t = threadIdx.x % 4;
    const uint64_t first = note.seen == 0 ? 0 : note.run->first + note.row;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t row = wgmma_pair<S>(kept.t, r) / item->group;
        uint32_t low, high;
        task_clip(task_sight_of(item, row), first, note.seen >> 8 & 0xffu, low, high);
        if (low < high)
            st.seen |= 1u << r;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t key = static_cast<uint32_t>(i / 2 * 8 + i % 2) + 2 * t;
            float &y = x[8 * b + i / 2 * 4 + 2 * r + i % 2];
            if (kept.simple == 0)
                y = task_bend(item, y, st.slope[r],
                              static_cast<int64_t>(item->q_first + row - (first + key)));
            y = key >= low && key < high ? y : -INFINITY;
        }
    }
}

// Logits become weights. fade: what the rows' sums are multiplied by.
template <class S> LANE_DEVICE void wgmma_weights(wgmma_state<S> &st, float (&x)[32], float (&fade)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = x[2 * r];
#pragma unroll
        for (int i = 0; i < 32; i++)
            top = i / 2 % 2 == r ? fmaxf(top, x[i]) : top; // a NaN comes up in the weights
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        top = fmaxf(top, st.m[r]);
        const float base = top == -INFINITY ? 0.0f : top;
        fade[r] = number_exp(st.m[r] - base);
        st.m[r] = top;
        float sum[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < 8; j++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &y = x[4 * j + 2 * r + i];
                y = number_exp(y - base);
                sum[i] += y;
            }
        }
        st.s[r] = fmaf(st.s[r], fade[r], sum[0] + sum[1]);
    }
}

// o = o * fade + weights V: a sum for each 16 keys and 64 dims. Not unrolled, as above: x moves up by a block.
template <class S>
LANE_DEVICE void wgmma_values(const char *v, float (&x)[32], const float (&fade)[2], wgmma_state<S> &st)
{
    const float up = S::bf16 ? 1.0f : number_power(14);
    uint64_t values = wgmma_matrix(v);
    float factor[2] = {fade[0], fade[1]};
#pragma unroll 1
    for (int b = 0; b < WGMMA_BLOCKS; b++) {
        uint32_t parts[4][3];
        lane_a a[3];
        float sum[S::panels][32];
#pragma unroll
        for (int i = 0; i < 4; i++)
            number_split<S::bf16>(x[2 * i] * up, x[2 * i + 1] * up, parts[i]);
#pragma unroll
        for (int i = 0; i < S::terms; i++)
            a[i] = {parts[0][i], parts[1][i], parts[2][i], parts[3][i]};
        wgmma_fence();
#pragma unroll
        for (int panel = 0; panel < S::panels; panel++) {
            const uint64_t rows = wgmma_further(values, static_cast<uint32_t>(panel * WGMMA_PANEL));
            wgmma_columns<S::bf16, false>(sum[panel], a[S::terms - 1], rows);
#pragma unroll
            for (int i = S::terms - 2; i >= 0; i--)
                wgmma_columns<S::bf16, true>(sum[panel], a[i], rows);
            wgmma_commit();
        }
#pragma unroll
        for (int i = 0; i < 24; i++)
            x[i] = x[i + 8];
#pragma unroll
        for (int panel = 0; panel < S::panels; panel++) {
            if (panel == S::panels - 1)
                wgmma_wait<0>(sum[panel]);
            else
                wgmma_wait<1>(sum[panel]);
#pragma unroll
            for (int i = 0; i < 32; i++)
                st.o[panel][i] = fmaf(st.o[panel][i], factor[i / 2 % 2], sum[panel][i]);
        }
        factor[0] = factor[1] = 1;
        values = wgmma_further(values, 2 * WGMMA_ROWS);
    }
}

// Writes the partial. Returns whether this lane met what is not finite.
template <int dim, class S> LANE_DEVICE bool wgmma_end(const task &t, wgmma_state<S> &st)
{
    const uint32_t lane = threadIdx.x % 32;
    bool bad = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t p = threadIdx.x / 32 * 16 + lane / 4 + 8 * static_cast<uint32_t>(r);
        const bool used = p < t.pairs, seen = (st.seen >> r & 1) != 0;
        float s = st.s[r];
        s += __shfl_xor_sync(0xffffffffu, s, 1);
        s += __shfl_xor_sync(0xffffffffu, s, 2);
        bad = bad || (used && (!number_finite(s) || (seen && !(s > 0 && number_finite(st.m[r])))));
        if (used && lane % 4 == 0) {
            t.out[p] = st.m[r];
            t.out[64 + p] = s;
        }
        const float factor = S::bf16 ? 1.0f : number_power(-14);
        float *o = t.out + 2 * 64 + p * dim + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < 8 * S::panels; j++) {
            const float a = st.o[j / 8][j % 8 * 4 + 2 * r] * factor,
                        b = st.o[j / 8][j % 8 * 4 + 2 * r + 1] * factor;
            bad = bad || (used && !(number_finite(a) && number_finite(b)));
            if (used)
                *reinterpret_cast<float2 *>(o + j * 8) = make_float2(a, b);
        }
    }
    return bad;
}

template <int type, int dim>
__global__ void __launch_bounds__(CUDA_THREADS, 2) wgmma_kernel(const cuda_launch launch)
{
    typedef wgmma_shape<type, dim> S;
    task t;
    if (!task_find(launch, blockIdx.x, t))
        return;
    char *shared = lane_shared(), *ring = shared + S::rings;
    float *scales = reinterpret_cast<float *>(shared + S::scales);
    tile_task &kept = *reinterpret_cast<tile_task *>(shared + S::kept);
    tile_note *notes = reinterpret_cast<tile_note *>(shared + S::notes);
    if (threadIdx.x == 0) {
        kept.t = t;
        kept.top = t.pair / t.item->group;
        kept.bottom = (t.pair + t.pairs - 1) / t.item->group;
        kept.simple = t.item->soft_cap > 0 || t.item->alibi != 0 ? 0 : TILE_SIMPLE;
    }
    __syncthreads();

    tile_walk walk;
    walk.run = t.run;
    walk.k = walk.v = nullptr;
    walk.row = walk.end = walk.all_begin = walk.all_end = 0;
#pragma unroll
    for (int i = 0; i < S::stages - 1; i++) { // on their way while the queries are prepared
        wgmma_load<S>(kept, walk, notes + i * WGMMA_BLOCKS, ring + i * S::stage);
        lane_copy_commit();
    }
    const bool more = wgmma_queries<S>(launch, t, shared, scales);
    wgmma_shared();
    const bool one_term = __syncthreads_or(more) == 0;

    wgmma_state<S> st;
    st.seen = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t pair = wgmma_pair<S>(t, r);
        st.factor[r] = scales[64 + pair - t.pair] * t.item->scale;
        st.slope[r] = 0;
        if (t.item->alibi != 0)
            st.slope[r] = task_at<const float>(launch.args,
                                               t.item->alibi)[t.head * t.item->group + pair % t.item->group];
        st.m[r] = -INFINITY;
        st.s[r] = 0;
    }
#pragma unroll
    for (int i = 0; i < 32 * S::panels; i++)
        st.o[i / 32][i % 32] = 0;

    int use = 0, fill = S::stages - 1;
    for (;;) {
        lane_copy_wait<S::stages - 2>();
        wgmma_shared();
        __syncthreads(); // this round is here, and the one before is done with
        const tile_note *note = notes + use * WGMMA_BLOCKS;
        if (note[0].seen == 0)
            break;
        const char *stage = ring + use * S::stage;
        wgmma_load<S>(kept, walk, notes + fill * WGMMA_BLOCKS, ring + fill * S::stage);
        lane_copy_commit();
        float x[32], fade[2];
        if (one_term)
            wgmma_logits<S, true>(shared, stage, x);
        else
            wgmma_logits<S, false>(shared, stage, x);
#pragma unroll
        for (int i = 0; i < 32; i++)
            x[i] *= st.factor[i / 2 % 2];
        const uint32_t simple = note[0].seen & note[1].seen & note[2].seen & note[3].seen & TILE_SIMPLE;
        if (simple != 0) {
            st.seen = 3;
        } else {
#pragma unroll
            for (int b = 0; b < WGMMA_BLOCKS; b++)
                wgmma_bend<S>(kept, note[b], b, st, x);
        }
        wgmma_weights<S>(st, x, fade);
        wgmma_values<S>(stage + S::panels * WGMMA_PANEL, x, fade, st);
        use = use + 1 == S::stages ? 0 : use + 1;
        fill = fill + 1 == S::stages ? 0 : fill + 1;
    }
    lane_copy_wait<0>();
    t = kept.t;
    const bool bad = wgmma_end<dim, S>(t, st);
    if (__syncthreads_or(bad))
        plain_task<type>(launch, t);
}

template <int type, int dim> struct wgmma_entry {
    static cuda_kernel get()
    {
        cuda_kernel k = {reinterpret_cast<const void *>(&wgmma_kernel<type, dim>),
                         static_cast<uint32_t>(wgmma_shape<type, dim>::shared), 0, 0};
        return k;
    }
};
