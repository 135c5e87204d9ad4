// SPDX-License-Identifier: Apache-2.0
// What the emulated CUDA runtime (libbanyan-emulated-cudart.so) offers to emulations of other libraries that
// put work on streams: operations that wait for something outside of the process.
//
// The calls are made on the runtime's one thread without any of its locks; they must not wait, or every
// stream does. An operation that is not ready holds up its stream alone; the thread asks it again after some
// tens of microseconds. Once the device is lost, neither ready nor run are called any more.
#pragma once

#include <stdbool.h>

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

// Puts an operation on a stream, or into the graph that the stream is being captured into.
//   ready  asked when all before it on the stream is done, again and again until it says true; the first
//          question is the operation's start. NULL: at once
//   run    once for each true; then the stream goes on
//   drop   exactly once, on any thread, when no queue, graph or executable graph can call the others any
//          more; also when this function fails. NULL: nothing to do. It must not call the runtime
// A graph calls ready and run with the same arg at each launch. Launches of one executable graph never
// overlap, on whatever streams they are.
cudaError_t emulated_enqueue(cudaStream_t stream, bool (*ready)(void *arg), void (*run)(void *arg),
                             void (*drop)(void *arg), void *arg);

// Whether all of it lies in one block of the device's memory, or of pinned memory.
bool emulated_memory(const void *p, size_t bytes);

// Kernels of this process that their first launch has loaded, so that it waited for all streams.
unsigned emulated_late_loads(void);

#ifdef __cplusplus
}
#endif
