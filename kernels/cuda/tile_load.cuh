// SPDX-License-Identifier: Apache-2.0
// From runs to stages: which blocks of 16 keys a warp computes, and their copies.
#pragma once

#include "kernels/cuda/tile_shape.cuh"

// Walks the blocks of the unit that belong to this warp (or to all), and loads those that the tile sees.
struct tile_walk {
    const cuda_run *run; // the next one
    // Of the block to come: where this thread's first copies come from, of this KV head
    const char *k, *v, *scales;
    uint32_t row;                // of the run
    uint32_t begin, end;         // rows of the run that a row of the tile sees; end 0: there is no run
    uint32_t all_begin, all_end; // that all of them see
    uint32_t ahead;              // 1: of the task after the one that is computed (tile.cuh), else 0
};

// Copies of 16 rows of K or V: thread i of `threads` starts with piece i % across of row i / across, and goes
// on by `down` rows at a time, and in each by `across` pieces.
template <class S> struct tile_copies {
    static constexpr int across = S::pieces < 8 ? S::pieces : 8, down = S::threads / across;
    static constexpr int columns = S::pieces / across;
    static constexpr int count = 16 * S::pieces < S::threads ? 1 : 16 * S::pieces / S::threads;

    static LANE_DEVICE uint32_t first(uint32_t thread) // bytes from the block's
    {
        return thread / across * S::row + thread % across * 16;
    }
};

// Keys low .. high - 1 are wanted, which `whole` says are all; the others become zeros.
template <class S, bool values, bool whole>
LANE_DEVICE void tile_copy(char *stage, const char *from, uint32_t low, uint32_t high, uint32_t thread)
{
    typedef tile_copies<S> C;
    if (16 * S::pieces < S::threads && thread >= 16 * S::pieces)
        return;
    const int r0 = static_cast<int>(thread) / C::across, c0 = static_cast<int>(thread) % C::across;
    const uint32_t first = static_cast<uint32_t>(r0 * S::row + S::template place<values>(r0, c0) * 16);
    const lane_place to = lane_place_of(stage);
#pragma unroll
    for (int i = 0; i < C::count; i++) {
        // place() has no carries: place(r0 + r, c0 + c) = place(r0, c0) ^ place(r, c)
        const int r = i / C::columns * C::down, c = i % C::columns * C::across;
        const int shift = S::template place<values>(r, c);
        lane_copy16(to + ((first ^ static_cast<uint32_t>(shift % 8 * 16)) +
                          static_cast<uint32_t>(r * S::row + shift / 8 * 128)),
                    from + (r * S::row + c * 16), whole || static_cast<uint32_t>(r0 + r) - low < high - low);
    }
}

// Which of the 16 keys at `row` are copied.
LANE_DEVICE void tile_wanted(const tile_walk &walk, uint32_t row, uint32_t &low, uint32_t &high)
{
    low = walk.begin > row ? walk.begin - row : 0;
    high = min(CUDA_BLOCK_KEYS, walk.end - row);
}

// wide: the values of the block whose keys tile_load() loaded last; none behind the end.
template <class S> LANE_DEVICE void tile_load_values(tile_walk &walk, char *stage, uint32_t thread)
{
    if (walk.end == 0)
        return;
    uint32_t low, high;
    tile_wanted(walk, walk.row - S::key_ways * CUDA_BLOCK_KEYS, low, high);
    if (high - low == CUDA_BLOCK_KEYS)
        tile_copy<S, true, true>(stage, walk.v, low, high, thread);
    else
        tile_copy<S, true, false>(stage, walk.v, low, high, thread);
    walk.v += S::key_ways * CUDA_BLOCK_KEYS * S::row;
}

