// SPDX-License-Identifier: Apache-2.0
#include "reduce/nccl/memory.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nccl_memory *spare;

static struct nccl_memory *take_spare(size_t device_bytes, size_t host_bytes)
{
    pthread_mutex_lock(&lock);
    struct nccl_memory **at = &spare, *found;
    while (*at && ((*at)->device_bytes < device_bytes || (*at)->host_bytes < host_bytes))
        at = &(*at)->next;
    found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

bool nccl_memory_has(size_t device_bytes, size_t host_bytes)
{
    pthread_mutex_lock(&lock);
    const struct nccl_memory *m = spare;
    while (m && (m->device_bytes < device_bytes || m->host_bytes < host_bytes))
        m = m->next;
    pthread_mutex_unlock(&lock);
    return m;
}

cudaError_t nccl_memory_take(size_t device_bytes, size_t host_bytes, struct nccl_memory **out)
{
    *out = take_spare(device_bytes, host_bytes);
    if (*out)
        return cudaSuccess;
    struct nccl_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return cudaErrorMemoryAllocation;
    cudaError_t error = cudaHostAlloc((void **)&memory->host, host_bytes, cudaHostAllocDefault);
    if (error == cudaSuccess) {
        memory->host_bytes = host_bytes;
        error = cudaMalloc((void **)&memory->device, device_bytes);
    }
    if (error != cudaSuccess) {
        if (memory->host)
            cudaFreeHost(memory->host); // nothing was queued with it
        free(memory);
        return error;
    }
    memory->device_bytes = device_bytes;
    *out = memory;
    return cudaSuccess;
}

void nccl_memory_give(struct nccl_memory *memory)
{
    if (!memory)
        return;
    pthread_mutex_lock(&lock);
    memory->next = spare;
    spare = memory;
    pthread_mutex_unlock(&lock);
}
