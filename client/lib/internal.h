// SPDX-License-Identifier: Apache-2.0
// What the files of libbanyan share. Two kinds of threads: the callers' and the client's one I/O thread,
// which owns every channel and every call in flight; a caller that blocks alone takes its place meanwhile (client_run).
// Functions below run on the I/O thread unless they say otherwise.
#ifndef CLIENT_INTERNAL_H
#define CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "client/banyan.h"
#include "client/lib/sums.h"
#include "common/clock.h"
#include "common/loop.h"
#include "proto/rpc.h"

#define CLIENT_TIMEOUT_NS (30 * COMMON_NS_PER_S)
#define CLIENT_CALLS_MAX  16384
#define CLIENT_WORKERS_MAX                                                                                   \
    PROTO_MEMBERS_MAX // entries of any list in a reply: more than the messages allow is refused
// Of connections over which nothing comes though a call is out: after so long the other end is asked, and
// when nothing comes for the other time the connection is given up and made again (proto/rpc.h). Coordinators
// and workers may be stopped for some seconds. Over nng nothing is known of an answer that is on its way: the
// largest has time at a MiB a second.
#define CLIENT_QUIET_NS    COMMON_NS_PER_S
#define CLIENT_MUTE_NS     (10 * COMMON_NS_PER_S)
#define CLIENT_MUTE_NNG_NS (64 * COMMON_NS_PER_S)
static inline uint64_t client_mute_ns(const char *endpoint)
{
    return strncmp(endpoint, "nng", 3) == 0 ? CLIENT_MUTE_NNG_NS : CLIENT_MUTE_NS;
}

#define CLIENT_ENDPOINT_DEFAULT "tcp://127.0.0.1:7412"

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
    struct common_tracer *tracer; // of its own spans (client/lib/spans.h); NULL: none. Set at connect
    struct common_tls *tls;       // a reference; NULL: none. Set at connect
};

struct client_layer {                  // of a session
    uint32_t q_heads, kv_heads, v_dim; // all 0: it holds nothing in the session
    uint32_t source;                   // the layer whose K and V it reads: itself, unless it shares another's
    bool not_causal;
    size_t q_row, o_row, lse_row; // bytes of one token
    size_t k_row, v_row;          // as they travel, scales included (proto/kv.h); v_row 0: V lies in K
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
    struct client_seals *seals; // what is read is compared with (client/lib/seals.h); NULL: nothing
};

void client_unref(struct banyan_client *client); // any thread

// ---- errors (any thread) ------------------------------------------------------------------------

