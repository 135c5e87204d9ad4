// SPDX-License-Identifier: Apache-2.0
// The emulated machine: streams, the one thread that runs what is on them, and memory. Private to the
// emulated runtime (machine.cc, stream.cc, runtime.cc).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include <cuda_runtime.h>

struct emulated_step { // an operation of a stream or of a graph
    std::function<void()> run;
    std::function<bool()> ready; // empty: at once. Called without the lock
    bool outside = false; // what it is ready for comes from outside of the machine: ask again and again
    uint64_t ticket = 0;  // counts what is put on streams, from 1
};

struct emulated_graph {
    std::vector<emulated_step> steps;
};

struct emulated_stream {
    std::deque<emulated_step> queue;
    std::unique_ptr<emulated_graph> capture;
    bool busy = false;    // the machine is at its front, without the lock
    bool closing = false; // destroyed by its owner: goes when it is empty
    uint64_t running = 0; // the ticket of what runs, 0 = nothing
    int priority = 0;
};

struct emulated_machine {
    std::mutex lock; // of all that follows
    std::condition_variable changed;
    std::vector<std::unique_ptr<emulated_stream>> streams;
    bool moved = false; // one was made or destroyed: the thread may have passed another over
    std::map<char *, size_t> device, pinned;
    size_t used = 0, memory = size_t{1} << 30;
    int devices = 1, driver = 13000, capability = 80;
    uint64_t launches = 0, fault_at = 0; // of the machine's thread
    uint64_t tickets = 0;
    std::set<const void *> loaded; // kernels
    unsigned late_loads = 0;       // of these, by their first launch
    unsigned drains = 0;           // that wait now: nothing is put on streams
    cudaError_t lost = cudaSuccess;

    emulated_machine();
    // With the lock held, but not while a thread drains. In capture the step goes into the graph.
    cudaError_t put(cudaStream_t stream, emulated_step step);
    bool idle(const emulated_stream *stream) const;
    // Waits until all that is on streams now is done or, when the device is lost, does not run.
    void drain(std::unique_lock<std::mutex> &held);

  private:
    [[noreturn]] void work();
    void forget(const emulated_stream *stream);
};

// Made at the first call; never destroyed, as its thread lives as long as the process.
emulated_machine *emulated_the();
