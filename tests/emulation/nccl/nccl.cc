// SPDX-License-Identifier: Apache-2.0
// The API of tests/emulation/shim/nccl.h. Each communicator has a thread that joins it to the others and,
// where it is non-blocking, puts groups on streams. Handles are never freed, so that their use after the end
// is seen.
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "tests/emulation/cuda/emulation.h"
#include "tests/emulation/nccl/asked.h"
#include "tests/emulation/nccl/batch.h"

struct ncclComm {
    std::shared_ptr<batch_comm> core = std::make_shared<batch_comm>();
    int ranks = 0, rank = 0;
    bool blocking = true, finalized = false;
    std::atomic<bool> inside{false}, gone{false};
    std::mutex lock; // of what follows
    std::condition_variable changed;
    ncclResult_t state = ncclInProgress;
    std::string error;
    std::deque<std::function<void()>> jobs;
    bool stop = false;
    std::thread thread;
    void *memory = nullptr; // of the device, as long as it lives

    void serve();
    void join_others(const ncclUniqueId &id);
    bool connect(const std::vector<batch_call> &calls); // false: it is to stop
    void give_memory();
    void settle(ncclResult_t result, const std::string &why);
    bool nap(std::chrono::microseconds time); // of the thread: false when it is to stop
    ncclResult_t post(std::function<void()> job);
    ncclResult_t ready();
    void end();
};

namespace
{
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr auto STEP = microseconds(200);
constexpr uint64_t MEMORY = UINT64_C(4) << 20; // bytes that a communicator takes of the device
constexpr auto GRAPHS_LIVE = std::chrono::seconds(10);

struct group_part {
    ncclComm *comm;
    cudaStream_t stream;
    std::vector<batch_call> calls;
};

struct group_state {
    int depth = 0;
    ncclResult_t error = ncclSuccess;
    std::vector<group_part> parts;
};

thread_local group_state group;

// A call on a communicator: one at a time.
class visit
{
  public:
    explicit visit(ncclComm *visited) : comm(visited)
    {
        if (comm->gone)
            batch_misuse("a communicator is used after its end");
        if (comm->inside.exchange(true))
            batch_misuse("two threads are in calls on one communicator");
    }
    ~visit()
    {
        comm->inside = false;
    }
    visit(const visit &) = delete;
    visit &operator=(const visit &) = delete;

