// SPDX-License-Identifier: Apache-2.0
// The emulated NCCL against plain sums, and when ranks are absent, die, hang or do not match. Each rank is
// this program once more: test_emulated_nccl SCENARIO ID RANK RANKS.
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <nccl.h>

#define FLOATS 40000 // more than a ring holds
#define SMALL  300
#define MOST   4

extern char **environ;

// ---- a rank ----------------------------------------------------------------------------------------------

static int rank, ranks;
static ncclComm_t comm;
static cudaStream_t stream;

#define CHECK(x)                                                                                             \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #x);                                   \
            _exit(2);                                                                                        \
        }                                                                                                    \
    } while (0)

static void nap(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static ncclResult_t settled(void)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress)
        CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    return state;
}

static void put(ncclResult_t said)
{
    CHECK(said == ncclInProgress);
    CHECK(settled() == ncclSuccess);
}

static void begin(ncclUniqueId id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(ncclCommInitRankConfig(&comm, ranks, id, rank, &config) == ncclInProgress);
}

static float *device(size_t floats)
{
    void *p = NULL;
    CHECK(cudaMalloc(&p, floats * sizeof(float)) == cudaSuccess);
    return p;
}

static float *pinned(size_t floats)
{
    void *p = NULL;
    CHECK(cudaHostAlloc(&p, floats * sizeof(float), cudaHostAllocDefault) == cudaSuccess);
    return p;
}

static float input(int r, size_t i, int round)
{
    return (float)((i * 7919 + (size_t)r * 104729 + (size_t)round * 31) % 10007) * 0.37f - 1500.0f;
}

static float summed(size_t i, int round)
{
    float x[MOST] = {0};
    for (int r = 0; r < ranks; r++)
        x[r] = input(r, i, round);
    for (int step = 1; step < ranks; step *= 2) {
        for (int r = 0; r + step < ranks; r += 2 * step)
            x[r] += x[r + step];
    }
    return x[0];
}

static float largest(size_t i)
{
    float x = input(0, i, 0);
    for (int r = 1; r < ranks; r++)
        x = x > input(r, i, 0) ? x : input(r, i, 0);
    return x;
}

static void upload(float *to, float *by, size_t n, int round)
{
    for (size_t i = 0; i < n; i++)
        by[i] = input(rank, i, round);
    CHECK(cudaMemcpyAsync(to, by, n * sizeof(float), cudaMemcpyHostToDevice, stream) == cudaSuccess);
}

