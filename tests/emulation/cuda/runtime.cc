// SPDX-License-Identifier: Apache-2.0
// Devices, memory, copies and launches of tests/emulation/shim/cuda_runtime.h. Memory is full of rubbish at
// first.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "kernels/cuda/args.h"
#include "tests/emulation/cuda/emulation.h"
#include "tests/emulation/cuda/machine.h"
#include "tests/emulation/cuda/warp.h"

namespace
{
constexpr size_t SHARED = 163 * 1024; // bytes a block, as compute capability 8.0 has it
constexpr int RUNTIME = 13000;        // CUDA's version
constexpr int MULTIPROCESSORS = 2;    // so few that most launches have more tasks
thread_local int current_device;

[[noreturn]] void misuse(const char *what)
{
    std::fprintf(stderr, "emulated CUDA: %s\n", what);
    std::abort();
}

bool inside(const std::map<char *, size_t> &blocks, const void *p, size_t bytes)
{
    char *at = static_cast<char *>(const_cast<void *>(p));
    auto it = blocks.upper_bound(at);
    if (it == blocks.begin())
        return false;
    --it;
    return at - it->first + bytes <= it->second;
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> run)
{
    emulated_machine *m = emulated_the();
    std::lock_guard<std::mutex> held(m->lock);
    emulated_step step;
    step.run = std::move(run);
    return m->put(stream, std::move(step));
}

void check_copy(emulated_machine *m, const void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    if (!inside(kind == cudaMemcpyDeviceToHost ? m->pinned : m->device, to, bytes) ||
        !inside(kind == cudaMemcpyHostToDevice ? m->pinned : m->device, from, bytes))
        misuse("a copy leaves its memory, or the host's is not pinned");
}

// A kernel that is used for the first time waits for the device.
void load(emulated_machine *m, std::unique_lock<std::mutex> &held, const void *function, bool launched)
{
    if (!m->loaded.insert(function).second)
        return;
    m->late_loads += launched;
    m->drain(held);
}

struct launch_call {
    void (*function)(cuda_launch);
    cuda_launch launch;
};

void launch_body(void *arg)
{
    const launch_call *call = static_cast<const launch_call *>(arg);
    call->function(call->launch);
}

cudaError_t allocate(std::map<char *, size_t> &blocks, void **p, size_t bytes)
{
    char *block = static_cast<char *>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
    if (!block)
        return cudaErrorMemoryAllocation;
    std::memset(block, EMULATED_RUBBISH, bytes);
    blocks[block] = bytes;
    *p = block;
    return cudaSuccess;
}
} // namespace

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    default:
        return "an emulated error";
    }
}

cudaError_t cudaGetLastError(void)
{
    std::lock_guard<std::mutex> held(emulated_the()->lock);
    return emulated_the()->lost;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    if (emulated_the()->driver < RUNTIME)
        return cudaErrorInsufficientDriver;
    *count = emulated_the()->devices;
    return *count ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = emulated_the()->driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = RUNTIME;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    // A clock of 1 GHz and a bus of 64 bits: 16 GB/s
    *value = attribute == cudaDevAttrMultiProcessorCount    ? MULTIPROCESSORS
             : attribute == cudaDevAttrMemoryClockRate      ? 1000000
             : attribute == cudaDevAttrGlobalMemoryBusWidth ? 64
                                                            : 1;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int)
{
    std::memset(prop, 0, sizeof(*prop));
    std::snprintf(prop->name, sizeof(prop->name), "emulated");
    prop->totalGlobalMem = emulated_the()->memory;
    prop->sharedMemPerBlockOptin = SHARED;
    prop->major = emulated_the()->capability / 10;
    prop->minor = emulated_the()->capability % 10;
    prop->multiProcessorCount = MULTIPROCESSORS;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= emulated_the()->devices)
        return cudaErrorInvalidDevice;
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return emulated_the()->devices ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    std::lock_guard<std::mutex> held(emulated_the()->lock);
    *total = emulated_the()->memory;
    *available = emulated_the()->memory - emulated_the()->used;
    return emulated_the()->lost;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    emulated_machine *m = emulated_the();
    std::lock_guard<std::mutex> held(m->lock);
    if (m->lost != cudaSuccess)
        return m->lost;
    if (bytes > m->memory - m->used)
        return cudaErrorMemoryAllocation;
    cudaError_t error = allocate(m->device, p, bytes);
    if (error == cudaSuccess)
        m->used += bytes;
    return error;
}

