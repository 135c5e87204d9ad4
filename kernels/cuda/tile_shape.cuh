// SPDX-License-Identifier: Apache-2.0
// Sizes of a tile (tile.cuh), and where its parts lie in shared memory:
//
//     q's fragments | scales of q | the task, and the next | tasks to do again | notes of all stages | rings of
//     stages: keys, values, their scales
//
// and at a task's end, over these, the partials of four warps.
#pragma once

#include "kernels/cuda/plain.cuh"

// KiB of shared memory that a warp's ring of its own may take: two blocks of 4 warps share the 163 KiB of
// compute capability 8.0 (the code for it also runs on 8.x), or the 227 of 9.0. So 128 dims of 16 bits have
// two stages there and three here. The host asks for what the device's capability takes (struct cuda_kernel).
#define TILE_ROOM_80 18
#define TILE_ROOM_90 25
#ifndef TILE_ROOM
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define TILE_ROOM TILE_ROOM_80
#else
#define TILE_ROOM TILE_ROOM_90
#endif
#endif

struct alignas(16) tile_note { // of a stage
    const cuda_run *run;
    uint32_t row;  // of the run: key 0; of an end: the task's turn
    uint32_t seen; // keys that a row of the tile sees, low | high << 8, and TILE_SIMPLE; 0: the end
};

// Every row of the tile sees all 16 keys, and logits are products alone.
#define TILE_SIMPLE 0x10000u

// The task, in shared memory: what blocks of keys rarely need takes no registers.
struct tile_task {
    task t;
    uint32_t top, bottom; // query rows: the first, the last
    uint32_t simple;      // TILE_SIMPLE where logits are products alone, else 0
    uint32_t one_term;    // not 0: the terms of q but the first are zeros
    uint32_t turn;        // 0 and 1 by turns
    uint32_t next;        // not 0: this block of threads has another task after it
};

template <int type, int dim, int width, int room = TILE_ROOM> struct tile_shape {
    static constexpr bool wide = type == KERNELS_KV_F32; // K and V of a block are stages of their own
    static constexpr bool bf16 = wide || type == KERNELS_KV_BF16; // the products'
    static constexpr bool scaled = type == KERNELS_KV_INT8 || type == KERNELS_KV_FP8;
    static constexpr int element = wide ? 4 : scaled ? 1 : 2;            // bytes
    static constexpr int row = dim * element;                            // bytes of a key
    static constexpr int pieces = row / 16;                              // of a row
    static constexpr int key_ways = width >= 32 ? 1 : 4;                 // warps that share out the keys
    static constexpr int tiles = key_ways == 1 ? width / 32 : width / 8; // of 8 pairs, per warp
    static constexpr int threads = key_ways == 1 ? 128 : 32;             // that load and wait together
    static constexpr int steps = dim / 16;                               // of a product over dims
    static constexpr int terms = bf16 ? 3 : 2;                           // of q and of a weight
    static constexpr int v_pieces = dim / 32;                            // wide: that a lane loads of a key
    static constexpr int stage = (wide ? 1 : 2) * 16 * row + (scaled ? 128 : 0);
    static constexpr int fit = (key_ways == 1 ? TILE_ROOM_90 : room) * 1024 / stage;
    static constexpr int stages = fit < 2 ? 2 : fit > 4 ? 4 : fit;
    // As many as leave room for the rest; fp8 without an instruction of its own takes more of it
    static constexpr int q_most = key_ways == 4 && (type != KERNELS_KV_FP8 || LANE_FP8) ? 64 : 48;
    static constexpr bool q_in_registers = tiles * steps * terms * 2 <= q_most && !(wide && tiles > 1);
    static constexpr int q_bytes = width / 8 * steps * terms * 256;
    static constexpr int scale_bytes =
        2 * width * 4; // of q: what it was divided by, and what to multiply with
    // A block of threads may go on to its next task while this one ends. It takes rings of the warps' own, and some
    // 20 registers: where they would spill, or cost a block of threads (8-bit types), it was left out
    static constexpr bool goes_on = width == 8 && dim <= 128 && !wide && !scaled;
    static constexpr int resident =
        goes_on && dim == 64 ? 3 : 2; // blocks of threads that registers must allow
    static constexpr int head = q_bytes + scale_bytes;
    // The partials of four warps at a task's end lie over all of the above and below; over q and its scales alone,
    // some dims after the other, where the next task's keys are on their way
    static constexpr int end_bytes_of(int parts)
    {
        return key_ways == 1 ? 0 : 4 * width * (dim / parts + (wide ? 1 : 4) + 2) * 4;
    }
    static constexpr int end_parts = !goes_on ? 1 : end_bytes_of(2) <= head + 5120 || dim == 64 ? 2 : 4;
    static constexpr int end_dims = dim / end_parts;
    static constexpr int end_row = end_dims + (wide ? 1 : 4); // floats: lanes' pairs in banks of their own
    static constexpr int end_bytes = end_bytes_of(end_parts);
    static constexpr int kept =
        ((goes_on && end_bytes > head ? end_bytes : head) + 15) / 16 * 16; // the tasks
    static constexpr int task_bytes = (static_cast<int>(sizeof(tile_task)) + 15) / 16 * 16;
    static constexpr int again = kept + (goes_on ? 2 : 1) * task_bytes; // a bit a task
    static constexpr int notes = again + (goes_on ? static_cast<int>(CUDA_TASKS_MOST) / 8 : 0);
    static constexpr int rings = (notes + key_ways * stages * 16 + 127) / 128 * 128;
    static constexpr int loop_bytes = rings + key_ways * stages * stage;
    static constexpr int most = loop_bytes > end_bytes ? loop_bytes : end_bytes;
    static constexpr int shared = most > static_cast<int>(PLAIN_SHARED) ? most
                                                                        : static_cast<int>(PLAIN_SHARED);

    // Where piece c of a row stands.
    template <bool values> static LANE_DEVICE int place(int r, int c)
    {
        if (!wide)
            return pieces == 4 ? c ^ (r >> 1 & 3) : c ^ (r & 7);
        return values ? c ^ (r >> 1 & 3) << 1 : c ^ (r & 1) << 2;
    }

    // Not wide: the row of a matrix of 8 x 16 bytes that a lane names to ldmatrix, for pieces 0 and 1 of 16
    // keys. Matrices are keys 0 to 7 and 8 to 15 of piece 0, then of piece 1; transposed ones of 16-bit
    // elements, whose dims are the tall side, pieces 0 and 1 of keys 0 to 7, then of 8 to 15.
    template <bool values> static LANE_DEVICE uint32_t matrix_row(int lane)
    {
        constexpr bool dims_first = values && !scaled;
        int low = lane >> 3 & 1, high = lane >> 4, r = (lane & 7) + (dims_first ? high : low) * 8;
        return static_cast<uint32_t>(r * row + place<values>(r, dims_first ? low : high) * 16);
    }
    // The same for pieces 2i and 2i + 1.
    static LANE_DEVICE uint32_t matrix_at(uint32_t first, int i)
    {
        constexpr int mixed = pieces == 4 ? 1 : 3; // bits of i that place() mixes with the row
        return (first ^ static_cast<uint32_t>((i & mixed) * 32)) + static_cast<uint32_t>((i & ~mixed) * 32);
    }
    // First dim of a step's that lane t multiplies first; the next two of a step are `second` further on.
    static LANE_DEVICE uint32_t dims(uint32_t step, uint32_t t)
    {
        return step * 16 + t * (wide || scaled ? 4 : 2);
    }
    static constexpr uint32_t second = wide || scaled ? 2 : 8;
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
