// SPDX-License-Identifier: Apache-2.0
#include "bench/floor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"

#define WARM_UP 200 // rounds that are not counted

static bool fail(const char *what)
{
    fprintf(stderr, "bench: %s: %s\n", what, strerror(errno));
    return false;
}

// Two ends of a connection: unix, or tcp over loopback without Nagle.
static bool make_pair(enum floor_socket kind, int fd[2])
{
    if (kind == FLOOR_UNIX)
        return socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0 || fail("socketpair");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    bool ok = listener >= 0 && bind(listener, (struct sockaddr *)&address, len) == 0 &&
              listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&address, &len) == 0 &&
              (fd[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0 &&
              connect(fd[0], (struct sockaddr *)&address, len) == 0 &&
              (fd[1] = accept(listener, NULL, NULL)) >= 0;
    if (!ok) {
        if (listener >= 0)
            close(listener);
        return fail("loopback connection");
    }
    close(listener);
    setsockopt(fd[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd[1], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return true;
}

static bool send_all(int fd, const char *buf, size_t len)
{
    while (len) {
        ssize_t n = send(fd, buf, len, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        buf += n;
        len -= (size_t)n;
    }
    return true;
}

static bool recv_all(int fd, char *buf, size_t len)
{
    while (len) {
        ssize_t n = recv(fd, buf, len, 0);
        if (n <= 0)
            return false;
        buf += n;
        len -= (size_t)n;
    }
    return true;
}

static void echo_forever(int fd, size_t request_bytes, size_t reply_bytes)
{
    char *buf = calloc(1, request_bytes > reply_bytes ? request_bytes : reply_bytes);
    while (buf && recv_all(fd, buf, request_bytes) && send_all(fd, buf, reply_bytes))
        ;
    _exit(0);
}

static bool time_rounds(int fd, size_t request_bytes, size_t reply_bytes, uint32_t rounds,
                        struct common_histogram *out)
{
    char *buf = calloc(1, request_bytes > reply_bytes ? request_bytes : reply_bytes);
    bool ok = buf != NULL;
    common_histogram_reset(out);
    for (uint32_t i = 0; ok && i < rounds + WARM_UP; i++) {
        uint64_t start = common_clock_ns();
        ok = send_all(fd, buf, request_bytes) && recv_all(fd, buf, reply_bytes);
        if (i >= WARM_UP)
            common_histogram_add(out, common_clock_ns() - start);
    }
    free(buf);
    return ok || fail("round trip");
}

bool floor_pingpong(enum floor_socket kind, size_t request_bytes, size_t reply_bytes, uint32_t rounds,
                    struct common_histogram *out)
{
    int fd[2];
    if (!make_pair(kind, fd))
        return false;
    pid_t child = fork();
    if (child < 0)
        return fail("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fd[0]);
        echo_forever(fd[1], request_bytes, reply_bytes);
    }
    close(fd[1]);
    bool ok = time_rounds(fd[0], request_bytes, reply_bytes, rounds, out);
    close(fd[0]);
    waitpid(child, NULL, 0);
    return ok;
}

// ---- tree ---------------------------------------------------------------------------------------

// Reads a request from `up`, passes it to `down`, gathers a partial from each, answers.
static void relay_forever(int up, const int *down, uint32_t n_down, size_t request_bytes,
                          size_t partial_bytes, size_t reply_bytes)
{
    char *request = calloc(1, request_bytes),
         *reply = calloc(1, partial_bytes > reply_bytes ? partial_bytes : reply_bytes);
    bool ok = request && reply;
    while (ok && recv_all(up, request, request_bytes)) {
        for (uint32_t i = 0; ok && i < n_down; i++)
            ok = send_all(down[i], request, request_bytes);
        for (uint32_t i = 0; ok && i < n_down; i++)
            ok = recv_all(down[i], reply, partial_bytes);
        ok = ok && send_all(up, reply, reply_bytes);
    }
    _exit(0);
}

bool floor_tree_rounds(const struct floor_tree *tree, uint32_t rounds, struct common_histogram *out)
{
    // Process 0 relays; process 1 + r is rank r. up[p] and down[p] are the ends of the edge between p and its
    // parent.
    enum { MAX = 65 };
    int up[MAX] = {0}, down[MAX] = {0};
    pid_t pids[MAX];
    uint32_t n = tree->workers + 1;
    if (n > MAX) {
        fprintf(stderr, "bench: at most %d workers\n", MAX - 1);
        return false;
    }
    for (uint32_t p = 0; p < n; p++) {
        int fd[2];
        if (!make_pair(p == 0 ? tree->client : FLOOR_UNIX, fd))
            return false;
        down[p] = fd[0];
        up[p] = fd[1];
    }
    for (uint32_t p = 0; p < n; p++) {
        pids[p] = fork();
        if (pids[p] < 0)
            return fail("fork");
        if (pids[p] > 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int children[MAX];
        uint32_t n_children = 0;
        for (uint32_t c = 1; c < n; c++)
            if ((p == 0 && c == 1) || (p > 0 && c > 1 && tree->parent[c - 1] == (int32_t)p - 1))
                children[n_children++] = down[c];
        for (uint32_t c = 0; c < n; c++) { // an end that stays open elsewhere would hide its peer's end
            bool mine = false;
            for (uint32_t k = 0; k < n_children; k++)
                mine |= children[k] == down[c];
            if (!mine)
                close(down[c]);
            if (c != p)
                close(up[c]);
        }
        // What comes back from a child is a partial, save from the root to the relay.
        relay_forever(up[p], children, n_children, tree->request_bytes,
                      p == 0 ? tree->reply_bytes : tree->partial_bytes,
                      p <= 1 ? tree->reply_bytes : tree->partial_bytes);
    }
    for (uint32_t p = 0; p < n; p++) {
        close(up[p]);
        if (p > 0)
            close(down[p]);
    }
    bool ok = time_rounds(down[0], tree->request_bytes, tree->reply_bytes, rounds, out);
    close(down[0]);
    for (uint32_t p = 0; p < n; p++)
        waitpid(pids[p], NULL, 0);
    return ok;
}

// ---- copy ---------------------------------------------------------------------------------------

#define COPY_PIECE  ((size_t)1 << 20)
#define COPY_WINDOW 4

static void sink_forever(int fd)
{
    char *buf = malloc(COPY_PIECE);
    while (buf && recv_all(fd, buf, COPY_PIECE) && send_all(fd, "k", 1))
        ;
    _exit(0);
}

bool floor_copy(uint32_t peers, uint64_t total_bytes, double *bytes_per_s)
{
    enum { MAX = 64 };
    int fds[MAX];
    pid_t pids[MAX];
    char *piece = malloc(COPY_PIECE), ack;
    if (!piece || peers == 0 || peers > MAX)
        return fail("copy");
    memset(piece, 1, COPY_PIECE);
    for (uint32_t p = 0; p < peers; p++) {
        int fd[2];
        if (!make_pair(FLOOR_TCP, fd))
            return false;
        pids[p] = fork();
        if (pids[p] < 0)
            return fail("fork");
        if (pids[p] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (uint32_t o = 0; o < p; o++)
                close(fds[o]);
            close(fd[0]);
            sink_forever(fd[1]);
        }
        close(fd[1]);
        fds[p] = fd[0];
    }
    uint64_t pieces = total_bytes / COPY_PIECE / peers * peers, start = common_clock_ns();
    bool ok = true;
    for (uint64_t i = 0; ok && i < pieces; i++) {
        int fd = fds[i % peers];
        if (i / peers >= COPY_WINDOW)
            ok = recv_all(fd, &ack, 1);
        ok = ok && send_all(fd, piece, COPY_PIECE);
    }
    for (uint32_t p = 0; ok && p < peers; p++)
        for (uint64_t k = 0; ok && k < COPY_WINDOW && k < pieces / peers; k++)
            ok = recv_all(fds[p], &ack, 1);
    *bytes_per_s = (double)(pieces * COPY_PIECE) / ((double)(common_clock_ns() - start) * 1e-9);
    for (uint32_t p = 0; p < peers; p++) {
        close(fds[p]);
        waitpid(pids[p], NULL, 0);
    }
    free(piece);
    return ok || fail("copy");
}
