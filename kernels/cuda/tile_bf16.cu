// SPDX-License-Identifier: Apache-2.0
// Products of bfloat16: of keys and values as they are, and of the three parts of float32 ones.
#include "kernels/cuda/tile.cuh"

const struct cuda_kernel cuda_tiles_bf16[3][4] = TILE_TABLE(KERNELS_KV_BF16);
// 128 dims and 32 pairs would spill
const struct cuda_kernel cuda_tiles_f32[3][4] = {TILE_ROW(KERNELS_KV_F32, 64, 16, 32, 64),
                                                 TILE_ROW(KERNELS_KV_F32, 128, 16, 64, 64),
                                                 TILE_ROW(KERNELS_KV_F32, 256, 32, 32, 32)};