static void download(float *to, const float *from, size_t n)
{
    CHECK(cudaMemcpyAsync(to, from, n * sizeof(float), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
}

static void to_root(const float *from, float *to, size_t n)
{
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclSend(from, n, ncclFloat, 0, comm, stream) == ncclSuccess);
    for (int r = 0; r < ranks && rank == 0; r++)
        CHECK(ncclRecv(to + (size_t)r * n, n, ncclFloat, r, comm, stream) == ncclSuccess);
    put(ncclGroupEnd());
}

static void numbers(void)
{
    CHECK(settled() == ncclSuccess);
    int n = 0;
    CHECK(ncclCommCount(comm, &n) == ncclSuccess && n == ranks);
    CHECK(ncclCommUserRank(comm, &n) == ncclSuccess && n == rank);
    float *in = device(FLOATS), *out = device(FLOATS * MOST), *h = pinned(FLOATS * MOST), *g = pinned(FLOATS);
    upload(in, g, FLOATS, 0);
    for (int op = 0; op < 2; op++) {
        put(ncclAllReduce(in, out, FLOATS, ncclFloat, op ? ncclMax : ncclSum, comm, stream));
        download(h, out, FLOATS);
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
        for (size_t i = 0; i < FLOATS; i++)
            CHECK(h[i] == (op ? largest(i) : summed(i, 0)));
    }
    for (int all = 0; all < 2; all++) {
        if (all)
            put(ncclAllGather(in, out, FLOATS, ncclFloat, comm, stream));
        else
            to_root(in, out, FLOATS);
        download(h, out, FLOATS * (size_t)ranks);
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
        for (int r = 0; r < ranks && (all || rank == 0); r++) {
            for (size_t i = 0; i < FLOATS; i++)
                CHECK(h[(size_t)r * FLOATS + i] == input(r, i, 0));
        }
    }
    int root = ranks - 1; // in place, and several in a row without waiting
    put(ncclReduce(in, in, SMALL, ncclFloat, ncclSum, root, comm, stream));
    put(ncclBroadcast(in, in, SMALL, ncclFloat, root, comm, stream));
    put(ncclAllReduce(in, in, 0, ncclFloat, ncclSum, comm, stream));
    download(h, in, SMALL);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    for (size_t i = 0; i < SMALL; i++)
        CHECK(h[i] == summed(i, 0));
    CHECK(ncclCommFinalize(comm) == ncclInProgress && settled() == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static cudaGraphExec_t captured(float *h_in, float *in, float *out, float *h_out)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    upload(in, h_in, SMALL, 0);
    put(ncclAllReduce(in, out, SMALL, ncclFloat, ncclSum, comm, stream));
    to_root(in, out + SMALL, SMALL);
    download(h_out, out, SMALL * (size_t)(1 + ranks));
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    return exec;
}

static void graphs(void)
{
    CHECK(settled() == ncclSuccess);
    float *in = device(SMALL), *out = device(SMALL * (1 + MOST)), *h = pinned(SMALL),
          *g = pinned(SMALL * (1 + MOST));
    cudaGraphExec_t exec = captured(h, in, out, g);
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < SMALL; i++)
            h[i] = input(rank, i, round);
        CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess);
        if (round % 8 == 0) // between launches, on the same communicator
            put(ncclAllReduce(in, in, SMALL, ncclFloat, ncclMax, comm, stream));
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
        for (size_t i = 0; i < SMALL; i++) {
            CHECK(g[i] == summed(i, round));
            for (int r = 0; r < ranks && rank == 0; r++)
                CHECK(g[SMALL * (size_t)(1 + r) + i] == input(r, i, round));
        }
    }
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void absent(void)
{
    ncclResult_t state = ncclSuccess;
    nap(30);
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
}

// What is on the stream does not end, then does, and has written nothing.
static void cut_off(const float *out, cudaGraphExec_t exec)
{
    nap(30);
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    float before;
    memcpy(&before, out, sizeof(before)); // memory of the device is the host's here
    if (exec)
        CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(memcmp(&before, out, sizeof(before)) == 0);
}

static void killed(void)
{
    CHECK(settled() == ncclSuccess);
    float *in = device(SMALL), *out = device(SMALL);
    CHECK(cudaMemsetAsync(in, 0, SMALL * sizeof(float), stream) == cudaSuccess);
    put(ncclAllReduce(in, in, SMALL, ncclFloat, ncclSum, comm, stream)); // connects them
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    if (rank == ranks - 1)
        raise(SIGKILL);
    put(ncclAllReduce(in, out, SMALL, ncclFloat, ncclSum, comm, stream));
    cut_off(out, NULL);
}

static void killed_graph(void)
{
    CHECK(settled() == ncclSuccess);
    float *in = device(SMALL), *out = device(SMALL * (1 + MOST)), *h = pinned(SMALL),
          *g = pinned(SMALL * (1 + MOST));
    cudaGraphExec_t exec = captured(h, in, out, g);
    CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    if (rank == ranks - 1)
        raise(SIGKILL);
    nap(10);
    CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess);
    cut_off(out, exec);
}

static void hangs(void)
{
    CHECK(settled() == ncclSuccess);
    float *in = device(SMALL), *out = device(SMALL), *h = pinned(SMALL);
    upload(in, h, SMALL, 0);
    put(ncclAllReduce(in, out, SMALL, ncclFloat, ncclSum, comm, stream));
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(out[5] == summed(5, 0));
    put(ncclAllReduce(in, out, SMALL, ncclFloat, ncclMax, comm, stream));
    cut_off(out, NULL);
}

