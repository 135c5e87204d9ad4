// SPDX-License-Identifier: Apache-2.0
// Remote procedure calls: messages, each in one wire frame (docs/reference/wire.md). Both ends live on one
// common_loop thread: every function here is called on it and every callback runs on it, unless said
// otherwise. Endpoints choose the transport:
//   nng+tcp://HOST:PORT   public RPC to any client of nng's (REQ)
//   tcp://HOST:PORT       stream: libevent sockets, TCP_NODELAY
//   tls://HOST:PORT       stream under TLS 1.3
//   nng+tls://HOST:PORT   nng's REQ under TLS: 1.2 of nng's own at the calling end, 1.2 and 1.3 at the serving end
//   unix:///PATH          stream over a unix socket
// Port 0 listens on a free port; proto_server_endpoint says which.
#ifndef PROTO_RPC_H
#define PROTO_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/loop/loop.h"
#include "common/memory/blob.h"
#include "common/metrics/buckets.h"
#include "common/secure/secret.h"
#include "common/secure/tls.h"
#include "proto/banyan.pb-c.h"
#include "proto/model/limits.h"
#include "proto/model/reason.h"
#include "proto/rights/access.h"
#include "proto/wire/message.h"

// ---- calling --------------------------------------------------------------------------------------------

// Whether a channel's calls, and so their answers, carry a checksum of all their bytes. AUTO: what the
// environment's BANYAN_CHECKSUMS says ("always", "never"); otherwise over plain TCP, whichever wire, and
// neither over unix sockets nor under TLS, which guards every byte itself.
enum proto_sums { PROTO_SUMS_AUTO, PROTO_SUMS_ALWAYS, PROTO_SUMS_NEVER };

// How a certificate says what its owner may be: URIs in subjectAltName. "banyan:worker"; "" for no role.
const char *proto_role_uri(uint32_t role);

struct proto_channel; // a client end: one endpoint, reconnects by itself (10 ms … 1 s)

struct proto_channel_options {
    const char *name;                   // who we are, for the peer's log
    uint32_t role;                      // Banyan__Pb__Role of the dialling side
    const struct common_secret *secret; // daemons: proves the cluster secret, and demands the peer's proof
    const char *token;                  // clients; NULL: none
    uint64_t payload_max;               // of replies; 0: PROTO_PAYLOAD_MAX
    uint64_t send_max;  // of calls, refused here when larger; 0: PROTO_PAYLOAD_MAX (what servers take)
    uint32_t calls_max; // in flight and waiting; more are RESOURCE_EXHAUSTED; 0: 16384
    // 0: never. Stream only (over nng it is how long mute_ns waits before it asks). While a call is out and
    // the peer's host has been silent for so long, the peer is asked (HealthCheck); when its host then
    // acknowledges nothing for twice as long, the link is lost. A process that is stopped, busy or does not
    // read is not silent: its host acknowledges.
    uint64_t quiet_ns;
    // With quiet_ns; 0: never. When no byte (over nng, no answer) has come from the process for so long after
    // it was asked, though this process ran all the while, the link is lost, too: something between the two
    // acknowledges and swallows, or the process is stopped. One that computes, reads slowly or does not read
    // now says that it is there. A peer of a build that does not (LinkHelloReply.notes) is not judged by
    // this.
    uint64_t mute_ns;
    void (*state)(void *arg, bool connected); // stream only; may be NULL
    // Stream only: the endpoint has no listener any longer, the process there has ended. After state(false),
    // or before the first state(true); may be NULL.
    void (*refused)(void *arg);
    // Stream only: a try to link has come to nothing, and why, in words for people; there will be others.
    // With it the channel logs nothing of that itself. May be NULL; may not close the channel.
    void (*failed)(void *arg, const char *why);
    void *state_arg; // of the three
    enum proto_sums sums;
    // The authorities that we trust, and for daemons our certificate; a reference is taken. Endpoints of TLS
    // need it, others do not look at it. A client's server must have a certificate for the host that is
    // dialled. A daemon's need not: it proves the cluster secret over this one connection.
    struct common_tls *tls;
    // tls:// only: the role (Banyan__Pb__Role) that the peer's certificate must say; 0: any daemon's.
    uint32_t peer_role;
};

// Starts to connect; calls made meanwhile wait (within their deadline). Strings and secret are copied.
// INVALID_ARGUMENT with a sentence, also for an endpoint of TLS without `tls`.
enum common_code proto_channel_open(struct common_loop *loop, const char *endpoint,
                                    const struct proto_channel_options *options, struct proto_channel **out,
                                    struct common_error *err);

