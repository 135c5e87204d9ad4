// SPDX-License-Identifier: Apache-2.0
#include "tests/harness/proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { ENDPOINT_BYTES = 160, PAIRS_MAX = 1024, BUFFER_BYTES = 64 << 10 };

struct route {
    int listener; // -1: none
    enum harness_proxy_mode mode;
    bool swallows[2];              // what that side says
    int swallowed;                 // of connections of this process; 0: of all
    char endpoint[ENDPOINT_BYTES]; // where it listens
    char target[ENDPOINT_BYTES];
    int gate; // of a route before a unix socket: the route whose dialers say that its owner is there; else -1
    char path[96]; // of that socket
    ino_t inode;   // of the route's own socket there; 0: none
};

struct direction { // what one end has sent and the other has not received yet
    uint8_t bytes[BUFFER_BYTES];
    size_t from, to;
    bool ended; // its sender says no more
};

struct pair {
    int route, dialler; // the process that dialled; 0: it is not known
    int fd[2];    // HARNESS_DIALLER, HARNESS_LISTENER; -1: reset, and what the other says is thrown away
    bool told[2]; // shut down for writing
    struct direction said[2];
};

struct harness_proxy {
    pthread_t thread;
    pthread_mutex_t lock; // over everything below
    int wake;             // eventfd
    bool over;
    struct route routes[HARNESS_PROXY_ROUTES];
    int n_routes;
    struct pair *pairs[PAIRS_MAX];
    size_t n_pairs;
};

// ---- sockets ----------------------------------------------------------------------------------------------

static socklen_t parse(const char *endpoint, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof(*out));
    if (strncmp(endpoint, "unix://", 7) == 0) {
        struct sockaddr_un *un = (struct sockaddr_un *)out;
        un->sun_family = AF_UNIX;
        snprintf(un->sun_path, sizeof(un->sun_path), "%s", endpoint + 7);
        return sizeof(*un);
    }
    struct sockaddr_in *in = (struct sockaddr_in *)out;
    char host[64];
    unsigned port;
    if (sscanf(endpoint, "tcp://%63[0-9.]:%u", host, &port) != 2 ||
        inet_pton(AF_INET, host, &in->sin_addr) != 1)
        return 0;
    in->sin_family = AF_INET;
    in->sin_port = htons((uint16_t)port);
    return sizeof(*in);
}

static int listen_at(struct route *r, const char *endpoint)
{
    struct sockaddr_storage address;
    socklen_t len = parse(endpoint, &address);
    int fd = len ? socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) != 0 || listen(fd, 128) != 0) {
        fprintf(stderr, "harness: the proxy cannot listen at %s: %s\n", endpoint, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    if (address.ss_family == AF_INET) {
        char host[INET_ADDRSTRLEN];
        struct sockaddr_in *in = (struct sockaddr_in *)&address;
        getsockname(fd, (struct sockaddr *)&address, &len);
        snprintf(r->endpoint, sizeof(r->endpoint), "tcp://%s:%u",
                 inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host)), ntohs(in->sin_port));
    } else {
        snprintf(r->endpoint, sizeof(r->endpoint), "%s", endpoint);
    }
    return fd;
}

static int dial(const char *target)
{
    struct sockaddr_storage address;
    socklen_t len = parse(target, &address);
    int one = 1, fd = len ? socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0)
        return -1;
    if (connect(fd, (struct sockaddr *)&address, len) != 0) { // this machine's: at once, or refused
        close(fd);
        return -1;
    }
    if (address.ss_family == AF_INET)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

static void reset(int fd)
{
    struct linger none = {.l_onoff = 1, .l_linger = 0};
    if (fd < 0)
        return;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    close(fd);
}

// ---- pairs ------------------------------------------------------------------------------------------------

static void end_pair(struct harness_proxy *p, size_t i)
{
    struct pair *pair = p->pairs[i];
    reset(pair->fd[0]);
    reset(pair->fd[1]);
    free(pair);
    p->pairs[i] = p->pairs[--p->n_pairs];
}

// The owner of a unix socket is there: it has bound its path again, and the route moves in before it.
static void move_in(struct harness_proxy *p, int gate)
{
    for (int i = 0; i < p->n_routes; i++) {
        struct route *r = &p->routes[i];
        struct stat st;
        char endpoint[ENDPOINT_BYTES];
        if (r->gate != gate || lstat(r->path, &st) != 0 || (r->inode && st.st_ino == r->inode))
            continue;
        if (r->listener >= 0)
            close(r->listener);
        r->inode = 0;
        snprintf(endpoint, sizeof(endpoint), "unix://%s", r->path);
        r->listener = rename(r->path, r->target + strlen("unix://")) == 0 ? listen_at(r, endpoint) : -1;
        if (r->listener >= 0 && lstat(r->path, &st) == 0)
            r->inode = st.st_ino;
    }
}

