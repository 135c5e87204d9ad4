// SPDX-License-Identifier: Apache-2.0
// Attention of a tile of queries over a unit of keys on tensor cores, at the speed of memory. For float32,
// bfloat16, binary16, int8 and fp8 keys of 64, 128 or 256 dims.
//
//     X^T [16 keys][width pairs] = K [16][dim] Q^T [dim][width]        keys are the tall side of the product,
//     so O^T [dim][width] += V^T [dim][16] P^T [16][width]                8 pairs fill it: a group of 8
//     heads, 1 row
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
// loaded them; q and the weights are q1 + q2 + q3, where q1 and q2 are the nearest. With |k| and |q| in [1,
// 2):
//     |k2| < 2^-7, |k3| < 2^-15, |q2| <= 2^-8, |q3| <= 2^-17, and q2, q3 are of any sign
// so of the 9 products 6 are made, and k2 q3, k3 q2, k3 q3 left out: together below 1.6 * 2^-23 |k q|, and,
// as their signs are those of q's roundings, on average a tenth of that and of no direction, where a float32
// multiplication errs by up to 2^-24 |k q|. The bound allows 2e-6 = 16.8 * 2^-23 of o where logits are up to
// 16, that is 1.05 * 2^-23 of the largest logit, and in the same proportion above: what is left out could
// only use it up if all dims erred by the most and to one side, in one key and not in the others. Numbers
// that 3 parts do not hold (below 2^-109), or that overflow, are left to plain arithmetic.
//
// Fragments are loaded by 16 bytes, without ldmatrix, since order within a sum is free: lane (g, t) takes
// dims 16-byte piece by piece from rows g and g + 8 of K, and dims g * dim/8 .. of keys 2t, 2t+1, 2t+8, 2t+9
// of V. Pieces of a row lie in shared memory in an order that depends on the row (swizzle), so that no two
// lanes of a quarter of a warp meet in a bank.
//
// Order of all sums: the unit's blocks in order in each warp, then the warps in order. Nothing else enters.
#pragma once

#include "kernels/cuda/plain.cuh"

struct tile_stage_note { // beside the bytes of a stage
    uint64_t first;      // position of key 0
    uint32_t low, high;  // keys that a row of the tile sees; none: the end
    uint32_t all;        // every row of the tile sees all 16 keys
    uint32_t unused[3];
};

template <int type, int dim, int width> struct tile_shape {
    static constexpr bool wide = type == KERNELS_KV_F32; // K and V of a block are stages of their own
    static constexpr bool bf16 = wide || type == KERNELS_KV_BF16; // the products'
    static constexpr bool scaled = type == KERNELS_KV_INT8 || type == KERNELS_KV_FP8;
    static constexpr int element = wide ? 4 : scaled ? 1 : 2;            // bytes
    static constexpr int row = dim * element;                            // bytes of a key
    static constexpr int pieces = row / 16;                              // of a row
    static constexpr int in_piece = 16 / element;                        // elements
    static constexpr int key_ways = width >= 32 ? 1 : 4;                 // warps that share out the keys
    static constexpr int tiles = key_ways == 1 ? width / 32 : width / 8; // of 8 pairs, per warp
    static constexpr int threads = key_ways == 1 ? 128 : 32;             // that load and wait together
    static constexpr int steps = dim / 16;                               // of a product over dims
    static constexpr int terms = bf16 ? 3 : 2;                           // of q and of a weight
    static constexpr int v_piece = dim / 8 * element < 16 ? 8 : 16; // bytes of V that a lane loads at once
    static constexpr int v_pieces = dim / 8 * element / v_piece;
    static constexpr int stage = (wide ? 1 : 2) * 16 * row + (scaled ? 128 : 0) + 32;
    static constexpr int fit = 25 * 1024 / stage; // two blocks of 4 warps in the 227 KiB of sm_90
    static constexpr int stages = fit < 2 ? 2 : fit > 4 ? 4 : fit;
    static constexpr bool q_in_registers = tiles * steps * terms * 2 <= 48 && !(wide && tiles > 1);
    static constexpr int q_bytes = width / 8 * steps * terms * 256;
    static constexpr int scale_bytes =
        2 * width * 4; // of q: what it was divided by, and what to multiply with
    static constexpr int loop_bytes = q_bytes + scale_bytes + key_ways * stages * stage;
    static constexpr int end_bytes = key_ways == 1 ? 0 : 4 * width * (dim + 2) * 4;
    static constexpr int most = loop_bytes > end_bytes ? loop_bytes : end_bytes;
    static constexpr int shared = most > static_cast<int>(PLAIN_SHARED) ? most
                                                                        : static_cast<int>(PLAIN_SHARED);

    // Where piece c of a row stands.
    static LANE_DEVICE int k_place(int r, int c)
    {
        return pieces < 8 ? c : c ^ ((r & 1) << 2);
    }
    static LANE_DEVICE int v_place(int r, int c)
    {
        return pieces == 64   ? c ^ ((r >> 1 & 3) | (c >> 3 & 1) << 2)
               : pieces == 16 ? c ^ ((r >> 1 & 1) | (r >> 2 & 1) << 2)
               : pieces == 8  ? c ^ ((r >> 1 & 3) << 1)
                              : c ^ (r >> 1 & 3);
    }
};