// The second operation of a communicator, not of the process, and once.
static void hangs_once(void)
{
    float *in = device(SMALL), *out = device(SMALL), *h = pinned(SMALL);
    upload(in, h, SMALL, 0);
    for (int round = 0; round < 3; round++) {
        ncclUniqueId id;
        CHECK(settled() == ncclSuccess);
        for (int operation = 0; operation < (round == 0 ? 1 : 2); operation++) {
            put(ncclAllReduce(in, out, SMALL, ncclFloat, ncclSum, comm, stream));
            if (round == 1 && operation == 1)
                break;
            for (int i = 0; cudaStreamQuery(stream) == cudaErrorNotReady; i++, nap(1))
                CHECK(i < 20000);
        }
        if (round == 1)
            cut_off(out, NULL);
        else
            CHECK(ncclCommDestroy(comm) == ncclSuccess);
        CHECK(ncclGetUniqueId(&id) == ncclSuccess);
        begin(id);
    }
    CHECK(settled() == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

// The last rank joins, but never calls.
static void alone(void)
{
    CHECK(settled() == ncclSuccess);
    float *in = device(SMALL);
    ncclResult_t state;
    CHECK(cudaMemsetAsync(in, 0, SMALL * sizeof(float), stream) == cudaSuccess);
    if (rank < ranks - 1)
        CHECK(ncclAllReduce(in, in, SMALL, ncclFloat, ncclSum, comm, stream) == ncclInProgress);
    nap(30);
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    CHECK(state == (rank < ranks - 1 ? ncclInProgress : ncclSuccess));
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess); // nothing was put on it
    CHECK(ncclCommAbort(comm) == ncclSuccess);
}

static void corrupts(void)
{
    CHECK(settled() == ncclSuccess);
    float *in = device(SMALL), *out = device(SMALL * MOST), *h = pinned(SMALL);
    upload(in, h, SMALL, 0);
    put(ncclAllGather(in, out, SMALL, ncclFloat, comm, stream));
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    for (int r = 0; r < ranks; r++)
        CHECK((out[r * SMALL] == input(r, 0, 0)) == (r == rank));
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void init_fails(void)
{
    CHECK(settled() == ncclSystemError);
    CHECK(strlen(ncclGetLastError(comm)) > 0);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
}

static void mismatch(void)
{
    CHECK(settled() == ncclSuccess);
    float *in = device(SMALL);
    put(ncclAllReduce(in, in, (size_t)(SMALL - rank), ncclFloat, ncclSum, comm, stream));
    cudaStreamSynchronize(stream);
}

static void after_end(void)
{
    CHECK(settled() == ncclSuccess);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    ncclResult_t state;
    ncclCommGetAsyncError(comm, &state);
}

static void too_early(void)
{
    float *in = device(SMALL);
    CHECK(ncclAllReduce(in, in, SMALL, ncclFloat, ncclSum, comm, stream) == ncclInvalidArgument);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
}

static const struct scenario {
    const char *name;
    void (*run)(void);
} scenarios[] = {{"numbers", numbers},     {"graphs", graphs},         {"absent", absent},
                 {"killed", killed},       {"hangs", hangs},           {"killed_graph", killed_graph},
                 {"corrupts", corrupts},   {"init_fails", init_fails}, {"mismatch", mismatch},
                 {"after_end", after_end}, {"too_early", too_early},   {"hangs_once", hangs_once},
                 {"alone", alone}};

static int be_rank(char **argv)
{
    ncclUniqueId id;
    for (size_t i = 0; i < sizeof(id); i++) {
        unsigned byte;
        CHECK(sscanf(argv[2] + 2 * i, "%2x", &byte) == 1);
        id.internal[i] = (char)byte;
    }
    rank = atoi(argv[3]);
    ranks = atoi(argv[4]);
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        if (strcmp(argv[1], scenarios[i].name) != 0)
            continue;
        begin(id);
        scenarios[i].run();
        return 0;
    }
    return 3;
}

// ---- all of them -----------------------------------------------------------------------------------------

static const char *self;

// Starts `started` of `count` ranks; what each ended with, as wait() says it.
static void run_ranks(const char *scenario, int count, int started, int *ends)
{
    ncclUniqueId id;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    char hex[2 * sizeof(id) + 1], number[16], all[16];
    for (size_t i = 0; i < sizeof(id); i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned char)id.internal[i]);
    pid_t pids[MOST];
    snprintf(all, sizeof(all), "%d", count);
    for (int r = 0; r < started; r++) {
        snprintf(number, sizeof(number), "%d", r);
        char *argv[] = {(char *)(uintptr_t)self, (char *)(uintptr_t)scenario, hex, number, all, NULL};
        assert_int_equal(posix_spawn(&pids[r], self, NULL, NULL, argv, environ), 0);
    }
    for (int r = 0; r < started; r++)
        assert_int_equal(waitpid(pids[r], &ends[r], 0), pids[r]);
}

