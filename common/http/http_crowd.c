// SPDX-License-Identifier: Apache-2.0
// evhttp (2.1) does not report when a connection ends. So they are counted where they cannot hide, among the
// events of the loop: once in COMMON_HTTP_CONNECTIONS - LEFT connections at most, and for /metrics.
#include "common/http/http_crowd.h"

#include <event2/event.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/http/http.h"
#include "common/log/log.h"

enum {
    LEFT = COMMON_HTTP_CONNECTIONS * 3 / 4,
    SEEN_MAX = 4 * COMMON_HTTP_CONNECTIONS, // also those that have been cut and are not closed yet
};
#define PAUSE_NS COMMON_NS_PER_MS       // in which the loop closes what has been cut
#define LOOK_NS  COMMON_NS_PER_S        // between looks at how long they have been here
#define ASK_NS   (10 * COMMON_NS_PER_S) // for a request
#define TAKE_NS  (60 * COMMON_NS_PER_S) // for an answer, and the next request

struct common_http_crowd {
    struct event_base *base;
    struct evconnlistener *listener;
    struct common_timer *timer; // pauses accepting
    uint32_t guess;             // at least as many as there are
    uint64_t dropped;
    struct common_timer *looks; // while there are any
    struct until {              // when those that were there at the last look end
        evutil_socket_t fd;
        uint64_t from, until_ns;
    } until[SEEN_MAX];
    uint32_t n_until;
};

struct seen {      // connections that the loop has events of
    uint16_t port; // of the listener
    evutil_socket_t listener;
    uint32_t n;
    struct one {
        evutil_socket_t fd;
        uint64_t from; // its address
    } all[SEEN_MAX];
};

static uint16_t port_of(evutil_socket_t fd)
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &len) != 0)
        return 0;
    return at.ss_family == AF_INET    ? ((struct sockaddr_in *)&at)->sin_port
           : at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                      : 0;
}

static uint64_t address_of(evutil_socket_t fd)
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    uint64_t high = 0;
    uint32_t v4 = 0;
    if (getpeername(fd, (struct sockaddr *)&at, &len) != 0)
        return 0; // it has gone
    const struct in6_addr *v6 = &((struct sockaddr_in6 *)&at)->sin6_addr;
    bool mapped = at.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(v6);
    if (at.ss_family == AF_INET6 && !mapped) {
        memcpy(&high, v6, sizeof high);
        return high;
    }
    memcpy(&v4, mapped ? (const void *)&v6->s6_addr[12] : &((struct sockaddr_in *)&at)->sin_addr, sizeof v4);
    return UINT64_C(0xffff) << 32 | v4; // no IPv6 address is that
}

static int see(const struct event_base *base, const struct event *event, void *arg)
{
    struct seen *seen = arg;
    evutil_socket_t fd = event_get_fd(event);
    (void)base;
    if (seen->n == SEEN_MAX)
        return 1;
    if (!(event_get_events(event) & (EV_READ | EV_WRITE)) || fd < 0 || fd == seen->listener)
        return 0;
    for (uint32_t i = 0; i < seen->n; i++)
        if (seen->all[i].fd == fd) // it has events of both kinds
            return 0;
    if (port_of(fd) == seen->port)
        seen->all[seen->n++] = (struct one){.fd = fd};
    return 0;
}

static void look(const struct common_http_crowd *crowd, struct seen *seen)
{
    seen->n = 0;
    seen->listener = evconnlistener_get_fd(crowd->listener);
    seen->port = port_of(seen->listener);
    event_base_foreach_event(crowd->base, see, seen);
}

// Of the address that has the most, the one that has been here for longest, as far as descriptors tell.
static void drop_one(struct seen *seen)
{
    uint32_t most = 0, victim = 0;
    for (uint32_t i = 0; i < seen->n; i++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < seen->n; k++)
            n += seen->all[k].from == seen->all[i].from;
        if (n > most) {
            most = n;
            victim = i;
        }
    }
    shutdown(seen->all[victim].fd, SHUT_RDWR); // evhttp sees its end, and closes it
    seen->n--;
    memmove(&seen->all[victim], &seen->all[victim + 1], (seen->n - victim) * sizeof *seen->all);
}

// Address and port: a descriptor is used again.
static uint64_t peer_of(evutil_socket_t fd)
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    if (getpeername(fd, (struct sockaddr *)&at, &len) != 0)
        return 0;
    uint16_t port = at.ss_family == AF_INET ? ((struct sockaddr_in *)&at)->sin_port
                                            : ((struct sockaddr_in6 *)&at)->sin6_port;
    return address_of(fd) << 16 ^ port;
}