template <class S> LANE_DEVICE void tile_mma(float (&d)[4], const lane_a &a, uint2 b)
{
    if (S::bf16)
        lane_mma_bf16(d, a, b);
    else
        lane_mma_f16(d, a, b);
}

template <class S> LANE_DEVICE void tile_sync()
{
    if (S::key_ways == 1)
        __syncthreads();
    else
        __syncwarp();
}

// Walks the blocks of the unit that belong to this warp (or to all), and loads those that the tile sees.
struct tile_walk {
    const cuda_run *run;
    uint32_t next; // block of the unit
    task_sight any, all;
    uint32_t row0, low, high; // wide: the block whose keys were loaded, for its values
};

// 16 rows of K, or of V; rows low .. high - 1 are wanted, the others become zeros.
template <class S, bool values>
LANE_DEVICE void tile_copy(char *to, const char *from, uint32_t low, uint32_t high, uint32_t lane)
{
#pragma unroll
    for (int i = 0; i < (16 * S::pieces + S::threads - 1) / S::threads; i++) {
        int x = i * S::threads + static_cast<int>(lane), r = x / S::pieces, c = x % S::pieces;
        if (16 * S::pieces % S::threads != 0 && x >= 16 * S::pieces)
            break;
        int place = values ? S::v_place(r, c) : S::k_place(r, c);
        lane_copy16(to + r * S::row + place * 16, from + r * S::row + c * 16,
                    static_cast<uint32_t>(r) - low < high - low);
    }
}

// wide: the values of the block whose keys tile_load() loaded last; none behind the end.
template <class S>
LANE_DEVICE void tile_load_values(const task &t, const tile_walk &walk, char *stage, uint32_t lane)
{
    if (walk.low < walk.high)
        tile_copy<S, true>(stage,
                           reinterpret_cast<const char *>(walk.run->v + t.head * walk.run->head_stride) +
                               static_cast<uint64_t>(walk.row0) * S::row,
                           walk.low, walk.high, lane);
}

template <class S, int type>
LANE_DEVICE void tile_load(const task &t, tile_walk &walk, char *stage, uint32_t lane)
{
    tile_stage_note *note = reinterpret_cast<tile_stage_note *>(stage + S::stage - 32);
    for (;; walk.next += S::key_ways) {
        while (walk.run < t.end &&
               walk.next >= walk.run->block + (walk.run->rows + CUDA_BLOCK_KEYS - 1) / CUDA_BLOCK_KEYS)
            walk.run++;
        if (walk.run >= t.end) {
            if (lane == 0)
                note->low = note->high = 0;
            walk.low = walk.high = 0;
            return;
        }
        const cuda_run *run = walk.run;
        uint32_t row0 = (walk.next - run->block) * CUDA_BLOCK_KEYS,
                 rows = min(CUDA_BLOCK_KEYS, run->rows - row0);
        uint64_t first = run->first + row0;
        uint32_t low, high;
        task_clip(walk.any, first, rows, low, high);
        if (low >= high)
            continue;
        walk.next += S::key_ways;
        if (lane == 0) {
            note->first = first;
            note->low = low;
            note->high = high;
            note->all = rows == CUDA_BLOCK_KEYS && walk.all.low <= first && walk.all.high >= first + 16;
        }
        uint64_t at = t.head * run->head_stride;
        const char *k = reinterpret_cast<const char *>(run->k + at) + static_cast<uint64_t>(row0) * S::row;
        const char *v = reinterpret_cast<const char *>(run->v + at) + static_cast<uint64_t>(row0) * S::row;
        tile_copy<S, false>(stage, k, low, high, lane);
        if (S::wide) {
            walk.row0 = row0;
            walk.low = low;
            walk.high = high;
            return;
        }
        tile_copy<S, true>(stage + 16 * S::row, v, low, high, lane);
        if (S::scaled && lane < 32) { // K's 16 scales, then V's
            uint32_t r = lane % 16;
            const float *scales =
                reinterpret_cast<const float *>((lane < 16 ? run->k_scale : run->v_scale) + at);
            lane_copy4(stage + 32 * S::row + lane * 4, scales + row0 + r, r - low < high - low);
        }
        return;
    }
}