static void take(struct harness_proxy *p, int route)
{
    struct route *r = &p->routes[route];
    int one = 1, fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    struct pair *pair = r->mode != HARNESS_REFUSE && p->n_pairs < PAIRS_MAX ? calloc(1, sizeof(*pair)) : NULL;
    move_in(p, route);
    int other = pair ? dial(r->target) : -1;
    if (other < 0) {
        free(pair);
        reset(fd);
        return;
    }
    if (r->gate < 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    struct ucred cred = {0};
    socklen_t cred_len = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &cred_len) == 0)
        pair->dialler = cred.pid;
    pair->route = route;
    pair->fd[HARNESS_DIALLER] = fd;
    pair->fd[HARNESS_LISTENER] = other;
    p->pairs[p->n_pairs++] = pair;
}

static bool is_swallowed(const struct harness_proxy *p, const struct pair *pair, int side)
{
    const struct route *r = &p->routes[pair->route];
    return r->swallows[side] && (!r->swallowed || r->swallowed == pair->dialler);
}

// False: the pair is done for.
static bool hear(const struct harness_proxy *p, struct pair *pair, int side)
{
    struct direction *d = &pair->said[side];
    if (pair->fd[!side] < 0 || is_swallowed(p, pair, side))
        d->from = d->to = 0; // there is no listener
    if (d->from == d->to)
        d->from = d->to = 0;
    if (d->to == sizeof(d->bytes))
        return true;
    ssize_t n = recv(pair->fd[side], d->bytes + d->to, sizeof(d->bytes) - d->to, MSG_DONTWAIT);
    if (n > 0)
        d->to += is_swallowed(p, pair, side) ? 0 : (size_t)n;
    else if (n == 0)
        d->ended = true;
    else
        return errno == EAGAIN || errno == EINTR;
    return !(d->ended && pair->fd[!side] < 0);
}