// Clients: shows another token from now on, with the next link or, over nng, the next call. NULL or too long:
// as it was.
void proto_channel_set_token(struct proto_channel *channel, const char *token);

// Calls in flight end with CANCELLED, on this stack, before it returns. NULL is allowed.
void proto_channel_close(struct proto_channel *channel);
bool proto_channel_connected(const struct proto_channel *channel);
// How many of its links were lost because of mute_ns, so far.
uint32_t proto_channel_mutes(const struct proto_channel *channel);
// The address of this end of the link, numeric, without brackets: by it the peer's host can be reached from
// here. False: there is no link, or it is no stream over TCP.
bool proto_channel_own_host(const struct proto_channel *channel, char out[80]);

struct proto_reply {
    // COMMON_OK or why not: the peer's status, or ours (UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED)
    enum common_code code;
    const char *text;                    // never NULL
    const Banyan__Pb__Status *status;    // the peer's status with details; NULL when the failure is ours
    enum proto_reason reason;            // of a failure that is ours: why there is no link, if that is known
    const struct proto_message *message; // NULL when the failure is ours; lives until the callback returns
                                         // (ref the blob to keep tensors)
};

typedef void (*proto_reply_fn)(void *arg, const struct proto_reply *reply);

struct proto_call {
    uint32_t method;                        // Banyan__Pb__Method
    const ProtobufCMessage *body;           // packed before proto_channel_call returns
    const struct proto_tensor_out *tensors; // array copied; bytes borrowed until the reply callback has run
    size_t n_tensors;
    uint64_t deadline_ns; // absolute monotonic; COMMON_NO_DEADLINE is refused: INVALID_ARGUMENT
    proto_reply_fn done; // exactly once, never on the stack of proto_channel_call; not called when that fails
    void *arg;
};

// A lost link ends its calls with UNAVAILABLE, and so does an answer whose checksum is wrong; over nng only
// when it stays lost for 2 s: nng sends them again over one that comes sooner. *id (may be NULL) may be used
// with proto_channel_cancel until done has run. INVALID_ARGUMENT, RESOURCE_EXHAUSTED (too many calls, or a
// message above its limits), CANCELLED (the channel is being closed).
enum common_code proto_channel_call(struct proto_channel *channel, const struct proto_call *call,
                                    uint64_t *id, struct common_error *err);

// Ends the call with CANCELLED (callback on this stack) and notifies the peer. Unknown ids are ignored.
void proto_channel_cancel(struct proto_channel *channel, uint64_t id);

// ---- serving --------------------------------------------------------------------------------------------

struct proto_server;
struct proto_request; // one call being served

// Who may call a method: bits of 1 << Banyan__Pb__Role. A caller is a daemon only on a stream link that
// proved the secret.
struct proto_method {
    uint32_t method;
    uint32_t roles;
    // Must answer exactly once, now or later, by proto_request_reply or _fail. The request lives until then.
    void (*handle)(void *arg, struct proto_request *request);
};

enum proto_refusal {
    PROTO_REFUSED_CONNECTION, // garbage, a wrong proof, no place: the link, or what it sent, is dropped
    PROTO_REFUSED_TOKEN,
    PROTO_REFUSED_ROLE,
    PROTO_REFUSED_METHOD, // not served here
    PROTO_REFUSED_LIMIT,  // too many requests, or one too large
    PROTO_REFUSED_LATE,   // its deadline had passed
    PROTO_REFUSED_MESSAGE,
    PROTO_REFUSALS
};