static void all_well(const char *scenario, int count, int started)
{
    int ends[MOST];
    run_ranks(scenario, count, started, ends);
    for (int r = 0; r < started; r++)
        assert_int_equal(ends[r], 0);
}

static void numbers_are_right(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n *= 2)
        all_well("numbers", n, n);
}

static void graphs_run_again(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n *= 2)
        all_well("graphs", n, n);
}

static void an_absent_rank(void **state)
{
    (void)state;
    all_well("absent", 2, 1);
    all_well("too_early", 2, 1);
    all_well("alone", 3, 3);
}

static void a_killed_rank(void **state)
{
    (void)state;
    const char *both[] = {"killed", "killed_graph"};
    for (int i = 0; i < 2; i++) {
        int ends[MOST];
        run_ranks(both[i], 3, 3, ends);
        assert_int_equal(ends[0], 0);
        assert_int_equal(ends[1], 0);
        assert_true(WIFSIGNALED(ends[2]) && WTERMSIG(ends[2]) == SIGKILL);
    }
}

static void faults_on_request(void **state)
{
    (void)state;
    setenv("BANYAN_EMULATED_NCCL_HANG", "2", 1);
    all_well("hangs", 2, 2);
    all_well("hangs_once", 1, 1);
    unsetenv("BANYAN_EMULATED_NCCL_HANG");
    setenv("BANYAN_EMULATED_NCCL_CORRUPT", "1", 1);
    all_well("corrupts", 2, 2);
    unsetenv("BANYAN_EMULATED_NCCL_CORRUPT");
    setenv("BANYAN_EMULATED_NCCL_INIT_FAILS", "1", 1);
    all_well("init_fails", 2, 1);
    unsetenv("BANYAN_EMULATED_NCCL_INIT_FAILS");
    setenv("BANYAN_EMULATED_NCCL_SLOW_INIT_MS", "60000", 1);
    all_well("absent", 1, 1);
    unsetenv("BANYAN_EMULATED_NCCL_SLOW_INIT_MS");
}

static void misuse_ends_the_process(void **state)
{
    (void)state;
    int ends[MOST];
    run_ranks("after_end", 1, 1, ends);
    assert_true(WIFSIGNALED(ends[0]) && WTERMSIG(ends[0]) == SIGABRT);
    run_ranks("mismatch", 2, 2, ends);
    for (int r = 0; r < 2; r++)
        assert_true(WIFSIGNALED(ends[r]) && WTERMSIG(ends[r]) == SIGABRT);
}

int main(int argc, char **argv)
{
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    if (argc == 5)
        return be_rank(argv);
    self = "/proc/self/exe";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_right), cmocka_unit_test(graphs_run_again),
        cmocka_unit_test(an_absent_rank),    cmocka_unit_test(a_killed_rank),
        cmocka_unit_test(faults_on_request), cmocka_unit_test(misuse_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
