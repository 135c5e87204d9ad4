// SPDX-License-Identifier: Apache-2.0
// Attention of a tile of queries over a unit of keys on tensor cores, at the speed of memory. For float32,
// bfloat16, binary16, int8 and fp8 keys of 64, 128 or 256 dims.
//
//     X^T [16 keys][width pairs] = K [16][dim] Q^T [dim][width]
//     O^T [dim][width]          += V^T [dim][16] P^T [16][width]
//
// Keys are the tall side of the product, so 8 pairs fill it: a group of 8 heads, 1 row.
//
// width 8 and 16: each of the 4 warps has the whole tile and every fourth block of 16 keys, a ring of stages
// in shared memory of its own, and never waits for another warp until the end. width 32 and 64: all warps
// share each block of keys, 8 or 16 pairs each.
//
// Exactness. q and the weights are sums of 3 bfloat16 (all of their 24 bits) or 2 binary16 numbers (22 bits
// and more, after a scale by a power of two), one product each; codes of int8 and fp8 are binary16 numbers.
// Tensor cores cut rather than round when they add: so only small terms are added up there, and at most 16
// products of the large ones; what is longer is added by float32 additions, which round to nearest.
//
// float32 keys and values are cut into 3 bfloat16 parts in registers, k = k1 + k2 + k3, by the lane that
// loaded them; q and the weights are q1 + q2 + q3, where q1 and q2 are the nearest. With |k| and |q| within
// [1, 2):
//
//     |k2| < 2^-7, |k3| < 2^-15, |q2| <= 2^-8, |q3| <= 2^-17, and q2, q3 are of any sign
//
// so of the 9 products 6 are made, and k2 q3, k3 q2, k3 q3 left out: together below 1.6 * 2^-23 |k q|, and,
// as their signs are those of q's roundings, on average a tenth of that and of no direction, where a float32
// multiplication errs by up to 2^-24 |k q|. The bound allows 2e-6 = 16.8 * 2^-23 of o where logits are up to
// 16, that is 1.05 * 2^-23 of the largest logit, and in the same proportion above: what is left out could
// only use it up if all dims erred by the most and to one side, in one key and not in the others. Numbers
// that 3 parts do not hold (below 2^-109), or that overflow, are left to plain arithmetic.
//
// 16-bit and 8-bit elements are loaded by ldmatrix, values transposed on the way, so a fragment's registers
// come in one instruction. Two codes of 8 bits travel as one element of 16: a transposed word holds dims 2g,
// 2g+1 of keys 2t and 2t+1. As order within a sum is free, a step of 16 dims of q has them in the order in
// which keys come (dims()). float32 is loaded by 16 bytes, dims 4t .. 4t+3 of rows g and g + 8 of K, and dims
// 4g .. 4g+3 of keys 2t, 2t+1, 2t+8, 2t+9 of V. Pieces of 16 bytes of a row lie in shared memory in an
// order that depends on the row (place()), so that no two lanes of a quarter of a warp meet in a bank.
//
// Order of all sums: the unit's blocks in order in each warp, then the warps in order. Nothing else enters.
#pragma once

#include "kernels/cuda/tile_load.cuh"

// q as fragments: [tile of 8 pairs][step][term][lane], and for each pair the power of two that it was scaled
// by. Returns whether parts of q do not hold it (float32 alone). more: whether a part but the first is not
// zero.
template <class S, int width>
LANE_DEVICE bool tile_queries(const cuda_launch &launch, const task &t, uint32_t thread, uint2 *parts,
                              float *scales, bool &more)
{
    const uint32_t lane = thread % 32, warp = thread / 32, dim = S::steps * 16;
    bool lost = false;
    uint32_t rests = 0;
    for (uint32_t p = warp; p < width; p += 4) {
        float most = 0;
        if ((S::wide || !S::bf16) && p < t.pairs) {
            const float *q = task_query(launch, t, t.pair + p);
            for (uint32_t d = lane; d < dim; d += 32)
                most = fmaxf(most, fabsf(q[d]));
#pragma unroll
            for (int i = 16; i > 0; i /= 2)
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, i));
        }
        // The largest becomes less than 2^14; float32: 2^41, so that products of small keys do not vanish
        int e = S::wide   ? max(number_exponent(most) - 40, -126)
                : S::bf16 ? 0
                          : min(max(number_exponent(most) - 13, -100), 113);
        if (lane == 0) {
            scales[p] = number_power(-e);
            scales[width + p] = number_power(e);
        }
    }
    __syncthreads();
    for (uint32_t x = thread; x < width / 8 * S::steps * 32; x += CUDA_THREADS) {
        uint32_t step = x / 32 % S::steps, p = x / 32 / S::steps * 8 + lane / 4;
        float2 q = make_float2(0, 0), r = q;
        if (p < t.pairs) {
            const float *from = task_query(launch, t, t.pair + p) + S::dims(step, lane % 4);
            q = *reinterpret_cast<const float2 *>(from);
            r = *reinterpret_cast<const float2 *>(from + S::second);
        }
        float down = scales[p];
        uint32_t a[3], b[3];
        if constexpr (S::wide) {
            float up = scales[width + p];
            uint32_t rest = number_split_all<true>(q.x * down, q.y * down, a) |
                            number_split_all<true>(r.x * down, r.y * down, b);
            lost = lost || (rest & 0xffffu) != 0 || q.x * down * up != q.x || q.y * down * up != q.y ||
                   r.x * down * up != r.x || r.y * down * up != r.y;
        } else {
            number_split<S::bf16>(q.x * down, q.y * down, a);
            number_split<S::bf16>(r.x * down, r.y * down, b);
        }
#pragma unroll
        for (int i = 0; i < S::terms; i++) {
            parts[(x / 32 * S::terms + i) * 32 + lane] = make_uint2(a[i], b[i]);
            rests |= i > 0 ? (a[i] | b[i]) & 0x7fff7fffu : 0; // a zero's sign says nothing
        }
    }
    more = rests != 0;
    __syncthreads();
    return lost;
}

