// SPDX-License-Identifier: Apache-2.0
// The wire's own floor under the ring: the same bytes along the same links by plain tcp sockets, one process
// a rank, sending and receiving at once.
#include "research/paper_algo.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"

#define PIECE_MOST ((size_t)1 << 20)

// The address that others reach this rank at: of its first interface that is up, else loopback.
static struct in_addr own_address(void)
{
    struct in_addr address = {.s_addr = htonl(INADDR_LOOPBACK)};
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return address;
    for (struct ifaddrs *i = all; i; i = i->ifa_next) {
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) &&
            !(i->ifa_flags & IFF_LOOPBACK)) {
            address = ((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr;
            break;
        }
    }
    freeifaddrs(all);
    return address;
}

static int listen_any(struct sockaddr_in *at)
{
    socklen_t len = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = own_address()};
    if (fd >= 0 && (bind(fd, (struct sockaddr *)at, sizeof *at) != 0 || listen(fd, 1) != 0 ||
                    getsockname(fd, (struct sockaddr *)at, &len) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

// Moves both ways until all is through. False: a socket broke.
static bool pass_block(int to, int from, char *out, char *in, size_t bytes)
{
    size_t sent = 0, got = 0;
    while (sent < bytes || got < bytes) {
        struct pollfd fds[2] = {{.fd = sent < bytes ? to : -1, .events = POLLOUT},
                                {.fd = got < bytes ? from : -1, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return false;
        if (fds[0].revents) {
            size_t piece = bytes - sent < PIECE_MOST ? bytes - sent : PIECE_MOST;
            ssize_t n = send(to, out + sent, piece, MSG_NOSIGNAL);
            if (n < 0 && errno != EAGAIN && errno != EINTR)
                return false;
            sent += n > 0 ? (size_t)n : 0;
        }
        if (fds[1].revents) {
            size_t piece = bytes - got < PIECE_MOST ? bytes - got : PIECE_MOST;
            ssize_t n = recv(from, in + got, piece, 0);
            if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
                return false;
            got += n > 0 ? (size_t)n : 0;
        }
    }
    return true;
}

double paper_socket_ring(struct paper_world *world, void *out, void *in, size_t bytes, uint32_t passes)
{
    struct sockaddr_in own, *all = calloc(world->size, sizeof *all);
    int listener = listen_any(&own), to = -1, from = -1, one = 1;
    double us = -1, slowest = -1;
    bool ok = all && listener >= 0, all_ok;

    if (!all)
        abort();
    MPI_Allgather(&own, sizeof own, MPI_BYTE, all, sizeof own, MPI_BYTE, world->comm);
    if (ok) {
        to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ok =
            to >= 0 && connect(to, (struct sockaddr *)&all[(world->rank + 1) % world->size], sizeof own) == 0;
    }
    MPI_Allreduce(&ok, &all_ok, 1, MPI_C_BOOL, MPI_LAND, world->comm);
    if (!all_ok)
        goto close_all;
    from = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (from < 0)
        goto close_all; // the others see a broken socket
    fcntl(to, F_SETFL, O_NONBLOCK);
    fcntl(from, F_SETFL, O_NONBLOCK);
    setsockopt(to, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    pass_block(to, from, out, in, bytes < PIECE_MOST ? bytes : PIECE_MOST); // open the window
    paper_barrier(world);
    uint64_t start = common_clock_ns();
    for (uint32_t s = 0; ok && s < passes; s++)
        ok = pass_block(to, from, out, in, bytes);
    us = ok && passes ? (double)(common_clock_ns() - start) / 1e3 / passes : -1;
    MPI_Allreduce(&us, &slowest, 1, MPI_DOUBLE, MPI_MAX, world->comm);

close_all:
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
    if (listener >= 0)
        close(listener);
    free(all);
    return slowest;
}