struct proto_server_options {
    const char *name;
    uint32_t role;                      // ours
    const struct common_secret *secret; // the cluster's; NULL: no daemon can link
    const char *token; // clients must present it; NULL: none needed (loopback only, see proto_listen_allowed)
    // In place of the comparison with `token` where it is set: who presents these credentials (none: len 0).
    // False: he is refused. Asked at the proof of a client's stream link, and for each message over nng:
    // cheap, and takes no time that tells of tokens. `peer`: for people.
    bool (*admit)(void *arg, const void *credentials, size_t len, const char *peer,
                  struct proto_identity *out);
    // Why `admit` has refused these credentials, where that is more than that they are missing or wrong;
    // NULL: it is not. May be NULL.
    const char *(*unadmitted)(void *arg, const void *credentials, size_t len);
    // A connection has shown that it is a client of this tenant (over nng: by its first token), and counts as
    // its own until `leaves`. False: it is refused, and `text` says why. May be NULL, both or none.
    bool (*enters)(void *arg, uint32_t tenant, char *text, size_t bytes);
    void (*leaves)(void *arg, uint32_t tenant);
    uint64_t payload_max; // of requests; 0: PROTO_PAYLOAD_MAX
    // Connections of clients: over streams, and again over each nng endpoint; 0: 1024. Those that have not
    // shown yet who they are do not count here: PROTO_STRANGERS_MAX.
    uint32_t links_max;
    uint32_t daemons_max; // links of daemons; 0: 8192
    // Of clients, and again of daemons: what the ones have under way never keeps the others waiting.
    uint32_t requests_max; // being served; more get RESOURCE_EXHAUSTED; 0: 16384
    uint64_t bytes_max; // of requests being served; more: links are not read until it falls, nng's requests
                        // are RESOURCE_EXHAUSTED; 0: 1 GiB
    // Of these, what one connection of a client may have: beyond it, it is not read. 0: half of the requests
    // (of nng's, 256 at most); an eighth of the bytes, which answers count in, too (proto_request_charge).
    uint32_t caller_requests_max;
    uint64_t caller_bytes_max;
    const char *const
        *flags; // [PROTO_LIMIT_COUNT] what raises each, for people; entries and all may be NULL; kept
    const struct proto_method *methods; // ends with method 0; kept, not copied
    void *arg;                          // for all of these
    // Each failure of a client's request, before it leaves: its words may be altered in place (`bytes` of
    // room), and status.details' lists made shorter. May be NULL.
    void (*wording)(void *arg, const struct proto_request *request, char *text, size_t bytes,
                    Banyan__Pb__Status *status);
    // Each refusal, also those that the log leaves out: whom and why, for people. Strings are the callee's
    // until it returns. May be NULL.
    void (*refusing)(void *arg, enum proto_refusal refusal, const char *peer, const char *why);
    // Each request that is answered, once, before its answer leaves: also one that no handler has seen (its
    // message has no body then). `reply` is the answer's body; NULL: a failure. False: the answer is kept,
    // and the request with it, until proto_request_release, or until proto_request_fail answers a failure in
    // its place: once, not on this stack. May be NULL.
    bool (*answered)(void *arg, struct proto_request *request, enum common_code code,
                     const ProtobufCMessage *reply);
    void (*link_closed)(void *arg, uint64_t link); // stream only; may be NULL
    // Our certificate and the authorities that we trust; a reference is taken. Endpoints of TLS need it. A
    // daemon that links must show a certificate that says its role.
    struct common_tls *tls;
    bool
        tls_client_cert; // clients must show a certificate, too, that says the role of clients or of a daemon
};

enum common_code proto_server_new(struct common_loop *loop, const struct proto_server_options *options,
                                  struct proto_server **out, struct common_error *err);

// May be called several times, for several endpoints. ALREADY_EXISTS when the address is taken.
// INVALID_ARGUMENT: the endpoint, or one of TLS without `tls` or without a certificate in it.
enum common_code proto_server_listen(struct proto_server *server, const char *endpoint,
                                     struct common_error *err);

// The nth endpoint listened on, with its real port. NULL past the end.
const char *proto_server_endpoint(const struct proto_server *server, size_t nth);

// Closes listeners and links; requests being served may still be answered (the answers go nowhere). NULL is
// allowed.
void proto_server_close(struct proto_server *server);

// A token is not valid any more: the connections over which it was presented are closed, and what they have
// under way is cancelled; a step that workers compute ends by itself. token: not 0.
void proto_server_evict(struct proto_server *server, uint64_t token);

// Something was refused, perhaps beside the server's own connections, such as a call over HTTP: it is
// counted, told and logged (one warning a second at most).
void proto_server_refuses(struct proto_server *server, enum proto_refusal refusal, const char *peer,
                          const char *why);

struct proto_server_stats {
    uint64_t links, requests, bytes; // now: stream links, requests being served and their bytes
    uint64_t served,
        refused; // so far: requests handed to handlers; links and messages refused (garbage, proof, limits)
};
void proto_server_stats(const struct proto_server *server, struct proto_server_stats *out);

// What a server has answered so far; proto/rpc/metrics.h shows it.
struct proto_server_counts {
    const struct common_buckets *took; // [PROTO_METHOD_LIMIT] from the whole request to its answer
    uint64_t failed[COMMON_CODE_COUNT];
    uint64_t refused[PROTO_REFUSALS];
};
void proto_server_counts(const struct proto_server *server, struct proto_server_counts *out);