template <int type, int dim, int width> struct tile_lane { // what a lane keeps
    typedef tile_shape<type, dim, width> S;
    uint2 q[S::q_in_registers ? S::tiles * S::steps * S::terms : 1];
    float o[S::tiles][S::steps][4];       // [.][j]: dims tile_dim(j, .) x pairs 2t, 2t+1
    float m[S::tiles][2], s[S::tiles][2]; // pairs 2t, 2t+1; s of keys g and g+8 alone
    float factor[S::tiles][2], slope[S::tiles][2];
    uint32_t seen, bad; // wide: bad is in the last 16 bits
    int unit;           // binary16: o counts in 2^unit
};

// The dim of o[.][j][2 * half] of lanes of group g.
template <class S> LANE_DEVICE int tile_dim(int g, int j, int half)
{
    if (S::wide)
        return j / 2 * 32 + g * 4 + j % 2 * 2 + half;
    return S::scaled ? j * 16 + g * 2 + half : j * 16 + g + half * 8;
}

// float32: x[i] are the two elements of register i of a fragment. Returns what number_split_all() does.
LANE_DEVICE uint32_t tile_parts(const float (&x)[4][2], lane_a (&parts)[3])
{
    uint32_t p[4][3], lost = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        lost |= number_split_all<false>(x[i][0], x[i][1], p[i]);
#pragma unroll
    for (int i = 0; i < 3; i++)
        parts[i] = {p[0][i], p[1][i], p[2][i], p[3][i]};
    return lost;
}

// The 6 products of parts, in two sums that do not wait for each other, and `large`, which may be the second.
LANE_DEVICE void tile_products(float (&first)[4], float (&second)[4], float (&large)[4], const lane_a (&a)[3],
                               const uint2 (&b)[3])
{
    lane_mma_bf16(first, a[2], b[0]);
    lane_mma_bf16(second, a[0], b[2]);
    lane_mma_bf16(first, a[1], b[1]);
    lane_mma_bf16(second, a[0], b[1]);
    lane_mma_bf16(first, a[1], b[0]);
    lane_mma_bf16(large, a[0], b[0]);
}

