// SPDX-License-Identifier: Apache-2.0
// Round trips, one at a time, of N bytes there and N back: plain sockets (blocking, and with epoll as a
// program with other work would have it), nng alone, and a whole RPC (header, checks, deadline, one tensor
// each way) over each transport. ratio_to_floor: to the plain epoll round trip over the same kind of socket.
// Then calls of 1 MiB, several under way, over TCP plain and under TLS, both ends on one thread: bytes a
// second of that thread's processor time; ratio_to_floor: to plain.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/floor.h"
#include "bench/main.h"
#include "bench/report.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "proto/rpc/rpc.h"
#include "tests/common/test_pki.h"

enum { WARM_UP = 500, ECHO_MAX = 64 << 10, BULK = 1 << 20, BULK_DEPTH = 8 };

static bool json;
static bool only_bulk;
static uint64_t rounds = 20000;
static const size_t sizes[] = {64, 16 << 10};
static struct common_tls *tls; // both ends'

static void report(const char *what, size_t bytes, const struct common_histogram *h, double floor_us)
{
    double p50 = (double)common_histogram_quantile(h, 0.5) / 1e3,
           p99 = (double)common_histogram_quantile(h, 0.99) / 1e3;
    const struct report_field fields[] = {{"bench", "transport", 0},
                                          {"what", what, 0},
                                          {"bytes", NULL, (double)bytes},
                                          {"p50_us", NULL, p50},
                                          {"p99_us", NULL, p99},
                                          {"ratio_to_floor", NULL, p50 / floor_us},
                                          {0}};
    report_line(json, fields);
}

static double p50_us(const struct common_histogram *h)
{
    return (double)common_histogram_quantile(h, 0.5) / 1e3;
}

// ---- plain sockets with epoll ---------------------------------------------------------------------------

static bool connected_pair(bool tcp, int fd[2])
{
    if (!tcp)
        return socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    fd[0] = socket(AF_INET, SOCK_STREAM, 0);
    bool ok = listener >= 0 && fd[0] >= 0 && bind(listener, (struct sockaddr *)&address, len) == 0 &&
              listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&address, &len) == 0 &&
              connect(fd[0], (struct sockaddr *)&address, len) == 0 &&
              (fd[1] = accept(listener, NULL, NULL)) >= 0;
    close(listener);
    for (int i = 0; ok && i < 2; i++)
        ok = setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0 &&
             fcntl(fd[i], F_SETFL, O_NONBLOCK) == 0;
    return ok;
}

// Reads n bytes, waiting in epoll. False at the end of the stream.
static bool read_all(int epoll, int fd, uint8_t *buf, size_t n)
{
    for (size_t have = 0; have < n;) {
        struct epoll_event event;
        if (epoll_wait(epoll, &event, 1, -1) < 0)
            return false;
        ssize_t got = read(fd, buf + have, n - have);
        if (got <= 0)
            return false;
        have += (size_t)got;
    }
    return true;
}

static bool write_all(int fd, const uint8_t *buf, size_t n)
{
    return write(fd, buf, n) == (ssize_t)n; // both sizes fit in an empty socket
}

static bool plain_epoll(bool tcp, size_t bytes, struct common_histogram *out)
{
    int fd[2] = {-1, -1};
    uint8_t *buf = calloc(1, bytes);
    if (!buf || !connected_pair(tcp, fd)) {
        perror("sockets");
        free(buf);
        return false;
    }
    pid_t peer = fork();
    bool serves = peer == 0;
    int mine = fd[serves], epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    close(fd[!serves]);
    epoll_ctl(epoll, EPOLL_CTL_ADD, mine, &event);
    if (serves) {
        while (read_all(epoll, mine, buf, bytes) && write_all(mine, buf, bytes))
            continue;
        _exit(0);
    }
    common_histogram_reset(out);
    bool ok = peer > 0;
    for (uint64_t i = 0; ok && i < rounds + WARM_UP; i++) {
        uint64_t start = common_clock_ns();
        ok = write_all(mine, buf, bytes) && read_all(epoll, mine, buf, bytes);
        if (i >= WARM_UP)
            common_histogram_add(out, common_clock_ns() - start);
    }
    close(mine);
    close(epoll);
    free(buf);
    if (peer > 0)
        waitpid(peer, NULL, 0);
    return ok;
}

// ---- RPC ------------------------------------------------------------------------------------------------

static void unref_blob(void *blob)
{
    common_blob_unref(blob);
}

static void echo(void *arg, struct proto_request *request)
{
    (void)arg;
    const struct proto_message *message = proto_request_message(request);
    Banyan__Pb__HealthCheckReply reply = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
    if (message->n_tensors && message->tensors[0].bytes > ECHO_MAX) { // one way
        proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
        return;
    }
    struct common_slice piece = {message->n_tensors ? message->tensors[0].data : "",
                                 message->n_tensors ? message->tensors[0].bytes : 0};
    struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {piece.len}, &piece, 1};
    proto_request_reply(request, &reply.base, &tensor, 1, unref_blob, common_blob_ref(message->blob));
}