// q as fragments: [tile of 8 pairs][step][term][lane], and for each pair the power of two that it was scaled
// by. Returns whether parts of q do not hold it (float32 alone).
template <class S, int width>
LANE_DEVICE bool tile_queries(const cuda_launch &launch, const task &t, uint2 *parts, float *scales)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = S::steps * 16;
    bool lost = false;
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
    for (uint32_t x = threadIdx.x; x < width / 8 * S::steps * 32; x += CUDA_THREADS) {
        uint32_t step = x / 32 % S::steps, p = x / 32 / S::steps * 8 + lane / 4;
        uint32_t d = step / (S::in_piece / 4) * (S::in_piece * 4) + lane % 4 * S::in_piece +
                     step % (S::in_piece / 4) * 4;
        float4 q = make_float4(0, 0, 0, 0);
        if (p < t.pairs)
            q = *reinterpret_cast<const float4 *>(task_query(launch, t, t.pair + p) + d);
        float down = scales[p];
        uint32_t a[3], b[3];
        if constexpr (S::wide) {
            float up = scales[width + p];
            uint32_t rest = number_split_all<true>(q.x * down, q.y * down, a) |
                            number_split_all<true>(q.z * down, q.w * down, b);
            lost = lost || (rest & 0xffffu) != 0 || q.x * down * up != q.x || q.y * down * up != q.y ||
                   q.z * down * up != q.z || q.w * down * up != q.w;
        } else {
            number_split<S::bf16>(q.x * down, q.y * down, a);
            number_split<S::bf16>(q.z * down, q.w * down, b);
        }
#pragma unroll
        for (int i = 0; i < S::terms; i++)
            parts[(x / 32 * S::terms + i) * 32 + lane] = make_uint2(a[i], b[i]);
    }
    __syncthreads();
    return lost;
}

template <int type, int dim, int width> struct tile_lane { // what a lane keeps
    typedef tile_shape<type, dim, width> S;
    uint2 q[S::q_in_registers ? S::tiles * S::steps * S::terms : 1];
    float o[S::tiles][S::v_pieces * S::v_piece / S::element / 2]
           [4];                           // [.][j]: dims g*dim/8 + 2j, 2j+1 x pairs 2t, 2t+1
    float m[S::tiles][2], s[S::tiles][2]; // pairs 2t, 2t+1; s of keys g and g+8 alone
    float factor[S::tiles][2], slope[S::tiles][2];
    uint32_t row[S::tiles][2];
    uint32_t seen, bad; // wide: bad is in the last 16 bits
};

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