// A step's products with the terms of q: `large` for the first, the others in two sums that do not wait for
// each other. one_term: the others are zeros, and so would their products be.
template <class S, bool one_term>
LANE_DEVICE void tile_step(const lane_a (&parts)[3], const uint2 (&q)[3], int step, bool first, float (&x)[4],
                           float (&small)[4], float (&other)[4])
{
    float large[4] = {0, 0, 0, 0};
    if constexpr (one_term) {
        tile_mma<S>(large, parts[0], q[0]);
    } else if constexpr (S::wide) {
        tile_products(small, other, large, parts, q);
    } else if constexpr (S::bf16) {
        tile_mma<S>(large, parts[0], q[0]);
        tile_mma<S>(small, parts[0], q[2]);
        tile_mma<S>(other, parts[0], q[1]);
    } else {
        tile_mma<S>(large, parts[0], q[0]);
        tile_mma<S>(step % 2 == 0 ? small : other, parts[0], q[1]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        x[j] = first ? large[j] : x[j] + large[j];
}

template <int type, int dim, int width, bool one_term>
LANE_DEVICE void tile_logits(const char *k, const uint2 *q, tile_lane<type, dim, width> &st,
                             float (&x)[tile_shape<type, dim, width>::tiles][4])
{
    typedef tile_shape<type, dim, width> S;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float small[S::tiles][4], other[S::tiles][4];
#pragma unroll
    for (int n = 0; n < S::tiles; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[n][i] = small[n][i] = other[n][i] = 0;
    }
    const lane_place matrices = lane_place_of(k);
    const uint32_t row = S::template matrix_row<false>(lane);
    constexpr int at_once = S::bf16 ? 1 : 2; // steps
#pragma unroll(S::q_in_registers ? S::steps / at_once : 1)
    for (int i = 0; i < S::steps / at_once; i++) {
        lane_a parts[at_once][3];
        if constexpr (S::wide) {
            int place = S::template place<false>(g, i * 4 + t) * 16;
            uint4 low = *reinterpret_cast<const uint4 *>(k + g * S::row + place);
            uint4 high = *reinterpret_cast<const uint4 *>(k + (g + 8) * S::row + place);
            float y[4][2] = {{__uint_as_float(low.x), __uint_as_float(low.y)},
                             {__uint_as_float(high.x), __uint_as_float(high.y)},
                             {__uint_as_float(low.z), __uint_as_float(low.w)},
                             {__uint_as_float(high.z), __uint_as_float(high.w)}};
            st.bad |= tile_parts(y, parts[0]);
        } else if constexpr (!S::scaled) {
#pragma unroll
            for (int h = 0; h < at_once; h++)
                parts[h][0] = lane_matrices(matrices + S::matrix_at(row, i * at_once + h));
        } else {
            lane_a words = lane_matrices(matrices + S::matrix_at(row, i));
            if (type == KERNELS_KV_FP8 && !LANE_FP8)
                st.bad |= number_fp8_nan(words.x0) | number_fp8_nan(words.x1) | number_fp8_nan(words.x2) |
                          number_fp8_nan(words.x3);
            uint2 a = number_widen<type, false>(words.x0), b = number_widen<type, false>(words.x1),
                  c = number_widen<type, false>(words.x2), d = number_widen<type, false>(words.x3);
            parts[0][0] = {a.x, b.x, a.y, b.y};
            parts[1][0] = {c.x, d.x, c.y, d.y};
        }
#pragma unroll
        for (int h = 0; h < at_once; h++) {
            int step = i * at_once + h;
#pragma unroll
            for (int n = 0; n < S::tiles; n++) {
                uint2 terms[3];
#pragma unroll
                for (int j = 0; j < (one_term ? 1 : S::terms); j++) {
                    int at = (n * S::steps + step) * S::terms + j;
                    terms[j] = S::q_in_registers ? st.q[S::q_in_registers ? at : 0] : q[at * 32 + lane];
                }
                tile_step<S, one_term>(parts[h], terms, h, S::q_in_registers && step == 0, x[n], small[n],
                                       other[n]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < S::tiles; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[n][i] += small[n][i] + other[n][i];
    }
}

// o = o * fade + V^T weights.
template <int type, int dim, int width>
LANE_DEVICE void tile_values(const char *v, const uint2 (&w)[tile_shape<type, dim, width>::tiles][3],
                             const float (&fade)[tile_shape<type, dim, width>::tiles][2],
                             tile_lane<type, dim, width> &st)
{
    typedef tile_shape<type, dim, width> S;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if constexpr (S::wide) {
#pragma unroll
        for (int piece = 0; piece < S::v_pieces; piece++) {
            // Parts that do not hold a value: plain arithmetic will do the task. As important: a branch
            // between every 8 chains of products keeps the compiler from having more under way than there are
            // registers
            if (piece > 0 && piece % (2 / S::tiles) == 0 && __any_sync(0xffffffffu, (st.bad & 0xffffu) != 0))
                return;
            uint32_t x[4][4]; // of keys 2t, 2t+1, 2t+8, 2t+9
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int r = 2 * t + (i & 1) + (i >> 1) * 8;
                uint4 y = *reinterpret_cast<const uint4 *>(v + r * S::row +
                                                           S::template place<true>(r, piece * 8 + g) * 16);
                x[i][0] = y.x, x[i][1] = y.y, x[i][2] = y.z, x[i][3] = y.w;
            }
#pragma unroll
            for (int word = 0; word < 4; word += 2) { // one dim a word
                float y[4][2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    y[0][i] = __uint_as_float(x[i][word]);
                    y[1][i] = __uint_as_float(x[i][word + 1]);
                    y[2][i] = __uint_as_float(x[2 + i][word]);
                    y[3][i] = __uint_as_float(x[2 + i][word + 1]);
                }
                lane_a parts[3];
                st.bad |= tile_parts(y, parts);
#pragma unroll
                for (int n = 0; n < S::tiles; n++) {
                    float small[4] = {0, 0, 0, 0}, sum[4] = {0, 0, 0, 0};
                    tile_products(small, sum, sum, parts, w[n]);
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        float &o = st.o[n][piece * 2 + word / 2][e];
                        o = fmaf(o, fade[n][e & 1], small[e] + sum[e]);
                    }
                }
            }
        }
    } else {
        const lane_place matrices = lane_place_of(v);
        const uint32_t row = S::template matrix_row<true>(lane);
        constexpr int at_once = S::scaled ? 2 : 1;
#pragma unroll
        for (int i = 0; i < S::steps / at_once; i++) {
            lane_a words = lane_matrices_transposed(matrices + S::matrix_at(row, i)), parts[at_once];
            if constexpr (S::scaled) {
                if (type == KERNELS_KV_FP8 && !LANE_FP8)
                    st.bad |= number_fp8_nan(words.x0) | number_fp8_nan(words.x1) | number_fp8_nan(words.x2) |
                              number_fp8_nan(words.x3);
                uint2 a = number_widen<type, true>(words.x0), b = number_widen<type, true>(words.x1),
                      c = number_widen<type, true>(words.x2), d = number_widen<type, true>(words.x3);
                parts[0] = {a.x, a.y, b.x, b.y};
                parts[1] = {c.x, c.y, d.x, d.y};
            } else {
                parts[0] = words;
            }
#pragma unroll
            for (int h = 0; h < at_once; h++) {
#pragma unroll
                for (int n = 0; n < S::tiles; n++) {
                    float sum[4] = {0, 0, 0, 0};
#pragma unroll
                    for (int term = S::terms - 1; term >= 0; term--)
                        tile_mma<S>(sum, parts[h], w[n][term]);
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        float &o = st.o[n][i * at_once + h][e];
                        o = fmaf(o, fade[n][e & 1], sum[e]);
                    }
                }
            }
        }
    }
}

// The pair in column i of tile n of this warp. Columns past the last pair repeat it, with q = 0: not read
// them.
template <class S> LANE_DEVICE uint32_t tile_pair(const task &t, uint32_t thread, int n, int i)
{
    uint32_t first = S::key_ways == 1 ? thread / 32 * S::tiles * 8 : 0;
    return t.pair + min(first + static_cast<uint32_t>(n * 8 + i) + thread % 4 * 2, t.pairs - 1);
}

template <class S> LANE_DEVICE uint32_t tile_row(const task &t, int n, int i)
{
    return tile_pair<S>(t, threadIdx.x, n, i) / t.item->group;
}

// What is beyond the products: soft cap, slopes, and keys that rows do not see.
template <class S>
LANE_DEVICE void tile_bend(const tile_task &kept, const tile_note &note, const float (&slope)[2], int n,
                           float (&x)[4], uint32_t &seen)
{
    const cuda_item *item = kept.t.item;
    const uint32_t g = threadIdx.x % 32 / 4;
    const uint64_t first = note.run->first + note.row;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t row = tile_row<S>(kept.t, n, i), low, high;
        task_clip(task_sight_of(item, row), first, note.seen >> 8 & 0xffu, low, high);
        if (low < high)
            seen |= 1u << (n * 2 + i);
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            uint32_t key = g + 8 * h;
            float &y = x[2 * h + static_cast<uint32_t>(i)];
            if (kept.simple == 0)
                y = task_bend(item, y, slope[i], static_cast<int64_t>(item->q_first + row - (first + key)));
            y = key >= low && key < high ? y : -INFINITY;
        }
    }
}

