// SPDX-License-Identifier: Apache-2.0
// Round trips, one at a time, of N bytes there and N back: plain sockets (blocking, and with epoll as a
// program with other work would have it), nng alone, and a whole RPC (header, checks, deadline, one tensor
// each way) over each transport. ratio_to_floor: to the plain epoll round trip over the same kind of socket.
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
#include <unistd.h>

#include "bench/floor.h"
#include "bench/main.h"
#include "bench/report.h"
#include "common/clock.h"
#include "common/loop.h"
#include "proto/rpc.h"

enum { WARM_UP = 500 };

static bool json;
static uint64_t rounds = 20000;
static const size_t sizes[] = {64, 16 << 10};

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
    struct common_slice piece = {message->n_tensors ? message->tensors[0].data : "",
                                 message->n_tensors ? message->tensors[0].bytes : 0};
    struct proto_tensor_out tensor = {BANYAN__PB__DTYPE__DTYPE_U8, 1, {piece.len}, &piece, 1};
    proto_request_reply(request, &reply.base, &tensor, 1, unref_blob, common_blob_ref(message->blob));
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
    static const struct proto_method methods[] = {
        {BANYAN__PB__METHOD__METHOD_HEALTH_CHECK, 1u << BANYAN__PB__ROLE__ROLE_CLIENT, echo}, {0, 0, NULL}};
    const struct proto_server_options options = {.name = "bench",
                                                 .role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
                                                 .methods = methods};
    struct common_loop *loop;
    struct proto_server *server;
    struct common_error err;
    if (common_loop_new(&loop) != COMMON_OK || proto_server_new(loop, &options, &server, &err) != COMMON_OK ||
        proto_server_listen(server, endpoint, &err) != COMMON_OK)
        _exit(1);
    const char *real = proto_server_endpoint(server, 0);
    if (write(said[1], real, strlen(real)) < 0)
        _exit(1);
    close(said[1]);
    common_loop_run(loop);
    _exit(0);
}

struct run {
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
    if (run->done >= WARM_UP)
        common_histogram_add(run->out, common_clock_ns() - run->start);
    if (reply->code != COMMON_OK) {
        fprintf(stderr, "%s\n", reply->text);
        run->failed = true;
    }
    if (run->failed || ++run->done == rounds + WARM_UP)
        common_loop_stop(run->loop);
    else
        next(run);
}

static bool rpc(const char *endpoint, size_t bytes, struct common_histogram *out)
{
    struct run run = {.out = out};
    uint8_t *buf = calloc(1, bytes);
    struct common_slice piece = {buf, bytes};
    struct common_error err;
    run.tensor = (struct proto_tensor_out){BANYAN__PB__DTYPE__DTYPE_U8, 1, {bytes}, &piece, 1};
    common_histogram_reset(out);
    if (!buf || common_loop_new(&run.loop) != COMMON_OK) {
        fprintf(stderr, "out of memory\n");
        free(buf);
        return false;
    }
    const struct proto_channel_options options = {.name = "bench", .role = BANYAN__PB__ROLE__ROLE_CLIENT};
    if (proto_channel_open(run.loop, endpoint, &options, &run.channel, &err) == COMMON_OK) {
        next(&run);
        common_loop_run(run.loop);
        proto_channel_close(run.channel);
    } else {
        fprintf(stderr, "%s\n", err.message);
        run.failed = true;
    }
    common_loop_free(run.loop);
    free(buf);
    return !run.failed;
}

// ---------------------------------------------------------------------------------------------------------

static bool measure(size_t bytes, const char *unix_endpoint, const char *tcp_endpoint,
                    const char *nng_endpoint)
{
    static struct common_histogram h, tcp;
    if (!plain_epoll(true, bytes, &tcp) || !plain_epoll(false, bytes, &h))
        return false;
    double tcp_us = p50_us(&tcp), unix_us = p50_us(&h);
    report("unix_epoll", bytes, &h, unix_us);
    if (!floor_pingpong(FLOOR_UNIX, bytes, bytes, (uint32_t)rounds, &h))
        return false;
    report("unix_blocking", bytes, &h, unix_us);
    if (!rpc(unix_endpoint, bytes, &h))
        return false;
    report("rpc_unix", bytes, &h, unix_us);
    report("tcp_epoll", bytes, &tcp, tcp_us);
    if (!floor_pingpong(FLOOR_TCP, bytes, bytes, (uint32_t)rounds, &h))
        return false;
    report("tcp_blocking", bytes, &h, tcp_us);
    if (!rpc(tcp_endpoint, bytes, &h))
        return false;
    report("rpc_tcp", bytes, &h, tcp_us);
    if (!floor_nng(bytes, bytes, (uint32_t)rounds, &h))
        return false;
    report("nng", bytes, &h, tcp_us);
    if (!rpc(nng_endpoint, bytes, &h))
        return false;
    report("rpc_nng", bytes, &h, tcp_us);
    return true;
}

static bool measure_all(void)
{
    // The servers are forked before this process has any thread.
    char dir[] = "/tmp/banyan-bench-XXXXXX", listen[64], endpoints[3][256];
    if (!mkdtemp(dir)) {
        perror(dir);
        return false;
    }
    snprintf(listen, sizeof listen, "unix://%s/socket", dir);
    pid_t servers[3] = {serve(listen, endpoints[0]), serve("tcp://127.0.0.1:0", endpoints[1]),
                        serve("nng+tcp://127.0.0.1:0", endpoints[2])};
    bool ok = servers[0] > 0 && servers[1] > 0 && servers[2] > 0;
    if (!ok)
        fprintf(stderr, "a server did not start\n");
    for (size_t i = 0; ok && i < sizeof sizes / sizeof *sizes; i++)
        ok = measure(sizes[i], endpoints[0], endpoints[1], endpoints[2]);
    for (int i = 0; i < 3; i++)
        if (servers[i] > 0) {
            kill(servers[i], SIGKILL);
            waitpid(servers[i], NULL, 0);
        }
    unlink(listen + strlen("unix://"));
    rmdir(dir);
    return ok;
}

int main(int argc, char **argv)
{
    floor_peer_main(argc, argv);
    const struct common_option options[] = {
        {"rounds", 'n', COMMON_OPTION_U64, &rounds, "N", "round trips of each kind (20000)", 100, 10000000},
        {0},
    };
    const struct bench_program program = {
        .name = "transport",
        .about = "Round trips of plain sockets, nng and RPCs.",
        .options = options,
        .json = &json,
        .measure = measure_all,
    };
    return bench_main(&program, argc, argv);
}