// The next run that holds something for this warp. False: there is none.
template <class S> LANE_DEVICE bool tile_open(const tile_task &kept, tile_walk &walk, uint32_t thread)
{
    const task &t = kept.t;
    constexpr uint32_t stride = S::key_ways * CUDA_BLOCK_KEYS;
    while (walk.run < t.end) {
        const cuda_run *run = walk.run++;
        const cuda_item *item = t.item;
        kernels_interval top = task_sight_of(item, kept.top), bottom = task_sight_of(item, kept.bottom);
        kernels_interval any = {top.from, bottom.to}, all = {bottom.from, top.to};
        task_clip(any, run->first, run->rows, walk.begin, walk.end);
        task_clip(all, run->first, run->rows, walk.all_begin, walk.all_end);
        walk.row = S::key_ways == 1 ? 0 : (threadIdx.x / 32 - run->block) % S::key_ways * CUDA_BLOCK_KEYS;
        if (walk.row + CUDA_BLOCK_KEYS <= walk.begin) // blocks before the first that is seen
            walk.row += (walk.begin - walk.row - CUDA_BLOCK_KEYS + stride) / stride * stride;
        if (walk.row >= walk.end)
            continue;
        uint64_t at = t.head * run->head_stride, rows = walk.row;
        walk.k = reinterpret_cast<const char *>(run->k + at + rows * S::row) + tile_copies<S>::first(thread);
        walk.v = reinterpret_cast<const char *>(run->v + at + rows * S::row) + tile_copies<S>::first(thread);
        if (S::scaled)
            walk.scales = reinterpret_cast<const char *>((thread < 16 ? run->k_scale : run->v_scale) + at) +
                          (rows + thread % 16) * 4;
        return true;
    }
    walk.row = walk.end = 0;
    return false;
}

// Notes a task. By one thread; the others wait at a barrier.
LANE_DEVICE void tile_keep(tile_task &kept, const task &t, uint32_t turn)
{
    kept.t = t;
    kept.turn = turn;
    kept.next = 0;
    kept.top = t.pair / t.item->group;
    kept.bottom = (t.pair + t.pairs - 1) / t.item->group;
    kept.simple = t.item->soft_cap > 0 || t.item->alibi != 0 ? 0 : TILE_SIMPLE;
}

// What tile_load() copies; `whole` as in tile_copy().
template <class S, bool whole>
LANE_DEVICE void tile_fetch(const tile_walk &walk, char *stage, uint32_t low, uint32_t high, uint32_t thread)
{
    tile_copy<S, false, whole>(stage, walk.k, low, high, thread);
    if (!S::wide)
        tile_copy<S, true, whole>(stage + 16 * S::row, walk.v, low, high, thread);
    if (S::scaled && thread < 32) // K's 16 scales, then V's
        lane_copy4(lane_place_of(stage) + (32 * S::row + thread * 4), walk.scales,
                   whole || thread % 16 - low < high - low);
}

// The next block of the task's. False: an end, which copies nothing.
template <class S>
LANE_DEVICE bool tile_load(const tile_task &kept, tile_walk &walk, tile_note *note, char *stage,
                           uint32_t thread)
{
    if (walk.row >= walk.end && !tile_open<S>(kept, walk, thread)) {
        if (thread == 0) {
            note->seen = 0;
            note->row = kept.turn;
        }
        return false;
    }
    uint32_t row = walk.row, low, high;
    tile_wanted(walk, row, low, high);
    if (thread == 0) {
        bool all = walk.all_begin <= row && row + CUDA_BLOCK_KEYS <= walk.all_end;
        tile_note n = {walk.run - 1, row, low | high << 8 | (all ? kept.simple : 0)};
        *note = n;
    }
    if (high - low == CUDA_BLOCK_KEYS) // as nearly always: addresses are few sums, and nothing is asked
        tile_fetch<S, true>(walk, stage, low, high, thread);
    else
        tile_fetch<S, false>(walk, stage, low, high, thread);
    walk.row += S::key_ways * CUDA_BLOCK_KEYS;
    walk.k += S::key_ways * CUDA_BLOCK_KEYS * S::row;
    if (!S::wide)
        walk.v += S::key_ways * CUDA_BLOCK_KEYS * S::row;
    if (S::scaled)
        walk.scales += S::key_ways * CUDA_BLOCK_KEYS * 4;
    return true;
}