  private:
    ncclComm *comm;
};

ncclComm *new_handle()
{
    static std::mutex lock;
    static auto *all = new std::vector<std::unique_ptr<ncclComm>>;
    std::lock_guard<std::mutex> held(lock);
    all->push_back(std::make_unique<ncclComm>());
    return all->back().get();
}

std::mutex asked_lock;
emulated_nccl_asked_of asked; // under it: what the process has asked for, so far

// With NCCL_LAUNCH_ORDER_IMPLICIT all operations of a device are to come from one thread.
bool in_launch_order(cudaStream_t stream)
{
    static std::thread::id first;
    static const bool wanted = batch_environment("NCCL_LAUNCH_ORDER_IMPLICIT") != 0;
    std::lock_guard<std::mutex> held(asked_lock);
    int priority = 0, least, greatest;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (cudaStreamGetPriority(stream, &priority) == cudaSuccess && priority > greatest)
        asked.late_operations++;
    asked.operations++;
    if (first == std::thread::id())
        first = std::this_thread::get_id();
    return !wanted || first == std::this_thread::get_id();
}

ncclResult_t launch(ncclComm *comm, std::vector<batch_call> calls, cudaStream_t stream)
{
    auto put = [comm, calls, stream] {
        if (!comm->blocking && !comm->connect(calls))
            return;
        if (!in_launch_order(stream)) {
            comm->settle(ncclInvalidUsage, "host threads race to launch on one device");
            return;
        }
        cudaError_t error = batch_put(comm->core, calls, stream);
        if (error == cudaSuccess)
            comm->settle(ncclSuccess, "");
        else
            comm->settle(ncclUnhandledCudaError, cudaGetErrorString(error));
    };
    if (!comm->blocking)
        return comm->post(put);
    put();
    std::lock_guard<std::mutex> held(comm->lock);
    return comm->state;
}

ncclResult_t check(const ncclComm *comm, const batch_call &call)
{
    bool reduction = call.kind == BATCH_ALLREDUCE || call.kind == BATCH_REDUCE;
    size_t element = batch_type_bytes(call.type), bytes = call.count * element;
    bool whole = call.kind == BATCH_GATHER;
    if (call.root < 0 || call.root >= comm->ranks)
        return ncclInvalidArgument;
    if (element == 0 || (reduction && (call.type != ncclFloat ||
                                       (call.op != ncclSum && call.op != ncclMax && call.op != ncclMin))))
        batch_misuse("a type or an operator that is not emulated");
    bool root = call.root == comm->rank;
    bool reads = call.kind != BATCH_RECV && (call.kind != BATCH_BROADCAST || root);
    bool writes = call.kind != BATCH_SEND && (call.kind != BATCH_REDUCE || root);
    if ((reads && bytes > 0 && !emulated_memory(call.from, bytes)) ||
        (writes && bytes > 0 &&
         !emulated_memory(call.to, whole ? bytes * static_cast<size_t>(comm->ranks) : bytes)))
        batch_misuse("a buffer is not memory of the device, or too small");
    return ncclSuccess;
}

ncclResult_t take(ncclComm *comm, const batch_call &call, cudaStream_t stream)
{
    if (!comm)
        return ncclInvalidArgument;
    visit guard(comm);
    ncclResult_t result = comm->ready();
    if (result == ncclSuccess)
        result = comm->finalized ? ncclInvalidUsage : check(comm, call);
    if (group.depth == 0)
        return result == ncclSuccess ? launch(comm, {call}, stream) : result;
    if (result != ncclSuccess) {
        group.error = result;
        return result;
    }
    for (group_part &part : group.parts) {
        if (part.comm == comm && part.stream != stream)
            batch_misuse("a group on several streams is not emulated");
        if (part.comm == comm) {
            part.calls.push_back(call);
            return ncclSuccess;
        }
    }
    group.parts.push_back({comm, stream, {call}});
    return ncclSuccess;
}

batch_call make_call(batch_kind kind, const void *from, void *to, size_t count, ncclDataType_t type,
                     ncclRedOp_t op, int root)
{
    return {kind, static_cast<const char *>(from), static_cast<char *>(to), count, type, op, root};
}

// Until what is on streams, and graphs, have released it. Graphs must.
void wait_for_batches(batch_comm *core, bool streams)
{
    auto until = steady_clock::now() + GRAPHS_LIVE;
    for (;;) {
        std::unique_lock<std::mutex> held(core->lock);
        if (core->captured == 0 && (!streams || core->eager == 0))
            return;
        bool graphs = core->captured > 0;
        held.unlock();
        if (graphs && steady_clock::now() > until)
            batch_misuse("a communicator ends, and graphs that captured from it are never destroyed");
        std::this_thread::sleep_for(STEP);
    }
}
} // namespace

void ncclComm::settle(ncclResult_t result, const std::string &why)
{
    std::lock_guard<std::mutex> held(lock);
    state = result;
    if (!why.empty())
        error = why;
    changed.notify_all();
}

bool ncclComm::nap(microseconds time)
{
    std::unique_lock<std::mutex> held(lock);
    return !changed.wait_for(held, time, [this] { return stop; });
}

void ncclComm::join_others(const ncclUniqueId &id)
{
    if (!nap(milliseconds(batch_environment("BANYAN_EMULATED_NCCL_SLOW_INIT_MS"))))
        return;
    if (batch_environment("BANYAN_EMULATED_NCCL_INIT_FAILS")) {
        settle(ncclSystemError, "the environment wants it so");
        return;
    }
    std::string why;
    std::unique_ptr<link_memory> link = link_memory::open(id, ranks, rank, &why);
    if (!link) {
        settle(ncclSystemError, why);
        return;
    }
    if (cudaMalloc(&memory, batch_environment("BANYAN_EMULATED_NCCL_MEMORY", MEMORY)) != cudaSuccess) {
        memory = nullptr;
        settle(ncclUnhandledCudaError, "out of memory");
        return;
    }
    while (!link->all_joined()) {
        if (!nap(STEP))
            return;
    }
    void *probe = nullptr; // a buffer to try something out with
    if (cudaMalloc(&probe, 1) == cudaSuccess)
        cudaFree(probe);
    {
        std::lock_guard<std::mutex> held(core->lock);
        core->link = std::move(link);
    }
    settle(ncclSuccess, "");
}