cudaError_t cudaFree(void *p)
{
    emulated_machine *m = emulated_the();
    std::unique_lock<std::mutex> held(m->lock);
    if (!p)
        return cudaSuccess;
    m->drain(held);
    auto it = m->device.find(static_cast<char *>(p));
    if (it == m->device.end())
        misuse("cudaFree of what was not allocated");
    m->used -= it->second;
    m->device.erase(it);
    std::free(p);
    return m->lost;
}

// What is on the stream before it may use the memory until then.
cudaError_t cudaFreeAsync(void *p, cudaStream_t stream)
{
    return enqueue(stream, [=] {
        emulated_machine *m = emulated_the();
        std::lock_guard<std::mutex> held(m->lock);
        auto it = m->device.find(static_cast<char *>(p));
        if (it == m->device.end())
            misuse("cudaFreeAsync of what was not allocated");
        std::memset(p, EMULATED_RUBBISH, it->second);
        m->used -= it->second;
        m->device.erase(it);
        std::free(p);
    });
}

// The device's memory is not the limit here: what was freed on the stream, and is not free yet, is as good.
cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t)
{
    emulated_machine *m = emulated_the();
    std::lock_guard<std::mutex> held(m->lock);
    if (m->lost != cudaSuccess)
        return m->lost;
    cudaError_t error = allocate(m->device, p, bytes);
    if (error == cudaSuccess)
        m->used += bytes;
    return error;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    emulated_machine *m = emulated_the();
    std::lock_guard<std::mutex> held(m->lock);
    return m->lost != cudaSuccess ? m->lost : allocate(m->pinned, p, bytes);
}

cudaError_t cudaFreeHost(void *p)
{
    emulated_machine *m = emulated_the();
    std::unique_lock<std::mutex> held(m->lock);
    m->drain(held);
    if (p && !m->pinned.erase(static_cast<char *>(p)))
        misuse("cudaFreeHost of what was not allocated");
    std::free(p);
    return m->lost;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    if (height > 1 && (to_pitch < width || from_pitch < width))
        return cudaErrorInvalidValue;
    return enqueue(stream, [=] {
        char *t = static_cast<char *>(to);
        const char *f = static_cast<const char *>(from);
        {
            std::lock_guard<std::mutex> held(emulated_the()->lock);
            check_copy(emulated_the(), t, f, width, kind);
            check_copy(emulated_the(), t + to_pitch * (height - 1), f + from_pitch * (height - 1), width,
                       kind);
        }
        for (size_t i = 0; i < height; i++)
            std::memcpy(t + i * to_pitch, f + i * from_pitch, width);
    });
}

bool emulated_memory(const void *p, size_t bytes)
{
    emulated_machine *m = emulated_the();
    std::lock_guard<std::mutex> held(m->lock);
    return inside(m->device, p, bytes) || inside(m->pinned, p, bytes);
}

unsigned emulated_late_loads(void)
{
    std::lock_guard<std::mutex> held(emulated_the()->lock);
    return emulated_the()->late_loads;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    return enqueue(stream, [=] {
        if (!emulated_memory(to, bytes))
            misuse("a memset leaves its memory");
        std::memset(to, value, bytes);
    });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *function)
{
    std::unique_lock<std::mutex> held(emulated_the()->lock);
    load(emulated_the(), held, function, false);
    *attributes = {};
    attributes->maxThreadsPerBlock = CUDA_THREADS;
    return emulated_the()->lost;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                          size_t shared)
{
    *blocks = threads == CUDA_THREADS && shared <= SHARED ? 1 : 0;
    return function ? emulated_the()->lost : cudaErrorInvalidValue;
}

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute, int value)
{
    {
        std::unique_lock<std::mutex> held(emulated_the()->lock);
        load(emulated_the(), held, function, false);
    }
    return static_cast<size_t>(value) <= SHARED ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream)
{
    if (block.x != CUDA_THREADS || grid.x == 0 || shared > 163 * 1024)
        return cudaErrorInvalidValue;
    {
        std::unique_lock<std::mutex> held(emulated_the()->lock);
        load(emulated_the(), held, function, true);
    }
    launch_call call = {reinterpret_cast<void (*)(cuda_launch)>(const_cast<void *>(function)),
                        *static_cast<const cuda_launch *>(arguments[0])};
    return enqueue(stream, [=] {
        emulated_machine *m = emulated_the();
        if (++m->launches == m->fault_at) {
            // Late, so that most often who submitted has gone on
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            std::lock_guard<std::mutex> held(m->lock);
            m->lost = cudaErrorIllegalAddress;
            m->changed.notify_all();
            return;
        }
        launch_call copy = call;
        emulated_grid(launch_body, &copy, grid.x, static_cast<uint32_t>(shared));
    });
}
