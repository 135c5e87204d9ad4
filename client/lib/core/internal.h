// SPDX-License-Identifier: Apache-2.0
// What the files of libbanyan share. Two kinds of threads: the callers' and the client's one I/O thread,
// which owns every channel and every call in flight; a caller that blocks alone takes its place meanwhile (client_run).
// Functions of this folder run on the I/O thread unless they say otherwise.
#ifndef CLIENT_INTERNAL_H
#define CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "client/banyan.h"
#include "client/lib/core/sums.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "proto/rpc/rpc.h"

#define CLIENT_TIMEOUT_NS (30 * COMMON_NS_PER_S)
#define CLIENT_CALLS_MAX  16384
#define CLIENT_WORKERS_MAX                                                                                   \
    PROTO_MEMBERS_MAX // entries of any list in a reply: more than the messages allow is refused
// Of connections over which nothing comes though a call is out: after so long the other end is asked, and
// when nothing comes for the other time the connection is given up and made again (proto/rpc/rpc.h).
// Coordinators and workers may be stopped for some seconds. Over nng nothing is known of an answer that is on
// its way: the largest has time at a MiB a second.
#define CLIENT_QUIET_NS    COMMON_NS_PER_S
#define CLIENT_MUTE_NS     (10 * COMMON_NS_PER_S)
#define CLIENT_MUTE_NNG_NS (64 * COMMON_NS_PER_S)
static inline uint64_t client_mute_ns(const char *endpoint)
{
    return strncmp(endpoint, "nng", 3) == 0 ? CLIENT_MUTE_NNG_NS : CLIENT_MUTE_NS;
}

#define CLIENT_ENDPOINT_DEFAULT "nng+tcp://127.0.0.1:7411"

struct client_call;
struct client_endpoints;
struct client_peers;
struct client_queue;
struct client_ticket;
struct common_tls;
struct common_tracer;

struct banyan_client {
    atomic_uint refs; // the connection and each session: the struct outlives disconnect while sessions are to
                      // be closed
    char endpoint[1024]; // one, or several: A,B
    uint64_t timeout_ns;
    uint32_t calls_max;
    bool aside; // its steps are an operator's questions: none is kept or audited. Set before the first one
    atomic_uint outstanding;  // asynchronous calls, queue completions that wait to be fetched included
    atomic_bool closing;      // from the start of banyan_shutdown on
    struct common_loop *loop; // NULL after disconnect
    struct client_queue *queue;
    // I/O thread only
    struct client_endpoints *endpoints;
    struct proto_channel *channel; // to the coordinator that is current: one of theirs
    struct client_call *calls;     // all that live
    uint64_t ended;                // calls that were
    struct client_op *ops;         // likewise
    struct client_peers *peers;
    struct common_tracer *tracer; // of its own spans (client/lib/core/spans.h); NULL: none. Set at connect
    struct common_tls *tls;       // a reference; NULL: none. Set at connect
};

struct client_layer {                  // of a session
    uint32_t q_heads, kv_heads, v_dim; // all 0: it holds nothing in the session
    uint32_t source;                   // the layer whose K and V it reads: itself, unless it shares another's
    bool not_causal;
    size_t q_row, o_row, lse_row; // bytes of one token
    size_t k_row, v_row;          // as they travel, scales included (proto/model/kv.h); v_row 0: V lies in K
    size_t scale_row;             // bytes of a token's scales in k_row, and in v_row; 0: none
};

// The truncates of a hold, one after another (truncate.c): of each that is sent, either an answer is known, or it is in
// doubt until the coordinator has said what became of it.
struct client_cuts {
    pthread_mutex_t lock; // held by a truncate until it has ended
    uint64_t last;        // under the lock: the session's cut as this hold last saw it; 0: it has none
    uint64_t ended;       // under the lock: how many have
    atomic_uint_least64_t doubted; // the cut of one that may yet be done, or is; 0: none
};

struct banyan_session {
    struct banyan_client *client; // a reference
    uint64_t id;
    atomic_uint_least64_t incarnation; // as this hold last saw it
    struct client_cuts cuts;           // truncates
    banyan_spec spec;                  // defaults filled in; owns its arrays
    struct client_layer *layers;       // [spec.layers]
    struct client_sums sums;           // of what was attached and not committed; any thread
    struct client_ticket *tickets;     // newest first; I/O thread only
    uint32_t n_tickets;
    uint64_t ticket_end;        // end of the newest ticket
    struct client_seals *seals; // what is read is compared with (client/lib/rows/seals.h); NULL: nothing
};

void client_unref(struct banyan_client *client); // any thread

#endif
