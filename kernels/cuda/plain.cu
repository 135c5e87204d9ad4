// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/plain.cuh"

template <int type> __global__ void __launch_bounds__(CUDA_THREADS, 2) plain_kernel(const cuda_launch launch)
{
    task t;
    if (task_find(launch, blockIdx.x, t))
        plain_task<type>(launch, t);
}

#define PLAIN_ENTRY(type)                                                                                    \
    {                                                                                                        \
        reinterpret_cast<const void *>(&plain_kernel<type>), PLAIN_SHARED, PLAIN_SHARED, 0                   \
    }

const struct cuda_kernel cuda_plain[5] = {PLAIN_ENTRY(KERNELS_KV_F32), PLAIN_ENTRY(KERNELS_KV_F16),
                                          PLAIN_ENTRY(KERNELS_KV_BF16), PLAIN_ENTRY(KERNELS_KV_INT8),
                                          PLAIN_ENTRY(KERNELS_KV_FP8)};
