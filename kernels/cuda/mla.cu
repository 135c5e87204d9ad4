// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mla.cuh"

const struct cuda_kernel cuda_mla[2][2] = {
    {mla_entry<KERNELS_KV_F16, 16>::get(), mla_entry<KERNELS_KV_F16, 32>::get()},
    {mla_entry<KERNELS_KV_BF16, 16>::get(), mla_entry<KERNELS_KV_BF16, 32>::get()}};
