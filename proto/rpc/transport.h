// SPDX-License-Identifier: Apache-2.0
// What transports and the common part of the RPC layer know of each other. Private to proto/. A transport
// moves messages; calls, deadlines, limits, roles and dispatch are common. All on the loop's thread unless
// said otherwise.
#ifndef PROTO_TRANSPORT_H
#define PROTO_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/handle.h"
#include "common/base/list.h"
#include "common/loop/loop.h"
#include "common/secure/secret.h"
#include "proto/rpc/endpoint.h"
#include "proto/rpc/rpc.h"
#include "proto/wire/codec.h"
#include "proto/wire/frame.h"

// ---- calling --------------------------------------------------------------------------------------------

// A call:
//
//     NEW ──transport ready──▶ SENT ──answer──▶ ENDED: its callback has run, or runs
//      │                       ▲  │               ▲
//      │        transport ready│  └──deadline, cancel, loss, close
//      └──it is not──▶ WAITING─┘                  │
//                         └───────────────────────┘
enum proto_pending_state {
    PROTO_CALL_NEW,
    PROTO_CALL_WAITING,
    PROTO_CALL_SENT,
    PROTO_CALL_ENDED,
    PROTO_CALL_STATES
};

struct proto_link_out;

struct proto_pending {
    struct common_list link; // in channel->waiting or channel->sent
    uint64_t id, deadline_ns;
    uint32_t method, heap_at; // place in the deadline heap
    enum proto_pending_state state;
    proto_reply_fn done;
    void *arg;
    struct proto_gather *kept;  // WAITING: the message
    struct proto_link_out *out; // stream: the message, while it waits for the socket
    void *context;              // nng: the context that carries it
};

struct proto_signs {   // of life, of the peer's host and of its process
    uint64_t heard_ns; // when something came from the host last, be it that it has ours
    uint64_t spoke_ns; // when bytes of the process came last
    bool owed;         // something of ours is on its way, or ours to send again
    bool notes; // the process says that it is there while it reads (docs/reference/wire.md, keep-alive)
};

struct proto_channel_ops {
    // Starts to connect. The channel's fields are set, its `state` is NULL.
    enum common_code (*open)(struct proto_channel *channel, const struct proto_endpoint *endpoint,
                             struct common_error *err);
    // Ends everything; no call is pending any more. Nothing comes from the transport afterwards.
    void (*close)(struct proto_channel *channel);
    bool (*connected)(const struct proto_channel *channel);
    // Whether a call could be sent now.
    bool (*ready)(const struct proto_channel *channel);
    // Takes a call when ready. Bytes behind iov[0] may be borrowed until forget. A failure ends only this
    // call.
    enum common_code (*send)(struct proto_channel *channel, struct proto_pending *call,
                             struct proto_gather *gather, struct common_error *err);
    // A sent call has ended: its borrowed bytes go away now. `tell`: the peer may still be working on it.
    void (*forget)(struct proto_channel *channel, struct proto_pending *call, bool tell);
    // Both or none; NULL: nothing is known of the peer's host, and `quiet_ns` has no effect.
    void (*signs)(const struct proto_channel *channel, struct proto_signs *out); // connected
    // Connected: the socket of the link. NULL: none that is known.
    int (*socket)(const struct proto_channel *channel);
    // Connected: the link breaks now, on this stack or in the next turn, and its calls end with UNAVAILABLE.
    void (*lose)(struct proto_channel *channel, const char *text);
};
extern const struct proto_channel_ops proto_stream_channel_ops, proto_nng_channel_ops;

