// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/nccl/batch.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "tests/emulation/cuda/emulation.h"

namespace
{
struct transfer {
    bool send;
    int peer;
    link_lane lane;
    link_message message, seen; // seen: what came
    const char *from;           // of a send
    std::vector<char> to;       // of a receive
    size_t done = 0;            // bytes, the message's head included
};
} // namespace

struct batch {
    std::shared_ptr<batch_comm> comm;
    std::vector<batch_call> calls;
    uint64_t ticket = 0; // 0: in a graph
    bool hangs = false, corrupt = false;
    std::deque<transfer> transfers; // of the launch that runs
};

namespace
{
bool of_all(const batch_call &call) // every rank gets every rank's bytes
{
    return call.kind == BATCH_GATHER || call.kind == BATCH_ALLREDUCE;
}

size_t call_bytes(const batch_call &call)
{
    return call.count * batch_type_bytes(call.type);
}

void add_transfer(batch *b, const batch_call &call, bool send, int peer)
{
    bool single = call.kind == BATCH_SEND || call.kind == BATCH_RECV;
    link_lane lane = single ? LINK_SENDS : LINK_COLLECTIVES;
    transfer t = {};
    t.send = send;
    t.peer = peer;
    t.lane = lane;
    if (!single)
        t.message = {call.kind, call.type, call.op, static_cast<uint32_t>(call.root), 0, 0};
    t.message.bytes = call_bytes(call);
    t.message.number = ++b->comm->numbers[peer][send][lane];
    t.from = call.from;
    if (!send)
        t.to.resize(call_bytes(call));
    b->transfers.push_back(std::move(t));
}

void start(batch *b)
{
    static std::atomic<bool> hung, spoilt;
    static const uint64_t hang = batch_environment("BANYAN_EMULATED_NCCL_HANG"),
                          corrupt = batch_environment("BANYAN_EMULATED_NCCL_CORRUPT");
    uint64_t n = ++b->comm->operations;
    b->hangs = n == hang && !hung.exchange(true);
    b->corrupt = n == corrupt && !spoilt.exchange(true);
    const batch_comm *comm = b->comm.get();
    for (const batch_call &call : b->calls) {
        if (call.kind == BATCH_SEND || call.kind == BATCH_RECV) {
            add_transfer(b, call, call.kind == BATCH_SEND, call.root);
            continue;
        }
        for (int peer = 0; peer < comm->ranks; peer++) {
            if (peer == comm->rank)
                continue;
            if (of_all(call) || (call.kind == BATCH_BROADCAST ? call.root == comm->rank : call.root == peer))
                add_transfer(b, call, true, peer);
            if (of_all(call) || (call.kind == BATCH_BROADCAST ? call.root == peer : call.root == comm->rank))
                add_transfer(b, call, false, peer);
        }
    }
}

// Another mask for what is received: where both ends spoil, they do not put it right again.
void spoil(char *bytes, size_t n, int mask)
{
    for (size_t i = 3; i < n; i += 64) // signs and exponents of floats
        bytes[i] = static_cast<char>(bytes[i] ^ mask);
    if (n > 0 && n < 4)
        bytes[0] = static_cast<char>(bytes[0] ^ mask);
}

// What a send's bytes are: the caller's, in pieces.
size_t push_some(const batch *b, const transfer &t)
{
    char piece[4096];
    size_t head = sizeof(t.message), n;
    if (t.done < head)
        return b->comm->link->push(t.peer, t.lane, reinterpret_cast<const char *>(&t.message) + t.done,
                                   head - t.done);
    n = std::min(t.message.bytes - (t.done - head), sizeof(piece));
    std::memcpy(piece, t.from + (t.done - head), n);
    if (b->corrupt)
        spoil(piece, n, 0x55);
    return b->comm->link->push(t.peer, t.lane, piece, n);
}

size_t take_some(const batch *b, transfer &t)
{
    size_t head = sizeof(t.seen);
    if (t.done >= head)
        return b->comm->link->take(t.peer, t.lane, t.to.data() + (t.done - head),
                                   t.message.bytes - (t.done - head));
    size_t n = b->comm->link->take(t.peer, t.lane, reinterpret_cast<char *>(&t.seen) + t.done, head - t.done);
    if (t.done + n == head && std::memcmp(&t.seen, &t.message, head) != 0) {
        std::fprintf(
            stderr,
            "emulated NCCL: rank %d expects from rank %d message %llu: kind %u, type %u, op %u, root %u, "
            "%llu bytes; there came message %llu: kind %u, type %u, op %u, root %u, %llu bytes\n",
            b->comm->rank, t.peer, static_cast<unsigned long long>(t.message.number), t.message.kind,
            t.message.type, t.message.op, t.message.root, static_cast<unsigned long long>(t.message.bytes),
            static_cast<unsigned long long>(t.seen.number), t.seen.kind, t.seen.type, t.seen.op, t.seen.root,
            static_cast<unsigned long long>(t.seen.bytes));
        batch_misuse("calls of two ranks do not match");
    }
    return n;
}

// Goes on with what can; true when all is done.
bool pump(batch *b)
{
    bool all = true;
    uint64_t stuck[2][LINK_LANES] = {}; // peers: messages of a ring come one after the other
    for (transfer &t : b->transfers) {
        size_t size = sizeof(t.message) + t.message.bytes, n = 1;
        uint64_t &mask = stuck[t.send][t.lane], bit = UINT64_C(1) << t.peer;
        while (!(mask & bit) && t.done < size && n > 0)
            t.done += n = t.send ? push_some(b, t) : take_some(b, t);
        if (t.done < size) {
            mask |= bit;
            all = false;
        }
    }
    return all;
}

float reduced(ncclRedOp_t op, float a, float b)
{
    return op == ncclSum ? a + b : op == ncclMax ? std::fmax(a, b) : std::fmin(a, b);
}

void reduce_tree(std::vector<std::vector<char>> &parts, const batch_call &call)
{
    std::vector<std::vector<float>> x(parts.size(), std::vector<float>(call.count));
    for (size_t r = 0; r < parts.size(); r++)
        std::copy(parts[r].begin(), parts[r].end(), reinterpret_cast<char *>(x[r].data()));
    for (size_t step = 1; step < x.size(); step *= 2) {
        for (size_t r = 0; r + step < x.size(); r += 2 * step) {
            for (size_t i = 0; i < call.count; i++)
                x[r][i] = reduced(call.op, x[r][i], x[r + step][i]);
        }
    }
    const char *sum = reinterpret_cast<const char *>(x[0].data());
    std::copy(sum, sum + parts[0].size(), parts[0].begin());
}

void write(const batch_call &call, size_t place, const std::vector<char> &bytes, bool spoilt)
{
    if (bytes.empty()) // NULL, perhaps
        return;
    std::memcpy(call.to + place, bytes.data(), bytes.size());
    if (spoilt)
        spoil(call.to + place, bytes.size(), 0x2a);
}

// Transfers stand in the order of the calls.
void deliver(batch *b)
{
    const batch_comm *comm = b->comm.get();
    bool sends =
        std::any_of(b->transfers.begin(), b->transfers.end(), [](const transfer &t) { return t.send; });
    bool spoilt = b->corrupt && !sends;
    auto received = [&] {
        while (b->transfers.front().send)
            b->transfers.pop_front();
        std::vector<char> bytes = std::move(b->transfers.front().to);
        b->transfers.pop_front();
        return bytes;
    };
    for (const batch_call &call : b->calls) {
        bool root = call.root == comm->rank;
        if (call.kind == BATCH_SEND || (call.kind == BATCH_REDUCE && !root))
            continue;
        if (call.kind == BATCH_RECV || (call.kind == BATCH_BROADCAST && !root)) {
            write(call, 0, received(), spoilt);
            continue;
        }
        std::vector<char> own(call.from, call.from + call_bytes(call));
        if (call.kind == BATCH_BROADCAST) {
            write(call, 0, own, spoilt);
            continue;
        }
        std::vector<std::vector<char>> parts;
        for (int r = 0; r < comm->ranks; r++)
            parts.push_back(r == comm->rank ? std::move(own) : received());
        if (call.kind == BATCH_GATHER) {
            for (size_t r = 0; r < parts.size(); r++)
                write(call, r * call_bytes(call), parts[r], spoilt);
        } else {
            reduce_tree(parts, call);
            write(call, 0, parts[0], spoilt);
        }
    }
}

bool batch_ready(void *arg)
{
    batch *b = static_cast<batch *>(arg);
    batch_comm *comm = b->comm.get();
    std::lock_guard<std::mutex> held(comm->lock);
    if (comm->aborted)
        return true;
    if (comm->running != b) {
        if (comm->running || (b->ticket && b->ticket != comm->next))
            return false;
        comm->running = b;
        start(b);
    }
    return !b->hangs && pump(b);
}

void batch_end(batch *b)
{
    if (b->comm->running == b)
        b->comm->running = nullptr;
    b->transfers.clear();
}

void batch_run(void *arg)
{
    batch *b = static_cast<batch *>(arg);
    batch_comm *comm = b->comm.get();
    std::lock_guard<std::mutex> held(comm->lock);
    if (!comm->aborted)
        deliver(b);
    if (b->ticket)
        comm->next++;
    batch_end(b);
}

void batch_drop(void *arg)
{
    std::unique_ptr<batch> b(static_cast<batch *>(arg));
    std::shared_ptr<batch_comm> comm = b->comm;
    std::lock_guard<std::mutex> held(comm->lock);
    batch_end(b.get());
    if (b->ticket)
        comm->eager--;
    else
        comm->captured--;
}
} // namespace

size_t batch_type_bytes(ncclDataType_t type)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return static_cast<size_t>(type) < sizeof(bytes) / sizeof(bytes[0]) ? bytes[type] : 0;
}

cudaError_t batch_put(const std::shared_ptr<batch_comm> &comm, std::vector<batch_call> calls,
                      cudaStream_t stream)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(stream, &status);
    if (error != cudaSuccess)
        return error;
    batch *b = new batch;
    b->comm = comm;
    b->calls = std::move(calls);
    {
        std::lock_guard<std::mutex> held(comm->lock);
        if (status == cudaStreamCaptureStatusNone) {
            b->ticket = ++comm->calls;
            comm->eager++;
        } else {
            comm->captured++;
        }
    }
    return emulated_enqueue(stream, batch_ready, batch_run, batch_drop, b);
}

void batch_misuse(const char *what)
{
    std::fprintf(stderr, "emulated NCCL: %s\n", what);
    std::abort();
}

uint64_t batch_environment(const char *name, uint64_t otherwise)
{
    const char *text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
}