// One block of 16 keys, its logits and weights, for tile_values().
template <int type, int dim, int width>
LANE_DEVICE void tile_keys(const tile_task &kept, const tile_note &note, bool simple, const char *stage,
                           const uint2 *q, tile_lane<type, dim, width> &st,
                           uint2 (&w)[tile_shape<type, dim, width>::tiles][3],
                           float (&fade)[tile_shape<type, dim, width>::tiles][2])
{
    typedef tile_shape<type, dim, width> S;
    const int lane = threadIdx.x % 32, g = lane / 4;
    const float *scales = reinterpret_cast<const float *>(stage + 32 * S::row);
    float x[S::tiles][4];
    constexpr bool may_skip = !S::q_in_registers && !S::wide; // elsewhere memory is the limit
    if (may_skip && kept.one_term != 0)
        tile_logits<type, dim, width, may_skip>(stage, q, st, x);
    else
        tile_logits<type, dim, width, false>(stage, q, st, x);

    float k_scale[2] = {1, 1}, v_scale[2] = {1, 1}, change = 1;
    if (S::scaled) { // weights take the values' scales in, less the largest one's exponent
        k_scale[0] = scales[g];
        k_scale[1] = scales[g + 8];
        // An infinite one times a code of zero is NaN, which the products do not show
        st.bad |= !(number_finite(k_scale[0]) && number_finite(k_scale[1]));
        v_scale[0] = scales[16 + g];
        v_scale[1] = scales[16 + g + 8];
        int e = max(number_exponent(v_scale[0]), number_exponent(v_scale[1]));
        e = __reduce_max_sync(0xffffffffu, e);
        // Zero scales are fine; tiny and huge ones are left to plain arithmetic
        st.bad |= (v_scale[0] != 0 || v_scale[1] != 0) && (e < -60 || e > 60);
        e = min(max(e, -60), 60) - 14; // weights below 2^15
        change = number_power(st.unit - e);
        st.unit = e;
        v_scale[0] *= number_power(-e);
        v_scale[1] *= number_power(-e);
    } else if (!S::bf16) {
        v_scale[0] = v_scale[1] = number_power(14);
    }
#pragma unroll
    for (int n = 0; n < S::tiles; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[n][i] = (S::scaled ? x[n][i] * k_scale[i >> 1] : x[n][i]) * st.factor[n][i & 1];
        if (simple)
            st.seen = 0xffffffffu;
        else
            tile_bend<S>(kept, note, st.slope[n], n, x[n], st.seen);
        float p[4], top[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            top[i] = fmaxf(x[n][i], x[n][2 + i]); // a NaN comes up in the weights
#pragma unroll
        for (int j = 4; j <= 16; j *= 2) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], j));
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            top[i] = fmaxf(top[i], st.m[n][i]);
            float base = top[i] == -INFINITY ? 0.0f : top[i];
            fade[n][i] = number_exp(st.m[n][i] - base);
            p[i] = number_exp(x[n][i] - base);
            p[2 + i] = number_exp(x[n][2 + i] - base);
            st.m[n][i] = top[i];
            st.s[n][i] = fmaf(st.s[n][i], fade[n][i], p[i] + p[2 + i]);
            if (S::scaled)
                fade[n][i] *= change;
        }
        uint32_t a[3], b[3];
        if constexpr (S::wide) { // what parts of a weight do not hold is below 2^-133
            number_split_all<true>(p[0], p[1], a);
            number_split_all<true>(p[2], p[3], b);
        } else {
            number_split<S::bf16>(p[0] * v_scale[0], p[1] * v_scale[0], a);
            number_split<S::bf16>(p[2] * v_scale[1], p[3] * v_scale[1], b);
        }