template <int type, int dim, int width>
LANE_DEVICE void tile_logits(const char *k, const uint2 *q, tile_lane<type, dim, width> &st,
                             float (&x)[tile_shape<type, dim, width>::tiles][4])
{
    typedef tile_shape<type, dim, width> S;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float small[S::tiles][4], other[S::tiles][4]; // other: wide
#pragma unroll
    for (int n = 0; n < S::tiles; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[n][i] = small[n][i] = other[n][i] = 0;
    }
#pragma unroll(S::q_in_registers ? S::pieces / 4 : 1)
    for (int piece = 0; piece < S::pieces / 4; piece++) {
        int place = S::k_place(g, piece * 4 + t) * 16;
        uint4 low = *reinterpret_cast<const uint4 *>(k + g * S::row + place);
        uint4 high = *reinterpret_cast<const uint4 *>(k + (g + 8) * S::row + place);
        uint32_t a[4] = {low.x, low.y, low.z, low.w}, b[4] = {high.x, high.y, high.z, high.w};
        if (type == KERNELS_KV_FP8) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                st.bad |= number_fp8_nan(a[i]) | number_fp8_nan(b[i]);
        }
        lane_a parts[3];
        if constexpr (S::wide) {
            float y[4][2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                y[0][i] = __uint_as_float(a[i]);
                y[1][i] = __uint_as_float(b[i]);
                y[2][i] = __uint_as_float(a[2 + i]);
                y[3][i] = __uint_as_float(b[2 + i]);
            }
            st.bad |= tile_parts(y, parts);
        }
#pragma unroll
        for (int i = 0; i < S::in_piece / 4; i++) {
            lane_a part;
            if (S::scaled) {
                uint2 l = number_widen<type>(a[i]), h = number_widen<type>(b[i]);
                part = {l.x, h.x, l.y, h.y};
            } else {
                part = {a[i * 2], b[i * 2], a[(i * 2 + 1) % 4], b[(i * 2 + 1) % 4]};
            }
            int step = piece * (S::in_piece / 4) + i;
#pragma unroll
            for (int n = 0; n < S::tiles; n++) {
                uint2 terms[3];
#pragma unroll
                for (int j = 0; j < S::terms; j++) {
                    int at = (n * S::steps + step) * S::terms + j;
                    terms[j] = S::q_in_registers ? st.q[S::q_in_registers ? at : 0] : q[at * 32 + lane];
                }
                float large[4] = {0, 0, 0, 0};
                if constexpr (S::wide) {
                    tile_products(small[n], other[n], large, parts, terms);
                } else {
                    tile_mma<S>(large, part, terms[0]);
#pragma unroll
                    for (int j = S::terms - 1; j > 0; j--)
                        tile_mma<S>(small[n], part, terms[j]);
                }
#pragma unroll
                for (int j = 0; j < 4; j++)
                    x[n][j] += large[j];
            }
        }
    }
#pragma unroll
    for (int n = 0; n < S::tiles; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[n][i] += S::wide ? small[n][i] + other[n][i] : small[n][i];
    }
}

// o = o * fade + up * (V^T weights).
template <int type, int dim, int width>
LANE_DEVICE void tile_values(const char *v, const uint2 (&w)[tile_shape<type, dim, width>::tiles][3],
                             const float (&fade)[tile_shape<type, dim, width>::tiles][2], float up,
                             tile_lane<type, dim, width> &st)
{
    typedef tile_shape<type, dim, width> S;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int piece = 0; piece < S::v_pieces; piece++) {
        // Parts that do not hold a value: plain arithmetic will do the task. As important: a branch between
        // every 8 chains of products keeps the compiler from having more under way than there are registers
        if (S::wide && piece > 0 && piece % (2 / S::tiles) == 0 &&
            __any_sync(0xffffffffu, (st.bad & 0xffffu) != 0))
            return;
        uint32_t x[4][4]; // of keys 2t, 2t+1, 2t+8, 2t+9
        int at = g * (S::v_pieces * S::v_piece) + piece * S::v_piece;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = 2 * t + (i & 1) + (i >> 1) * 8;
            const char *from = v + r * S::row + S::v_place(r, at / 16) * 16 + at % 16;
            if (S::v_piece == 16) {
                uint4 y = *reinterpret_cast<const uint4 *>(from);
                x[i][0] = y.x, x[i][1] = y.y, x[i][2] = y.z, x[i][3] = y.w;
            } else {
                uint2 y = *reinterpret_cast<const uint2 *>(from);
                x[i][0] = y.x, x[i][1] = y.y, x[i][2] = x[i][3] = 0;
            }
        }
        if constexpr (S::wide) {
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
#pragma unroll
        for (int word = 0; word < (S::wide ? 0 : S::v_piece / 4); word++) {
            lane_a part[2]; // a word holds 2 dims of 16 bits, or 4 codes
            if (!S::scaled) {
                part[0] = {__byte_perm(x[0][word], x[1][word], 0x5410),
                           __byte_perm(x[0][word], x[1][word], 0x7632),
                           __byte_perm(x[2][word], x[3][word], 0x5410),
                           __byte_perm(x[2][word], x[3][word], 0x7632)};
            } else {
                if (type == KERNELS_KV_FP8) {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        st.bad |= number_fp8_nan(x[i][word]);
                }
                uint2 a = number_widen<type>(__byte_perm(x[0][word], x[1][word], 0x5140));
                uint2 b = number_widen<type>(__byte_perm(x[0][word], x[1][word], 0x7362));
                uint2 c = number_widen<type>(__byte_perm(x[2][word], x[3][word], 0x5140));
                uint2 d = number_widen<type>(__byte_perm(x[2][word], x[3][word], 0x7362));
                part[0] = {a.x, a.y, c.x, c.y};
                part[1] = {b.x, b.y, d.x, d.y};
            }
#pragma unroll
            for (int i = 0; i < (S::scaled ? 2 : 1); i++) {
                int j = (piece * (S::v_piece / 4) + word) * (S::scaled ? 2 : 1) + i;
#pragma unroll
                for (int n = 0; n < S::tiles; n++) {
                    float sum[4] = {0, 0, 0, 0};
#pragma unroll
                    for (int term = S::terms - 1; term >= 0; term--)
                        tile_mma<S>(sum, part[i], w[n][term]);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        st.o[n][j][e] = fmaf(st.o[n][j][e], fade[n][e & 1], S::scaled ? sum[e] * up : sum[e]);
                }
            }
        }
    }
}

