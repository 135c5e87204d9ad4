// SPDX-License-Identifier: Apache-2.0
// The runtime of tests/cuda/shim/cuda_runtime.h. Streams run on one thread, some time after the call, in an
// order of its own between streams: who forgets to wait sees it here, too. Memory is full of
// rubbish at first.
#include <cuda_runtime.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/cuda/args.h"
#include "tests/cuda/warp.h"

struct emulated_event {
    uint64_t recorded = 0, completed = 0;
    std::chrono::steady_clock::time_point at;
};

struct emulated_operation_queued {
    std::function<bool()> ready; // empty: at once
    std::function<void()> run;
};

struct emulated_graph {
    std::vector<std::function<void()>> operations;
};

struct emulated_exec {
    std::vector<std::function<void()>> operations;
};

struct emulated_stream {
    std::deque<emulated_operation_queued> queue;
    emulated_graph *capture = nullptr;
    bool busy = false;
};

namespace
{
struct machine {
    std::mutex lock;
    std::condition_variable changed;
    std::vector<emulated_stream *> streams;
    std::map<char *, size_t> device, pinned;
    size_t used = 0, memory = size_t{1} << 30;
    int devices = 1;
    uint64_t launches = 0, fault_at = 0;
    cudaError_t lost = cudaSuccess;
    std::thread thread;

    static uint64_t number(const char *name, uint64_t otherwise)
    {
        const char *text = std::getenv(name);
        return text ? std::strtoull(text, nullptr, 10) : otherwise;
    }

    machine()
    {
        devices = static_cast<int>(number("BANYAN_EMULATED_DEVICES", 1));
        memory = number("BANYAN_EMULATED_MEMORY", memory);
        fault_at = number("BANYAN_EMULATED_FAULT", 0);
        thread = std::thread([this] { work(); });
        thread.detach();
    }

