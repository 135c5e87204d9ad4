// SPDX-License-Identifier: Apache-2.0
// The module's one symbol, and the life of a device.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/internal.h"

#define STEP_RESERVE ((uint64_t)256 << 20) // bytes that the pool leaves for steps, where there are as many
#define RULES        "4"                   // raise it when a kernel or the cut changes bits

// A driver that is there and too old for the runtime that is linked in. False: another reason.
static bool driver_too_old(cudaError_t error, struct common_error *err)
{
    int driver = 0, runtime = 0;
    if (error != cudaErrorInsufficientDriver || cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0 ||
        cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        return false;
    common_error_set(err, COMMON_FAILED_PRECONDITION,
                     "no CUDA device: the driver supports CUDA %d.%d, the module needs CUDA %d.%d: install a "
                     "newer driver, or a module built with CUDA %d.x",
                     driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, driver / 1000);
    return true;
}

static uint32_t count(struct common_error *err)
{
    int n = 0;
    // Streams that share one of the 8 queues of the default would wait for each other's operations
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess || n <= 0) {
        (void)cudaGetLastError(); // or the next call reports it
        if (driver_too_old(error, err))
            return 0;
        common_error_set(err, COMMON_UNAVAILABLE, "no CUDA device: %s",
                         error == cudaSuccess ? "there is none" : cudaGetErrorString(error));
        return 0;
    }
    return (uint32_t)n;
}

enum common_code cuda_device_check(struct kernels_device *device, cudaError_t error, const char *what,
                                   struct common_error *err)
{
    if (error == cudaSuccess)
        return COMMON_OK;
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "%s: no memory for %s", device->info.name,
                                what);
    pthread_mutex_lock(&device->lock);
    if (!device->lost) {
        device->lost = true;
        common_error_set(&device->reason, COMMON_UNAVAILABLE, "%s is lost: %s: %s", device->info.name, what,
                         cudaGetErrorString(error));
    }
    if (err)
        *err = device->reason;
    pthread_mutex_unlock(&device->lock);
    return COMMON_UNAVAILABLE;
}

static bool lost(struct kernels_device *device, struct common_error *err)
{
    pthread_mutex_lock(&device->lock);
    bool is = device->lost;
    if (is && err)
        *err = device->reason;
    pthread_mutex_unlock(&device->lock);
    return is;
}

enum common_code cuda_device_enter(struct kernels_device *device, struct common_error *err)
{
    if (lost(device, err))
        return COMMON_UNAVAILABLE;
    return cuda_device_check(device, cudaSetDevice(device->index), "choosing it", err);
}

enum common_code cuda_device_take(struct kernels_device *device, uint64_t bytes, void **out,
                                  struct common_error *err)
{
    if (bytes > device->info.limit_bytes - device->taken)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "%s: %llu bytes are more than is left of the limit of %llu",
                                device->info.name, (unsigned long long)bytes,
                                (unsigned long long)device->info.limit_bytes);
    enum common_code code = cuda_device_check(device, cudaMalloc(out, bytes), "allocating memory", err);
    if (code == COMMON_OK)
        device->taken += bytes;
    return code;
}

uint32_t cuda_device_shared(const struct kernels_device *device, const struct cuda_kernel *kernel)
{
    return device->before_90 ? kernel->shared_bytes_80 : kernel->shared_bytes;
}