// One block of 16 keys, its logits and weights, for tile_values().
template <int type, int dim, int width>
LANE_DEVICE void tile_keys(const task &t, const char *stage, const uint2 *q, tile_lane<type, dim, width> &st,
                           uint2 (&w)[tile_shape<type, dim, width>::tiles][3],
                           float (&fade)[tile_shape<type, dim, width>::tiles][2], float &up)
{
    typedef tile_shape<type, dim, width> S;
    const int lane = threadIdx.x % 32, g = lane / 4;
    const tile_stage_note *note = reinterpret_cast<const tile_stage_note *>(stage + S::stage - 32);
    const float *scales = reinterpret_cast<const float *>(stage + 32 * S::row);
    const cuda_item *item = t.item;
    float x[S::tiles][4];
    tile_logits<type, dim, width>(stage, q, st, x);

    float v_scale[2] = {1, 1};
    up = 1;
    int e = 0;
    if (S::scaled) { // weights take the values' scales in, less the largest one's exponent
        // An infinite one times a code of zero is NaN, which the products do not show
        st.bad |= !(number_finite(scales[g]) && number_finite(scales[g + 8]));
        v_scale[0] = scales[16 + g];
        v_scale[1] = scales[16 + g + 8];
        e = max(number_exponent(v_scale[0]), number_exponent(v_scale[1]));
#pragma unroll
        for (int i = 4; i <= 16; i *= 2)
            e = max(e, __shfl_xor_sync(0xffffffffu, e, i));
        // Zero scales are fine; tiny and huge ones are left to plain arithmetic
        st.bad |= (v_scale[0] != 0 || v_scale[1] != 0) && (e < -60 || e > 100);
        e = min(max(e, -60), 100);
        up = number_power(e - 14);
    }
    const float down = S::bf16 ? 1.0f : number_power(14 - e); // weights below 2^15
#pragma unroll
    for (int n = 0; n < S::tiles; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float y = x[n][i];
            if (S::scaled)
                y *= scales[g + (i >> 1) * 8];
            x[n][i] = y * st.factor[n][i & 1];
        }
        if (item->soft_cap > 0 || item->alibi != 0) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[n][i] =
                    task_bend(item, x[n][i], st.slope[n][i & 1],
                              static_cast<int64_t>(item->q_first + st.row[n][i & 1] -
                                                   (note->first + static_cast<uint32_t>(g + (i >> 1) * 8))));
        }
        if (note->all) {
            st.seen = 0xffffffffu;
        } else {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t low, high;
                task_clip(task_sight_of(item, st.row[n][i]), note->first, note->high, low, high);
                if (low < high)
                    st.seen |= 1u << (n * 2 + i);
                uint32_t key = static_cast<uint32_t>(g);
                x[n][i] = key >= low && key < high ? x[n][i] : -INFINITY;
                x[n][2 + i] = key + 8 >= low && key + 8 < high ? x[n][2 + i] : -INFINITY;
            }
        }
        float p[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float top = fmaxf(x[n][i], x[n][2 + i]); // a NaN comes up in the weights
#pragma unroll
            for (int j = 4; j <= 16; j *= 2)
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, j));
            top = fmaxf(top, st.m[n][i]);
            float base = top == -INFINITY ? 0.0f : top;
            fade[n][i] = number_exp(st.m[n][i] - base);
            p[i] = number_exp(x[n][i] - base);
            p[2 + i] = number_exp(x[n][2 + i] - base);
            st.m[n][i] = top;
            st.s[n][i] = fmaf(st.s[n][i], fade[n][i], p[i] + p[2 + i]);
        }
        uint32_t a[3], b[3];
        if constexpr (S::wide) { // what parts of a weight do not hold is below 2^-133
            number_split_all<true>(p[0], p[1], a);
            number_split_all<true>(p[2], p[3], b);
        } else {
            number_split<S::bf16>(p[0] * (v_scale[0] * down), p[1] * (v_scale[0] * down), a);
            number_split<S::bf16>(p[2] * (v_scale[1] * down), p[3] * (v_scale[1] * down), b);
        }