    [[noreturn]] void work()
    {
        std::unique_lock<std::mutex> held(lock);
        size_t next = 0;
        for (;;) {
            emulated_stream *found = nullptr;
            for (size_t i = 0; i < streams.size() && !found; i++) {
                emulated_stream *s = streams[(next + i) % streams.size()];
                if (!s->queue.empty() && (!s->queue.front().ready || s->queue.front().ready()))
                    found = s;
            }
            next++;
            if (!found) {
                changed.wait(held);
                continue;
            }
            std::function<void()> run = std::move(found->queue.front().run);
            found->queue.pop_front();
            found->busy = true;
            bool skip = lost != cudaSuccess;
            held.unlock();
            if (!skip)
                run();
            held.lock();
            found->busy = false;
            changed.notify_all();
        }
    }
};

machine *the() // never destroyed: its thread lives as long as the process
{
    static machine *m = new machine;
    return m;
}

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

cudaError_t enqueue(cudaStream_t stream, std::function<void()> run, std::function<bool()> ready = nullptr)
{
    machine *m = the();
    std::lock_guard<std::mutex> held(m->lock);
    if (m->lost != cudaSuccess)
        return m->lost;
    if (stream->capture) {
        if (ready)
            return cudaErrorStreamCaptureUnsupported;
        stream->capture->operations.push_back(std::move(run));
        return cudaSuccess;
    }
    stream->queue.push_back({std::move(ready), std::move(run)});
    m->changed.notify_all();
    return cudaSuccess;
}

bool idle(machine *m, const emulated_stream *stream)
{
    return m->lost != cudaSuccess || (stream->queue.empty() && !stream->busy);
}

void check_copy(machine *m, const void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    if (!inside(kind == cudaMemcpyDeviceToHost ? m->pinned : m->device, to, bytes) ||
        !inside(kind == cudaMemcpyHostToDevice ? m->pinned : m->device, from, bytes))
        misuse("a copy leaves its memory, or the host's is not pinned");
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
    std::lock_guard<std::mutex> held(the()->lock);
    return the()->lost;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = the()->devices;
    return *count ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int)
{
    std::memset(prop, 0, sizeof(*prop));
    std::snprintf(prop->name, sizeof(prop->name), "emulated");
    prop->totalGlobalMem = the()->memory;
    prop->major = 8;
    prop->multiProcessorCount = 2;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device < the()->devices ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    std::lock_guard<std::mutex> held(the()->lock);
    *total = the()->memory;
    *available = the()->memory - the()->used;
    return the()->lost;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    machine *m = the();
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
    machine *m = the();
    std::unique_lock<std::mutex> held(m->lock);
    if (!p)
        return cudaSuccess;
    for (emulated_stream *s : m->streams)
        m->changed.wait(held, [&] { return idle(m, s) && !s->busy; });
    auto it = m->device.find(static_cast<char *>(p));
    if (it == m->device.end())
        misuse("cudaFree of what was not allocated");
    m->used -= it->second;
    m->device.erase(it);
    std::free(p);
    return m->lost;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    machine *m = the();
    std::lock_guard<std::mutex> held(m->lock);
    return m->lost != cudaSuccess ? m->lost : allocate(m->pinned, p, bytes);
}

cudaError_t cudaFreeHost(void *p)
{
    machine *m = the();
    std::unique_lock<std::mutex> held(m->lock);
    for (emulated_stream *s : m->streams)
        m->changed.wait(held, [&] { return idle(m, s) && !s->busy; });
    if (p && !m->pinned.erase(static_cast<char *>(p)))
        misuse("cudaFreeHost of what was not allocated");
    std::free(p);
    return m->lost;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    machine *m = the();
    std::lock_guard<std::mutex> held(m->lock);
    *stream = new emulated_stream;
    m->streams.push_back(*stream);
    return m->lost;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    machine *m = the();
    std::unique_lock<std::mutex> held(m->lock);
    m->changed.wait(held, [&] { return idle(m, stream); });
    return m->lost;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    machine *m = the();
    std::unique_lock<std::mutex> held(m->lock);
    m->changed.wait(held, [&] { return idle(m, stream) && !stream->busy; });
    for (size_t i = 0; i < m->streams.size(); i++) {
        if (m->streams[i] == stream) {
            m->streams.erase(m->streams.begin() + static_cast<long>(i));
            break;
        }
    }
    delete stream;
    return m->lost;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = new emulated_event;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    machine *m = the();
    std::unique_lock<std::mutex> held(m->lock);
    m->changed.wait(held, [&] { return m->lost != cudaSuccess || event->completed == event->recorded; });
    delete event;
    return m->lost;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    machine *m = the();
    uint64_t n;
    {
        std::lock_guard<std::mutex> held(m->lock);
        n = ++event->recorded;
    }
    return enqueue(stream, [m, event, n] {
        std::lock_guard<std::mutex> held(m->lock);
        event->completed = n;
        event->at = std::chrono::steady_clock::now();
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    uint64_t n;
    {
        std::lock_guard<std::mutex> held(the()->lock);
        n = event->recorded;
    }
    return enqueue(
        stream, [] {}, [event, n] { return event->completed >= n; });
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    std::lock_guard<std::mutex> held(the()->lock);
    return the()->lost != cudaSuccess            ? the()->lost
           : event->completed == event->recorded ? cudaSuccess
                                                 : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    machine *m = the();
    std::unique_lock<std::mutex> held(m->lock);
    m->changed.wait(held, [&] { return m->lost != cudaSuccess || event->completed == event->recorded; });
    return m->lost;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    std::lock_guard<std::mutex> held(the()->lock);
    *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
    return the()->lost;
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
            std::lock_guard<std::mutex> held(the()->lock);
            check_copy(the(), t, f, width, kind);
            check_copy(the(), t + to_pitch * (height - 1), f + from_pitch * (height - 1), width, kind);
        }
        for (size_t i = 0; i < height; i++)
            std::memcpy(t + i * to_pitch, f + i * from_pitch, width);
    });
}

cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int value)
{
    return value <= 163 * 1024 ? cudaSuccess : cudaErrorInvalidValue; // as compute capability 8.0 has it
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream)
{
    if (block.x != CUDA_THREADS || grid.x == 0 || shared > 163 * 1024)
        return cudaErrorInvalidValue;
    launch_call call = {reinterpret_cast<void (*)(cuda_launch)>(const_cast<void *>(function)),
                        *static_cast<const cuda_launch *>(arguments[0])};
    return enqueue(stream, [=] {
        machine *m = the();
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

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    std::lock_guard<std::mutex> held(the()->lock);
    stream->capture = new emulated_graph;
    return the()->lost;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    std::lock_guard<std::mutex> held(the()->lock);
    *graph = stream->capture;
    stream->capture = nullptr;
    return the()->lost;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    *exec = new emulated_exec{graph->operations};
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    std::vector<std::function<void()>> operations = exec->operations;
    return enqueue(stream, [operations] {
        for (const auto &run : operations) {
            {
                std::lock_guard<std::mutex> held(the()->lock);
                if (the()->lost != cudaSuccess)
                    return;
            }
            run();
        }
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}