static void close_device(struct kernels_device *device)
{
    if (!device)
        return;
    cudaSetDevice(device->index);
    cuda_step_fini(device);
    if (device->copy)
        cudaStreamSynchronize(device->copy);
    cuda_transfer_fini(device);
    for (uint32_t i = 0; device->pool && i < cuda_pool_regions(device->pool); i++)
        cudaFree((void *)(uintptr_t)cuda_pool_region(device->pool, i));
    cuda_pool_free(device->pool);
    cuda_plan_fini(&device->plan);
    if (device->written)
        cudaEventDestroy(device->written);
    if (device->copy)
        cudaStreamDestroy(device->copy);
    if (device->upload)
        cudaStreamDestroy(device->upload);
    if (device->compute)
        cudaStreamDestroy(device->compute);
    (void)cudaGetLastError();
    pthread_cond_destroy(&device->changed);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static uint64_t hash(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3ULL; // FNV-1a
    return (h ^ 0xff) * 0x100000001b3ULL;
}

static enum common_code describe(struct kernels_device *device, uint64_t limit_bytes,
                                 struct common_error *err)
{
    struct cudaDeviceProp prop;
    size_t available = 0, total = 0;
    cudaError_t error = cudaGetDeviceProperties(&prop, device->index);
    if (error == cudaSuccess)
        error = cudaMemGetInfo(&available, &total);
    int pools = 0, clock_khz = 0, bus_bits = 0;
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device->index);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, device->index);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, device->index);
    if (error != cudaSuccess)
        return cuda_device_check(device, error, "opening it", err);
    struct kernels_device_info *info = &device->info;
    snprintf(info->name, sizeof(info->name), "%.95s", prop.name);
    device->pooled = pools != 0;
    device->bytes_per_ns = 2.0 * clock_khz * bus_bits / 8 / 1e6; // two transfers a cycle
    if (prop.major < 8)
        return common_error_set(err, COMMON_UNAVAILABLE, "%s has compute capability %d.%d; 8.0 is needed",
                                info->name, prop.major, prop.minor);
    device->before_90 = prop.major < 9;
    device->wgmma = cuda_plan_wgmma(prop.major, prop.minor);
    for (uint32_t c = 0; c < CUDA_CLASSES; c++) {
        uint32_t shared = cuda_device_shared(device, cuda_plan_kernel(c, device->wgmma));
        if (shared > prop.sharedMemPerBlockOptin)
            return common_error_set(
                err, COMMON_UNAVAILABLE,
                "%s (compute capability %d.%d) has %zu bytes of shared memory for a block; %u are needed",
                info->name, prop.major, prop.minor, prop.sharedMemPerBlockOptin, shared);
    }
    snprintf(info->kernel, sizeof(info->kernel), "cuda-%s-sm_%d%d%s", RULES, prop.major, prop.minor,
             device->wgmma ? "-wgmma" : "");
    info->digest = hash(hash(hash(0xcbf29ce484222325ULL, info->kernel), info->name), BANYAN_CUDA_COMPILER);
    info->memory_bytes = total;
    info->in_flight = CUDA_SLOTS;
    // What the driver, graphs and others take is not ours
    uint64_t reserve = available / 16 < ((uint64_t)1 << 30) ? available / 16 : (uint64_t)1 << 30;
    if (limit_bytes > available)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "%s has %llu bytes free, less than the limit of %llu", info->name,
                                (unsigned long long)available, (unsigned long long)limit_bytes);
    info->limit_bytes = limit_bytes ? limit_bytes : available - reserve;
    device->reserve = info->limit_bytes / 8 < STEP_RESERVE ? info->limit_bytes / 8 : STEP_RESERVE;
    return COMMON_OK;
}

static enum common_code open_device(uint32_t index, uint64_t limit_bytes, struct kernels_device **out,
                                    struct common_error *err)
{
    uint32_t n = count(err);
    if (index >= n)
        return n == 0 ? (err ? err->code : COMMON_UNAVAILABLE)
                      : common_error_set(err, COMMON_UNAVAILABLE,
                                         "there is no CUDA device %u: %u are available", index, n);
    struct kernels_device *device = calloc(1, sizeof(*device));
    if (!device)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a device");
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->changed, NULL);
    device->index = (int)index;
    snprintf(device->info.name, sizeof(device->info.name), "CUDA device %u", index);
    enum common_code code = cuda_device_enter(device, err);
    if (code == COMMON_OK)
        code = describe(device, limit_bytes, err);
    if (code == COMMON_OK) {
        cudaError_t error = cudaStreamCreateWithFlags(&device->compute, cudaStreamNonBlocking);
        if (error == cudaSuccess)
            error = cudaStreamCreateWithFlags(&device->upload, cudaStreamNonBlocking);
        if (error == cudaSuccess)
            error = cudaStreamCreateWithFlags(&device->copy, cudaStreamNonBlocking);
        if (error == cudaSuccess)
            error = cudaEventCreateWithFlags(&device->written, cudaEventDisableTiming);
        code = cuda_device_check(device, error, "its streams", err);
    }
    if (code == COMMON_OK && !(device->pool = cuda_pool_new()))
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a device");
    if (code == COMMON_OK)
        code = cuda_transfer_init(device, err);
    if (code == COMMON_OK)
        code = cuda_step_init(device, err);
    if (code != COMMON_OK) {
        close_device(device);
        return code;
    }
    *out = device;
    return COMMON_OK;
}

static void info(const struct kernels_device *device, struct kernels_device_info *out)
{
    *out = device->info;
}

// ---- the pool -----------------------------------------------------------------------------------