bool ncclComm::connect(const std::vector<batch_call> &calls)
{
    static std::atomic<bool> stopped;
    link_memory *link = core->link.get();
    bool waited = false;
    auto meet = [&](int from, int to, link_lane lane) {
        if (from == to || link->connected(from, to, lane))
            return true;
        if (!waited && batch_environment("BANYAN_EMULATED_NCCL_CONNECT_STOPS") && !stopped.exchange(true)) {
            while (nap(STEP))
                continue;
            return false;
        }
        waited = true;
        link->connect(from, to, lane);
        return true;
    };
    auto met = [&](int from, int to, link_lane lane) {
        while (from != to && !link->connected(from, to, lane))
            if (!nap(STEP))
                return false;
        return true;
    };
    auto each = [&](auto &&end) { // both ends are stopped before any is waited for
        return std::all_of(calls.begin(), calls.end(), [&](const batch_call &call) {
            if (call.kind == BATCH_SEND)
                return end(rank, call.root, LINK_SENDS);
            if (call.kind == BATCH_RECV)
                return end(call.root, rank, LINK_SENDS);
            for (int peer = 0; peer < ranks; peer++)
                if (!end(rank, peer, LINK_COLLECTIVES) || !end(peer, rank, LINK_COLLECTIVES))
                    return false;
            return true;
        });
    };
    return each(meet) && each(met);
}

void ncclComm::give_memory()
{
    if (memory)
        cudaFree(memory);
    memory = nullptr;
}

void ncclComm::serve()
{
    std::unique_lock<std::mutex> held(lock);
    for (;;) {
        changed.wait(held, [this] { return stop || !jobs.empty(); });
        if (stop)
            return;
        std::function<void()> job = std::move(jobs.front());
        jobs.pop_front();
        held.unlock();
        job();
        held.lock();
    }
}

ncclResult_t ncclComm::post(std::function<void()> job)
{
    std::lock_guard<std::mutex> held(lock);
    state = ncclInProgress;
    jobs.push_back(std::move(job));
    changed.notify_all();
    return state;
}

ncclResult_t ncclComm::ready()
{
    std::lock_guard<std::mutex> held(lock);
    if (state != ncclInProgress)
        return state;
    error = "the operation before has not ended";
    return ncclInvalidArgument;
}

void ncclComm::end()
{
    {
        std::lock_guard<std::mutex> held(lock);
        stop = true;
        changed.notify_all();
    }
    thread.join();
    jobs.clear();
    core.reset(); // batches on streams keep theirs
    gone = true;
}

