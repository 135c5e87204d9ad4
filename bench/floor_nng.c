// SPDX-License-Identifier: Apache-2.0
// nng's own round trip: contexts with aio callbacks at both ends. The peer is this program again, started
// anew: nng must not be used on both sides of a fork.
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/floor.h"
#include "common/base/clock.h"

#define PEER_FLAG "--floor-nng-peer"
#define WARM_UP   200

// ---- peer ---------------------------------------------------------------------------------------

struct peer {
    nng_ctx ctx;
    nng_aio *aio;
    size_t reply_bytes;
    bool sending;
};

static void peer_step(void *arg)
{
    struct peer *p = arg;
    if (nng_aio_result(p->aio) != 0)
        return;
    if (p->sending) {
        p->sending = false;
        nng_ctx_recv(p->ctx, p->aio);
        return;
    }
    nng_msg *reply;
    nng_msg_free(nng_aio_get_msg(p->aio));
    if (nng_msg_alloc(&reply, p->reply_bytes) != 0)
        return;
    p->sending = true;
    nng_aio_set_msg(p->aio, reply);
    nng_ctx_send(p->ctx, p->aio);
}

void floor_peer_main(int argc, char **argv)
{
    if (argc != 3 || strcmp(argv[1], PEER_FLAG) != 0)
        return;
    nng_socket socket;
    nng_listener listener;
    struct peer p = {.reply_bytes = strtoul(argv[2], NULL, 10)};
    int port = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (nng_rep0_open(&socket) || nng_ctx_open(&p.ctx, socket) || nng_aio_alloc(&p.aio, peer_step, &p) ||
        nng_listener_create(&listener, socket, "tcp://127.0.0.1:0") || nng_listener_start(listener, 0) ||
        nng_listener_get_int(listener, NNG_OPT_TCP_BOUND_PORT, &port))
        exit(1);
    nng_ctx_recv(p.ctx, p.aio);
    printf("%d\n", port);
    fflush(stdout);
    char end;
    while (read(STDIN_FILENO, &end, 1) > 0)
        ;
    _exit(0); // the caller has closed its end
}

// ---- caller -------------------------------------------------------------------------------------

struct caller {
    nng_ctx ctx;
    nng_aio *aio;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t request_bytes;
    uint32_t left, warm_up;
    bool sending, done, failed;
    uint64_t start;
    struct common_histogram *out;
};

static void caller_send(struct caller *c)
{
    nng_msg *msg;
    if (nng_msg_alloc(&msg, c->request_bytes) != 0)
        abort();
    c->start = common_clock_ns();
    c->sending = true;
    nng_aio_set_msg(c->aio, msg);
    nng_ctx_send(c->ctx, c->aio);
}

static void caller_step(void *arg)
{
    struct caller *c = arg;
    bool failed = nng_aio_result(c->aio) != 0;
    if (!failed && c->sending) {
        c->sending = false;
        nng_ctx_recv(c->ctx, c->aio);
        return;
    }
    if (!failed) {
        nng_msg_free(nng_aio_get_msg(c->aio));
        if (c->warm_up)
            c->warm_up--;
        else {
            common_histogram_add(c->out, common_clock_ns() - c->start);
            c->left--;
        }
        if (c->left) {
            caller_send(c);
            return;
        }
    }
    pthread_mutex_lock(&c->lock);
    c->done = true;
    c->failed = failed;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

// Starts the peer with a pipe to its standard input; reads its port. −1 when it cannot.
static pid_t peer_start(size_t reply_bytes, int *stop_fd, int *port)
{
    int in[2], out[2];
    char size[32], line[32] = {0};
    if (pipe(in) || pipe(out))
        return -1;
    snprintf(size, sizeof(size), "%zu", reply_bytes);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        close(in[1]);
        execl("/proc/self/exe", "floor-peer", PEER_FLAG, size, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    ssize_t n = read(out[0], line, sizeof(line) - 1);
    close(out[0]);
    *stop_fd = in[1];
    *port = atoi(line);
    return pid > 0 && n > 0 && *port > 0 ? pid : -1;
}

bool floor_nng(size_t request_bytes, size_t reply_bytes, uint32_t rounds, struct common_histogram *out)
{
    int stop_fd, port;
    char url[64];
    nng_socket socket;
    struct caller c = {.request_bytes = request_bytes, .left = rounds, .warm_up = WARM_UP, .out = out};
    pid_t pid = peer_start(reply_bytes, &stop_fd, &port);
    if (pid < 0) {
        fprintf(stderr, "bench: the nng peer does not start\n");
        return false;
    }
    pthread_mutex_init(&c.lock, NULL);
    pthread_cond_init(&c.changed, NULL);
    common_histogram_reset(out);
    snprintf(url, sizeof(url), "tcp://127.0.0.1:%d", port);
    bool ok = nng_req0_open(&socket) == 0 && nng_dial(socket, url, NULL, 0) == 0 &&
              nng_ctx_open(&c.ctx, socket) == 0 && nng_aio_alloc(&c.aio, caller_step, &c) == 0;
    if (ok) {
        caller_send(&c);
        pthread_mutex_lock(&c.lock);
        while (!c.done)
            pthread_cond_wait(&c.changed, &c.lock);
        pthread_mutex_unlock(&c.lock);
        nng_aio_free(c.aio);
    }
    nng_close(socket);
    close(stop_fd);
    waitpid(pid, NULL, 0);
    if (!ok || c.failed)
        fprintf(stderr, "bench: the nng round trip failed\n");
    return ok && !c.failed;
}
