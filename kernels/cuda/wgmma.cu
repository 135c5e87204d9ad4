// SPDX-License-Identifier: Apache-2.0
// Machine code for sm_90a alone: on other devices there is none, and plan.c chooses tile.cuh.
#include "kernels/cuda/wgmma.cuh"

const struct cuda_kernel cuda_wgmma[2][2] = {
    {wgmma_entry<KERNELS_KV_F16, 64>::get(), wgmma_entry<KERNELS_KV_F16, 128>::get()},
    {wgmma_entry<KERNELS_KV_BF16, 64>::get(), wgmma_entry<KERNELS_KV_BF16, 128>::get()}};