struct proto_channel {
    struct common_loop *loop;
    const struct proto_channel_ops *ops;
    void *state; // the transport's
    unsigned refs;
    bool closing;
    // options
    char name[129], token[COMMON_TOKEN_MAX + 1], endpoint_text[PROTO_ENDPOINT_MAX];
    bool has_token, has_secret;
    struct common_secret secret;
    struct common_tls *tls; // NULL: the endpoint is plain
    uint32_t peer_role;
    uint32_t role, calls_max;
    uint64_t payload_max, send_max, quiet_ns, mute_ns;
    bool sums;          // our frames carry checksums
    bool peer_sums;     // the peer's do: so far on this connection, where there is one
    uint64_t warned_ns; // rate limit of warnings about damaged answers
    void (*state_fn)(void *arg, bool connected);
    void (*refused_fn)(void *arg);
    void (*failed_fn)(void *arg, const char *why);
    void *state_arg;
    char trouble
        [COMMON_ERROR_BYTES]; // why there is no link, for calls that wait for one; "": there is, or unknown
    enum proto_reason trouble_reason; // of the same
    // calls
    struct common_handle_table *handles;
    struct common_list waiting, sent;
    struct proto_pending **heap; // by deadline
    uint32_t n_heap, heap_cap;
    struct common_timer *timer;
    uint64_t armed_ns; // when the timer fires; UINT64_MAX: never
    // the keep-alive
    struct common_timer *keepalive; // NULL: none
    bool watching, asking;          // its timer runs; a HealthCheck is out
    uint64_t watched_ns, asked_ns;  // since when it watches; when it asked, 0: not yet
    uint64_t look_ns;               // when the timer is due
    uint32_t mutes;                 // links given up because the process was silent
    struct common_list idle;        // ended calls for reuse
    unsigned n_idle;
    struct proto_scratch scratch;
    struct proto_pool pool;
};

void proto_channel_ref(struct proto_channel *channel);
void proto_channel_unref(struct proto_channel *channel);

// The keep-alive (rpc_keepalive.c): a call is out.
void proto_keepalive_watch(struct proto_channel *channel);
enum common_code proto_keepalive_init(struct proto_channel *channel);
void proto_keepalive_fini(struct proto_channel *channel);

// The transport has become ready: sends what waits.
void proto_channel_drain(struct proto_channel *channel);

// A reply has arrived. false: it cannot be trusted (the transport closes the link). Late ones are
// dropped.
bool proto_channel_deliver(struct proto_channel *channel, const struct proto_prefix *prefix,
                           struct common_blob *blob, size_t offset, struct common_error *err);

// What a frame from the peer that cannot be opened means to calls: damage is the way's fault, not the peer's.
void proto_channel_damaged(struct proto_channel *channel, struct common_error *err);

// Ends calls with a failure of our own: the sent ones (the link is lost), or the waiting ones (the peer
// refuses us).
void proto_channel_fail_sent(struct proto_channel *channel, enum common_code code, const char *text);
void proto_channel_fail_waiting(struct proto_channel *channel, enum common_code code, const char *text);
void proto_channel_fail_call(struct proto_channel *channel, uint64_t id, enum common_code code,
                             const char *text);

// ---- serving --------------------------------------------------------------------------------------------

struct proto_request {
    struct common_list link;         // the transport's: with its siblings of one caller
    struct proto_request *hash_next; // the transport's
    struct proto_server *server;
    void (*send)(struct proto_request *request, struct proto_gather *gather, proto_done_fn sent,
                 void *sent_arg);
    void *transport; // stream link, or what joins a request with its nng client; `send` is the last to use it
    const char *peer; // lives as long as the transport's object
    struct proto_message *message;
    uint64_t id, deadline_ns, arrived_ns, ends_ns; // ends_ns 0: not announced
    uint32_t role, method;
    struct proto_caller *caller;           // the transport's; until the answer is sent
    const struct proto_identity *identity; // the transport's, likewise: who asks
    size_t bytes;
    uint64_t charged;
    bool cancelled;
    bool answered;             // `answered` was asked, and keeps the answer:
    struct proto_gather *kept; // NULL: there was no memory for it
    proto_done_fn kept_sent;
    void *kept_sent_arg;
    proto_done_fn on_cancel;
    void *on_cancel_arg;
};

// An endpoint listened on.
struct proto_listener {
    struct proto_listener *next;
    struct proto_server *server;
    const struct proto_server_ops *ops;
    void *state; // the transport's
    char endpoint[PROTO_ENDPOINT_MAX];
};

