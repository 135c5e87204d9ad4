// SPDX-License-Identifier: Apache-2.0
// Copies of rectangles from block to block, many at once: a launch where the runtime would ask for one a row.
// The table (struct cuda_copy) lies in pinned memory, which the device reads at the host's address.
#include "kernels/cuda/args.h"
#include "kernels/cuda/lane.cuh"

// Bytes first .. first + some - 1 of a row, as words of a type where addresses allow it.
template <class T> LANE_DEVICE void copy_row(char *to, const char *from, uint64_t some)
{
    T *t = lane_global(reinterpret_cast<T *>(to));
    const T *f = lane_global(reinterpret_cast<const T *>(from));
    for (uint64_t i = threadIdx.x; i < some / sizeof(T); i += CUDA_THREADS)
        t[i] = f[i];
}

static __global__ void __launch_bounds__(CUDA_THREADS) copy_kernel(const cuda_launch launch)
{
    const cuda_copy *table = reinterpret_cast<const cuda_copy *>(launch.args);
    uint32_t low = 0, high = static_cast<uint32_t>(launch.partials); // how many there are
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (table[middle].first_task <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    const cuda_copy copy = table[low];
    uint32_t task = blockIdx.x - copy.first_task;
    uint64_t row = task / copy.parts, first = static_cast<uint64_t>(task % copy.parts) * CUDA_COPY_PART;
    uint64_t some = copy.width - first < CUDA_COPY_PART ? copy.width - first : CUDA_COPY_PART;
    char *to = reinterpret_cast<char *>(copy.to + row * copy.to_pitch + first);
    const char *from = reinterpret_cast<const char *>(copy.from + row * copy.from_pitch + first);
    if ((reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) | some) % sizeof(uint4) == 0)
        copy_row<uint4>(to, from, some);
    else
        copy_row<char>(to, from, some);
}

const struct cuda_kernel cuda_copies = {reinterpret_cast<const void *>(&copy_kernel), 0, 0, 0};
