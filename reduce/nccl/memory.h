// SPDX-License-Identifier: Apache-2.0
// Memory of communicators, on the device and pinned. It is never freed but used again: freeing waits for the
// device, where another communicator's operation may wait for another process. Any thread.
#ifndef REDUCE_NCCL_MEMORY_H
#define REDUCE_NCCL_MEMORY_H

#include <cuda_runtime.h>
#include <stdbool.h>
#include <stddef.h>

struct nccl_memory {
    struct nccl_memory *next;
    char *device, *host;
    size_t device_bytes, host_bytes;
};

// At least as much; contents are anything. cudaErrorMemoryAllocation, or another error.
cudaError_t nccl_memory_take(size_t device_bytes, size_t host_bytes, struct nccl_memory **out);
bool nccl_memory_has(size_t device_bytes, size_t host_bytes); // without allocating
void nccl_memory_give(struct nccl_memory *memory);            // nothing uses it any more; NULL is allowed

#endif