#pragma unroll
        for (int i = 0; i < S::terms; i++)
            w[n][i] = make_uint2(lane_transpose(a[i]), lane_transpose(b[i]));
    }
}

// Joins the four warps' partials, and writes the tile's. Returns whether this lane met what is not finite.
template <int type, int dim, int width>
LANE_DEVICE bool tile_end(const task &t, uint32_t thread, char *shared, tile_lane<type, dim, width> &st)
{
    typedef tile_shape<type, dim, width> S;
    const int lane = static_cast<int>(thread % 32), g = lane / 4, c = lane % 4,
              warp = static_cast<int>(thread / 32);
    const int first = S::key_ways == 1 ? warp * S::tiles * 8 : 0; // pair of this warp's first column
    // [4][width] m, s; o [4][width][end_dims]
    float *ms = reinterpret_cast<float *>(shared), *os = ms + 8 * width;
    bool bad = (S::wide ? st.bad & 0xffffu : st.bad) != 0;
#pragma unroll
    for (int n = 0; n < S::tiles; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float s = st.s[n][i];
#pragma unroll
            for (int j = 4; j <= 16; j *= 2)
                s += __shfl_xor_sync(0xffffffffu, s, j);
            st.s[n][i] = s;
            int p = first + n * 8 + c * 2 + i;
            bool used = static_cast<uint32_t>(p) < t.pairs, seen = (st.seen >> (n * 2 + i) & 1) != 0;
            bad = bad || (used && (!number_finite(s) || (seen && !(s > 0 && number_finite(st.m[n][i])))));
            if (g == 0) {
                float *m = S::key_ways == 1 ? t.out : ms + warp * 2 * width;
                if (S::key_ways == 4 || used) {
                    m[p] = st.m[n][i];
                    m[width + p] = s;
                }
            }
        }
    }
    if (S::key_ways == 4)
        __syncthreads();
    float factor[S::tiles][2];
