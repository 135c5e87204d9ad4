// SPDX-License-Identifier: Apache-2.0
// The merge of an item's units, one block of threads a (row, query head), and the plain read that measures
// the memory.
//
// What comes out is what kernels_partial_merge() makes of the units' partials in any order, up to rounding:
// those without mass are skipped, NaN comes through. Weights are taken against the largest m of all; warp w
// adds units w, w + 4, ... and warps are added in order, each sum with the error of its additions carried
// along. Where there are rounds, what was added up travels from round to round as it is, sum and rest.
#include "kernels/cuda/task.cuh"

// sum + rest = what was added so far, nearly exactly (Neumaier).
LANE_DEVICE void merge_add(float x, float &sum, float &rest)
{
    float next = sum + x;
    float lost = fabsf(sum) >= fabsf(x) ? (sum - next) + x : (x - next) + sum;
    rest += number_finite(next) ? lost : 0.0f; // inf - inf is no error
    sum = next;
}

// A sum, what it lost, and both as one number.
struct merge_sum {
    float all, lost;
};

// What four warps' sums and rests come to.
LANE_DEVICE merge_sum merge_warps(const float *sums, const float *rests, int step)
{
    merge_sum x = {0, 0};
#pragma unroll
    for (int w = 0; w < 4; w++) {
        merge_add(sums[w * step], x.all, x.lost);
        x.lost += rests[w * step];
    }
    return x;
}

LANE_DEVICE merge_sum merge_scaled(const merge_sum &x, float factor)
{
    float y = x.all * factor;
    merge_sum scaled = {y, x.lost * factor + (number_finite(y) ? fmaf(x.all, factor, -y) : 0.0f)};
    return scaled;
}

// What rounds before this one left for a (row, query head), and what it leaves: CUDA_CARRY floats.
struct merge_carry {
    float *at;         // NULL: there is one round
    bool first, last;  // round
    bool mass, seen;   // of the rounds before
    float before, now; // what their sums, and this round's, are multiplied with

    // Adds a round's sum to those before. True: it is all, else it is kept.
    LANE_DEVICE bool add(merge_sum &x, uint64_t all_at, uint64_t lost_at) const
    {
        if (!at)
            return true;
        float *all = at + all_at, *lost = at + lost_at;
        if (!first) {
            merge_sum old = {*all, *lost}, sum = {0, 0};
            if (mass) {
                old = merge_scaled(old, before);
                merge_add(old.all, sum.all, sum.lost);
                sum.lost += old.lost;
            }
            x = merge_scaled(x, now);
            merge_add(x.all, sum.all, sum.lost);
            sum.lost += x.lost;
            x = sum;
        }
        *all = x.all;
        *lost = x.lost;
        return last;
    }
};

// Asked for where it is needed, and not kept: registers are for what comes from memory. top: of this round; it
// becomes that of all rounds so far.
LANE_DEVICE merge_carry merge_carry_of(const cuda_launch &launch, const cuda_item *item, uint32_t at,
                                       bool has_mass, float &top)
{
    merge_carry carry = {NULL, launch.round == 0, true, false, false, 1, 1};
    uint32_t done = launch.round * item->round_units;
    if (item->round_units >= item->unit_count)
        return carry;
    carry.last = item->unit_count - done <= item->round_units;
    carry.at = task_at<float>(launch.partials, 0) + item->carry +
               static_cast<uint64_t>(at) * CUDA_CARRY(item->v_dim);
    if (carry.first)
        return carry;
    float old = carry.at[0];
    uint32_t state = __float_as_uint(carry.at[1]);
    carry.mass = (state & 1) != 0;
    carry.seen = (state & 2) != 0;
    float whole = !carry.mass ? top : has_mass ? number_top(old, top) : old;
    carry.before = carry.mass ? number_exp(old - whole) : 1.0f;
    carry.now = has_mass ? number_exp(top - whole) : 1.0f;
    top = whole;
    return carry;
}

#define MERGE_DIMS  128u // at once, of a block of threads
#define MERGE_UNITS 128u // whose weights are in shared memory
#define MERGE_AHEAD 8u   // units of a warp that are on their way from memory at once

