// SPDX-License-Identifier: Apache-2.0
// The pool of connections to workers: one an endpoint, whatever the number of sessions and threads that
// attach. A few puts are in flight on each, so that neither end holds more than PEER_WINDOW × 4 MiB of them;
// the rest wait in order.
//
//                       room on the connection
//     OVER ──▶ WAITING ─────────────────────────▶ SENT
//      ▲ client_peer_put                           │
//      │          │ cancelled                      │ answered, failed, cancelled
//      └──────────┴────────────────────────────────┘
#include "client/lib/rows/peer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "common/hash/hash.h"
#include "common/loop/machine.h"
#include "common/secure/secret.h"

#define PEER_WINDOW  6
#define PEER_BUCKETS 256
#define PEERS_MAX    4096
#define PEER_IDLE_NS (30 * COMMON_NS_PER_S)
#define DIAL_LIMIT_NS                                                                                        \
    (2 * COMMON_NS_PER_S) // for a worker that is not connected: then the coordinator is asked again

struct client_peer {
    struct client_peer *next; // of its bucket
    struct client_peers *peers;
    struct proto_channel *channel;
    uint32_t in_flight;
    struct client_put *first, **last; // wait
    uint64_t used_ns;
    char endpoint[];
};

struct client_peers {
    struct banyan_client *client;
    struct common_timer *sweep;
    uint32_t n;
    // What workers are shown. "": nothing. The newest pass, or before there was one (of an older coordinator
    // there is none) a token that they may know: of the token file.
    char token[COMMON_TOKEN_MAX + 1];
    struct client_peer *buckets[PEER_BUCKETS];
};

#define TO(state) (1u << CLIENT_PUT_##state)
static const struct common_machine put_machine = {
    .name = "put",
    .n = CLIENT_PUT_STATES,
    .states = {"over", "waiting", "sent"},
    .next = {[CLIENT_PUT_OVER] = TO(WAITING),
             [CLIENT_PUT_WAITING] = TO(SENT) | TO(OVER),
             [CLIENT_PUT_SENT] = TO(OVER)},
};
#undef TO

static void put_move(struct client_put *put, enum client_put_state to)
{
    common_machine_move(&put_machine, put->state, to);
    put->state = to;
}

static void close_idle(void *arg)
{
    struct client_peers *peers = arg;
    uint64_t now = common_clock_ns();
    for (size_t i = 0; i < PEER_BUCKETS; i++)
        for (struct client_peer **at = &peers->buckets[i]; *at;) {
            struct client_peer *peer = *at;
            if (peer->in_flight > 0 || peer->first || now - peer->used_ns < PEER_IDLE_NS) {
                at = &peer->next;
                continue;
            }
            *at = peer->next;
            peers->n--;
            proto_channel_close(peer->channel);
            free(peer);
        }
}

banyan_code client_peers_new(struct banyan_client *client, const char *token, struct client_peers **out)
{
    struct client_peers *peers = calloc(1, sizeof *peers);
    if (!peers)
        return BANYAN_RESOURCE_EXHAUSTED;
    peers->client = client;
    snprintf(peers->token, sizeof peers->token, "%s", token ? token : "");
    if (strncmp(peers->token, "bt_", 3) == 0) // workers know none of the coordinator's table
        peers->token[0] = '\0';
    if (common_timer_new(client->loop, close_idle, peers, &peers->sweep) != COMMON_OK) {
        free(peers);
        return BANYAN_RESOURCE_EXHAUSTED;
    }
    common_timer_start(peers->sweep, PEER_IDLE_NS, true);
    *out = peers;
    return BANYAN_OK;
}

static void cancel_waiting(struct client_peer *peer)
{
    banyan_error error;
    client_error_set(&error, BANYAN_CANCELLED, "the attach was cancelled: its client disconnects");
    while (peer->first) {
        struct client_put *put = peer->first;
        peer->first = put->next;
        if (!peer->first)
            peer->last = &peer->first;
        put_move(put, CLIENT_PUT_OVER);
        put->done(put, BANYAN_CANCELLED, NULL, &error);
    }
}

void client_peers_free(struct client_peers *peers)
{
    if (!peers)
        return;
    common_timer_free(peers->sweep);
    for (size_t i = 0; i < PEER_BUCKETS; i++)
        for (struct client_peer *peer = peers->buckets[i]; peer; peer = peer->next) {
            cancel_waiting(peer);
            proto_channel_close(peer->channel); // ends what is in flight
        }
    for (size_t i = 0; i < PEER_BUCKETS; i++)
        for (struct client_peer *peer = peers->buckets[i], *next; peer; peer = next) {
            next = peer->next;
            free(peer);
        }
    explicit_bzero(peers->token, sizeof peers->token);
    free(peers);
}

