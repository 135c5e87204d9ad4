// SPDX-License-Identifier: Apache-2.0
// A server and channels on one loop in the test's thread, and handlers that do what the method's body asks
// for: HealthCheck.service says "echo", "later", "never", "fail", "big:BYTES".
#ifndef TESTS_PROTO_FIXTURE_H
#define TESTS_PROTO_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop/loop.h"
#include "proto/rpc/rpc.h"

enum transport { TRANSPORT_UNIX, TRANSPORT_TCP, TRANSPORT_NNG, TRANSPORT_TLS, TRANSPORT_NNG_TLS };

#define TOKEN      "a token of the tests"
#define SECONDS(n) ((uint64_t)(n)*UINT64_C(1000000000))

struct held { // a request that "later" or "never" keeps
    struct held *next;
    struct proto_request *request;
    bool cancelled;
};

struct fixture {
    enum transport transport;
    struct common_loop *loop;
    struct proto_server *server;
    struct common_secret secret;
    struct common_tls *tls; // of both ends: everybody's roles, for localhost and 127.0.0.1
    char dir[64], listen[300], endpoint[300];
    struct held *held;
    unsigned n_handled, n_cancelled, n_sent, n_links_closed;
    unsigned n_held;
};

struct fixture *fixture_new(enum transport transport); // with a server that requires TOKEN and has the secret
void fixture_free(struct fixture *f); // answers what is held, closes the server, runs the loop dry
void fixture_serve(struct fixture *f,
                   const struct proto_server_options *options); // another server at the same address
struct proto_server_options fixture_server_options(struct fixture *f);
struct proto_channel *fixture_connect(struct fixture *f); // with the right token
struct proto_channel *fixture_connect_as(struct fixture *f, const struct proto_channel_options *options);
void fixture_answer_held(struct fixture *f);
void fixture_answer_one(struct fixture *f); // the newest of what is held, if there is any

// Turns the loop until *flag >= want; fails the test after 30 s.
void fixture_turn(struct fixture *f, const unsigned *flag, unsigned want);
void fixture_turn_while_connected(struct fixture *f, const struct proto_channel *channel, bool connected);
void fixture_turn_for(struct fixture *f, uint64_t ns); // 0: once, without waiting

// What became of a call.
struct outcome {
    unsigned done;
    enum common_code code;
    char text[256];
    size_t n_tensors, bytes[4];
    struct common_blob *blob; // a reference to the reply's
    const void *data[4];
    char reason[64];
};
void outcome_fini(struct outcome *o);

struct ask { // a call of HealthCheck
    const char *service;
    const struct proto_tensor_out *tensors;
    size_t n_tensors;
    uint64_t deadline_ns; // from now; 0: 20 s
    uint32_t method;      // 0: HealthCheck
    const ProtobufCMessage *body;
};
enum common_code fixture_ask(struct proto_channel *channel, const struct ask *ask, struct outcome *o,
                             uint64_t *id);

#endif
