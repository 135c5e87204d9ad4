// SPDX-License-Identifier: Apache-2.0
// Merging ranks' partials on the device of rank 0, a block of threads a (row, head).
//
// merge_kernel does what kernels_partial_merge() does, operation by operation and in the order of the plan's
// tree, so its bits are those of the engine `stream`. The other three are max-then-sum: ranks agree on the
// largest m, scale to it, and a sum over ranks does the rest.
#include "kernels/cuda/lane.cuh"
#include "kernels/scalar.h"
#include "reduce/nccl/args.h"

namespace
{
constexpr uint32_t AHEAD = 8; // children whose numbers are asked for at once

template <class T> LANE_DEVICE T *at(uint64_t base, uint64_t offset)
{
    return reinterpret_cast<T *>(base + offset);
}

LANE_DEVICE bool is_nan(float x)
{
    return x != x;
}

LANE_DEVICE bool massless(float m, float s)
{
    return s == 0 && !is_nan(m);
}

LANE_DEVICE bool negative(float x)
{
    return (__float_as_uint(x) >> 31) != 0;
}

LANE_DEVICE const nccl_item *item_of(const nccl_args *args, uint32_t pair)
{
    const nccl_item *items = at<const nccl_item>(reinterpret_cast<uint64_t>(args), args->items_at);
    uint32_t low = 0, high = args->items;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (items[middle].first_pair <= pair)
            low = middle;
        else
            high = middle;
    }
    return items + low;
}

// One (row, head) in a rank's block.
struct place {
    float *m, *s, *o;
};

LANE_DEVICE place place_of(const nccl_args *args, const nccl_item *item, uint64_t blocks, uint32_t rank,
                           uint32_t pair)
{
    float *base = at<float>(blocks, rank * args->stride + NCCL_TAG_BYTES) + item->at;
    uint32_t i = pair - item->first_pair;
    return {base + i, base + item->plane + i,
            base + 2 * static_cast<uint64_t>(item->plane) + static_cast<uint64_t>(i) * item->dv};
}

// Do all blocks belong to this operation? By the first block of threads.
LANE_DEVICE void check_tags(const nccl_args *args, uint64_t blocks)
{
    nccl_tag *own = at<nccl_tag>(blocks, 0);
    if (threadIdx.x == 0)
        own->verdict = own->absentee = 0;
    __syncthreads();
    for (uint32_t r = threadIdx.x; r < args->ranks; r += CUDA_THREADS) {
        const nccl_tag *tag = at<const nccl_tag>(blocks, r * args->stride);
        const nccl_tag *want = &args->tag;
        if (tag->magic != want->magic || tag->generation != want->generation ||
            tag->sequence != want->sequence || tag->step != want->step || tag->bytes != want->bytes ||
            tag->rank != r)
            own->verdict = 1 + static_cast<uint64_t>(r);
        else if (!tag->present)
            own->absentee = 1 + static_cast<uint64_t>(r);
    }
    __syncthreads();
}

struct sum {
    float m, s, o;
};

LANE_DEVICE void add(sum &into, float m, float s, float o)
{
    if (massless(m, s)) {
        if (negative(s) && massless(into.m, into.s))
            into.s = -0.0f; // keys were seen, if without mass
        return;
    }
    if (massless(into.m, into.s)) {
        into = {m, s, o};
        return;
    }
    float top = is_nan(into.m) || into.m >= m ? into.m : m;
    float a = static_cast<float>(kernels_scalar_exp(static_cast<double>(into.m) - static_cast<double>(top)));
    float b = static_cast<float>(kernels_scalar_exp(static_cast<double>(m) - static_cast<double>(top)));
    into = {top, into.s * a + s * b, into.o * a + o * b};
}

// own + child 0 + child 1 + ... of one rank, for the thread's columns. All children are complete.
LANE_DEVICE void merge_rank(const nccl_args *args, const nccl_item *item, uint64_t blocks, uint32_t pair,
                            uint32_t rank, const uint32_t *child, uint32_t n)
{
    place own = place_of(args, item, blocks, rank, pair);
    sum total = {};
    for (uint32_t d = threadIdx.x; d - threadIdx.x < item->dv; d += CUDA_THREADS) {
        uint32_t column = d < item->dv ? d : 0; // threads beyond the last column follow along
        total = {*own.m, *own.s, own.o[column]};
        for (uint32_t c0 = 0; c0 < n; c0 += AHEAD) {
            sum next[AHEAD];
#pragma unroll
            for (uint32_t i = 0; i < AHEAD; i++) {
                place from = place_of(args, item, blocks, child[c0 + i < n ? c0 + i : c0], pair);
                next[i] = {*from.m, *from.s, from.o[column]};
            }
#pragma unroll
            for (uint32_t i = 0; i < AHEAD; i++) {
                if (c0 + i < n)
                    add(total, next[i].m, next[i].s, next[i].o);
            }
        }
        if (d < item->dv)
            own.o[d] = total.o;
    }
    __syncthreads(); // everybody has read m and s
    if (threadIdx.x == 0) {
        *own.m = total.m;
        *own.s = total.s;
    }
    __syncthreads(); // and may read them again
}

