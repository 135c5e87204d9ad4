// SPDX-License-Identifier: Apache-2.0
// The coordinators of a client: one, or a list of those that may serve (A,B), one at a time. There is a
// channel to each; calls go over the *current* one.
//
//   current: does not answer ── another one says that it serves, with a higher term ──▶ that one
//
// While calls are out, all are asked every PROBE_NS. One that does not serve says so; one that is frozen is
// silent, and keeps its link, so that only the others can tell. Calls that were out over the old channel are
// sent again over the new one, in the order in which they were begun: for the peer that is a retry like that
// after a lost link. I/O thread.
#include "client/lib/core/endpoints.h"

#include <stdlib.h>
#include <string.h>

#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "proto/rpc/endpoint.h"

#define PROBE_NS       (100 * COMMON_NS_PER_MS)
#define PROBE_LIMIT_NS (1 * COMMON_NS_PER_S)

struct endpoint {
    struct client_endpoints *all;
    struct proto_channel *channel;
    uint64_t term; // in which it said last that it serves; 0: it has not, or is not reached any more
    bool asked;
};

struct client_endpoints {
    struct banyan_client *client;
    client_moved_fn moved;
    struct common_timer *timer; // NULL with one endpoint
    uint32_t n, current;
    struct endpoint at[PROTO_ENDPOINTS_MAX];
};

static void make_current(struct client_endpoints *all, uint32_t which)
{
    struct proto_channel *old = all->client->channel;
    all->current = which;
    all->client->channel = all->at[which].channel;
    all->moved(all->client, old);
}

static void told(void *arg, const struct proto_reply *reply)
{
    struct endpoint *one = arg;
    struct client_endpoints *all = one->all;
    one->asked = false;
    if (atomic_load(&all->client->closing) || reply->code != COMMON_OK)
        return;
    const Banyan__Pb__HealthCheckReply *health = (const void *)reply->message->body;
    one->term = health->serving ? health->term : 0;
    if (one->term > all->at[all->current].term)
        make_current(all, (uint32_t)(one - all->at));
}

static void ask(struct endpoint *one)
{
    Banyan__Pb__HealthCheckRequest request = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    const struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                    .body = &request.base,
                                    .deadline_ns = common_clock_after(PROBE_LIMIT_NS),
                                    .done = told,
                                    .arg = one};
    one->asked = proto_channel_call(one->channel, &call, NULL, NULL) == COMMON_OK;
}

static void probe(void *arg)
{
    struct client_endpoints *all = arg;
    if (!all->client->calls)
        return;
    for (uint32_t i = 0; i < all->n; i++) {
        if (!proto_channel_connected(all->at[i].channel))
            all->at[i].term = 0; // the next one there may have another store
        if (!all->at[i].asked)
            ask(&all->at[i]);
    }
}

void client_endpoints_refused(struct banyan_client *client)
{
    client->endpoints->at[client->endpoints->current].term = 0;
}

bool client_endpoints_several(const struct banyan_client *client)
{
    return client->endpoints->n > 1;
}

banyan_code client_endpoints_open(struct banyan_client *client, const struct proto_channel_options *options,
                                  client_moved_fn moved, banyan_error *error)
{
    struct proto_endpoint_list list;
    struct common_error err = {0};
    enum common_code code = proto_endpoint_list_parse(client->endpoint, &list, &err);
    if (code != COMMON_OK)
        return client_error_set(error, (banyan_code)code, "%s", err.message);
    struct client_endpoints *all = calloc(1, sizeof *all);
    if (!all)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    all->client = client;
    all->moved = moved;
    client->endpoints = all;
    for (; all->n < list.n && code == COMMON_OK; all->n++) {
        struct endpoint *one = &all->at[all->n];
        one->all = all;
        struct proto_channel_options with = *options;
        with.quiet_ns = CLIENT_QUIET_NS;
        with.mute_ns = client_mute_ns(list.endpoints[all->n]);
        code = proto_channel_open(client->loop, list.endpoints[all->n], &with, &one->channel, &err);
    }
    client->channel = all->at[0].channel;
    if (code == COMMON_OK && all->n > 1)
        code = common_timer_new(client->loop, probe, all, &all->timer);
    if (code != COMMON_OK)
        return client_error_set(error, (banyan_code)code, "%s", *err.message ? err.message : "out of memory");
    if (all->timer)
        common_timer_start(all->timer, PROBE_NS, true);
    return BANYAN_OK;
}

void client_endpoints_close(struct banyan_client *client)
{
    struct client_endpoints *all = client->endpoints;
    if (!all)
        return;
    common_timer_free(all->timer);
    for (uint32_t i = 0; i < all->n; i++)
        proto_channel_close(all->at[i].channel);
    client->channel = NULL;
    client->endpoints = NULL;
    free(all);
}