static __global__ void __launch_bounds__(CUDA_THREADS, 4) merge_kernel(const cuda_launch launch)
{
    const cuda_header *header = task_pass(launch);
    if (blockIdx.x >= header->merges)
        return;
    const cuda_item *items = task_at<const cuda_item>(launch.args, header->items_at);
    uint32_t low = 0, high = header->items;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (items[middle].first_merge <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    const cuda_item *item = items + low;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t at = blockIdx.x - item->first_merge, heads = item->kv_heads * item->group;
    uint32_t row = at / heads, q_head = at % heads, kv_head = q_head / item->group;
    uint32_t pair = row * item->group + q_head % item->group, width = item->width, v_dim = item->v_dim;
    uint64_t task_floats = static_cast<uint64_t>(width) * (2 + v_dim);
    uint64_t stride = task_floats * item->kv_heads * item->tiles; // from unit to unit
    const float *first = task_at<const float>(launch.partials, 0) + item->partial +
                         (static_cast<uint64_t>(kv_head) * item->tiles + pair / width) * task_floats;
    uint32_t in_tile = pair % width, done = launch.round * item->round_units; // units
    const uint32_t units = min(item->unit_count - done, item->round_units);
    const float *m = first + in_tile, *s = first + width + in_tile, *o = first + 2 * width + in_tile * v_dim;

    float *shared =
        reinterpret_cast<float *>(lane_shared()); // [4] tops; then sums and rests [4][MERGE_DIMS], weights, s
    float top = -INFINITY;
    bool mass = false, seen = false;
    for (uint32_t u = threadIdx.x; u < units; u += CUDA_THREADS) {
        float mu = m[u * stride], su = s[u * stride];
        bool empty = number_massless(mu, su);
        seen = seen || (empty && (__float_as_uint(su) >> 31) != 0);
        top = empty ? top : mass ? number_top(top, mu) : mu;
        mass = mass || !empty;
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, top, i);
        top = number_top(top, other); // -inf where there is no mass
    }
    if (lane == 0)
        shared[warp] = top;
    mass = __syncthreads_or(mass) != 0;
    seen = __syncthreads_or(seen) != 0;
    top = number_top(number_top(shared[0], shared[1]), number_top(shared[2], shared[3]));
    __syncthreads();

    float *sums = shared, *rests = shared + 4 * MERGE_DIMS, *factors = shared + 8 * MERGE_DIMS,
          *masses = factors + MERGE_UNITS;
    uint64_t n = (static_cast<uint64_t>(item->rows) * heads + 15) / 16 * 16; // floats of a plane
    float *out = task_at<float>(launch.out, 0) + item->out;
    for (uint32_t d0 = 0; d0 < v_dim; d0 += MERGE_DIMS) {
        float sum[4], rest[4], sum_s = 0, rest_s = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[i] = rest[i] = 0;
        for (uint32_t u0 = 0; u0 < units; u0 += MERGE_UNITS) {
            uint32_t count = min(MERGE_UNITS, units - u0);
            if (threadIdx.x < count) {
                float mu = m[(u0 + threadIdx.x) * stride], su = s[(u0 + threadIdx.x) * stride];
                factors[threadIdx.x] = number_massless(mu, su) ? -1.0f : number_exp(mu - top);
                masses[threadIdx.x] = su;
            }
            __syncthreads();
            for (uint32_t u = warp; u < count; u += 4 * MERGE_AHEAD) {
                float x[MERGE_AHEAD][4];
#pragma unroll
                for (uint32_t k = 0; k < MERGE_AHEAD; k++) {
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) {
                        uint32_t d = d0 + i * 32 + lane, at_u = u + 4 * k;
                        x[k][i] = at_u < count && d < v_dim ? o[(u0 + at_u) * stride + d] : 0.0f;
                    }
                }
#pragma unroll
                for (uint32_t k = 0; k < MERGE_AHEAD; k++) {
                    if (u + 4 * k >= count || factors[u + 4 * k] < 0)
                        continue;
                    float factor = factors[u + 4 * k];
                    merge_add(masses[u + 4 * k] * factor, sum_s, rest_s);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        merge_add(x[k][i] * factor, sum[i], rest[i]);
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            sums[warp * MERGE_DIMS + i * 32 + lane] = sum[i];
            rests[warp * MERGE_DIMS + i * 32 + lane] = rest[i];
        }
        if (lane == 0) {
            factors[warp] = sum_s;
            masses[warp] = rest_s;
        }
        __syncthreads();
        uint32_t d = d0 + threadIdx.x;
        if (d < v_dim) {
            float whole = top;
            const merge_carry carry = merge_carry_of(launch, item, at, mass, whole);
            merge_sum x = merge_warps(sums + threadIdx.x, rests + threadIdx.x, MERGE_DIMS);
            if (carry.add(x, 4 + d, 4 + v_dim + d))
                out[2 * n + static_cast<uint64_t>(at) * v_dim + d] = x.all + x.lost;
            if (d == 0) { // -0: keys were seen, if without mass
                x = merge_warps(factors, masses, 1);
                if (carry.add(x, 2, 3))
                    out[n + at] = mass || carry.mass ? x.all + x.lost : seen || carry.seen ? -0.0f : 0.0f;
            }
        }
        __syncthreads();
    }
    if (threadIdx.x != 0)
        return;
    const merge_carry carry = merge_carry_of(launch, item, at, mass, top);
    if (carry.at) { // all have read it
        carry.at[0] = top;
        carry.at[1] = __uint_as_float((mass || carry.mass ? 1u : 0u) | (seen || carry.seen ? 2u : 0u));
    }
    if (carry.last)
        out[at] = mass || carry.mass ? top : -INFINITY;
}

const struct cuda_kernel cuda_merge = {reinterpret_cast<const void *>(&merge_kernel),
                                       (8 * MERGE_DIMS + 2 * MERGE_UNITS) * 4,
                                       (8 * MERGE_DIMS + 2 * MERGE_UNITS) * 4, 0};

// Reads `partials` bytes at args and leaves a word that depends on all of them.
static __global__ void __launch_bounds__(CUDA_THREADS) read_kernel(const cuda_launch launch)
{
    const uint4 *from = task_at<const uint4>(launch.args, 0);
    uint64_t n = launch.partials / sizeof(uint4), step = static_cast<uint64_t>(gridDim.x) * CUDA_THREADS;
    uint64_t i = static_cast<uint64_t>(blockIdx.x) * CUDA_THREADS + threadIdx.x;
    uint32_t x = 0;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
        x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < n; i += step)
        x ^= from[i].x ^ from[i].y ^ from[i].z ^ from[i].w;
    if (x == 0x9e3779b9u) // almost never; the compiler does not know
        *task_at<uint32_t>(launch.out, 0) = x;
}

const struct cuda_kernel cuda_read = {reinterpret_cast<const void *>(&read_kernel), 0, 0, 0};
