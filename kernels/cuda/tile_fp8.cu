// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/tile.cuh"

const struct cuda_kernel cuda_tiles_fp8[3][4] = TILE_TABLE(KERNELS_KV_FP8);
