// SPDX-License-Identifier: Apache-2.0
// Which part of which item a block of threads works on.
#pragma once

#include "kernels/cuda/args.h"
#include "kernels/cuda/number.cuh"

template <class T> LANE_DEVICE T *task_at(uint64_t base, uint64_t offset)
{
    return lane_global(reinterpret_cast<T *>(base + offset));
}

struct task {
    const cuda_item *item;
    const cuda_run *run, *end; // of the unit
    uint32_t head;             // KV head
    uint32_t pair, pairs;      // the tile's first, and how many it has
    float *out;                // its partial
};

LANE_DEVICE const cuda_header *task_pass(const cuda_launch &launch)
{
    return task_at<const cuda_header>(launch.args, launch.pass * sizeof(cuda_header));
}

// The class's task `number`. False: there is none, nor any after it.
LANE_DEVICE bool task_find(const cuda_launch &launch, uint32_t number, task &out)
{
    const cuda_header *pass = task_pass(launch);
    const cuda_class *list = &pass->classes[launch.class_index];
    if (number >= list->tasks)
        return false;
    const cuda_item *items = task_at<const cuda_item>(launch.args, pass->items_at) + list->first_item;
    uint32_t low = 0, high = list->items;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (items[middle].first_task <= number)
            low = middle;
        else
            high = middle;
    }
    const cuda_item *item = items + low;
    uint32_t task = number - item->first_task, tile = task % item->tiles, rest = task / item->tiles;
    uint32_t unit = rest / item->kv_heads + launch.round * item->round_units;
    uint32_t pairs = item->rows * item->group, width = item->width;
    if (unit >= item->unit_count) // the last round is shorter, and units are in order
        return false;
    const uint32_t *units = task_at<const uint32_t>(launch.args, item->units);
    const cuda_run *runs = task_at<const cuda_run>(launch.args, item->runs);
    out.item = item;
    out.head = rest % item->kv_heads;
    out.run = runs + units[unit];
    out.end = runs + units[unit + 1];
    out.pair = tile * width;
    out.pairs = min(width, pairs - tile * width);
    out.out = task_at<float>(launch.partials, 0) + item->partial +
              static_cast<uint64_t>(task) * width * (2 + item->v_dim);
    return true;
}

LANE_DEVICE const float *task_query(const cuda_launch &launch, const task &t, uint32_t pair)
{
    const cuda_item *item = t.item;
    uint64_t row = pair / item->group, head = t.head * item->group + pair % item->group;
    return task_at<const float>(launch.args, item->q) +
           (row * item->kv_heads * item->group + head) * item->k_dim;
}

// The keys that row `row` sees.
LANE_DEVICE kernels_interval task_sight_of(const cuda_item *item, uint32_t row)
{
    return kernels_row_interval(&item->mask, item->q_first + row);
}

// Which of the 16 keys at first .. first + 15 are seen: bits low .. high - 1.
LANE_DEVICE void task_clip(kernels_interval s, uint64_t first, uint32_t rows, uint32_t &low, uint32_t &high)
{
    low = s.from > first ? (s.from - first < rows ? static_cast<uint32_t>(s.from - first) : rows) : 0;
    high = s.to > first ? (s.to - first < rows ? static_cast<uint32_t>(s.to - first) : rows) : 0;
}

// cap * tanh(x / cap). Small x come out with the error of one rounding, which tanhf() and a product do not
// give.
LANE_DEVICE float task_cap(float x, float cap)
{
    float y = x / cap, z = y * y;
    if (fabsf(y) < 0.625f) { // the polynomial of Cephes' tanhf
        float p = fmaf(-5.70498872745e-3f, z, 2.06390887954e-2f);
        p = fmaf(p, z, -5.37397155531e-2f);
        p = fmaf(p, z, 1.33314422036e-1f);
        p = fmaf(p, z, -3.33332819422e-1f);
        return fmaf(x, p * z, x);
    }
    float e = number_exp(-2.0f * fabsf(y)), bent = fmaf(-cap, 2.0f * e / (1.0f + e), cap);
    return x < 0 ? -bent : bent;
}

// The logit of a scaled product, without what hides it.
LANE_DEVICE float task_bend(const cuda_item *item, float x, float slope, int64_t distance)
{
    if (item->soft_cap > 0)
        x = task_cap(x, item->soft_cap);
    if (item->alibi != 0)
        x = fmaf(-slope, static_cast<float>(distance), x);
    return x;
}
