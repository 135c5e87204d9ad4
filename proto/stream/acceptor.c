// SPDX-License-Identifier: Apache-2.0
#include "proto/stream/acceptor.h"

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/log/log.h"

enum {
    BACKLOG = 4096, // as many as the system allows: a burst of connections must not be lost in the queue
    ACCEPTS_ROUND = 64,
};

struct proto_acceptor {
    const char *name;
    const struct proto_acceptor_ops *ops;
    void *owner;
    int fd;
    struct event *event;
    struct common_timer *pause; // after running out of descriptors
    char path[108];             // unix: to be removed
    dev_t dev;
    ino_t ino;
};

// Peers that are gone without a word are found out within 30 s.
static void tune(int fd)
{
    int one = 1, idle = 15, interval = 5, count = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

static bool is_shortage(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

static void on_accept(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    struct proto_acceptor *acceptor = arg;
    for (int i = 0; i < ACCEPTS_ROUND; i++) {
        struct sockaddr_storage address = {0};
        socklen_t len = sizeof address;
        int peer = accept4(fd, (struct sockaddr *)&address, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (peer >= 0) {
            if (address.ss_family != AF_UNIX)
                tune(peer);
            acceptor->ops->accepted(acceptor->owner, peer, (struct sockaddr *)&address);
            continue;
        }
        if (!is_shortage(errno))
            return;
        int error = errno;
        if (acceptor->ops->make_room && acceptor->ops->make_room(acceptor->owner))
            continue;
        common_log_error("%s cannot accept a link: %s", acceptor->name, strerrordesc_np(error));
        event_del(acceptor->event);
        common_timer_start(acceptor->pause, 100 * COMMON_NS_PER_MS, false);
        return;
    }
}

static void on_pause_over(void *arg)
{
    struct proto_acceptor *acceptor = arg;
    if (event_add(acceptor->event, NULL) != 0) // no memory: later
        common_timer_start(acceptor->pause, 100 * COMMON_NS_PER_MS, false);
}

// A socket file without a listener is left over from a killed process.
static bool stale(const struct sockaddr_un *address, socklen_t len)
{
    struct stat st;
    if (lstat(address->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode))
        return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    bool refused = connect(fd, (const struct sockaddr *)address, len) != 0 && errno == ECONNREFUSED;
    close(fd);
    return refused;
}

static enum common_code bind_to(int fd, const struct sockaddr_storage *address, socklen_t len,
                                const char *text, struct common_error *err)
{
    int rv = bind(fd, (const struct sockaddr *)address, len);
    const struct sockaddr_un *un = (const struct sockaddr_un *)address;
    if (rv != 0 && errno == EADDRINUSE && address->ss_family == AF_UNIX && stale(un, len) &&
        unlink(un->sun_path) == 0)
        rv = bind(fd, (const struct sockaddr *)address, len);
    if (rv == 0 && address->ss_family == AF_UNIX && chmod(un->sun_path, 0600) != 0)
        rv = -1;
    if (rv == 0 && listen(fd, BACKLOG) == 0)
        return COMMON_OK;
    return common_error_set(err, errno == EADDRINUSE ? COMMON_ALREADY_EXISTS : COMMON_UNAVAILABLE,
                            "cannot listen on '%s': %s", text, strerrordesc_np(errno));
}

// Looks a host's name up; blocks then. Only at the start of a program.
static enum common_code resolve(const struct proto_endpoint *endpoint, const char *text,
                                struct sockaddr_storage *address, socklen_t *len, struct common_error *err)
{
    if (proto_endpoint_address(endpoint, address, len))
        return COMMON_OK;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char port[8];
    snprintf(port, sizeof port, "%u", endpoint->port);
    int rv = getaddrinfo(endpoint->host, port, &hints, &found);
    if (rv != 0 || found->ai_addrlen > sizeof *address) {
        common_error_set(err, COMMON_NOT_FOUND, "cannot listen on '%s': %s", text,
                         rv ? gai_strerror(rv) : "no address");
        if (found)
            freeaddrinfo(found);
        return COMMON_NOT_FOUND;
    }
    memcpy(address, found->ai_addr, found->ai_addrlen);
    *len = found->ai_addrlen;
    freeaddrinfo(found);
    return COMMON_OK;
}

enum common_code proto_acceptor_open(struct common_loop *loop, const char *name,
                                     struct proto_endpoint *endpoint, const struct proto_acceptor_ops *ops,
                                     void *owner, struct proto_acceptor **out, struct common_error *err)
{
    char text[PROTO_ENDPOINT_MAX];
    proto_endpoint_format(endpoint, text);
    struct sockaddr_storage address;
    socklen_t len;
    enum common_code code = resolve(endpoint, text, &address, &len, err);
    if (code != COMMON_OK)
        return code;
    code = COMMON_RESOURCE_EXHAUSTED;
    struct proto_acceptor *acceptor = calloc(1, sizeof *acceptor);
    if (!acceptor)
        return common_error_set(err, code, "out of memory for a listener");
    acceptor->name = name;
    acceptor->ops = ops;
    acceptor->owner = owner;
    acceptor->fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (acceptor->fd < 0) {
        common_error_set(err, code, "cannot listen on '%s': %s", text, strerrordesc_np(errno));
        goto free_acceptor;
    }
    int one = 1;
    if (address.ss_family != AF_UNIX)
        setsockopt(acceptor->fd, SOL_SOCKET, SO_REUSEADDR, &one,
                   sizeof one); // past connections may linger; two listeners may not
    // [::] with any port takes IPv4, too: workers listen so by default. Beside one with a port 0.0.0.0 may
    // stand with the same.
    int only = !(proto_endpoint_is_any(endpoint) && endpoint->port == 0);
    if (address.ss_family == AF_INET6)
        setsockopt(acceptor->fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
    code = bind_to(acceptor->fd, &address, len, text, err);
    if (code != COMMON_OK)
        goto close_fd;
    struct stat st;
    if (address.ss_family == AF_UNIX && lstat(endpoint->path, &st) == 0) {
        memcpy(acceptor->path, endpoint->path, sizeof acceptor->path);
        acceptor->dev = st.st_dev;
        acceptor->ino = st.st_ino;
    }
    acceptor->event =
        event_new(common_loop_base(loop), acceptor->fd, EV_READ | EV_PERSIST, on_accept, acceptor);
    if (!acceptor->event || event_add(acceptor->event, NULL) != 0 ||
        common_timer_new(loop, on_pause_over, acceptor, &acceptor->pause) != COMMON_OK) {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a listener");
        goto free_event;
    }
    len = sizeof address;
    if (address.ss_family != AF_UNIX && getsockname(acceptor->fd, (struct sockaddr *)&address, &len) == 0)
        endpoint->port = ntohs(address.ss_family == AF_INET ? ((struct sockaddr_in *)&address)->sin_port
                                                            : ((struct sockaddr_in6 *)&address)->sin6_port);
    *out = acceptor;
    return COMMON_OK;

free_event:
    if (acceptor->event)
        event_free(acceptor->event);
    if (acceptor->path[0])
        unlink(acceptor->path);
close_fd:
    close(acceptor->fd);
free_acceptor:
    free(acceptor);
    return code;
}

void proto_acceptor_close(struct proto_acceptor *acceptor)
{
    struct stat st;
    event_free(acceptor->event);
    common_timer_free(acceptor->pause);
    close(acceptor->fd);
    if (acceptor->path[0] && lstat(acceptor->path, &st) == 0 && st.st_dev == acceptor->dev &&
        st.st_ino == acceptor->ino)
        unlink(acceptor->path);
    free(acceptor);
}