#pragma unroll
        for (int i = 0; i < S::terms; i++)
            w[n][i] = make_uint2(lane_transpose(a[i]), lane_transpose(b[i]));
    }
}

// Joins the four warps' partials, and writes the tile's. Returns whether this lane met what is not finite.
template <int type, int dim, int width>
LANE_DEVICE bool tile_end(const task &t, char *shared, tile_lane<type, dim, width> &st)
{
    typedef tile_shape<type, dim, width> S;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
    const int first = S::key_ways == 1 ? warp * S::tiles * 8 : 0;        // pair of this warp's first column
    float *ms = reinterpret_cast<float *>(shared), *os = ms + 8 * width; // [4][width] m, s; o [4][width][dim]
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
#pragma unroll
    for (int n = 0; n < S::tiles; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int p = first + n * 8 + c * 2 + i;
            bool used = static_cast<uint32_t>(p) < t.pairs;
            float factor = S::bf16 || S::scaled ? 1.0f : number_power(-14);
            float *o = t.out + 2 * width + p * dim;
            if (S::key_ways == 4) {
                float top = -INFINITY;
                for (int x = 0; x < 4; x++)
                    top = fmaxf(top, ms[x * 2 * width + p]);
                factor *= number_exp(st.m[n][i] - (top == -INFINITY ? 0.0f : top));
                o = os + (warp * width + p) * dim;
            }
#pragma unroll
            for (int j = 0; j < dim / 16; j++) {
                float2 y = make_float2(st.o[n][j][i] * factor, st.o[n][j][2 + i] * factor);
                bad = bad || (used && !(number_finite(y.x) && number_finite(y.y)));
                if (S::key_ways == 4 || used)
                    *reinterpret_cast<float2 *>(o + g * (dim / 8) + j * 2) = y;
            }
        }
    }
    if (S::key_ways == 1)
        return bad;
    __syncthreads();
    for (uint32_t x = threadIdx.x; x < t.pairs * dim; x += CUDA_THREADS) {
        float sum = os[x];
#pragma unroll
        for (int i = 1; i < 4; i++)
            sum += os[i * width * dim + x];
        t.out[2 * width + x] = sum;
    }
    if (threadIdx.x < t.pairs) {
        float top = -INFINITY, s = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            top = fmaxf(top, ms[i * 2 * width + threadIdx.x]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            s = fmaf(ms[(i * 2 + 1) * width + threadIdx.x],
                     number_exp(ms[i * 2 * width + threadIdx.x] - (top == -INFINITY ? 0.0f : top)), s);
        t.out[threadIdx.x] = top;
        t.out[width + threadIdx.x] = s;
    }
    return bad;
}

