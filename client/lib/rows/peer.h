// SPDX-License-Identifier: Apache-2.0
// Connections to workers.
#ifndef CLIENT_LIB_PEER_H
#define CLIENT_LIB_PEER_H

#include <stdint.h>

#include "client/lib/core/call.h"
#include "client/lib/core/internal.h"

struct client_peers;

// Connections to workers, one an endpoint, made when first needed and closed after a while without use. token: what
// workers are shown, as the coordinator is; NULL: none.
banyan_code client_peers_new(struct banyan_client *client, const char *token, struct client_peers **out);
// What workers are shown from now on, where the token is not one that they know. "": nothing new.
void client_peers_pass(struct client_peers *peers, const char *pass);
void client_peers_free(struct client_peers *peers); // ends their calls with CANCELLED; NULL is allowed

struct client_peer;
struct client_put {           // a call, a put or a read, that waits its turn on a worker's connection
    struct client_call call;  // method, body, tensors, done: set by the caller
    struct client_peer *peer; // peer.c only, as the rest
    struct client_put *next;
    // message: NULL unless code is OK. What a worker does not have is UNAVAILABLE: whether there is such a session only the
    // coordinator says.
    void (*done)(struct client_put *put, banyan_code code, const struct proto_message *message,
                 const banyan_error *error);
    uint64_t timeout_ns;
    enum client_put_state { CLIENT_PUT_OVER, CLIENT_PUT_WAITING, CLIENT_PUT_SENT, CLIENT_PUT_STATES } state;
};
banyan_code client_peer_find(struct client_peers *peers, const char *endpoint, struct client_peer **out,
                             banyan_error *error);
// At most a few are in flight a connection, the rest wait in order. done runs exactly once, never on this
// stack.
void client_peer_put(struct client_peer *peer, struct client_put *put);
void client_peer_cancel(struct client_put *put); // done runs with CANCELLED, on this stack or soon

#endif