struct proto_server_ops {
    // ALREADY_EXISTS when the address is taken. Sets listener->state and, with the real port, endpoint.
    enum common_code (*listen)(struct proto_server *server, struct proto_endpoint *endpoint,
                               struct proto_listener *listener, struct common_error *err);
    void (*close)(struct proto_listener *listener);
    void (*evict)(struct proto_listener *listener, uint64_t token); // NULL: proto_stream_evict does it
    // The server's bytes_max was reached by callers of a kind, and is so no longer: all links over this
    // transport, of whatever listener, are read again. NULL: those of this transport are not left unread.
    void (*resume)(struct proto_server *server);
    bool streams; // its links are those of server->links
};
extern const struct proto_server_ops proto_stream_server_ops, proto_sp_server_ops;

enum { PROTO_LANE_CLIENTS, PROTO_LANE_DAEMONS, PROTO_LANES };

struct proto_lane { // what is being served, and over how many stream links of known peers
    uint64_t requests, bytes;
    uint64_t begun; // bytes of large frames that are being read over streams
    uint32_t links;
};

// One connection at the serving end.
struct proto_caller {
    struct common_list link; // clients that are known: in server->callers; else by itself
    struct proto_link *io;   // NULL: closed, or it has none (the simulator's)
    uint64_t id;             // of the stream link; 0: nng
    void (*fail)(struct proto_link *io, enum common_code code, const char *text); // proto_link_fail
    bool (*names_worker)(const struct proto_link *io,
                         const char *name); // proto_request_may_be_worker; NULL: true
    uint32_t requests;                      // being served
    uint64_t bytes;                         // of these, and what they have been charged
    bool waits;                             // it was found at its limits when it was last to be read
    struct proto_identity identity; // NONE until it is known. Over nng: of the last message that was admitted
    bool entered;                   // it counts as this tenant's: proto_server_options.enters
    uint32_t entered_as;
};

#define PROTO_WARNED_MAX 16 // peers and reasons that are remembered, so that each is logged once a minute

struct proto_server {
    struct common_loop *loop;
    unsigned refs;
    bool closed;
    char name[129], token[COMMON_TOKEN_MAX + 1];
    bool has_token, has_secret;
    struct common_secret secret;
    struct common_tls *tls; // NULL: none
    bool tls_client_cert;
    uint32_t role, links_max, daemons_max, requests_max, caller_requests_max;
    uint64_t payload_max, bytes_max, caller_bytes_max;
    bool for_clients; // some method is
    const char *const *flags;
    uint64_t reached[PROTO_LIMIT_COUNT];
    uint32_t n_strangers, n_nng, n_nng_endpoints; // of all endpoints
    struct common_list callers;
    size_t unread; // bytes of answers to clients that wait for their sockets
    const struct proto_method *methods[PROTO_METHOD_LIMIT];
    void *arg;
    bool (*admit)(void *arg, const void *credentials, size_t len, const char *peer,
                  struct proto_identity *out);
    const char *(*unadmitted)(void *arg, const void *credentials, size_t len);
    bool (*enters)(void *arg, uint32_t tenant, char *text, size_t bytes);
    void (*leaves)(void *arg, uint32_t tenant);
    void (*wording)(void *arg, const struct proto_request *request, char *text, size_t bytes,
                    Banyan__Pb__Status *status);
    void (*refusing)(void *arg, enum proto_refusal refusal, const char *peer, const char *why);
    bool (*answered)(void *arg, struct proto_request *request, enum common_code code,
                     const ProtobufCMessage *reply);
    void (*link_closed)(void *arg, uint64_t link);
    struct proto_listener *listeners;
    struct common_list links; // stream links
    uint32_t n_links;
    struct common_list
        strangers[2]; // of these, those that are not known: silent, and in the middle of the hello
    uint32_t n_stream_strangers[2];
    uint64_t next_link;
    struct common_timer *tick;            // each second: links that stall, and those that owe a note
    uint64_t ticked_ns;                   // its last turn
    struct proto_lane lanes[PROTO_LANES]; // each has the server's limits for itself
    struct proto_server_stats stats;
    struct common_buckets took[PROTO_METHOD_LIMIT];
    uint64_t failed[COMMON_CODE_COUNT], refusals[PROTO_REFUSALS];
    uint64_t warned_ns, warned_refused; // rate limit of warnings about refused peers
    struct proto_warned {               // who was warned of lately, and why: see there
        uint64_t key, at_ns;
    } warned[PROTO_WARNED_MAX];
    struct proto_request *idle; // ended requests for reuse, by hash_next
    unsigned n_idle;
    struct proto_scratch scratch;
    struct proto_pool pool;
};

