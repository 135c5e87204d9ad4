// SPDX-License-Identifier: Apache-2.0
// What the serving end has in use of its limits, and what each client has of them for itself.
#include <assert.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "proto/rpc/transport.h"
#include "proto/stream/stream_link.h"

#define SLOW_NS COMMON_NS_PER_S // an answer of which no byte has gone for so long has a slow reader

static const char *const names[PROTO_LIMIT_COUNT] = {
    [PROTO_LIMIT_STRANGERS] = "connections without a token or proof",
    [PROTO_LIMIT_CLIENTS] = "connections of clients",
    [PROTO_LIMIT_NNG_CLIENTS] = "connections of clients over nng",
    [PROTO_LIMIT_DAEMONS] = "links of daemons",
    [PROTO_LIMIT_REQUESTS] = "requests of clients at once",
    [PROTO_LIMIT_DAEMON_REQUESTS] = "requests of daemons at once",
    [PROTO_LIMIT_BYTES] = "bytes of clients' requests",
    [PROTO_LIMIT_DAEMON_BYTES] = "bytes of daemons' requests",
    [PROTO_LIMIT_CALLER_REQUESTS] = "requests of one client at once",
    [PROTO_LIMIT_CALLER_BYTES] = "bytes held for one client",
    [PROTO_LIMIT_UNREAD] = "bytes of answers that clients have not read",
};

static const char *const words[PROTO_LIMIT_COUNT] = {
    [PROTO_LIMIT_STRANGERS] = "strangers",
    [PROTO_LIMIT_CLIENTS] = "clients",
    [PROTO_LIMIT_NNG_CLIENTS] = "nng_clients",
    [PROTO_LIMIT_DAEMONS] = "daemons",
    [PROTO_LIMIT_REQUESTS] = "requests",
    [PROTO_LIMIT_DAEMON_REQUESTS] = "daemon_requests",
    [PROTO_LIMIT_BYTES] = "request_bytes",
    [PROTO_LIMIT_DAEMON_BYTES] = "daemon_request_bytes",
    [PROTO_LIMIT_CALLER_REQUESTS] = "requests_of_a_client",
    [PROTO_LIMIT_CALLER_BYTES] = "bytes_of_a_client",
    [PROTO_LIMIT_UNREAD] = "unread_bytes",
};

static uint64_t max_of(const struct proto_server *server, enum proto_limit limit)
{
    uint32_t streams = 0;
    for (const struct proto_listener *listener = server->listeners; listener; listener = listener->next)
        streams += listener->ops == &proto_stream_server_ops;
    switch (limit) {
    case PROTO_LIMIT_STRANGERS:
        return PROTO_STRANGERS_MAX * (uint64_t)((streams > 0) + server->n_nng_endpoints);
    case PROTO_LIMIT_CLIENTS:
        return server->for_clients ? server->links_max : 0;
    case PROTO_LIMIT_NNG_CLIENTS:
        return (uint64_t)server->links_max * server->n_nng_endpoints;
    case PROTO_LIMIT_DAEMONS:
        return server->has_secret ? server->daemons_max : 0;
    case PROTO_LIMIT_REQUESTS:
    case PROTO_LIMIT_DAEMON_REQUESTS:
        return server->requests_max;
    case PROTO_LIMIT_BYTES:
    case PROTO_LIMIT_DAEMON_BYTES:
        return server->bytes_max;
    case PROTO_LIMIT_CALLER_REQUESTS:
        return server->caller_requests_max;
    case PROTO_LIMIT_CALLER_BYTES:
        return server->caller_bytes_max;
    case PROTO_LIMIT_UNREAD:
        return server->bytes_max / 2;
    case PROTO_LIMIT_COUNT:
        break;
    }
    return 0;
}

static const char *flag_of(const struct proto_server *server, enum proto_limit limit)
{
    return server->flags ? server->flags[limit] : NULL;
}

void proto_limit_reached(struct proto_server *server, enum proto_limit limit, char text[PROTO_LIMIT_TEXT])
{
    const char *flag = flag_of(server, limit);
    server->reached[limit]++;
    if (text)
        snprintf(text, PROTO_LIMIT_TEXT, "the limit of %llu %s is reached%s%s",
                 (unsigned long long)max_of(server, limit), names[limit], flag ? ": raise " : "",
                 flag ? flag : "");
}