void emulated_nccl_asked(emulated_nccl_asked_of *out)
{
    std::lock_guard<std::mutex> held(asked_lock);
    *out = asked;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    if (std::getenv("NCCL_COMM_ID")) // one for all communicators; here none is valid
        return ncclInvalidArgument;
    return link_make_id(id) ? ncclSuccess : ncclSystemError;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote error",           "in progress",
    };
    return static_cast<size_t>(result) < sizeof(texts) / sizeof(texts[0]) ? texts[result]
                                                                          : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    static thread_local std::string text;
    text.clear();
    if (comm) {
        std::lock_guard<std::mutex> held(comm->lock);
        text = comm->error;
    }
    return text.c_str();
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
    if (!out || ranks < 1 || rank < 0 || rank >= ranks ||
        (config && (config->magic != fresh.magic || config->size != fresh.size)))
        return ncclInvalidArgument;
    if (config && config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs != NCCL_CONFIG_UNDEF_INT &&
        (config->minCTAs < 1 || config->minCTAs > config->maxCTAs))
        return ncclInvalidArgument;
    if (ranks > LINK_MOST_RANKS || group.depth > 0)
        batch_misuse("so many ranks, or an init in a group, are not emulated");
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess)
        return ncclUnhandledCudaError;
    ncclComm *comm = new_handle();
    comm->ranks = comm->core->ranks = ranks;
    comm->rank = comm->core->rank = rank;
    comm->blocking = !config || config->blocking != 0; // undefined: yes
    const char *blocking = std::getenv("NCCL_COMM_BLOCKING");
    if (blocking && *blocking)
        comm->blocking = std::strcmp(blocking, "0") != 0;
    {
        std::lock_guard<std::mutex> held(asked_lock);
        asked.communicators++;
        asked.clustered += !config || config->cgaClusterSize != 0;
    }
    comm->post([comm, id] { comm->join_others(id); });
    comm->thread = std::thread([comm] { comm->serve(); });
    *out = comm;
    std::unique_lock<std::mutex> held(comm->lock);
    if (comm->blocking)
        comm->changed.wait(held, [comm] { return comm->state != ncclInProgress; });
    return comm->blocking ? comm->state : ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    if (!comm || !error)
        return ncclInvalidArgument;
    visit guard(comm);
    std::lock_guard<std::mutex> held(comm->lock);
    *error = comm->state;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (!comm)
        return ncclInvalidArgument;
    visit guard(comm);
    ncclResult_t result = comm->ready();
    if (result != ncclSuccess || comm->finalized)
        return result != ncclSuccess ? result : ncclInvalidUsage;
    comm->finalized = true;
    comm->post([comm] {
        for (;;) {
            {
                std::lock_guard<std::mutex> held(comm->core->lock);
                if (comm->core->eager == 0)
                    break;
            }
            if (!comm->nap(STEP))
                return;
        }
        comm->settle(ncclSuccess, "");
    });
    std::unique_lock<std::mutex> held(comm->lock);
    if (comm->blocking)
        comm->changed.wait(held, [comm] { return comm->state != ncclInProgress; });
    return comm->blocking ? comm->state : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    visit guard(comm);
    {
        std::lock_guard<std::mutex> held(comm->lock);
        if (comm->state == ncclInProgress)
            return ncclInvalidArgument;
    }
    wait_for_batches(comm->core.get(), true);
    comm->end();
    comm->give_memory();
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    visit guard(comm);
    {
        std::lock_guard<std::mutex> held(comm->core->lock);
        comm->core->aborted = true;
    }
    std::shared_ptr<batch_comm> core = comm->core;
    comm->end(); // first: its thread may be about to put something on a stream
    wait_for_batches(core.get(), false);
    comm->give_memory();
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    visit guard(comm);
    *count = comm->ranks;
    return comm->ready();
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    visit guard(comm);
    *rank = comm->rank;
    return comm->ready();
}

ncclResult_t ncclGroupStart(void)
{
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (group.depth == 0)
        return ncclInvalidUsage;
    if (--group.depth > 0)
        return ncclSuccess;
    group_state ended = std::move(group);
    group = group_state();
    ncclResult_t result = ended.error;
    for (group_part &part : ended.parts) {
        if (result != ncclSuccess && result != ncclInProgress)
            break;
        visit guard(part.comm);
        if (part.comm->blocking != ended.parts[0].comm->blocking)
            batch_misuse("blocking and non-blocking communicators in one group");
        result = launch(part.comm, std::move(part.calls), part.stream);
    }
    return result;
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return take(comm, make_call(BATCH_SEND, from, nullptr, count, type, ncclSum, peer), stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return take(comm, make_call(BATCH_RECV, nullptr, to, count, type, ncclSum, peer), stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return take(comm, make_call(BATCH_GATHER, from, to, count, type, ncclSum, 0), stream);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return take(comm, make_call(BATCH_ALLREDUCE, from, to, count, type, op, 0), stream);
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream)
{
    return take(comm, make_call(BATCH_REDUCE, from, to, count, type, op, root), stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return take(comm, make_call(BATCH_BROADCAST, from, to, count, type, ncclSum, root), stream);
}