void client_peers_pass(struct client_peers *peers, const char *pass)
{
    if (!peers || !*pass || strcmp(peers->token, pass) == 0)
        return;
    client_copy_text(peers->token, sizeof peers->token, pass);
    for (size_t i = 0; i < PEER_BUCKETS; i++)
        for (struct client_peer *peer = peers->buckets[i]; peer; peer = peer->next)
            proto_channel_set_token(peer->channel, peers->token);
}

banyan_code client_peer_find(struct client_peers *peers, const char *endpoint, struct client_peer **out,
                             banyan_error *error)
{
    if (!peers) // with an earlier ticket
        return client_error_set(error, BANYAN_CANCELLED, "the client is disconnected");
    size_t len = strlen(endpoint);
    struct client_peer **bucket = &peers->buckets[common_xxh3(endpoint, len, 0) % PEER_BUCKETS];
    for (struct client_peer *peer = *bucket; peer; peer = peer->next)
        if (strcmp(peer->endpoint, endpoint) == 0) {
            *out = peer;
            return BANYAN_OK;
        }
    if (peers->n == PEERS_MAX)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED,
                                "the limit of %u connected workers is reached", PEERS_MAX);
    struct client_peer *peer = calloc(1, sizeof *peer + len + 1);
    if (!peer)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    memcpy(peer->endpoint, endpoint, len);
    // A worker requires a ticket with each call; one that listens beyond loopback also requires a pass or the
    // token.
    struct proto_channel_options options = {.name = "libbanyan",
                                            .role = BANYAN__PB__ROLE__ROLE_CLIENT,
                                            .token = peers->token[0] ? peers->token : NULL,
                                            .tls = peers->client->tls,
                                            .peer_role = BANYAN__PB__ROLE__ROLE_WORKER,
                                            .quiet_ns = CLIENT_QUIET_NS,
                                            .mute_ns = client_mute_ns(endpoint)};
    struct common_error err = {0};
    enum common_code code = proto_channel_open(peers->client->loop, endpoint, &options, &peer->channel, &err);
    if (code != COMMON_OK) {
        free(peer);
        return client_error_set(error, (banyan_code)code, "worker's endpoint %s: %s", endpoint, err.message);
    }
    peer->peers = peers;
    peer->last = &peer->first;
    peer->next = *bucket;
    *bucket = peer;
    peers->n++;
    *out = peer;
    return BANYAN_OK;
}

static void send_waiting(struct client_peer *peer);

static void on_call_done(struct client_call *call, banyan_code code, const struct proto_message *message,
                         const banyan_error *error)
{
    struct client_put *put = (struct client_put *)call;
    struct client_peer *peer = put->peer;
    peer->in_flight--;
    peer->used_ns = common_clock_ns();
    if (!atomic_load(&peer->peers->client->closing))
        send_waiting(peer);
    put_move(put, CLIENT_PUT_OVER);
    // A worker that has not received its layout yet lacks the session: only the coordinator says whether
    // there is one.
    if (code == BANYAN_NOT_FOUND) {
        banyan_error later = *error;
        later.code = BANYAN_UNAVAILABLE;
        put->done(put, BANYAN_UNAVAILABLE, message, &later); // may free the put
        return;
    }
    put->done(put, code, message, error); // likewise
}

static void send_waiting(struct client_peer *peer)
{
    while (peer->first && peer->in_flight < PEER_WINDOW) {
        struct client_put *put = peer->first;
        peer->first = put->next;
        if (!peer->first)
            peer->last = &peer->first;
        put_move(put, CLIENT_PUT_SENT);
        peer->in_flight++;
        uint64_t limit = proto_channel_connected(peer->channel) ? put->timeout_ns : DIAL_LIMIT_NS;
        put->call.client = peer->peers->client;
        put->call.channel = peer->channel;
        put->call.deadline_ns = common_clock_after(limit < put->timeout_ns ? limit : put->timeout_ns);
        put->call.done = on_call_done;
        client_call_start(&put->call);
    }
}

void client_peer_put(struct client_peer *peer, struct client_put *put)
{
    put->peer = peer;
    put->next = NULL;
    put->state = CLIENT_PUT_OVER;
    put_move(put, CLIENT_PUT_WAITING);
    *peer->last = put;
    peer->last = &put->next;
    peer->used_ns = common_clock_ns();
    send_waiting(peer);
}

void client_peer_cancel(struct client_put *put)
{
    assert(put->state != CLIENT_PUT_OVER);
    if (put->state == CLIENT_PUT_SENT) {
        client_call_cancel(&put->call);
        return;
    }
    struct client_peer *peer = put->peer;
    struct client_put **at = &peer->first;
    while (*at != put)
        at = &(*at)->next;
    *at = put->next;
    if (!*at)
        peer->last = at;
    banyan_error error;
    put_move(put, CLIENT_PUT_OVER);
    client_error_set(&error, BANYAN_CANCELLED, "the attach was abandoned");
    put->done(put, BANYAN_CANCELLED, NULL, &error);
}