LANE_DEVICE float proof_of(const nccl_tag *tag, uint32_t i)
{
    uint64_t x = tag->generation ^ tag->sequence * 0x9e3779b97f4a7c15ULL ^ tag->step ^ tag->bytes;
    return i < 3 ? static_cast<float>(x >> (21 * i) & 0x1fffff) : tag->present ? 1.0f : 2.0f;
}
} // namespace

static __global__ void __launch_bounds__(CUDA_THREADS) merge_kernel(const cuda_launch launch)
{
    const nccl_args *args = at<const nccl_args>(launch.args, 0);
    uint32_t pair = blockIdx.x;
    if (pair == 0)
        check_tags(args, launch.partials);
    const nccl_item *item = item_of(args, pair);
    const uint32_t *first = at<const uint32_t>(launch.args, args->children_at),
                   *child = first + args->ranks + 1;
    for (uint32_t r = args->ranks; r-- > 0;) { // children come after their parent
        uint32_t n = first[r + 1] - first[r];
        if (n > 0)
            merge_rank(args, item, launch.partials, pair, r, child + first[r], n);
    }
}

static __global__ void __launch_bounds__(CUDA_THREADS) agree_kernel(const cuda_launch launch)
{
    const nccl_args *args = at<const nccl_args>(launch.args, 0);
    uint32_t pair = blockIdx.x;
    place own = place_of(args, item_of(args, pair), launch.partials, 0, pair);
    float *out = at<float>(launch.out, 0);
    if (threadIdx.x == 0) {
        float m = *own.m, s = *own.s;
        bool unknown = is_nan(m) || is_nan(s), empty = massless(m, s);
        out[pair] = empty || unknown ? -INFINITY : m;
        out[args->pairs + pair] = empty && negative(s) ? 1.0f : 0.0f;
        out[2 * args->pairs + pair] = unknown ? 1.0f : 0.0f;
    }
    if (pair == 0 && threadIdx.x < NCCL_PROOFS) {
        float proof = proof_of(&args->tag, threadIdx.x % 4);
        out[3 * args->pairs + threadIdx.x] = threadIdx.x < 4 ? proof : -proof;
    }
}

static __global__ void __launch_bounds__(CUDA_THREADS) scale_kernel(const cuda_launch launch)
{
    const nccl_args *args = at<const nccl_args>(launch.args, 0);
    uint32_t pair = blockIdx.x;
    const nccl_item *item = item_of(args, pair);
    place own = place_of(args, item, launch.partials, 0, pair);
    float m = *own.m, s = *own.s, top = at<const float>(launch.out, 0)[pair];
    bool empty = massless(m, s);
    float factor = static_cast<float>(kernels_scalar_exp(static_cast<double>(m) - static_cast<double>(top)));
    __syncthreads(); // everybody has read s
    for (uint32_t d = threadIdx.x; d < item->dv; d += CUDA_THREADS)
        own.o[d] = empty ? 0.0f : own.o[d] * factor;
    if (threadIdx.x == 0) {
        *own.m = 0;
        *own.s = empty ? 0.0f : s * factor;
    }
}

static __global__ void __launch_bounds__(CUDA_THREADS) settle_kernel(const cuda_launch launch)
{
    const nccl_args *args = at<const nccl_args>(launch.args, 0);
    uint32_t pair = blockIdx.x;
    place own = place_of(args, item_of(args, pair), launch.partials, 0, pair);
    const float *agreed = at<const float>(launch.out, 0);
    if (pair == 0 && threadIdx.x == 0) {
        nccl_tag *tag = at<nccl_tag>(launch.partials, 0);
        const float *proof = agreed + 3 * static_cast<uint64_t>(args->pairs);
        bool same = true;
        for (uint32_t i = 0; i < 3; i++)
            same = same && proof[i] == proof_of(&args->tag, i) && proof[4 + i] == -proof[i];
        tag->verdict = same ? 0 : NCCL_SOME_RANK; // the sum does not say which
        tag->absentee = proof[3] != 1.0f ? NCCL_SOME_RANK : 0;
    }
    if (threadIdx.x == 0) {
        float s = *own.s;
        bool mass = s != 0; // NaN, too
        if (agreed[2 * static_cast<uint64_t>(args->pairs) + pair] > 0) {
            s = __uint_as_float(0x7fc00000u);
            mass = true;
        } else if (!mass) {
            s = agreed[args->pairs + pair] > 0 ? -0.0f : 0.0f;
        }
        *own.m = mass ? agreed[pair] : -INFINITY;
        *own.s = s;
    }
}

const struct cuda_kernel nccl_kernel_merge = {reinterpret_cast<const void *>(&merge_kernel), 0, 0, 0};
const struct cuda_kernel nccl_kernel_agree = {reinterpret_cast<const void *>(&agree_kernel), 0, 0, 0};
const struct cuda_kernel nccl_kernel_scale = {reinterpret_cast<const void *>(&scale_kernel), 0, 0, 0};
const struct cuda_kernel nccl_kernel_settle = {reinterpret_cast<const void *>(&settle_kernel), 0, 0, 0};