void proto_server_ref(struct proto_server *server);
void proto_server_unref(struct proto_server *server);

// A connection, or what came over it: counts, and logs at most one warning a second, about the same peer for
// the same reason one a minute.
void proto_server_refused(struct proto_server *server, const char *peer, const char *why);

// Whether a client with these credentials may come in, and who it is: the token is right, or none is needed.
// Constant time in its contents. False: *out is as it was.
bool proto_server_admit(const struct proto_server *server, const ProtobufCBinaryData *credentials,
                        const char *peer, struct proto_identity *out);

// Why not, once that has said no: a sentence for people.
const char *proto_server_unadmitted(const struct proto_server *server,
                                    const ProtobufCBinaryData *credentials);

// A zeroed request for a message, whose ownership it takes, of a caller with this role (of a link whose hello
// is under way: what it says it is). Who asks is the caller's identity, unless the transport says another.
// NULL: out of memory (the message is released).
struct proto_request *proto_request_new(struct proto_server *server, struct proto_caller *caller,
                                        uint32_t role, struct proto_message *message);

// Checks it and hands it to its handler or answers it; the transport's fields are set. `authentic`: the
// caller has proved what it must.
void proto_request_dispatch(struct proto_request *request, bool authentic);

// The caller does not want it any more.
void proto_request_cancel(struct proto_request *request);

// Answers a message that does not become a request.
void proto_request_refuse(struct proto_request *request, enum proto_refusal refusal, enum common_code code,
                          enum proto_reason reason, const char *text);

// The server's bytes_max is reached by callers of this kind; links are read again when their ops' `resume` is
// called.
bool proto_server_full(const struct proto_server *server, uint32_t role);

// Whether a caller of this kind may begin a large frame over a stream. What all of them have begun stays
// below bytes_max, beside what is being served; one may be there in any case.
bool proto_server_may_begin(const struct proto_server *server, uint32_t role, uint64_t bytes);
// Where a link of this kind counts what it has begun.
uint64_t *proto_server_begun(struct proto_server *server, uint32_t role);

// ---- limits (rpc_limits.c) ----

enum { PROTO_LIMIT_TEXT = 400 };
// Counts that a limit was reached, and says so: which, how much, what raises it. NULL: counts only.
void proto_limit_reached(struct proto_server *server, enum proto_limit limit, char text[PROTO_LIMIT_TEXT]);

void proto_caller_init(struct proto_caller *caller);
// It is a client that may be here: its unread answers count.
void proto_caller_known(struct proto_server *server, struct proto_caller *caller);
void proto_caller_gone(struct proto_server *server, struct proto_caller *caller);
// It has shown whose client it is: whether it may be here as one more of them, and if not, why. Nothing when
// it has been asked already and may.
bool proto_caller_enters(struct proto_server *server, struct proto_caller *caller,
                         char text[PROTO_LIMIT_TEXT]);
// Whether a client at its own limits is to be left unread. Counts each time that it comes to them.
bool proto_caller_full(struct proto_server *server, struct proto_caller *caller);

// An answer waits for a client's socket, or a second has passed: past the limit the link of the slowest
// reader fails.
void proto_callers_relieve(struct proto_server *server);
void proto_stream_tick(struct proto_server *server);
// proto_server_evict: of the transport's links.
void proto_stream_evict(struct proto_server *server, uint64_t token);

#endif