void proto_server_limits(const struct proto_server *server, struct proto_limit_use out[PROTO_LIMIT_COUNT])
{
    const struct proto_lane *clients = &server->lanes[PROTO_LANE_CLIENTS],
                            *daemons = &server->lanes[PROTO_LANE_DAEMONS];
    uint64_t most_requests = 0, most_bytes = 0;
    for (const struct common_list *at = server->callers.next; at != &server->callers; at = at->next) {
        const struct proto_caller *caller = common_list_entry(at, struct proto_caller, link);
        most_requests = caller->requests > most_requests ? caller->requests : most_requests;
        most_bytes = caller->bytes > most_bytes ? caller->bytes : most_bytes;
    }
    const uint64_t used[PROTO_LIMIT_COUNT] = {
        [PROTO_LIMIT_STRANGERS] = server->n_strangers, [PROTO_LIMIT_CLIENTS] = clients->links,
        [PROTO_LIMIT_NNG_CLIENTS] = server->n_nng,     [PROTO_LIMIT_DAEMONS] = daemons->links,
        [PROTO_LIMIT_REQUESTS] = clients->requests,    [PROTO_LIMIT_DAEMON_REQUESTS] = daemons->requests,
        [PROTO_LIMIT_BYTES] = clients->bytes,          [PROTO_LIMIT_DAEMON_BYTES] = daemons->bytes,
        [PROTO_LIMIT_CALLER_REQUESTS] = most_requests, [PROTO_LIMIT_CALLER_BYTES] = most_bytes,
        [PROTO_LIMIT_UNREAD] = server->unread,
    };
    for (int i = 0; i < PROTO_LIMIT_COUNT; i++)
        out[i] = (struct proto_limit_use){.name = words[i],
                                          .flag = flag_of(server, (enum proto_limit)i),
                                          .used = used[i],
                                          .max = max_of(server, (enum proto_limit)i),
                                          .refused = server->reached[i]};
}

// ---- callers --------------------------------------------------------------------------------------------

void proto_caller_init(struct proto_caller *caller)
{
    *caller = (struct proto_caller){.io = NULL};
    common_list_init(&caller->link);
}

void proto_caller_known(struct proto_server *server, struct proto_caller *caller)
{
    common_list_push(&server->callers, &caller->link);
    if (!caller->io)
        return;
    caller->io->unread = &server->unread;
    server->unread += caller->io->out_bytes;
}

bool proto_caller_enters(struct proto_server *server, struct proto_caller *caller,
                         char text[PROTO_LIMIT_TEXT])
{
    if (!server->enters || caller->entered)
        return true;
    caller->entered_as = caller->identity.tenant;
    caller->entered = server->enters(server->arg, caller->entered_as, text, PROTO_LIMIT_TEXT);
    return caller->entered;
}

void proto_caller_gone(struct proto_server *server, struct proto_caller *caller)
{
    if (caller->entered)
        server->leaves(server->arg, caller->entered_as);
    caller->entered = false;
    caller->io = NULL;
    common_list_remove(&caller->link);
}

bool proto_caller_full(struct proto_server *server, struct proto_caller *caller)
{
    bool requests = caller->requests >= server->caller_requests_max,
         bytes = caller->bytes >= server->caller_bytes_max;
    if ((requests || bytes) && !caller->waits)
        proto_limit_reached(server, requests ? PROTO_LIMIT_CALLER_REQUESTS : PROTO_LIMIT_CALLER_BYTES, NULL);
    caller->waits = requests || bytes;
    return caller->waits;
}

// A client with a single answer that reads it is not slow.
static bool is_slow(const struct proto_link *io, uint64_t now_ns)
{
    bool several = !common_list_empty(&io->outs) && io->outs.next->next != &io->outs;
    return several || (io->out_bytes > 0 && now_ns - io->wrote_ns > SLOW_NS);
}

void proto_callers_relieve(struct proto_server *server)
{
    uint64_t now_ns = common_clock_ns();
    size_t unread = server->unread;
    while (unread > server->bytes_max / 2) {
        struct proto_caller *slowest = NULL;
        unread = 0; // of links that have not failed yet: what those have goes with them
        for (struct common_list *at = server->callers.next; at != &server->callers; at = at->next) {
            struct proto_caller *caller = common_list_entry(at, struct proto_caller, link);
            if (!caller->io || !proto_link_works(caller->io))
                continue;
            unread += caller->io->out_bytes;
            if (is_slow(caller->io, now_ns) && (!slowest || caller->io->out_bytes > slowest->io->out_bytes))
                slowest = caller;
        }
        if (!slowest || unread <= server->bytes_max / 2)
            return;
        char text[PROTO_LIMIT_TEXT];
        proto_limit_reached(server, PROTO_LIMIT_UNREAD, text);
        unread -= slowest->io->out_bytes;
        slowest->fail(slowest->io, COMMON_RESOURCE_EXHAUSTED, text);
    }
}