#pragma unroll
    for (int n = 0; n < S::tiles; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            factor[n][i] = S::bf16 ? 1.0f : number_power(st.unit);
            if (S::key_ways == 4) {
                int p = first + n * 8 + c * 2 + i;
                float top = -INFINITY;
                for (int x = 0; x < 4; x++)
                    top = fmaxf(top, ms[x * 2 * width + p]);
                factor[n][i] *= number_exp(st.m[n][i] - (top == -INFINITY ? 0.0f : top));
            }
        }
    }
    constexpr int steps = S::steps / S::end_parts; // of a part
#pragma unroll
    for (int part = 0; part < S::end_parts; part++) {
        if (part > 0)
            __syncthreads(); // the part before was read
#pragma unroll
        for (int n = 0; n < S::tiles; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int p = first + n * 8 + c * 2 + i;
                bool used = static_cast<uint32_t>(p) < t.pairs;
                float *o =
                    S::key_ways == 4 ? os + (warp * width + p) * S::end_row : t.out + 2 * width + p * dim;
#pragma unroll
                for (int j = 0; j < steps * 2; j++) {
                    float y = st.o[n][part * steps + j / 2][j % 2 * 2 + i] * factor[n][i];
                    bad = bad || (used && !number_finite(y));
                    if (S::key_ways == 4 || used)
                        o[tile_dim<S>(g, j / 2, j % 2)] = y;
                }
            }
        }
        if (S::key_ways == 1)
            return bad;
        __syncthreads();
        for (uint32_t x = thread; x < t.pairs * S::end_dims; x += CUDA_THREADS) {
            const uint32_t p = x / S::end_dims, d = x % S::end_dims;
            const float *o = os + p * S::end_row + d;
            float sum = o[0];
#pragma unroll
            for (int i = 1; i < 4; i++)
                sum += o[i * width * S::end_row];
            t.out[2 * width + p * dim + part * S::end_dims + d] = sum;
        }
    }
    if (thread < t.pairs) {
        float top = -INFINITY, s = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            top = fmaxf(top, ms[i * 2 * width + thread]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            s = fmaf(ms[(i * 2 + 1) * width + thread],
                     number_exp(ms[i * 2 * width + thread] - (top == -INFINITY ? 0.0f : top)), s);
        t.out[thread] = top;
        t.out[width + thread] = s;
    }
    return bad;
}

// Something of every sum of a block, for lane_copy_wait_after().
template <int type, int dim, int width> LANE_DEVICE uint32_t tile_tie(const tile_lane<type, dim, width> &st)
{
    uint32_t tie = 0;
#pragma unroll
    for (int n = 0; n < tile_shape<type, dim, width>::tiles; n++) {
#pragma unroll
        for (int j = 0; j < tile_shape<type, dim, width>::steps; j++)
            tie |= __float_as_uint(st.o[n][j][3]);
    }
    return tie;
}

// State that each task resets.
template <int type, int dim, int width>
LANE_DEVICE void tile_begin(const cuda_launch &launch, const task &t, uint32_t thread, const uint2 *q,
                            const float *scales, tile_lane<type, dim, width> &st)
{
    typedef tile_shape<type, dim, width> S;
    st.seen = 0;
    st.unit = -14;
    if (S::q_in_registers) {
#pragma unroll
        for (int i = 0; i < (S::q_in_registers ? S::tiles * S::steps * S::terms : 0); i++)
            st.q[i] = q[i * 32 + thread % 32];
    }
#pragma unroll
    for (int n = 0; n < S::tiles; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t pair = tile_pair<S>(t, thread, n, i);
            st.factor[n][i] = scales[width + pair - t.pair] * t.item->scale;
            st.slope[n][i] = 0;
            if (t.item->alibi != 0)
                st.slope[n][i] =
                    task_at<const float>(launch.args,
                                         t.item->alibi)[t.head * t.item->group + pair % t.item->group];
            st.m[n][i] = -INFINITY;
            st.s[n][i] = 0;
        }
#pragma unroll
        for (int j = 0; j < S::steps; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                st.o[n][j][i] = 0;
        }
    }
}

// Where a warp stands in its ring.
template <class S> struct tile_ring {
    tile_note *notes;
    char *stages;
    uint32_t loader;
    int use; // the stage to compute with

    LANE_DEVICE int fill() const // the stage to load next: the one that was used last
    {
        return use == 0 ? S::stages - 1 : use - 1;
    }
    LANE_DEVICE char *stage(int i) const
    {
        return stages + i * S::stage;
    }
    LANE_DEVICE void turn()
    {
        use = use + 1 == S::stages ? 0 : use + 1;
    }
};

