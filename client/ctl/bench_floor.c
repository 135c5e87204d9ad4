// SPDX-License-Identifier: Apache-2.0
// What a step and an attach cannot be quicker than: round trips, memory, a plain connection.
#include "client/ctl/bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"

#define PINGS       50
#define PIECE_BYTES ((size_t)1 << 20)
#define PIECES      256

// ---- a plain connection -----------------------------------------------------------------------------------

static bool connect_pair(int fd[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fd[1] = -1;
    if (listener >= 0 && fd[0] >= 0 && bind(listener, (struct sockaddr *)&address, len) == 0 &&
        listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&address, &len) == 0 &&
        connect(fd[0], (struct sockaddr *)&address, len) == 0)
        fd[1] = accept(listener, NULL, NULL);
    if (listener >= 0)
        close(listener);
    if (fd[1] < 0 && fd[0] >= 0)
        close(fd[0]);
    return fd[1] >= 0;
}

struct sink {
    int fd;
    char *buf;
};

static void *read_all(void *arg)
{
    struct sink *sink = arg;
    while (recv(sink->fd, sink->buf, PIECE_BYTES, 0) > 0)
        continue;
    shutdown(sink->fd, SHUT_RDWR); // the sender sees that all was read
    return NULL;
}

static bool send_all(int fd, const char *from, size_t len)
{
    while (len) {
        ssize_t n = send(fd, from, len, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        from += n;
        len -= (size_t)n;
    }
    return true;
}

// Bytes a second from one thread to another. 0: it cannot be measured here.
static uint64_t connection_speed(void)
{
    int fd[2];
    pthread_t thread;
    char *buf = calloc(2, PIECE_BYTES), end;
    if (!buf || !connect_pair(fd)) {
        free(buf);
        return 0;
    }
    memset(buf, 1, 2 * PIECE_BYTES);
    struct sink sink = {.fd = fd[1], .buf = buf + PIECE_BYTES};
    bool ok = pthread_create(&thread, NULL, read_all, &sink) == 0;
    uint64_t began_ns = common_clock_ns(), took_ns = 0;
    if (ok) {
        for (int i = 0; ok && i < PIECES; i++)
            ok = send_all(fd[0], buf, PIECE_BYTES);
        shutdown(fd[0], SHUT_WR);
        ok = ok && recv(fd[0], &end, 1, 0) == 0;
        took_ns = common_clock_ns() - began_ns;
        pthread_join(thread, NULL);
    }
    close(fd[0]);
    close(fd[1]);
    free(buf);
    return ok && took_ns ? (uint64_t)((double)PIECES * (double)PIECE_BYTES * 1e9 / (double)took_ns) : 0;
}

// ---- memory -----------------------------------------------------------------------------------------------

static const banyan_worker_info *find_worker(const banyan_cluster_info *info, const char *name)
{
    for (uint32_t i = 0; i < info->n_workers; i++)
        if (strcmp(info->workers[i].name, name) == 0)
            return &info->workers[i];
    return NULL;
}

static void look_at_members(const banyan_cluster_info *info, const banyan_plan_info *plan, uint64_t row_bytes,
                            struct ctl_bench_floor *out)
{
    char host[65] = "";
    gethostname(host, sizeof host - 1);
    out->members = plan->n_nodes;
    out->here = plan->n_nodes > 0;
    for (uint32_t i = 0; i < plan->n_nodes; i++) {
        const banyan_plan_node *node = &plan->nodes[i];
        const banyan_worker_info *worker = find_worker(info, node->worker);
        uint64_t bytes = node->tokens * row_bytes;
        uint64_t ns =
            worker && worker->bandwidth ? (uint64_t)((double)bytes * 1e9 / (double)worker->bandwidth) : 0;
        out->here = out->here && strcmp(node->host, host) == 0;
        if (ns < out->memory_ns || (ns == 0 && i > 0))
            continue;
        out->memory_ns = ns;
        out->part_bytes = bytes;
        memcpy(out->worker, node->worker, sizeof out->worker);
    }
}

enum ctl_exit ctl_bench_floor(struct ctl *ctl, banyan_session *session, uint64_t row_bytes,
                              struct ctl_bench_floor *out)
{
    banyan_cluster_info info;
    banyan_plan_info plan;
    banyan_error error;
    *out = (struct ctl_bench_floor){.ping_ns = UINT64_MAX};
    for (int i = 0; i < PINGS; i++) {
        uint64_t ns;
        if (banyan_ping(ctl->client, &ns, &error) != BANYAN_OK)
            return ctl_fail(&error);
        out->ping_ns = ns < out->ping_ns ? ns : out->ping_ns;
    }
    if (banyan_cluster_get_info(ctl->client, &info, &error) != BANYAN_OK)
        return ctl_fail(&error);
    banyan_code code = banyan_session_get_plan(session, &plan, &error);
    if (code == BANYAN_OK) {
        look_at_members(&info, &plan, row_bytes, out);
        banyan_plan_info_free(&plan);
    }
    banyan_cluster_info_free(&info);
    if (code != BANYAN_OK)
        return ctl_fail(&error);
    out->bytes_per_s = connection_speed();
    return CTL_OK;
}