static enum common_code pool_alloc(struct kernels_device *device, uint64_t bytes, uint64_t *address,
                                   struct common_error *err)
{
    enum common_code code = cuda_device_enter(device, err);
    if (code != COMMON_OK)
        return code;
    if (bytes == 0 || bytes > CUDA_REGION)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "a block must have 1 to %llu bytes",
                                (unsigned long long)CUDA_REGION);
    uint64_t block = cuda_pool_take(device->pool, bytes);
    // Regions as large as there is room for, and smaller ones at the end
    uint64_t size = CUDA_REGION, least = (bytes + CUDA_GRANULE - 1) & ~(uint64_t)(CUDA_GRANULE - 1);
    while (!block && size >= least) {
        void *region = NULL;
        uint64_t left = device->info.limit_bytes - device->taken;
        uint64_t kept = device->reserve > device->steps ? device->reserve - device->steps : 0;
        left = left > kept ? (left - kept) & ~(uint64_t)(CUDA_GRANULE - 1) : 0;
        if (left < least)
            break;
        if (size > left)
            size = left;
        code = cuda_device_take(device, size, &region, err);
        if (code == COMMON_UNAVAILABLE)
            return code;
        if (code == COMMON_OK) {
            if (!cuda_pool_add(device->pool, (uint64_t)(uintptr_t)region, size)) {
                cudaFree(region);
                device->taken -= size;
                return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                        "the system has no memory for a table");
            }
            block = cuda_pool_take(device->pool, bytes);
        }
        size = (size / 2) & ~(uint64_t)(CUDA_GRANULE - 1);
    }
    if (!block)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "%s: no room for %llu bytes; %llu of %llu are in use", device->info.name,
                                (unsigned long long)bytes, (unsigned long long)cuda_pool_used(device->pool),
                                (unsigned long long)device->info.limit_bytes);
    *address = block;
    return COMMON_OK;
}

static void pool_free(struct kernels_device *device, uint64_t address)
{
    if (address)
        cuda_pool_give(device->pool, address);
}

static uint64_t used(const struct kernels_device *device)
{
    return cuda_pool_used(device->pool);
}

// ---- the memory's speed -------------------------------------------------------------------------

static enum common_code measure(struct kernels_device *device, void *memory, uint64_t bytes, cudaEvent_t from,
                                cudaEvent_t to, double *bytes_per_s, struct common_error *err)
{
    struct cuda_launch launch = {.args = (uint64_t)(uintptr_t)memory,
                                 .partials = bytes,
                                 .out = (uint64_t)(uintptr_t)memory};
    void *arguments[] = {&launch};
    const struct dim3 grid = {1056, 1, 1}, block = {CUDA_THREADS, 1, 1};
    float best = 0;
    for (int i = 0; i < 4; i++) { // the first one warms up
        float ms = 0;
        cudaError_t error = cudaEventRecord(from, device->compute);
        if (error == cudaSuccess)
            error = cudaLaunchKernel(cuda_read.function, grid, block, arguments, 0, device->compute);
        if (error == cudaSuccess)
            error = cudaEventRecord(to, device->compute);
        if (error == cudaSuccess)
            error = cudaEventSynchronize(to);
        if (error == cudaSuccess)
            error = cudaEventElapsedTime(&ms, from, to);
        if (error != cudaSuccess)
            return cuda_device_check(device, error, "measuring its memory", err);
        best = i > 0 && ms > 0 && (best == 0 || ms < best) ? ms : best;
    }
    if (best == 0)
        return common_error_set(err, COMMON_UNAVAILABLE, "the clock of %s does not advance",
                                device->info.name);
    *bytes_per_s = (double)bytes / best * 1e3;
    device->bytes_per_ns = *bytes_per_s / 1e9;
    return COMMON_OK;
}

static enum common_code bandwidth(struct kernels_device *device, double *bytes_per_s,
                                  struct common_error *err)
{
    enum common_code code = cuda_device_enter(device, err);
    if (code != COMMON_OK)
        return code;
    uint64_t bytes = (uint64_t)512 << 20; // ten times the largest cache
    void *memory = NULL;
    cudaEvent_t from = NULL, to = NULL;
    while ((code = cuda_device_take(device, bytes, &memory, err)) == COMMON_RESOURCE_EXHAUSTED &&
           bytes > 1 << 20)
        bytes /= 2;
    if (code != COMMON_OK)
        return code;
    code = cuda_device_check(device, cudaEventCreateWithFlags(&from, 0), "an event", err);
    if (code == COMMON_OK)
        code = cuda_device_check(device, cudaEventCreateWithFlags(&to, 0), "an event", err);
    if (code == COMMON_OK)
        code = measure(device, memory, bytes, from, to, bytes_per_s, err);
    if (from)
        cudaEventDestroy(from);
    if (to)
        cudaEventDestroy(to);
    cudaFree(memory);
    device->taken -= bytes;
    return code;
}

__attribute__((visibility("default"))) const struct kernels_device_ops kernels_device_module_2 = {
    .abi = KERNELS_DEVICE_ABI,
    .size = sizeof(struct kernels_device_ops),
    .name = "cuda",
    .count = count,
    .open = open_device,
    .close = close_device,
    .info = info,
    .lost = lost,
    .bandwidth = bandwidth,
    .spec_problem = cuda_plan_spec_problem,
    .alloc = pool_alloc,
    .free = pool_free,
    .used = used,
    .write = cuda_transfer_write,
    .read = cuda_transfer_read,
    .copy = cuda_transfer_copy,
    .submit = cuda_step_submit,
};
