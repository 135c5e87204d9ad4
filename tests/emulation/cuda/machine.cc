// SPDX-License-Identifier: Apache-2.0
// Streams run on one thread, some time after the call, in an order of its own between streams: who forgets to
// wait sees it here, too.
#include "tests/emulation/cuda/machine.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "tests/emulation/cuda/emulation.h"

namespace
{
// How often what waits for the outside is asked: soon at first, as most of it takes no longer than a thread's
// turn; seldom later, as peers that have gone would cost a core.
constexpr auto ASK_SOON = std::chrono::microseconds(50), ASK_LATE = std::chrono::microseconds(200);
constexpr int ROUNDS_SOON = 200;

uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

struct outsider {
    bool (*ready)(void *);
    void (*run)(void *);
    void (*drop)(void *);
    void *arg;

    outsider(bool (*r)(void *), void (*u)(void *), void (*d)(void *), void *a)
        : ready(r), run(u), drop(d), arg(a)
    {
    }
    outsider(const outsider &) = delete;
    outsider &operator=(const outsider &) = delete;
    ~outsider()
    {
        if (drop)
            drop(arg);
    }
};
} // namespace

emulated_machine *emulated_the()
{
    static emulated_machine *m = new emulated_machine;
    return m;
}

emulated_machine::emulated_machine()
{
    devices = static_cast<int>(number("BANYAN_EMULATED_DEVICES", 1));
    driver = static_cast<int>(number("BANYAN_EMULATED_DRIVER", 13000));
    capability = static_cast<int>(number("BANYAN_EMULATED_CAPABILITY", EMULATED_MAJOR * 10));
    memory = number("BANYAN_EMULATED_MEMORY", memory);
    fault_at = number("BANYAN_EMULATED_FAULT", 0);
    std::thread([this] { work(); }).detach();
}

void emulated_machine::work()
{
    std::unique_lock<std::mutex> held(lock);
    size_t next = 0, tried = 0;
    int rounds = 0; // in a row in which nothing went on
    bool outside = false;
    uint64_t seen = tickets;
    for (;;) {
        if (tried >= streams.size()) {
            auto news = [&] { return tickets != seen || moved; };
            if (outside)
                changed.wait_for(held, rounds++ < ROUNDS_SOON ? ASK_SOON : ASK_LATE, news);
            else
                changed.wait(held, news);
            tried = 0;
            outside = false;
            moved = false;
            seen = tickets;
            continue;
        }
        emulated_stream *s = streams[next++ % streams.size()].get();
        tried++;
        if (s->queue.empty())
            continue;
        emulated_step &front = s->queue.front(); // no other thread takes it away
        s->busy = true;
        if (lost == cudaSuccess && front.ready) {
            held.unlock();
            bool ready = front.ready();
            held.lock();
            if (!ready && lost == cudaSuccess) {
                s->busy = false;
                outside = outside || front.outside;
                continue;
            }
        }
        {
            emulated_step step = std::move(front);
            s->queue.pop_front();
            s->running = step.ticket;
            bool skip = lost != cudaSuccess;
            held.unlock();
            if (!skip)
                step.run();
        } // what it holds is dropped without the lock, too
        held.lock();
        s->busy = false;
        s->running = 0;
        tried = 0;
        rounds = 0;
        outside = false;
        seen = tickets;
        if (s->closing && s->queue.empty())
            forget(s);
        changed.notify_all();
    }
}

void emulated_machine::forget(const emulated_stream *stream)
{
    streams.erase(std::find_if(streams.begin(), streams.end(),
                               [&](const std::unique_ptr<emulated_stream> &s) { return s.get() == stream; }));
}

cudaError_t emulated_machine::put(cudaStream_t stream, emulated_step step)
{
    if (lost != cudaSuccess)
        return lost;
    if (stream->capture) {
        stream->capture->steps.push_back(std::move(step));
        return cudaSuccess;
    }
    if (drains > 0) {
        std::unique_lock<std::mutex> held(lock, std::adopt_lock); // the caller's
        changed.wait(held, [&] { return drains == 0; });
        held.release();
        if (lost != cudaSuccess)
            return lost;
    }
    step.ticket = ++tickets;
    stream->queue.push_back(std::move(step));
    changed.notify_all();
    return cudaSuccess;
}

bool emulated_machine::idle(const emulated_stream *stream) const
{
    return !stream->busy && (lost != cudaSuccess || stream->queue.empty());
}

void emulated_machine::drain(std::unique_lock<std::mutex> &held)
{
    uint64_t last = tickets;
    drains++;
    changed.wait(held, [&] {
        return std::all_of(streams.begin(), streams.end(), [&](const std::unique_ptr<emulated_stream> &s) {
            if (lost != cudaSuccess)
                return !s->busy;
            return (!s->running || s->running > last) && (s->queue.empty() || s->queue.front().ticket > last);
        });
    });
    drains--;
    changed.notify_all();
}

cudaError_t emulated_enqueue(cudaStream_t stream, bool (*ready)(void *arg), void (*run)(void *arg),
                             void (*drop)(void *arg), void *arg)
{
    auto held_by_steps = std::make_shared<outsider>(ready, run, drop, arg); // gone after the lock
    emulated_step step;
    step.run = [held_by_steps] { held_by_steps->run(held_by_steps->arg); };
    if (ready)
        step.ready = [held_by_steps] { return held_by_steps->ready(held_by_steps->arg); };
    step.outside = true;
    emulated_machine *m = emulated_the();
    std::lock_guard<std::mutex> held(m->lock);
    return m->put(stream, std::move(step));
}