// Fills *error (NULL is allowed) and returns code.
banyan_code client_error_set(banyan_error *error, banyan_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// The peer's status with its details.
void client_error_from_pb(const Banyan__Pb__Status *status, banyan_error *error);
// Refuses a blocking call on the I/O thread (it would wait for itself) and any call while the client closes.
banyan_code client_check_blocking(struct banyan_client *client, banyan_error *error);
// Copies a string from a peer into a field; what does not fit is cut.
void client_copy_text(char *out, size_t len, const char *text);

// ---- waiting (any thread) -----------------------------------------------------------------------

struct client_wait { // one waiter, one signal
    _Atomic uint32_t done;
};
void client_wait_signal(struct client_wait *wait); // the waiter may be gone when this returns
void client_wait_for(struct client_wait *wait);
// Runs fn on the I/O thread, or on this one in its place, and waits for the signal. The mail is fn's to use again.
void client_run(struct banyan_client *client, struct common_mail *mail, common_loop_fn fn, void *arg,
                struct client_wait *wait);

// ---- calls --------------------------------------------------------------------------------------

enum client_call_state { // drawn in call.c
    CLIENT_CALL_OVER,    // not started, or done has run
    CLIENT_CALL_SENT,    // in its channel
    CLIENT_CALL_RESTING, // its timer runs: sent again after it
    CLIENT_CALL_REFUSED, // notified in a later turn of the loop
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

// ---- endpoints (endpoints.c) --------------------------------------------------------------------

// Opens channels to all of client->endpoint. After a failure: close. INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
banyan_code client_endpoints_open(struct banyan_client *client, const struct proto_channel_options *options,
                                  banyan_error *error);
void client_endpoints_close(struct banyan_client *client); // their calls end with CANCELLED
bool client_endpoints_several(const struct banyan_client *client);
void client_endpoints_refused(
    struct banyan_client *client); // the current one has said that it does not serve

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

// ---- orphans (orphan.c) -------------------------------------------------------------------------

// After a create or fork (method, with its key in the request) without a name that ended with this code: if it
// is unknown whether a session was made, one that was made is found and deleted, in the background. One with a
// name is never deleted: another caller may have opened it, and have rows in it. Any thread.
void client_orphan_end(struct banyan_client *client, uint32_t method, const ProtobufCMessage *request,
                       banyan_code code);

// ---- attend -------------------------------------------------------------------------------------

struct client_attend;
// Runs on the I/O thread when the call has ended; owns the attend from then on.
typedef void (*client_attend_done_fn)(struct client_attend *attend);

// Checks and packs; any thread. OK: `done` will run exactly once, never on this stack.
banyan_code client_attend_submit(struct banyan_client *client, banyan_item *items, size_t n_items,
                                 uint64_t timeout_ns, banyan_trace *trace, client_attend_done_fn done,
                                 void *arg, banyan_error *error);
banyan_code client_attend_code(const struct client_attend *attend);
const banyan_error *client_attend_error(const struct client_attend *attend);
void *client_attend_arg(const struct client_attend *attend);
banyan_item *client_attend_items(const struct client_attend *attend, size_t *n_items);
void client_attend_free(struct client_attend *attend);

// ---- masses and traces --------------------------------------------------------------------------

struct client_mass_reader { // a reply's masses, item after item
    char **names;           // [n_names]
    size_t n_names;
    const float *values;
    size_t left;
};
// Takes the next item's; its wishes stay. pb NULL: the answer has none. INTERNAL: it makes no sense. The
// results are the caller's to free.
banyan_code client_mass_take(struct client_mass_reader *reader, const Banyan__Pb__MassInfo *pb,
                             banyan_mass *out, banyan_error *error);
// Of a reply's missing ranges, item after item.
struct client_missing_reader {
    const uint8_t *bytes;
    size_t left;
};
// INTERNAL: what the reply declares is malformed, or was not asked for. RESOURCE_EXHAUSTED.
banyan_code client_partial_take(struct client_missing_reader *reader, const Banyan__Pb__AttendItemResult *pb,
                                banyan_partial *out, banyan_error *error);
void client_partial_clear(banyan_partial *partial); // results to nothing, without freeing; NULL is allowed

void client_mass_clear(banyan_mass *mass); // results to nothing, without freeing; NULL is allowed
void client_trace_from_pb(const Banyan__Pb__WorkerTrace *pb, banyan_worker_trace *out);

// Counts an asynchronous call against calls_max; any thread.
banyan_code client_reserve(struct banyan_client *client, banyan_error *error);
void client_release(struct banyan_client *client);

// ---- queue (any thread) -------------------------------------------------------------------------

banyan_code client_queue_new(struct client_queue **out);
// Completions that were not fetched are dropped; NULL is allowed.
void client_queue_free(struct client_queue *queue);

// ---- attach -------------------------------------------------------------------------------------

void client_tickets_free(struct banyan_session *session);

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
    enum client_put_state { CLIENT_PUT_OVER, CLIENT_PUT_WAITING, CLIENT_PUT_SENT } state;
};
banyan_code client_peer_find(struct client_peers *peers, const char *endpoint, struct client_peer **out,
                             banyan_error *error);
// At most a few are in flight a connection, the rest wait in order. done runs exactly once, never on this
// stack.
void client_peer_put(struct client_peer *peer, struct client_put *put);
void client_peer_cancel(struct client_put *put); // done runs with CANCELLED, on this stack or soon

// ---- read ---------------------------------------------------------------------------------------

#define CLIENT_ANY_COPY UINT32_MAX
// banyan_read_rows, of each chunk from its holder number copy % holders alone: to compare copies. A caller's thread.
banyan_code client_read_copy(banyan_session *session, uint32_t layer, uint64_t first, uint64_t count,
                             uint32_t copy, void *k, float *k_scale, void *v, float *v_scale,
                             banyan_error *error);

// ---- truncates (any thread) ---------------------------------------------------------------------

void client_cuts_init(struct client_cuts *cuts, uint64_t last);
void client_cuts_fini(struct client_cuts *cuts);
// ABORTED while a truncate is in doubt: what is written now, it could take away.
banyan_code client_cuts_may_write(const struct banyan_session *session, banyan_error *error);
// Of one call of the application's: however often it is sent, it is done once. INTERNAL: no random numbers.
banyan_code client_draw_key(uint64_t *key, banyan_error *error);

// ---- sessions -----------------------------------------------------------------------------------

// A session that has just been made with this floor: each layer gets all of what counts as forgotten (floor.c). After a
// failure it is not whole. A caller's thread.
banyan_code client_floor_fill(banyan_session *session, const Banyan__Pb__Spec *spec, uint64_t floor,
                              banyan_error *error);

// Takes a spec as the coordinator says it (or as the caller asked for it). Any thread.
// *layers [pb->layers] is to be freed, and what *out points to by client_spec_free.
banyan_code client_spec_from_pb(const Banyan__Pb__Spec *pb, banyan_spec *out, struct client_layer **layers,
                                banyan_error *error);
void client_spec_free(banyan_spec *spec);
// The message borrows from the caller's spec. *memory is to be freed after it.
banyan_code client_spec_to_pb(const banyan_spec *spec, Banyan__Pb__Spec *pb, void **memory,
                              banyan_error *error);
banyan_code client_info_from_pb(const Banyan__Pb__SessionInfoReply *pb, banyan_session_info *out,
                                banyan_error *error);

#endif