#define PROTO_STRANGERS_MAX 256 // connections to the stream endpoints, and to each of nng's

enum proto_limit {
    PROTO_LIMIT_STRANGERS, // connections that have not shown a token or a proof: the oldest goes
    PROTO_LIMIT_CLIENTS,
    PROTO_LIMIT_NNG_CLIENTS,
    PROTO_LIMIT_DAEMONS,
    PROTO_LIMIT_REQUESTS,
    PROTO_LIMIT_DAEMON_REQUESTS,
    PROTO_LIMIT_BYTES,
    PROTO_LIMIT_DAEMON_BYTES,
    PROTO_LIMIT_CALLER_REQUESTS, // `used`: of the client that has most
    PROTO_LIMIT_CALLER_BYTES,
    PROTO_LIMIT_UNREAD, // bytes of answers: half of bytes_max; then the link of the slowest reader is closed
    PROTO_LIMIT_COUNT
};

struct proto_limit_use {
    const char *name,
        *flag; // name: a word, for programs and people; flag: what raises it; NULL: nothing does
    uint64_t used, max;
    uint64_t refused; // times that it was reached: something was refused or closed, or a link was not read on
};
void proto_server_limits(const struct proto_server *server, struct proto_limit_use out[PROTO_LIMIT_COUNT]);

// Loopback addresses and unix sockets may always be listened on. Any other needs TLS (proto_endpoint_has_tls)
// and a token (or another proof that every peer has to give: has_token), or `insecure`.
// PERMISSION_DENIED with a sentence that says what is missing, and what to do.
enum common_code proto_listen_allowed(const char *endpoint, bool has_token, bool has_tls, bool insecure,
                                      struct common_error *err);

const struct proto_message *proto_request_message(const struct proto_request *request);
uint64_t proto_request_deadline(const struct proto_request *request); // absolute monotonic ns
const char *proto_request_peer(const struct proto_request *request); // for logs: "NAME@ADDRESS", or "ADDRESS"
uint32_t proto_request_method(const struct proto_request *request);  // Banyan__Pb__Method
uint32_t proto_request_role(const struct proto_request *request);    // Banyan__Pb__Role of the caller
// Whether its caller may call itself so, as a worker: over TLS, where its certificate names workers
// ("banyan:worker:NAME"), it must name this one. One that names none is good for any name.
bool proto_request_may_be_worker(const struct proto_request *request, const char *name);
// The link that it came over, as link_closed reports it: no other one of this server ever has the same. 0:
// nng. Until it is answered.
uint64_t proto_request_link(const struct proto_request *request);
bool proto_request_is_daemon(const struct proto_request *request); // its caller has proved the cluster secret
// Who asks, until the request is answered. Of daemons: access NONE and, as name, what the daemon calls
// itself.
const struct proto_identity *proto_request_identity(const struct proto_request *request);
// Monotonic ns when the message was complete.
uint64_t proto_request_arrived(const struct proto_request *request);

// The answer will take so many bytes: they count, until it is given, among those of its caller alone, whose
// link is not read while it has more than caller_bytes_max.
void proto_request_charge(struct proto_request *request, uint64_t bytes);

// Called when the caller vanished or cancelled (at most once, never after the reply; at once when that has
// already happened). The request must still be answered.
void proto_request_on_cancel(struct proto_request *request, proto_done_fn fn, void *arg);

// Whether the caller no longer waits for the answer: cancelled, or past its deadline. What alters something
// and has not begun had better not begin: the caller may have gone on to other things.
bool proto_request_over(const struct proto_request *request);

// The monotonic clock, as the handler has just read it before it answers: spares another look at it.
void proto_request_ends(struct proto_request *request, uint64_t now_ns);

// Answers OK. `sent` (may be NULL) runs exactly once when the tensors' bytes are no longer needed, at once or
// later. The request is gone.
void proto_request_reply(struct proto_request *request, const ProtobufCMessage *body,
                         const struct proto_tensor_out *tensors, size_t n_tensors, proto_done_fn sent,
                         void *sent_arg);

// The answer that was kept (proto_server_options.answered) leaves. The request is gone.
void proto_request_release(struct proto_request *request);

// Answers a failure. `details` may be NULL. The request is gone.
void proto_request_fail(struct proto_request *request, enum common_code code, const char *text,
                        Banyan__Pb__Detail **details, size_t n_details);
// The same, with a reason as its only detail.
void proto_request_fail_why(struct proto_request *request, enum common_code code, enum proto_reason reason,
                            const char *text);

#endif