static struct until *until_of(struct common_http_crowd *crowd, evutil_socket_t fd, uint64_t from)
{
    for (uint32_t i = 0; i < crowd->n_until; i++)
        if (crowd->until[i].fd == fd && crowd->until[i].from == from)
            return &crowd->until[i];
    return NULL;
}

static void look_at_times(void *arg)
{
    struct common_http_crowd *crowd = arg;
    struct seen seen;
    struct until next[SEEN_MAX] = {{0}};
    uint64_t now = common_clock_ns();
    look(crowd, &seen);
    for (uint32_t i = 0; i < seen.n; i++) {
        evutil_socket_t fd = seen.all[i].fd;
        uint64_t from = peer_of(fd);
        const struct until *known = until_of(crowd, fd, from);
        next[i] = known ? *known : (struct until){fd, from, now + ASK_NS};
        if (next[i].until_ns <= now)
            shutdown(fd, SHUT_RDWR); // evhttp sees its end, and closes it
    }
    crowd->n_until = seen.n;
    memcpy(crowd->until, next, seen.n * sizeof *next);
    crowd->guess = seen.n;
    if (seen.n)
        common_timer_start(crowd->looks, LOOK_NS, false);
}

void common_http_crowd_asked(struct common_http_crowd *crowd, int fd)
{
    uint64_t from = peer_of(fd), until_ns = common_clock_after(TAKE_NS);
    struct until *known = until_of(crowd, fd, from);
    if (known)
        known->until_ns = until_ns;
    else if (crowd->n_until < SEEN_MAX)
        crowd->until[crowd->n_until++] = (struct until){fd, from, until_ns};
}

static void accept_on(void *arg)
{
    struct common_http_crowd *crowd = arg;
    evconnlistener_enable(crowd->listener);
}

void common_http_crowd_enter(struct common_http_crowd *crowd)
{
    struct seen seen;
    if (crowd->guess == 0)
        common_timer_start(crowd->looks, LOOK_NS, false);
    if (++crowd->guess <= COMMON_HTTP_CONNECTIONS)
        return;
    look(crowd, &seen);
    crowd->guess = seen.n + 1;
    if (crowd->guess <= COMMON_HTTP_CONNECTIONS)
        return;
    for (uint32_t i = 0; i < seen.n; i++)
        seen.all[i].from = address_of(seen.all[i].fd);
    if (crowd->dropped == 0)
        common_log_warn("more than %d connections to --http: closing connections of the busiest address",
                        COMMON_HTTP_CONNECTIONS);
    while (seen.n >= LEFT) {
        drop_one(&seen);
        crowd->dropped++;
    }
    crowd->guess = seen.n + 1;
    evconnlistener_disable(crowd->listener);
    common_timer_start(crowd->timer, PAUSE_NS, false);
}

bool common_http_crowd_metrics(struct common_http_crowd *crowd, struct common_metrics *table)
{
    struct seen seen;
    look(crowd, &seen);
    return common_metrics_put(table,
                              &(struct common_metric_spec){.kind = COMMON_METRIC_GAUGE,
                                                           .name = "banyan_http_connections",
                                                           .help = "Connections to --http."},
                              seen.n + 1) && // and the one that asks: it is not read meanwhile
           common_metrics_put(table,
                              &(struct common_metric_spec){.kind = COMMON_METRIC_GAUGE,
                                                           .name = "banyan_http_connections_max",
                                                           .help = "How many are allowed."},
                              COMMON_HTTP_CONNECTIONS) &&
           common_metrics_put(
               table,
               &(struct common_metric_spec){.kind = COMMON_METRIC_COUNTER,
                                            .name = "banyan_http_dropped_total",
                                            .help = "Connections to --http that were closed for newer ones."},
               (double)crowd->dropped);
}

struct common_http_crowd *common_http_crowd_new(struct common_loop *loop, struct evconnlistener *listener)
{
    struct common_http_crowd *crowd = calloc(1, sizeof *crowd);
    if (!crowd)
        return NULL;
    if (common_timer_new(loop, accept_on, crowd, &crowd->timer) != COMMON_OK ||
        common_timer_new(loop, look_at_times, crowd, &crowd->looks) != COMMON_OK) {
        common_timer_free(crowd->timer);
        free(crowd);
        return NULL;
    }
    crowd->base = common_loop_base(loop);
    crowd->listener = listener;
    return crowd;
}

void common_http_crowd_free(struct common_http_crowd *crowd)
{
    if (!crowd)
        return;
    common_timer_free(crowd->timer);
    common_timer_free(crowd->looks);
    free(crowd);
}