template <int type, int dim, int width>
__global__ void __launch_bounds__(CUDA_THREADS, 2) tile_kernel(const cuda_launch launch)
{
    typedef tile_shape<type, dim, width> S;
    task t;
    if (!task_find(launch, t))
        return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    char *shared = lane_shared();
    uint2 *q = reinterpret_cast<uint2 *>(shared);
    float *scales = reinterpret_cast<float *>(shared + S::q_bytes);
    const bool lost = tile_queries<S, width>(launch, t, q, scales);
    if (S::key_ways == 1)
        q += warp * S::tiles * S::steps * S::terms * 32;
    const int first = S::key_ways == 1 ? warp * S::tiles * 8 : 0;

    tile_lane<type, dim, width> st;
    st.seen = 0;
    st.bad = lost;
    if (S::q_in_registers) {
#pragma unroll
        for (int i = 0; i < (S::q_in_registers ? S::tiles * S::steps * S::terms : 0); i++)
            st.q[i] = q[i * 32 + lane];
    }
#pragma unroll
    for (int n = 0; n < S::tiles; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            // Columns past the last pair repeat it, with q = 0: nobody reads them
            uint32_t p = static_cast<uint32_t>(first + n * 8 + lane % 4 * 2 + i);
            uint32_t pair = t.pair + min(p, t.pairs - 1);
            st.row[n][i] = pair / t.item->group;
            st.factor[n][i] = scales[width + p] * t.item->scale;
            st.slope[n][i] = 0;
            if (t.item->alibi != 0)
                st.slope[n][i] =
                    task_at<const float>(launch.args,
                                         t.item->alibi)[t.head * t.item->group + pair % t.item->group];
            st.m[n][i] = -INFINITY;
            st.s[n][i] = 0;
        }
#pragma unroll
        for (int j = 0; j < dim / 16; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                st.o[n][j][i] = 0;
        }
    }

    // What any row of the tile sees, and what all of them see
    task_sight top = task_sight_of(t.item, t.pair / t.item->group),
               bottom = task_sight_of(t.item, (t.pair + t.pairs - 1) / t.item->group);
    tile_walk walk;
    walk.run = t.run;
    walk.next = S::key_ways == 1 ? 0 : static_cast<uint32_t>(warp);
    walk.any.low = top.low;
    walk.any.high = bottom.high;
    walk.all.low = bottom.low;
    walk.all.high = top.high;
    char *ring = shared + S::q_bytes + S::scale_bytes + (S::key_ways == 1 ? 0 : warp * S::stages * S::stage);
    const uint32_t loader = S::key_ways == 1 ? threadIdx.x : static_cast<uint32_t>(lane);
#pragma unroll
    for (int i = 0; i < S::stages - 1; i++) {
        if (S::wide && i % 2 != 0)
            tile_load_values<S>(t, walk, ring + i * S::stage, loader);
        else
            tile_load<S, type>(t, walk, ring + i * S::stage, loader);
        lane_copy_commit();
    }
    int use = 0, fill = S::stages - 1;
    for (;;) {
        lane_copy_wait<S::stages - 2>();
        tile_sync<S>(); // this block is here, and the one before is done with
        const char *stage = ring + use * S::stage;
        const tile_stage_note *note = reinterpret_cast<const tile_stage_note *>(stage + S::stage - 32);
        if (note->low >= note->high)
            break;
        if (S::wide && S::stages % 2 == 0)
            tile_load_values<S>(t, walk, ring + fill * S::stage, loader);
        else
            tile_load<S, type>(t, walk, ring + fill * S::stage, loader);
        lane_copy_commit();
        uint2 w[S::tiles][3];
        float fade[S::tiles][2], up;
        tile_keys<type, dim, width>(t, stage, q, st, w, fade, up);
        if (S::wide) { // the same for the block's values, in a stage of their own
            use = use + 1 == S::stages ? 0 : use + 1;
            fill = fill + 1 == S::stages ? 0 : fill + 1;
            lane_copy_wait<S::stages - 2>();
            tile_sync<S>();
            if (S::stages % 2 == 0)
                tile_load<S, type>(t, walk, ring + fill * S::stage, loader);
            else
                tile_load_values<S>(t, walk, ring + fill * S::stage, loader);
            lane_copy_commit();
            stage = ring + use * S::stage;
        }
        tile_values<type, dim, width>(stage + (S::wide ? 0 : 16 * S::row), w, fade, up, st);
        use = use + 1 == S::stages ? 0 : use + 1;
        fill = fill + 1 == S::stages ? 0 : fill + 1;
    }
    lane_copy_wait<0>();
    __syncthreads();
    bool bad = tile_end<type, dim, width>(t, shared, st);
    if (__syncthreads_or(bad))
        plain_task<type>(launch, t);
}

template <int type, int dim, int width> struct tile_entry {
    static cuda_kernel get()
    {
        cuda_kernel k = {reinterpret_cast<const void *>(&tile_kernel<type, dim, width>),
                         static_cast<uint32_t>(tile_shape<type, dim, width>::shared)};
        return k;
    }
};

// By dim and by width: cuda_width() of args.h.
#define TILE_ROW(type, dim, medium, large)                                                                   \
    {                                                                                                        \
        tile_entry<type, dim, 8>::get(), tile_entry<type, dim, medium>::get(),                               \
            tile_entry<type, dim, large>::get()                                                              \
    }
#define TILE_TABLE(type)                                                                                     \
    {                                                                                                        \
        TILE_ROW(type, 64, 16, 64), TILE_ROW(type, 128, 16, 64), TILE_ROW(type, 256, 32, 32)                 \
    }
