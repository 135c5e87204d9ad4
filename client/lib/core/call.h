// SPDX-License-Identifier: Apache-2.0
// Calls to the coordinator and to workers, with their retries.
#ifndef CLIENT_LIB_CALL_H
#define CLIENT_LIB_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/lib/core/internal.h"
#include "client/lib/core/wait.h"
#include "common/loop/loop.h"
#include "proto/rpc/rpc.h"

enum client_call_state { // drawn in call.c
    CLIENT_CALL_OVER,    // not started, or done has run
    CLIENT_CALL_SENT,    // in its channel
    CLIENT_CALL_RESTING, // its timer runs: sent again after it
    CLIENT_CALL_REFUSED, // notified in a later turn of the loop
    CLIENT_CALL_STATES
};

// One RPC with its retries. UNAVAILABLE from a lost connection is tried again until the deadline where the
// method is idempotent.
struct client_call {
    struct banyan_client *client;
    struct proto_channel *channel; // NULL: the coordinator's
    uint32_t method;
    const ProtobufCMessage *body; // this, the tensors and their bytes stay until done has run
    const struct proto_tensor_out *tensors;
    size_t n_tensors;
    uint64_t deadline_ns;
    bool idempotent;
    // Exactly once, never on the stack of client_call_start. message is NULL unless code is OK; *error is
    // filled otherwise. The call is no longer used then: done may free it. lost: the failure is the
    // connection's, not the peer's word.
    void (*done)(struct client_call *call, banyan_code code, const struct proto_message *message,
                 const banyan_error *error);
    struct common_mail mail; // free for the owner until client_call_start, which may be what it runs
    // ---- below: call.c only
    struct client_call *next, **at; // in client->calls
    enum client_call_state state;
    struct common_timer *timer; // RESTING
    struct proto_channel *via;  // SENT: over this one
    uint64_t id, backoff_ns;
    bool retried, lost, cancelled; // what has happened to it
    bool moving;                   // it is taken back from its channel, to be sent over another one
    struct common_error refusal;   // REFUSED: why
};

void client_call_start(struct client_call *call);
// `done` runs on this stack, or soon; nothing when the call is not live.
void client_call_cancel(struct client_call *call);
// Operations, and calls that wait to be sent again.
void client_calls_cancel_all(struct banyan_client *client);
// Calls to the coordinator that are out over this channel, which is not the current one any more, are sent again over the
// current one; those that rest go at once.
void client_calls_move(struct banyan_client *client, struct proto_channel *from);
// Inside `done`: the connection failed, or none could be reached.
bool client_call_lost(const struct client_call *call);

// Something longer than a call that must be notified of a disconnect. cancel ends it, at once or with the
// calls that it cancels.
struct client_op {
    struct client_op *next, **at;
    void (*cancel)(struct client_op *op);
};
void client_op_add(struct banyan_client *client, struct client_op *op, void (*cancel)(struct client_op *op));
void client_op_remove(struct client_op *op);

// A blocking call to the coordinator, from a caller's thread. take (may be NULL) reads the reply on the I/O
// thread and may refuse it.
typedef banyan_code (*client_take_fn)(void *arg, const ProtobufCMessage *body, banyan_error *error);
banyan_code client_unary(struct banyan_client *client, uint32_t method, const ProtobufCMessage *body,
                         bool idempotent, uint64_t timeout_ns, client_take_fn take, void *arg,
                         banyan_error *error);

// Runs fn on the I/O thread, or on this one in its place, and waits for the signal. The mail is fn's to use again.
void client_run(struct banyan_client *client, struct common_mail *mail, common_loop_fn fn, void *arg,
                struct client_wait *wait);

#endif