// A server that echoes, on a new loop. NULL: it did not start.
static struct proto_server *start_server(const char *endpoint, struct common_loop **loop)
{
    static const struct proto_method methods[] = {
        {BANYAN__PB__METHOD__METHOD_HEALTH_CHECK, 1u << BANYAN__PB__ROLE__ROLE_CLIENT, echo}, {0, 0, NULL}};
    const struct proto_server_options options = {
        .name = "bench", .role = BANYAN__PB__ROLE__ROLE_COORDINATOR, .tls = tls, .methods = methods};
    struct proto_server *server;
    struct common_error err = {0};
    if (common_loop_new(loop) == COMMON_OK && proto_server_new(*loop, &options, &server, &err) == COMMON_OK &&
        proto_server_listen(server, endpoint, &err) == COMMON_OK)
        return server;
    fprintf(stderr, "%s\n", err.message);
    return NULL;
}

// A process that serves `endpoint` until its parent ends; its real endpoint goes to `out`.
static pid_t serve(const char *endpoint, char out[256])
{
    int said[2];
    if (pipe(said) != 0)
        return -1;
    pid_t pid = fork();
    if (pid != 0) {
        close(said[1]);
        ssize_t n = pid > 0 ? read(said[0], out, 255) : 0;
        close(said[0]);
        out[n > 0 ? n : 0] = 0;
        return n > 0 ? pid : -1;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(said[0]);
    struct common_loop *loop;
    struct proto_server *server = start_server(endpoint, &loop);
    const char *real = server ? proto_server_endpoint(server, 0) : NULL;
    if (!real || write(said[1], real, strlen(real)) < 0)
        _exit(1);
    close(said[1]);
    common_loop_run(loop);
    _exit(0);
}

struct run {
    unsigned depth, out_now;
    uint64_t want;
    struct common_loop *loop;
    struct proto_channel *channel;
    struct common_histogram *out;
    struct proto_tensor_out tensor;
    uint64_t start, done;
    bool failed;
};

static void on_reply(void *arg, const struct proto_reply *reply);

static void next(struct run *run)
{
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    struct common_error err;
    run->start = common_clock_ns();
    run->out_now++;
    if (proto_channel_call(run->channel,
                           &(struct proto_call){.method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                                .body = &body.base,
                                                .tensors = &run->tensor,
                                                .n_tensors = 1,
                                                .deadline_ns = run->start + 5 * COMMON_NS_PER_S,
                                                .done = on_reply,
                                                .arg = run},
                           NULL, &err) != COMMON_OK) {
        fprintf(stderr, "%s\n", err.message);
        run->failed = true;
        common_loop_stop(run->loop);
    }
}

static void on_reply(void *arg, const struct proto_reply *reply)
{
    struct run *run = arg;
    run->out_now--;
    if (run->out && run->done >= WARM_UP)
        common_histogram_add(run->out, common_clock_ns() - run->start);
    if (reply->code != COMMON_OK) {
        fprintf(stderr, "%s\n", reply->text);
        run->failed = true;
    }
    if (run->failed || ++run->done == run->want)
        common_loop_stop(run->loop);
    while (!run->failed && run->out_now < run->depth && run->done + run->out_now < run->want)
        next(run);
}

// Makes run->want calls of `bytes` each.
static bool call_all(struct run *run, const char *endpoint, size_t bytes)
{
    uint8_t *buf = calloc(1, bytes);
    struct common_slice piece = {buf, bytes};
    struct common_error err;
    const struct proto_channel_options options = {.name = "bench",
                                                  .role = BANYAN__PB__ROLE__ROLE_CLIENT,
                                                  .tls = tls};
    run->tensor = (struct proto_tensor_out){BANYAN__PB__DTYPE__DTYPE_U8, 1, {bytes}, &piece, 1};
    if (!buf) {
        fprintf(stderr, "out of memory\n");
        return false;
    }
    if (proto_channel_open(run->loop, endpoint, &options, &run->channel, &err) == COMMON_OK) {
        while (!run->failed && run->out_now < run->depth)
            next(run);
        common_loop_run(run->loop);
        proto_channel_close(run->channel);
    } else {
        fprintf(stderr, "%s\n", err.message);
        run->failed = true;
    }
    free(buf);
    return !run->failed;
}

static bool rpc(const char *endpoint, size_t bytes, struct common_histogram *out)
{
    struct run run = {.out = out, .depth = 1, .want = rounds + WARM_UP};
    common_histogram_reset(out);
    if (common_loop_new(&run.loop) != COMMON_OK) {
        fprintf(stderr, "out of memory\n");
        return false;
    }
    bool ok = call_all(&run, endpoint, bytes);
    common_loop_free(run.loop);
    return ok;
}

// Both ends on this thread: bytes a second of its processor time.
static bool bulk(const char *endpoint, double *rate)
{
    struct run run = {.depth = BULK_DEPTH, .want = rounds / 8 + 1};
    struct proto_server *server = start_server(endpoint, &run.loop);
    struct timespec from, to;
    if (!server)
        return false;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    bool ok = call_all(&run, proto_server_endpoint(server, 0), BULK);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    *rate = (double)(run.want * BULK) /
            ((double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9);
    proto_server_close(server);
    common_loop_free(run.loop);
    return ok;
}

// ---------------------------------------------------------------------------------------------------------

enum { ON_UNIX, ON_TCP, ON_NNG, ON_TLS, KINDS };

static bool measure(size_t bytes, char endpoints[KINDS][256])
{
    static struct common_histogram h, tcp;
    if (!plain_epoll(true, bytes, &tcp) || !plain_epoll(false, bytes, &h))
        return false;
    double tcp_us = p50_us(&tcp), unix_us = p50_us(&h);
    report("unix_epoll", bytes, &h, unix_us);
    if (!floor_pingpong(FLOOR_UNIX, bytes, bytes, (uint32_t)rounds, &h))
        return false;
    report("unix_blocking", bytes, &h, unix_us);
    if (!rpc(endpoints[ON_UNIX], bytes, &h))
        return false;
    report("rpc_unix", bytes, &h, unix_us);
    report("tcp_epoll", bytes, &tcp, tcp_us);
    if (!floor_pingpong(FLOOR_TCP, bytes, bytes, (uint32_t)rounds, &h))
        return false;
    report("tcp_blocking", bytes, &h, tcp_us);
    if (!rpc(endpoints[ON_TCP], bytes, &h))
        return false;
    report("rpc_tcp", bytes, &h, tcp_us);
    if (!rpc(endpoints[ON_TLS], bytes, &h))
        return false;
    report("rpc_tls", bytes, &h, tcp_us);
    if (!floor_nng(bytes, bytes, (uint32_t)rounds, &h))
        return false;
    report("nng", bytes, &h, tcp_us);
    if (!rpc(endpoints[ON_NNG], bytes, &h))
        return false;
    report("rpc_nng", bytes, &h, tcp_us);
    return true;
}

static void report_bulk(const char *what, double rate, double plain)
{
    const struct report_field fields[] = {{"bench", "transport", 0},
                                          {"what", what, 0},
                                          {"bytes", NULL, BULK},
                                          {"bytes_per_cpu_s", NULL, rate},
                                          {"ratio_to_floor", NULL, rate / plain},
                                          {0}};
    report_line(json, fields);
}

static bool measure_bulk(void)
{
    double plain, secured;
    if (!bulk("tcp://127.0.0.1:0", &plain) || !bulk("tls://127.0.0.1:0", &secured))
        return false;
    report_bulk("bulk_tcp", plain, plain);
    report_bulk("bulk_tls", secured, plain);
    return true;
}

static struct common_tls *make_tls(const char *dir)
{
    struct test_pki *pki = test_pki_new(dir, "bench");
    const struct test_pki_ask ask = {.name = "server", .uris = "banyan:coordinator", .hosts = "127.0.0.1"};
    struct test_pki_files files;
    struct common_tls *made = test_pki_tls(pki, &ask);
    test_pki_issue(pki, &ask, &files);
    unlink(files.ca);
    unlink(files.cert);
    unlink(files.key);
    test_pki_free(pki);
    return made;
}

static bool measure_all(void)
{
    // The servers are forked before this process has any thread.
    char dir[] = "/tmp/banyan-bench-XXXXXX", listen[64], endpoints[KINDS][256];
    if (!mkdtemp(dir)) {
        perror(dir);
        return false;
    }
    tls = make_tls(dir);
    if (only_bulk) {
        rmdir(dir);
        bool done = measure_bulk();
        common_tls_unref(tls);
        return done;
    }
    snprintf(listen, sizeof listen, "unix://%s/socket", dir);
    const char *const at[KINDS] = {listen, "tcp://127.0.0.1:0", "nng+tcp://127.0.0.1:0", "tls://127.0.0.1:0"};
    pid_t servers[KINDS];
    bool ok = true;
    for (int i = 0; i < KINDS; i++) {
        servers[i] = serve(at[i], endpoints[i]);
        ok = ok && servers[i] > 0;
    }
    if (!ok)
        fprintf(stderr, "a server did not start\n");
    for (size_t i = 0; ok && i < sizeof sizes / sizeof *sizes; i++)
        ok = measure(sizes[i], endpoints);
    ok = ok && measure_bulk();
    for (int i = 0; i < KINDS; i++)
        if (servers[i] > 0) {
            kill(servers[i], SIGKILL);
            waitpid(servers[i], NULL, 0);
        }
    unlink(listen + strlen("unix://"));
    rmdir(dir);
    common_tls_unref(tls);
    return ok;
}

int main(int argc, char **argv)
{
    floor_peer_main(argc, argv);
    const struct common_option options[] = {
        {"rounds", 'n', COMMON_OPTION_U64, &rounds, "N", "round trips of each kind (20000)", 100, 10000000},
        {"bulk", 0, COMMON_OPTION_FLAG, &only_bulk, NULL, "only the calls of 1 MiB", 0, 0},
        {0},
    };
    const struct bench_program program = {
        .name = "transport",
        .about = "Measures round trips of plain sockets, nng and RPCs; bytes per second of RPCs, plain and "
                 "over TLS.",
        .options = options,
        .json = &json,
        .measure = measure_all,
    };
    return bench_main(&program, argc, argv);
}
