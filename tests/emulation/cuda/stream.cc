// SPDX-License-Identifier: Apache-2.0
// Streams, events and graphs of the emulated runtime.
#include "tests/emulation/cuda/machine.h"

#include <utility>

struct event_state {
    uint64_t recorded = 0, completed = 0;
    std::chrono::steady_clock::time_point at;
};

struct emulated_event { // what streams wait for may be destroyed before
    std::shared_ptr<event_state> state = std::make_shared<event_state>();
};

struct exec_state {
    std::vector<emulated_step> steps;
    uint64_t launched = 0, done = 0;
};

struct emulated_exec { // destroyed while it runs: goes on to its end
    std::shared_ptr<exec_state> state = std::make_shared<exec_state>();
};

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int priority)
{
    emulated_machine *m = emulated_the();
    std::lock_guard<std::mutex> held(m->lock);
    m->streams.push_back(std::make_unique<emulated_stream>());
    m->moved = true;
    *stream = m->streams.back().get();
    (*stream)->priority = priority;
    return m->lost;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    std::lock_guard<std::mutex> held(emulated_the()->lock);
    *priority = stream->priority;
    return emulated_the()->lost;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    emulated_machine *m = emulated_the();
    std::unique_lock<std::mutex> held(m->lock);
    if (stream->capture)
        return cudaErrorStreamCaptureUnsupported;
    m->changed.wait(held, [&] { return m->idle(stream); });
    return m->lost;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    emulated_machine *m = emulated_the();
    std::lock_guard<std::mutex> held(m->lock);
    if (stream->capture)
        return cudaErrorStreamCaptureUnsupported;
    if (m->lost != cudaSuccess)
        return m->lost;
    return m->idle(stream) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    emulated_machine *m = emulated_the();
    std::unique_ptr<emulated_stream> gone; // what it holds is dropped without the lock
    std::lock_guard<std::mutex> held(m->lock);
    stream->closing = true;
    for (size_t i = 0; i < m->streams.size() && m->idle(stream); i++) {
        if (m->streams[i].get() == stream) {
            gone = std::move(m->streams[i]);
            m->streams.erase(m->streams.begin() + static_cast<long>(i));
            m->moved = true;
            break;
        }
    }
    return m->lost;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    std::lock_guard<std::mutex> held(emulated_the()->lock);
    *status = stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return emulated_the()->lost;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = new emulated_event;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    std::lock_guard<std::mutex> held(emulated_the()->lock);
    return emulated_the()->lost;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    emulated_machine *m = emulated_the();
    std::shared_ptr<event_state> state = event->state;
    std::lock_guard<std::mutex> held(m->lock);
    if (m->lost != cudaSuccess)
        return m->lost;
    if (stream->capture) // graphs of one stream are all that is emulated
        return cudaErrorStreamCaptureUnsupported;
    uint64_t n = ++state->recorded;
    emulated_step step;
    step.run = [m, state, n] {
        std::lock_guard<std::mutex> again(m->lock);
        state->completed = n;
        state->at = std::chrono::steady_clock::now();
    };
    return m->put(stream, std::move(step));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    emulated_machine *m = emulated_the();
    std::shared_ptr<event_state> state = event->state;
    std::lock_guard<std::mutex> held(m->lock);
    uint64_t n = state->recorded;
    if (n == 0 || m->lost != cudaSuccess)
        return m->lost;
    if (stream->capture)
        return cudaErrorStreamCaptureUnsupported;
    emulated_step step;
    step.run = [] {};
    step.ready = [m, state, n] {
        std::lock_guard<std::mutex> again(m->lock);
        return state->completed >= n;
    };
    return m->put(stream, std::move(step));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    emulated_machine *m = emulated_the();
    std::lock_guard<std::mutex> held(m->lock);
    if (m->lost != cudaSuccess)
        return m->lost;
    return event->state->completed == event->state->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    emulated_machine *m = emulated_the();
    std::shared_ptr<event_state> state = event->state;
    std::unique_lock<std::mutex> held(m->lock);
    uint64_t n = state->recorded;
    m->changed.wait(held, [&] { return m->lost != cudaSuccess || state->completed >= n; });
    return m->lost;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    std::lock_guard<std::mutex> held(emulated_the()->lock);
    *ms = std::chrono::duration<float, std::milli>(to->state->at - from->state->at).count();
    return emulated_the()->lost;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    std::lock_guard<std::mutex> held(emulated_the()->lock);
    if (stream->capture)
        return cudaErrorStreamCaptureUnsupported;
    stream->capture = std::make_unique<emulated_graph>();
    return emulated_the()->lost;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    std::lock_guard<std::mutex> held(emulated_the()->lock);
    *graph = stream->capture.release();
    if (!*graph)
        return cudaErrorStreamCaptureUnsupported;
    return emulated_the()->lost;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    *exec = new emulated_exec;
    (*exec)->state->steps = graph->steps;
    return cudaSuccess;
}

// Its steps one after the other, after the launch before of the same graph.
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    emulated_machine *m = emulated_the();
    std::shared_ptr<exec_state> state = exec->state;
    std::lock_guard<std::mutex> held(m->lock);
    if (stream->capture)
        return cudaErrorStreamCaptureUnsupported;
    uint64_t before = state->launched++;
    emulated_step first, last;
    first.run = [] {};
    first.ready = [m, state, before] {
        std::lock_guard<std::mutex> again(m->lock);
        return state->done >= before;
    };
    last.run = [m, state] {
        std::lock_guard<std::mutex> again(m->lock);
        state->done++;
    };
    cudaError_t error = m->put(stream, std::move(first));
    for (size_t i = 0; i < state->steps.size() && error == cudaSuccess; i++)
        error = m->put(stream, state->steps[i]);
    return error == cudaSuccess ? m->put(stream, std::move(last)) : error;
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