static bool say(struct pair *pair, int side)
{
    struct direction *d = &pair->said[!side];
    if (d->from < d->to) {
        ssize_t n = send(pair->fd[side], d->bytes + d->from, d->to - d->from, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        d->from += (size_t)n;
    }
    if (d->from == d->to && d->ended && !pair->told[side]) {
        shutdown(pair->fd[side], SHUT_WR);
        pair->told[side] = true;
    }
    return !(pair->told[0] && pair->told[1]);
}

static short wants(const struct pair *pair, int side)
{
    const struct direction *in = &pair->said[side], *out = &pair->said[!side];
    bool room = in->to < sizeof(in->bytes) || in->from == in->to || pair->fd[!side] < 0;
    return (short)((room && !in->ended ? POLLIN : 0) |
                   (out->from < out->to || (out->ended && !pair->told[side]) ? POLLOUT : 0));
}

static bool serve(const struct harness_proxy *p, struct pair *pair, const short events[2])
{
    for (int side = 0; side < 2; side++) {
        if (pair->fd[side] >= 0 && events[side] & POLLIN && !hear(p, pair, side))
            return false;
        if (pair->fd[side] >= 0 && events[side] & (POLLERR | POLLHUP) && !(wants(pair, side) & POLLIN))
            return false;
    }
    for (int side = 0; side < 2; side++) // what came goes on at once
        if (pair->fd[side] >= 0 && wants(pair, side) & POLLOUT && !say(pair, side))
            return false;
    return true;
}

static void *run(void *arg)
{
    struct harness_proxy *p = arg;
    static _Thread_local struct pollfd fds[1 + HARNESS_PROXY_ROUTES + 2 * PAIRS_MAX];
    pthread_mutex_lock(&p->lock);
    while (!p->over) {
        nfds_t n = 0;
        size_t n_pairs = p->n_pairs;
        int n_routes = p->n_routes;
        fds[n++] = (struct pollfd){.fd = p->wake, .events = POLLIN};
        for (int i = 0; i < n_routes; i++)
            fds[n++] = (struct pollfd){.fd = p->routes[i].listener, .events = POLLIN};
        for (size_t i = 0; i < n_pairs; i++)
            for (int side = 0; side < 2; side++) {
                struct pair *pair = p->pairs[i];
                bool hold = p->routes[pair->route].mode == HARNESS_HOLD;
                short events = wants(pair, side);
                fds[n++] = (struct pollfd){.fd = hold || !events ? -1 : pair->fd[side], .events = events};
            }
        pthread_mutex_unlock(&p->lock);
        poll(fds, n, -1);
        pthread_mutex_lock(&p->lock);
        uint64_t woken;
        if (fds[0].revents && read(p->wake, &woken, sizeof(woken)) > 0)
            continue; // something was altered: what poll has said may be of others
        for (size_t i = n_pairs; i-- > 0;) {
            const struct pollfd *of = &fds[1 + (size_t)n_routes + 2 * i];
            if (!serve(p, p->pairs[i], (const short[2]){of[0].revents, of[1].revents}))
                end_pair(p, i);
        }
        for (int i = 0; i < n_routes; i++)
            if (fds[1 + i].revents)
                take(p, i);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

// ---- the outside ------------------------------------------------------------------------------------------

static void alter(struct harness_proxy *p)
{
    uint64_t one = 1;
    pthread_mutex_lock(&p->lock);
    if (write(p->wake, &one, sizeof(one)) < 0)
        abort(); // a counter that cannot be full
}

struct harness_proxy *harness_proxy_start(void)
{
    struct harness_proxy *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&p->lock, NULL);
    if (p->wake < 0 || pthread_create(&p->thread, NULL, run, p) != 0) {
        if (p->wake >= 0)
            close(p->wake);
        free(p);
        return NULL;
    }
    return p;
}

void harness_proxy_stop(struct harness_proxy *p)
{
    if (!p)
        return;
    alter(p);
    p->over = true;
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    while (p->n_pairs)
        end_pair(p, 0);
    for (int i = 0; i < p->n_routes; i++)
        if (p->routes[i].listener >= 0)
            close(p->routes[i].listener);
    close(p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int harness_proxy_add(struct harness_proxy *p, const char *address, const char *target)
{
    int route = -1;
    char endpoint[ENDPOINT_BYTES];
    snprintf(endpoint, sizeof(endpoint), "tcp://%s:0", address ? address : "127.0.0.1");
    alter(p);
    struct route *r = &p->routes[p->n_routes];
    if (p->n_routes < HARNESS_PROXY_ROUTES) {
        *r = (struct route){.gate = -1};
        snprintf(r->target, sizeof(r->target), "%s", target);
        r->listener = listen_at(r, endpoint);
        if (r->listener >= 0)
            route = p->n_routes++;
    }
    pthread_mutex_unlock(&p->lock);
    return route;
}

int harness_proxy_add_before(struct harness_proxy *p, const char *path, int gate)
{
    int route = -1;
    alter(p);
    struct route *r = &p->routes[p->n_routes];
    if (p->n_routes < HARNESS_PROXY_ROUTES && strlen(path) < sizeof(r->path)) {
        *r = (struct route){.gate = gate, .listener = -1};
        snprintf(r->path, sizeof(r->path), "%s", path);
        snprintf(r->target, sizeof(r->target), "unix://%s.owner", path);
        route = p->n_routes++;
    }
    pthread_mutex_unlock(&p->lock);
    return route;
}

void harness_proxy_vacate(struct harness_proxy *p, int route)
{
    alter(p);
    struct route *r = &p->routes[route];
    if (r->listener >= 0) {
        close(r->listener);
        unlink(r->path);
    }
    r->listener = -1;
    r->inode = 0;
    pthread_mutex_unlock(&p->lock);
}

const char *harness_proxy_endpoint(const struct harness_proxy *p, int route)
{
    return p->routes[route].endpoint;
}

void harness_proxy_set(struct harness_proxy *p, int route, enum harness_proxy_mode mode)
{
    alter(p);
    p->routes[route].mode = mode;
    pthread_mutex_unlock(&p->lock);
}

void harness_proxy_swallow(struct harness_proxy *p, int route, enum harness_proxy_side side, int dialler,
                           bool on)
{
    alter(p);
    p->routes[route].swallows[side] = on;
    p->routes[route].swallowed = dialler;
    if (!on)
        p->routes[route].swallows[!side] = false;
    pthread_mutex_unlock(&p->lock);
}

static void end_pairs(struct harness_proxy *p, int route, bool halves_only)
{
    alter(p);
    for (size_t i = p->n_pairs; i-- > 0;) {
        const struct pair *pair = p->pairs[i];
        if (pair->route == route && (!halves_only || pair->fd[0] < 0 || pair->fd[1] < 0))
            end_pair(p, i);
    }
    pthread_mutex_unlock(&p->lock);
}

void harness_proxy_reset(struct harness_proxy *p, int route)
{
    end_pairs(p, route, false);
}

void harness_proxy_reset_halves(struct harness_proxy *p, int route)
{
    end_pairs(p, route, true);
}

void harness_proxy_halve(struct harness_proxy *p, int route, enum harness_proxy_side side)
{
    alter(p);
    for (size_t i = p->n_pairs; i-- > 0;) {
        struct pair *pair = p->pairs[i];
        if (pair->route != route)
            continue;
        reset(pair->fd[side]);
        pair->fd[side] = -1;
        if (pair->fd[!side] < 0) // the other end went before
            end_pair(p, i);
    }
    pthread_mutex_unlock(&p->lock);
}

unsigned harness_proxy_connections(struct harness_proxy *p, int route, int dialler)
{
    unsigned n = 0;
    alter(p);
    for (size_t i = 0; i < p->n_pairs; i++)
        n += p->pairs[i]->route == route && (!dialler || p->pairs[i]->dialler == dialler);
    pthread_mutex_unlock(&p->lock);
    return n;
}
