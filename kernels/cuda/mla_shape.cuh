// SPDX-License-Identifier: Apache-2.0
// Sizes of a tile of latents (mla.cuh), and where its parts lie in shared memory:
//
//     q's fragments | scales of q | the task | notes of all stages | parts of logits, then weights | fades |
//     who saw a key | m and s of each lane | a ring of stages: 16 keys each
#pragma once

#include "kernels/cuda/tile_load.cuh"

#define MLA_WARPS 4

// What does not depend on the products is tile_shape's: fragments of q, pieces of a row and their places.
template <int type, int pairs, int room = TILE_ROOM>
struct mla_shape : tile_shape<type, CUDA_MLA_K_DIM, pairs, room> {
    typedef tile_shape<type, CUDA_MLA_K_DIM, pairs, room> base;
    static constexpr int width = pairs;
    static constexpr bool wide = true; // as tile_load.cuh understands it: a stage holds keys, no values
    static constexpr int key_ways = 1; // all warps share a block of keys
    static constexpr int threads = CUDA_THREADS;
    static constexpr int tiles = 1;                                 // of 8 pairs, of a warp's softmax
    static constexpr int columns = width / 8;                       // tiles of 8 pairs
    static constexpr int part = base::steps / MLA_WARPS;            // a warp's steps of the logits
    static constexpr int heights = CUDA_MLA_V_DIM / 16 / MLA_WARPS; // a warp's steps of o
    static constexpr int stage = 16 * base::row;
    // 32 pairs: what the 163 KiB of sm_80 hold. 16 pairs: what lets two blocks of threads share the 227 KiB
    // of sm_90, and of binary16 the 163 KiB of sm_80 (two stages)
    static constexpr int stages = base::bf16 ? 2 : width == 32 ? 4 : room == TILE_ROOM_80 ? 2 : 3;
    static constexpr int resident = width == 32 ? 1 : 2; // blocks of threads
    static constexpr int column_bytes = MLA_WARPS * 512; // parts of 8 pairs' logits
    static constexpr int kept = (base::head + 15) / 16 * 16;
    static constexpr int notes = kept + base::task_bytes;
    static constexpr int logits = notes + stages * 16;
    static constexpr int fades = logits + columns * column_bytes;
    static constexpr int seen = fades + width * 4;
    static constexpr int masses = seen + width * 2;
    static constexpr int rings = (masses + threads * 16 + 127) / 128 * 128;
    static constexpr int shared = rings + stages * stage;

    static_assert(base::steps % MLA_WARPS == 0 && CUDA_MLA_V_DIM % (64 * MLA_WARPS) == 0,
                  "warps share evenly");
    static_assert(columns <= MLA_WARPS && (columns * base::terms * 256 <= columns * column_bytes),
                  "weights lie where parts of logits were");
    static_assert(shared >= static_cast<int>(PLAIN_SHARED), "plain arithmetic takes over");
};