// Asks for the next block of keys, of the next task where this one's are all asked for and the task is known.
// One step: it never is more than one task ahead.
template <class S>
LANE_DEVICE void tile_ask(tile_task *kept, uint32_t turn, tile_walk &walk, const tile_ring<S> &ring)
{
    const uint32_t which = S::goes_on ? turn ^ walk.ahead : 0;
    if (!tile_load<S>(kept[which], walk, ring.notes + ring.fill(), ring.stage(ring.fill()), ring.loader) &&
        S::goes_on && walk.ahead == 0 && kept[turn].next != 0) {
        walk.run = kept[turn ^ 1].t.run;
        walk.ahead = 1;
    }
}

// Blocks of threads of kernels with `goes_on` compute tasks b, b + gridDim.x, ...; all others compute task b
// alone. A task's bits do not depend on which block computes it, or after which task.
//
// Copies at the border of two tasks. Every turn of a ring commits one group, with copies or without, and uses one
// stage, at a border, too. So a lane's youngest stages - 1 groups are those of the stages ahead; the wait at the
// top leaves stages - 2, and the stage that is used next has come. An end is a stage without copies, whose note
// says the turn of its task. Walks may not be further ahead than one task, whose place is kept[turn ^ 1]: a warp
// that is at the end of that one puts further ends into its ring, and drops them when the task is over. Nothing
// waits for all copies until the last task. What they write meanwhile, rings and notes, is no place that a task's
// end or the next queries touch, and plain arithmetic does what is to be done again behind the last task.
//
// kept[turn ^ 1] is written by thread 0 when all have left the task before (__syncthreads_or) and read by others
// behind the barriers of tile_queries(): until then, walks are at kept[turn] (ahead = 0) and ask for nothing.
template <int type, int dim, int width>
__global__ void __launch_bounds__(CUDA_THREADS, tile_shape<type, dim, width>::resident)
    tile_kernel(const cuda_launch launch)
{
    typedef tile_shape<type, dim, width> S;
    static_assert(!S::goes_on || (8 + 4 * dim) * 4 <= S::kept, "plain arithmetic leaves `again` alone");
    static_assert(S::end_parts == 1 || S::end_dims % 32 == 0, "lanes' pairs are in banks of their own");
    char *shared = lane_shared();
    uint2 *q = reinterpret_cast<uint2 *>(shared);
    float *scales = reinterpret_cast<float *>(shared + S::q_bytes);
    tile_task *kept = reinterpret_cast<tile_task *>(shared + S::kept);
    const uint32_t warp = threadIdx.x / 32, way = S::key_ways == 1 ? 0 : warp;
    tile_ring<S> ring = {reinterpret_cast<tile_note *>(shared + S::notes) + way * S::stages,
                         shared + S::rings + way * (S::stages * S::stage),
                         S::key_ways == 1 ? threadIdx.x : threadIdx.x % 32, 0};
    tile_walk walk;
    {
        task t;
        if (!task_find(launch, blockIdx.x, t))
            return;
        if (threadIdx.x == 0)
            tile_keep(kept[0], t, 0);
        walk.run = t.run;
        walk.row = walk.end = walk.ahead = 0;
    }
    uint32_t *again = reinterpret_cast<uint32_t *>(shared + S::again); // which tasks met what is not finite
    if (S::goes_on && threadIdx.x < CUDA_TASKS_MOST / 32)
        again[threadIdx.x] = 0;
    __syncthreads();
    // The first stages are on their way while the queries are prepared
#pragma unroll
    for (int i = 0; i < S::stages - 1; i++) {
        if (S::wide && i % 2 != 0)
            tile_load_values<S>(walk, ring.stage(i), ring.loader);
        else
            tile_load<S>(kept[0], walk, ring.notes + i, ring.stage(i), ring.loader);
        lane_copy_commit();
    }

    uint32_t done = 0; // tasks
    for (;;) {
        // Nothing, in a way that the compiler cannot see through: or it keeps what follows from a thread's number
        // and the launch, for all tasks, in registers that the loop over keys has use for
        const uint32_t turn = done & 1;
        uint32_t nothing = S::goes_on ? kept[turn].simple & 1u : 0;
        if (S::goes_on && threadIdx.x == 0) {
            task t;
            cuda_launch same = launch;
            same.pass += nothing;
            same.class_index += nothing;
            const bool more = task_find(same, blockIdx.x + (done + 1) * gridDim.x, t);
            kept[turn].next = more ? 1 : 0;
            if (more)
                tile_keep(kept[turn ^ 1], t, turn ^ 1);
        }
        uint32_t thread = threadIdx.x + nothing;
        tile_lane<type, dim, width> st;
        bool more;
        st.bad = tile_queries<S, width>(launch, kept[turn].t, thread, q, scales, more);
        if (!S::q_in_registers && !S::wide) {
            more = __syncthreads_or(more) != 0;
            if (threadIdx.x == 0)
                kept[turn].one_term = more ? 0 : 1;
            __syncthreads();
        }
        const uint2 *mine = q + (S::key_ways == 1 ? warp * (S::tiles * S::steps * S::terms * 32) : 0);
        tile_begin<type, dim, width>(launch, kept[turn].t, thread, mine, scales, st);

        uint32_t tie = 0; // to the products with the block before
        for (;;) {
            if (S::wide)
                lane_copy_wait<S::stages - 2>();
            else
                lane_copy_wait_after<S::stages - 2>(tie);
            tile_sync<S>(); // this block is here, and the one before is done with
            const tile_note &note = ring.notes[ring.use];
            const uint32_t seen = note.seen; // 0: an end
            const bool over = seen == 0 && note.row == turn;
            if (!S::goes_on && seen == 0)
                break;
            const char *stage = ring.stage(ring.use);
            if (S::wide && S::stages % 2 == 0)
                tile_load_values<S>(walk, ring.stage(ring.fill()), ring.loader);
            else
                tile_ask<S>(kept, turn, walk, ring);
            lane_copy_commit();
            uint2 w[S::tiles][3];
            float fade[S::tiles][2];
            if (!S::goes_on || seen != 0)
                tile_keys<type, dim, width>(kept[turn], note, (seen & TILE_SIMPLE) != 0, stage, mine, st, w,
                                            fade);
            if (S::wide) { // the same for the block's values, in a stage of their own
                ring.turn();
                lane_copy_wait<S::stages - 2>();
                tile_sync<S>();
                if (S::stages % 2 == 0)
                    tile_ask<S>(kept, turn, walk, ring);
                else
                    tile_load_values<S>(walk, ring.stage(ring.fill()), ring.loader);
                lane_copy_commit();
                stage = ring.stage(ring.use);
            }
            if (!S::goes_on || seen != 0) {
                tile_values<type, dim, width>(stage + (S::wide ? 0 : 16 * S::row), w, fade, st);
                if (!S::wide)
                    tie = tile_tie<type, dim, width>(st);
            }
            ring.turn();
            if (S::goes_on && over)
                break;
        }
        const uint32_t next = kept[turn].next; // not to be read behind the barrier: thread 0 goes on
        if (!S::goes_on || next == 0)
            lane_copy_wait<0>();
        const task t = kept[turn].t;
        thread = threadIdx.x + (S::goes_on ? kept[turn].simple & 1u : 0);
        __syncthreads(); // queries, or all of it, are done with
        const bool bad = __syncthreads_or(tile_end<type, dim, width>(t, thread, shared, st)) != 0;
        if (!S::goes_on) {
            if (bad)
                plain_task<type>(launch, t);
            return;
        }
        if (bad && threadIdx.x == 0)
            again[done / 32] |= 1u << done % 32;
        done++;
        if (next == 0)
            break;
        walk.ahead = 0;
    }
    __syncthreads();
    for (uint32_t i = 0; i < done; i++) {
        task t;
        if ((again[i / 32] >> i % 32 & 1) != 0 && task_find(launch, blockIdx.x + i * gridDim.x, t)) {
            plain_task<type>(launch, t);
            __syncthreads(); // shared memory was read
        }
    }
}

template <int type, int dim, int width> struct tile_entry {
    static cuda_kernel get()
    {
        cuda_kernel k = {reinterpret_cast<const void *>(&tile_kernel<type, dim, width>),
                         static_cast<uint32_t>(tile_shape<type, dim, width, TILE_ROOM_90>::shared),
                         static_cast<uint32_t>(tile_shape<type, dim, width, TILE_ROOM_80>::shared),
                         tile_shape<type, dim, width>::goes_on ? 1u : 0u};
        return k;
    }
};

// By dim and by width: plan.c.
#define TILE_ROW(type, dim, medium, large, largest)                                                          \
    {                                                                                                        \
        tile_entry<type, dim, 8>::get(), tile_entry<type, dim, medium>::get(),                               \
            tile_entry<type, dim, large>::get(), tile_entry<type, dim, largest>::get()                       \
    }
#define TILE_TABLE(type)                                                                                     \
    {                                                                                                        \
        TILE_ROW(type, 64, 16, 32, 64), TILE_ROW(type, 128, 16, 32, 64), TILE_ROW(type, 256, 32, 32, 32)     \
    }
