// SPDX-License-Identifier: Apache-2.0
// libbanyan: exact attention over a context that lives in a Banyan cluster. This one header is the whole
// contract, in the order in which programs need it: no program includes anything else.
//
// A session is one sequence; the cluster's workers hold its keys and values. A caller attaches context (in
// bulk) or appends it (in small parts, with a step), sends query rows and receives attention outputs. Every
// call is blocking, thread-safe and safe to repeat; only attend has asynchronous forms as well
// (banyan_attend_async, banyan_attend_queue). One thread of the library serves any number of calls; a
// blocking call that is the only one outstanding is served on the caller's own thread.
//
// Layouts. Row-major, densely packed, host byte order (little endian):
//   q [rows][q_heads][k_dim] float32
//   k [rows][kv_heads][k_dim], v [rows][kv_heads][v_dim] of the session's KV type; v is NULL if V is in K
//   k_scale, v_scale [rows][kv_heads] float32, for BANYAN_INT8 and BANYAN_FP8: element = scale * code
//   o [rows][q_heads][v_dim] float32
//   lse [rows][q_heads] float32, natural logarithm, −inf if the row saw no key
// with the heads and dimensions of the item's layer.
// Positions are global and start at 0. The row at position p sees the keys at positions ≤ p (and < visible
// if that is given), unless a mask of the layer says otherwise.
//
// Memory. Buffers that a call reads or writes belong to the caller and must stay valid until the call has
// returned (blocking) or its callback has run (asynchronous). What the library allocates is freed by the
// function named beside it.
//
// Errors. Functions return a code. If a struct banyan_error is passed (NULL is allowed), it receives a
// message that says what to do. If a failed call has changed something, repeating it puts that right.
// Outputs are written only on success, with one exception: an item too large for one frame (more than 4096
// rows or 16 MiB) is sent in parts, and some of its outputs may have been written when it fails. When a
// connection is lost, for example because the coordinator restarts, the library repeats the call until its
// deadline if that is safe.
//
// Contents: connection, sessions, attach, read, snapshots and attend are what a model needs; cluster,
// watching and kept steps are for operators. All of it is in one file: one include, one version, one
// contract.
#ifndef BANYAN_H
#define BANYAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BANYAN_API __attribute__((visibility("default")))

typedef enum banyan_code { // gRPC's canonical codes
    BANYAN_OK = 0,
    BANYAN_CANCELLED = 1, // banyan_shutdown or banyan_disconnect came first
    BANYAN_UNKNOWN = 2,   // the outcome is unknown (reason AUDIT_LOG), or this version has no such code
    BANYAN_INVALID_ARGUMENT = 3,    // wrong in any state
    BANYAN_DEADLINE_EXCEEDED = 4,   // no answer in time
    BANYAN_NOT_FOUND = 5,           // no such session, worker or token file
    BANYAN_ALREADY_EXISTS = 6,      // another session has the name
    BANYAN_PERMISSION_DENIED = 7,   // not allowed for this role
    BANYAN_RESOURCE_EXHAUSTED = 8,  // memory or a limit; nothing was changed
    BANYAN_FAILED_PRECONDITION = 9, // other bytes at an acknowledged position; a hole
    BANYAN_ABORTED = 10, // overtaken by a truncate or a new layout: read the session's state and try again
    BANYAN_OUT_OF_RANGE = 11,    // a position beyond the end, also for an append
    BANYAN_UNIMPLEMENTED = 12,   // not in this version
    BANYAN_INTERNAL = 13,        // a defect of Banyan
    BANYAN_UNAVAILABLE = 14,     // a worker or the coordinator cannot be reached now: try again
    BANYAN_DATA_LOSS = 15,       // no worker holds the tokens any longer
    BANYAN_UNAUTHENTICATED = 16, // the token is missing, expired or wrong
} banyan_code;

// Why a call has failed, more exactly than its code says. Programs compare these, never the message. Each
// reason comes with one of the codes named below. Numbers keep their meaning. NONE may also mean that the
// service is newer than this library and gave a reason that is not in this list, or that it is older and gave
// none.
typedef enum banyan_reason {
    BANYAN_REASON_NONE = 0, // the code is enough
    // ALREADY_EXISTS, NOT_FOUND, FAILED_PRECONDITION: of calls about tokens: the token exists already, does
    // not exist, or must be there first. Then: banyan_token_get_list.
    BANYAN_REASON_TOKEN = 1,
    // FAILED_PRECONDITION: tokens that the call needs are not committed, or not attached (or were dropped
    // because they were not committed within a worker's --attach-ttl): their ranges are named. Then: attach
    // and commit them.
    BANYAN_REASON_HOLE = 2,
    // FAILED_PRECONDITION: tokens that the call needs were freed: it goes further back than the session's
    // margin (docs/reference/wire.md, "Windows that forget"). Then: nothing brings them back; a session with
    // a larger forget, or with 0, keeps more.
    BANYAN_REASON_FORGOTTEN = 3,
    // DATA_LOSS: of a commit: rows in a worker's memory differ from those that the client attached: ranges
    // and workers are named, the rows were dropped. Of a read: what came differs from the worker's memory, or
    // that from its seal. Then: attach the ranges again, then commit again; if they were committed before
    // (the message says so), truncate before them.
    // FAILED_PRECONDITION: holders of a chunk have different bytes for the range of the commit. Then: attach
    // the range again.
    BANYAN_REASON_HASH_MISMATCH = 4,
    // FAILED_PRECONDITION: the ticket has expired, or is of an earlier term, or this worker no longer holds
    // the chunk, or more workers hold it since the ticket was issued. Then: AttachOpen or ReadOpen again (the
    // library does).
    BANYAN_REASON_OLD_TICKET = 5,
    // UNAVAILABLE: tokens are on workers that are absent; ranges (the first 15, and one that spans the rest)
    // and workers are named. Then: try again, or take a partial answer.
    // DATA_LOSS: a worker returned without them: no worker holds these tokens any longer. Then: truncate
    // before the loss, or delete and attach again, or take a partial answer.
    BANYAN_REASON_MISSING_RANGE = 6,
    // UNAVAILABLE, DEADLINE_EXCEEDED, or the code of the call that failed: a worker did not answer, or was
    // lost meanwhile, or refuses this session's layout. Then: try again.
    BANYAN_REASON_WORKER_LOST = 7,
    // UNAVAILABLE: workers hold a newer state of the session than the coordinator's store has. Then: start
    // the coordinator on the store that lists it, or give that state up: banyanctl quarantine.
    BANYAN_REASON_QUARANTINE = 8,
    // UNAVAILABLE: the coordinator's store was restored from a backup, and no operator has confirmed yet that
    // all workers are back. Then: banyanctl accept (docs/operating/backup.md).
    BANYAN_REASON_RESTORED = 9,
    // DATA_LOSS: of a commit: it is durable, but the named worker lacks rows of the range. Then: attach the
    // range again, then commit it again.
    // DATA_LOSS: of any other call: an answer does not cover what the layout demands, copies of appended rows
    // are missing, or a worker has lost the session or a chunk that it should hold. Then: try again; if it
    // persists, proceed as for lost data.
    BANYAN_REASON_COVERAGE = 10,
    // ABORTED: a worker has another epoch of the layout than the step; or a layout or plan arrived late.
    // Then: try again (the coordinator does).
    BANYAN_REASON_OLD_EPOCH = 11,
    // ABORTED: a worker does not have the step's plan, or no longer; or another worker's step is of a term
    // that no coordinator has begun there. Then: try again (the coordinator does, with a new plan).
    BANYAN_REASON_OLD_PLAN = 12,
    // ABORTED: between coordinator and workers: rows that the item reads are on the worker's disk
    // (--store-limit), and are being read; or it appends, and the worker's disk is slow. Then: try again (the
    // coordinator does, in a frame of its own).
    BANYAN_REASON_COLD = 13,
    // RESOURCE_EXHAUSTED: no worker has memory for another chunk, or one, which is named, has none for rows
    // whose chunk cannot go elsewhere: it has rows already, or may be being attached to. Between coordinator
    // and workers: of any append; the coordinator tries another worker first. Then: delete sessions, raise
    // --memory, or add workers.
    BANYAN_REASON_FULL = 14,
    // ABORTED: the session was truncated meanwhile. Then: ask for its state, then try again.
    BANYAN_REASON_OLD_INCARNATION = 15,
    // ABORTED: an append was overtaken by a newer one at the same positions, or was undone. Then: ask for the
    // session's state.
    BANYAN_REASON_OLD_WRITE = 16,
    // any: an append has failed, and it is unknown whether its rows are stored: all of them or none
    // (docs/reference/wire.md, "Appends that fail"). Then: the same append again.
    BANYAN_REASON_UNCONFIRMED = 17,
    // ABORTED: between coordinator and workers: a prepare arrived after its commit had ended. Then: nothing:
    // no call waits for it.
    BANYAN_REASON_OLD_COMMIT = 18,
    // ABORTED: between coordinator and workers: a newer coordinator has contacted this worker. Then: stop the
    // older coordinator.
    BANYAN_REASON_OLD_TERM = 19,
    // RESOURCE_EXHAUSTED: a quota of the tenant (docs/operating/quotas.md): the message names the quota, its
    // use and the command that raises it; for a rate, retry_ns is the time until the call may succeed. Then:
    // use less, wait, or ask an admin.
    BANYAN_REASON_QUOTA = 20,
    // FAILED_PRECONDITION: the coordinator's audit log cannot be written, and --audit-required refuses
    // changes; nothing was changed. Then: make room for the file (docs/operating/audit.md), then the same
    // call.
    // UNKNOWN, DEADLINE_EXCEEDED: with --audit-required: the call was carried out, and the audit log has no
    // record of it (UNKNOWN), or has none yet (DEADLINE_EXCEEDED). Then: check the state before you repeat
    // the call.
    BANYAN_REASON_AUDIT_LOG = 21,
    // RESOURCE_EXHAUSTED: sessions, plans, ranges of a layer, waiting steps, operations or readers of events.
    // Then: the message names the limit.
    // OUT_OF_RANGE: past --max-session-tokens. Then: the message names the limit.
    // INVALID_ARGUMENT: an attach or a read of more than 1,024 chunks at once. Then: cut it.
    BANYAN_REASON_LIMIT = 22,
    // FAILED_PRECONDITION: the session already holds other bytes at a position that the call writes,
    // committed or being committed: another program writes to this session. Then: let one program write;
    // others fork it. Read the session's length before you go on.
    BANYAN_REASON_OTHER_BYTES = 23,
    // any, while a connection is made: TLS: a certificate file cannot be used, or one end does not accept the
    // other's certificate. Then: the message says which end and why (docs/operating/tls.md).
    BANYAN_REASON_TLS = 24,
    // UNAUTHENTICATED: the token is missing, expired or wrong. Then: give the right one (banyan_options,
    // --token-file, BANYAN_TOKEN_FILE).
    // NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT: the token file cannot be used. Then: the message says
    // why.
    BANYAN_REASON_CREDENTIALS = 25,
    // PERMISSION_DENIED: the token's access does not permit this call. Then: use the token of an operator or
    // of an admin, as the message says (docs/operating/tenants.md).
    BANYAN_REASON_ACCESS = 26,
    // UNAVAILABLE: no coordinator is reached at the endpoint. Then: start it, or correct the endpoint.
    BANYAN_REASON_UNREACHABLE = 27,
    // DEADLINE_EXCEEDED: the coordinator or a worker is connected and has not answered in time. Then: allow
    // more time; banyanctl workers shows a worker that does not answer.
    BANYAN_REASON_NO_ANSWER = 28,
    // UNAVAILABLE: no worker is active. Then: start one, or wait for one.
    BANYAN_REASON_NO_WORKER = 29,
    // NOT_FOUND: the tenant has no such session: it may have been deleted, or be another tenant's. Then:
    // banyan_session_get_list.
    BANYAN_REASON_NO_SESSION = 30,
    // NOT_FOUND: the cluster has no worker with this name. Then: banyan_cluster_get_info lists the workers.
    BANYAN_REASON_UNKNOWN_WORKER = 31,
    // ALREADY_EXISTS: another session has the name. Then: open that one, or choose another name.
    BANYAN_REASON_NAME_TAKEN = 32,
    // OUT_OF_RANGE: a position beyond the end of the session, or of one of its layers. Then: read the
    // lengths (banyan_session_get_info).
    BANYAN_REASON_PAST_END = 33,
    // RESOURCE_EXHAUSTED: the disk of the coordinator's store is full. Then: make room there; nothing has
    // been changed.
    BANYAN_REASON_STORE = 34,
    // any, of snapshots: a file or folder of this machine cannot be read or written, is there already, or
    // does not hold what it should. Then: the message names it.
    BANYAN_REASON_FILE = 35,
} banyan_reason;

BANYAN_API const char *banyan_code_name(banyan_code code);       // "OK", "NOT_FOUND", …
BANYAN_API const char *banyan_reason_name(banyan_reason reason); // "HOLE", …; "" for NONE and unknown numbers
BANYAN_API const char *banyan_version(void);                     // "0.2.0"

typedef struct banyan_range {
    uint64_t first, count;
} banyan_range; // tokens [first, first + count)

typedef struct banyan_error {
    banyan_code code;
    char message[384]; // one line
    banyan_reason reason;
    // The token ranges concerned (a hole, what a lost worker held). If there are more than 16, the last one
    // spans the rest.
    uint32_t n_ranges;
    banyan_range ranges[16];
    char worker[65];   // the worker concerned, or ""
    uint64_t retry_ns; // reason QUOTA, for a rate: how long until the call may succeed; else 0
} banyan_error;

// ---- connection ---------------------------------------------------------------------------------

typedef struct banyan_client banyan_client;

typedef struct banyan_options {
    const char *token_file; // NULL: no token
    uint64_t timeout_ns;    // for calls that give none; 0: 30 s
    uint32_t calls_max; // most outstanding asynchronous calls; more are RESOURCE_EXHAUSTED; 0: 16384. A call
                        // for the queue counts until it is fetched
    uint64_t connect_timeout_ns; // how long banyan_connect waits for the first answer; 0: timeout_ns
    const char *token;           // the token itself, if token_file is NULL: copied; NULL: none
    // For tls:// and nng+tls:// (PEM files; all NULL: none): the CA certificates to trust and, if the cluster
    // requires client certificates, the client's certificate and its key, which no other user may be able to
    // read. They are read once, by banyan_connect.
    const char *tls_ca, *tls_cert, *tls_key;
} banyan_options;

// Connects to a coordinator: "tcp://127.0.0.1:7412", "nng+tcp://…" or "unix:///path" (lowest latency), or
// over TLS, with tls_ca: "tls://host:7413" (TLS 1.3) or "nng+tls://host:7414" (TLS 1.2, where host is a
// name). The coordinator's certificate must contain the name or address; no connection falls back to plain
// text. NULL: BANYAN_ENDPOINT, else "tcp://127.0.0.1:7412". Blocks until the coordinator has answered,
// and keeps trying while it is not running yet. options may be NULL. UNAVAILABLE, with the reason: it cannot
// be reached (over nng this may take 1 s longer). NOT_FOUND: the token file or a certificate file does not
// exist. Messages over TCP carry checksums unless BANYAN_CHECKSUMS is "never"; with "always", messages over
// unix sockets carry them as well. An answer damaged in transit is UNAVAILABLE.
// Spans of items with a traceparent are exported if BANYAN_TRACE_FILE, or OpenTelemetry's variables with the
// protocol http/json, are set (docs/operating/tracing.md). INVALID_ARGUMENT: that file cannot be opened.
// The endpoint may be a list, A,B, of addresses where the cluster's coordinator may run, one at a time. Calls
// go to the one that serves. When another takes over, calls that may safely be repeated go there, as after a
// lost connection.
BANYAN_API banyan_code banyan_connect(const char *endpoint, const banyan_options *options,
                                      banyan_client **out, banyan_error *error);

// Ends outstanding calls with CANCELLED (their callbacks run before this returns), and every later call in
// any thread; the client stays valid until banyan_disconnect. If other threads may still make calls: call
// banyan_shutdown, wait for these threads, then call banyan_disconnect. Must not be called from a callback.
// NULL is allowed; a second shutdown does nothing.
BANYAN_API void banyan_shutdown(banyan_client *client);

// Shuts down as banyan_shutdown does and frees the client: no thread may be about to begin a call or be
// inside banyan_shutdown. Completions that were not fetched from the queue are dropped. Sessions of this
// client may only be closed afterwards. Must not be called from a callback. NULL is allowed.
BANYAN_API void banyan_disconnect(banyan_client *client);

// ---- sessions -----------------------------------------------------------------------------------

typedef enum banyan_kv_type {
    BANYAN_F32 = 1,
    BANYAN_F16 = 2,  // IEEE binary16
    BANYAN_BF16 = 3, // bfloat16
    // Quantised: one byte per element and one float32 scale per token and KV head, for K and for V. Answers
    // are exact for the elements scale * code; docs/internals/precision.md describes the error of quantising.
    BANYAN_INT8 = 4, // int8_t -128 .. 127
    BANYAN_FP8 = 5,  // OCP FP8 e4m3: bias 7, no infinities, 0x7f and 0xff NaN, largest 448
} banyan_kv_type;

// True for BANYAN_INT8 and BANYAN_FP8, which need k_scale and v_scale.
BANYAN_API bool banyan_kv_scaled(banyan_kv_type type);

// Quantises `rows` rows of `dim` floats (a row is one KV head of one token) to BANYAN_INT8 or BANYAN_FP8,
// each with the scale max|x| / 127 or max|x| / 448 and codes rounded to nearest, ties to even. A row of zeros
// has scale 0; a row with a NaN or an infinity has scale NaN, which shows in every answer that sees it. codes
// [rows][dim], scales [rows]. INVALID_ARGUMENT: another type.
BANYAN_API banyan_code banyan_quantise(banyan_kv_type type, const float *x, size_t rows, uint32_t dim,
                                       void *codes, float *scales);

// For models whose layers differ: each kind of layer has its own heads, dimensions and mask. The fields are
// as in banyan_spec.
typedef struct banyan_kind {
    uint32_t q_heads, kv_heads; // q_heads is a multiple of kv_heads
    uint32_t k_dim, v_dim;
    float scale;         // 0: 1/sqrt(k_dim)
    float soft_cap;      // 0: none
    uint64_t window;     // 0: none
    uint64_t mask_chunk; // 0: none
    bool not_causal, v_in_k;
    const float *alibi; // NULL or [q_heads] slopes
} banyan_kind;

#define BANYAN_LAYER_LOCAL UINT32_MAX
#define BANYAN_SHARES_NONE UINT32_MAX

typedef struct banyan_spec {
    uint32_t layers, q_heads, kv_heads; // q_heads is a multiple of kv_heads
    uint32_t k_dim, v_dim;
    banyan_kv_type kv_type;
    float scale;           // 0: 1/sqrt(k_dim)
    float soft_cap;        // 0: none
    uint64_t window;       // 0: none
    const float *alibi;    // NULL or [q_heads] slopes
    const float *sinks;    // NULL or [q_heads] logits
    uint32_t chunk_tokens; // 0: 256
    // 0: as few workers as the length requires. n: exactly n workers, or all if there are fewer; more only if
    // memory is short or replicas is larger.
    uint32_t members;
    // 0: kept until it is deleted, or as the coordinator's --session-ttl says. Otherwise the session is
    // deleted after this long without use. Every call that reaches the coordinator is a use: create, open,
    // info, steps, fork, truncate, attach, commit. An attach counts as use for as long as its ticket is valid
    // (the coordinator's --ticket-life), even after it has ended.
    uint64_t idle_ttl_ns;
    uint64_t mask_chunk; // 0: none; else the row at position p sees keys from p - p % mask_chunk onwards
    bool not_causal;     // rows also see later keys, up to visible; without window, mask_chunk and alibi
    bool v_in_k;         // V is the first v_dim elements of K: v is NULL everywhere, and only K is held
    // Layers that differ. n_kinds 0: all layers are alike, as in the fields above, and the pointers below are
    // NULL. Otherwise the fields above from q_heads to sinks and from mask_chunk to v_in_k are 0 and NULL.
    uint32_t n_kinds;
    const banyan_kind *kinds;        // [n_kinds], at most 64
    const uint32_t *layer_kind;      // [layers] its kind, or BANYAN_LAYER_LOCAL: the layer holds nothing here
    const uint32_t *shares;          // NULL or [layers]: BANYAN_SHARES_NONE, or the lower layer whose K and V
                                     // this one reads; then nothing can be attached or appended to it
    const float *const *layer_sinks; // NULL or [layers]: NULL, or [q_heads of the layer] logits
    // 0: everything is kept. Otherwise rows that windows (or mask_chunk) have left behind are forgotten and
    // their memory is freed. Each layer keeps the rows that can be seen from `forget` tokens before the start
    // of its newest append or commit. Truncates and forks may go back that far; calls that go further are
    // refused with FAILED_PRECONDITION, reason FORGOTTEN. (After a restart of the coordinator nothing more is
    // forgotten until each layer has been written to.)
    uint64_t forget;
    // How many workers hold each part of the session, 1 to 3; 0: the coordinator's --replicas, else 2 if
    // workers run on two hosts or more, else 1. The loss of all but one of them loses nothing, and calls with
    // enough time do not fail. Each copy takes memory.
    uint32_t replicas;
} banyan_spec;

typedef struct banyan_session banyan_session; // a client's handle of a session; thread-safe

// Creates a session. name: NULL or a unique printable name. After DEADLINE_EXCEEDED or UNAVAILABLE it may
// have been created: with a name, open it or repeat the call (ALREADY_EXISTS); without one, the client
// deletes it in the background while it is connected.
BANYAN_API banyan_code banyan_session_create(banyan_client *client, const banyan_spec *spec, const char *name,
                                             banyan_session **out, banyan_error *error);
// Creates a session that begins with a floor, as if it had forgotten all rows that no row at or past the
// floor sees (banyan_spec.forget). This recreates a session of which only later rows are left. In each layer
// the rows below banyan_session_info.layer_forgotten count as committed from the start, and reading them is
// refused with FORGOTTEN; a layer without window and mask_chunk begins at 0 as usual. The session holds only
// what is then attached and committed. A step that sees a row which has not been attached is refused:
// OUT_OF_RANGE, or FAILED_PRECONDITION with reason HOLE. The floor does not rise meanwhile if the first rows
// of one layer are committed last. floor 0: the same as banyan_session_create.
// With a floor this attaches to workers, in some calls per layer. OK means that everything has been done;
// after a failure the session is gone, unless the message says otherwise. INVALID_ARGUMENT: a floor with a
// spec whose forget is 0. OUT_OF_RANGE: a floor past the coordinator's --max-session-tokens, or past 2^18
// chunks. UNIMPLEMENTED: the coordinator runs an older build. Otherwise as banyan_session_create,
// banyan_attach and banyan_commit.
BANYAN_API banyan_code banyan_session_create_at(banyan_client *client, const banyan_spec *spec,
                                                const char *name, uint64_t floor, banyan_session **out,
                                                banyan_error *error);
// Opens a session by id, or by name if id is 0.
BANYAN_API banyan_code banyan_session_open(banyan_client *client, uint64_t id, const char *name,
                                           banyan_session **out, banyan_error *error);
// Releases this handle; the session itself remains (until its idle time to live ends). No call on this handle
// may be in flight. Notifies the coordinator, which takes a round trip of at most a second. May be called in
// a callback. NULL is allowed.
BANYAN_API void banyan_session_close(banyan_session *session);
// Deletes the session and all its data. The handle must still be closed.
BANYAN_API banyan_code banyan_session_delete(banyan_session *session, banyan_error *error);

BANYAN_API uint64_t banyan_session_id(const banyan_session *session); // never 0
// The spec with defaults filled in; valid until the handle is closed.
BANYAN_API const banyan_spec *banyan_session_spec(const banyan_session *session);

typedef struct banyan_hole { // tokens of a layer that are not committed, below others that are
    uint32_t layer;
    uint64_t first, count;
} banyan_hole;

typedef struct banyan_session_info {
    // length: of the shortest layer with K and V of its own
    uint64_t id, incarnation, epoch, chunks, bytes, length, steps, idle_ns;
    char name[129], state[16];
    uint32_t n_layers;
    // [n_layers] tokens committed from 0 without a hole; a layer that reads another's K and V has that
    // layer's length, and a layer that holds nothing has 0
    uint64_t *layer_lengths;
    uint32_t n_members;
    char (*members)[65];       // names of the workers that hold a part
    uint64_t forgotten;        // truncates and forks cannot go further back, except to 0 (banyan_spec.forget)
    uint64_t *layer_forgotten; // [n_layers] rows below it are forgotten; they count in length, not in bytes
    uint32_t n_holes;
    banyan_hole *holes; // [n_holes] by layer, ascending; if there are very many, the first ones
    char tenant[65];    // its owner; "" unless the caller is an operator or admin
    // Chunks whose last appends are unknown, because their workers have been away since the coordinator's
    // start: there may be more tokens than `length`
    uint64_t unknown_chunks;
    bool kept; // it has ended and is kept as cache (banyan_session_keep)
} banyan_session_info;
// Reads the session's state. A handle remembers the history (incarnation) that it has seen. After another
// client has truncated the session, calls on this handle are refused with ABORTED until the state has been
// read.
BANYAN_API banyan_code banyan_session_get_info(banyan_session *session, banyan_session_info *out,
                                               banyan_error *error);
BANYAN_API void banyan_session_info_free(banyan_session_info *info); // frees its fields; NULL is allowed

typedef struct banyan_holding { // a worker's part of a session
    char worker[65];
    uint64_t bytes; // of committed rows in its copies
} banyan_holding;

typedef struct banyan_session_memory {
    uint64_t bytes;        // as banyan_session_info.bytes: one copy of each row
    uint64_t shared_bytes; // of these, bytes of chunks shared with other sessions (forks), which exist once
    uint32_t n_holdings;
    banyan_holding *holdings; // [n_holdings] all workers that hold a part
} banyan_session_memory;
// Reads where the session takes memory. The coordinator goes through all its sessions for this, so it is not
// for every step. UNIMPLEMENTED: the coordinator runs an older build.
BANYAN_API banyan_code banyan_session_get_memory(banyan_session *session, banyan_session_memory *out,
                                                 banyan_error *error);
// Frees its fields; NULL is allowed.
BANYAN_API void banyan_session_memory_free(banyan_session_memory *memory);

// Keeps the first `length` tokens of every layer (all of a shorter one). Steps in flight end first.
// OUT_OF_RANGE: beyond the longest layer. FAILED_PRECONDITION, reason FORGOTTEN: see banyan_spec.forget.
// ABORTED: another client has truncated the session since this handle last saw its state. It is carried out
// at most once, however often it is sent, and never after a later write on this handle. After UNAVAILABLE,
// DEADLINE_EXCEEDED or CANCELLED it may have been carried out; until that is known, appends, attaches and
// commits on this handle are refused with ABORTED. banyan_session_get_info or the next truncate settles it:
// once either has succeeded, the earlier truncate has either been carried out or never will be. Truncates on
// one handle wait for each other. To continue a session after another process has ended, truncate it first
// (to its current length): then no truncate of that process can take effect later.
BANYAN_API banyan_code banyan_session_truncate(banyan_session *session, uint64_t length, banyan_error *error);
// Creates a session with the first `length` tokens; full chunks are shared, not copied. length ≤ the shortest
// layer. FAILED_PRECONDITION, reason FORGOTTEN: see banyan_spec.forget.
BANYAN_API banyan_code banyan_session_fork(banyan_session *session, uint64_t length, const char *name,
                                           banyan_session **out, banyan_error *error);

// ---- prefixes found by content ------------------------------------------------------------------

// A session that has ended may be kept as cache. Any client of the tenant can then find it by hashes of its
// tokens, even after everything was restarted (docs/concepts/prefixes.md).
//
// Hash i stands for all tokens up to the end of chunk i. Two texts with the same hash are the same text,
// unless two texts collide in the first 128 bits of SHA-256. A program whose sessions hold their tokens (in a
// layer of their own) should compare the tokens before it relies on a match.

#define BANYAN_PREFIX_HASH 16 // bytes of a hash

// Computes the hashes of the n / chunk_tokens whole chunks of these tokens and writes them to `hashes`, one
// after the other, BANYAN_PREFIX_HASH bytes each. chunk_tokens 0: 256, as in banyan_spec. salt: everything
// besides the tokens that determines K and V (the model, its weights), and anything that is meant to keep
// texts of one tenant apart; hashes with different salts never match. NULL is allowed if salt_bytes is 0.
// Contacts nothing.
BANYAN_API banyan_code banyan_prefix_hashes(const void *salt, size_t salt_bytes, const int64_t *tokens,
                                            uint64_t n, uint32_t chunk_tokens, void *hashes,
                                            banyan_error *error);
// As banyan_session_create, but starts from what is kept: if kept sessions of the tenant begin with the same
// hashes, the new session is a fork of the one with the longest match. Full chunks are shared, not copied.
// *length is the number of tokens that every layer begins with; 0: nothing matches, or the coordinator runs
// an older build. A kept session matches only if it has the same spec; idle_ttl_ns may differ, and it may
// have more replicas. n 0: nothing is looked for. If the create would succeed without a match, it does not
// fail because of one.
BANYAN_API banyan_code banyan_session_create_from(banyan_client *client, const banyan_spec *spec,
                                                  const char *name, const void *hashes, uint32_t n,
                                                  banyan_session **out, uint64_t *length,
                                                  banyan_error *error);
// Finds how many tokens of this text are kept. Creates nothing, and does not count as a use of the kept
// session. UNIMPLEMENTED: the coordinator runs an older build.
BANYAN_API banyan_code banyan_prefix_find(banyan_client *client, const banyan_spec *spec, const void *hashes,
                                          uint32_t n, uint64_t *length, banyan_error *error);

typedef struct banyan_kept {
    uint64_t session; // the kept session: this one, or an earlier one with the same text; 0: none
    uint64_t length;  // tokens that can be found
    char why[256];    // why this one is not kept; "": it is kept
} banyan_kept;
// Ends a session without a name: keeps it as cache, or deletes it if it cannot be kept. The handle must still
// be closed. hashes: those of the session's first n chunks, which must be full in every layer. Another client
// with the same hashes gets these keys and values. ttl_ns: delete it when no session has been created from it
// for this long; 0: no such limit. pin: never delete it to make room. Without pin, the least recently used
// kept sessions are deleted before anything else is refused for lack of memory or quota. Kept sessions are
// charged to the tenant. out: NULL is allowed.
// A kept session refuses writes (FAILED_PRECONDITION); it can be forked, read and deleted like any other.
// FAILED_PRECONDITION: it has a name, or forgets (banyan_spec.forget). OUT_OF_RANGE: hashes past its end.
// UNIMPLEMENTED: the coordinator runs an older build. After a failure the session still exists.
BANYAN_API banyan_code banyan_session_keep(banyan_session *session, const void *hashes, uint32_t n,
                                           uint64_t ttl_ns, bool pin, banyan_kept *out, banyan_error *error);

typedef struct banyan_prefix_info {
    uint64_t session, length;
    uint64_t bytes; // what it counts in the tenant's quota, including chunks shared with other sessions
    uint64_t hits;  // sessions created from it, since the coordinator's start
    uint64_t idle_ns, ttl_ns;
    uint64_t hash; // the first bytes of its last hash, to distinguish texts
    bool pinned;
    char tenant[65]; // "" unless the caller is an operator or admin
} banyan_prefix_info;
typedef struct banyan_prefix_list {
    uint32_t n;
    banyan_prefix_info *prefixes; // [n]
    uint64_t kept, bytes;         // their number and their bytes in total
    uint64_t limit_bytes;         // the coordinator's --prefix-cache, for operators and admins; 0: off
} banyan_prefix_list;
// Lists the kept sessions of the tenant; of all tenants for operators and admins. UNIMPLEMENTED: the
// coordinator runs an older build.
BANYAN_API banyan_code banyan_prefix_get_list(banyan_client *client, banyan_prefix_list *out,
                                              banyan_error *error);
BANYAN_API void banyan_prefix_list_free(banyan_prefix_list *list); // frees its fields; NULL is allowed
// Deletes a kept session, or all of the caller's tenant if session is 0, including pinned ones. NOT_FOUND:
// there is no such kept session. *sessions, *bytes: how much was deleted; NULL is allowed.
BANYAN_API banyan_code banyan_prefix_drop(banyan_client *client, uint64_t session, uint64_t *sessions,
                                          uint64_t *bytes, banyan_error *error);

// ---- states: what a model keeps beside K and V ---------------------------------------------------

// A state is a block of the caller's bytes for one position: what a recurrent layer or a convolution has
// computed from all tokens before it (docs/concepts/states.md). The service does not interpret it, and keeps
// it like rows: acknowledged when every copy has it, compared with checksums, part of snapshots, on disk with
// --store, charged to the tenant, deleted with the session. A fork shares the states up to its length. A
// truncate removes those past its length.
//
// States are stored as rows of a second session, named "states-of-0x" and the id of the first. Lists show it,
// and it counts as a session of the tenant.

#define BANYAN_STATE_DIGEST 16 // bytes

typedef struct banyan_state {
    uint32_t layer;
    uint64_t position; // it was computed from the tokens before this one
    uint64_t bytes;
    uint8_t digest[16]; // as it was put; BANYAN_STATE_DIGEST bytes
    void *data;         // [bytes]; NULL in a list
} banyan_state;
typedef struct banyan_state_list {
    size_t n;
    banyan_state *states; // [n] by ascending positions
} banyan_state_list;

// Stores a state of a layer. `digest` identifies what it was computed from, for example a hash of the model
// and of the tokens before the position: compare it before you use the state. After OK the whole state is
// stored; a part of one never is. Positions must ascend; storing the same state again changes nothing.
// FAILED_PRECONDITION: the layer has a different state at this position (OTHER_BYTES), or states past it,
// which banyan_state_cut removes. OUT_OF_RANGE: past the session's shortest layer. ABORTED: the session was
// truncated, and this handle has not read its state since. If two programs put states at the same time, one
// of them fails, as with rows (OTHER_BYTES, HASH_MISMATCH). RESOURCE_EXHAUSTED: as for rows. UNIMPLEMENTED:
// the coordinator runs an older build.
BANYAN_API banyan_code banyan_state_put(banyan_session *session, uint32_t layer, uint64_t position,
                                        const void *data, uint64_t bytes, const void *digest,
                                        banyan_error *error);
// Reads the newest state of a layer at or before a position. NOT_FOUND: there is none. DATA_LOSS: as for
// rows, and if the bytes do not match the checksum of what was put.
BANYAN_API banyan_code banyan_state_get(banyan_session *session, uint32_t layer, uint64_t position,
                                        banyan_state *out, banyan_error *error);
BANYAN_API void banyan_state_free(banyan_state *state); // frees its fields; NULL is allowed
// Lists the states of all layers, without their bytes. n 0: there is none.
BANYAN_API banyan_code banyan_state_get_list(banyan_session *session, banyan_state_list *out,
                                             banyan_error *error);
BANYAN_API void banyan_state_list_free(banyan_state_list *list); // frees its fields; NULL is allowed
// Removes all states past a position, of all layers, and nothing else. OK if there are none.
BANYAN_API banyan_code banyan_state_cut(banyan_session *session, uint64_t position, banyan_error *error);

// ---- temporary forks ----------------------------------------------------------------------------

// Creates a temporary fork, for reading a session at one point while it stays in use. It is deleted after
// idle_ttl_ns without use (banyan_spec.idle_ttl_ns; 0: as for the original), even if the process that created
// it has died.
BANYAN_API banyan_code banyan_session_pin(banyan_session *session, uint64_t length, uint64_t idle_ttl_ns,
                                          const char *name, banyan_session **out, banyan_error *error);

// ---- attach: bulk context -----------------------------------------------------------------------

// Sends K and V of `count` tokens of one layer directly to the workers that will hold them. Layers and ranges
// may be sent in any order, from any number of threads; a range may be sent again until it is committed. Rows
// are not visible before they are committed. Uncommitted rows are dropped after a while without an attach to
// their chunk (the workers' --attach-ttl, 15 minutes), and are lost with a worker that is lost or was
// unreachable for some heartbeats. The commit then names them: attach them again. The client's timeout limits
// the time without progress: it restarts whenever something arrives. v is NULL if V is in K.
// INVALID_ARGUMENT: a layer without K and V of its own.
BANYAN_API banyan_code banyan_attach(banyan_session *session, uint32_t layer, uint64_t first, uint64_t count,
                                     const void *k, const void *v, banyan_error *error);
// The same for BANYAN_INT8 and BANYAN_FP8, with scales. banyan_attach refuses such sessions; this function
// refuses all others.
BANYAN_API banyan_code banyan_attach_scaled(banyan_session *session, uint32_t layer, uint64_t first,
                                            uint64_t count, const void *k, const float *k_scale,
                                            const void *v, const float *v_scale, banyan_error *error);
// Makes a range visible once its holders have it as it was attached. FAILED_PRECONDITION: rows are missing
// and are named; nothing was changed. Ranges of concurrent commits may overlap. DATA_LOSS: the range is
// committed, but a worker, which is named, has lost rows of it: attach the range again, then commit it again.
// DATA_LOSS, reason HASH_MISMATCH: rows in a worker's memory differ from those that this handle attached, and
// were discarded: do the same. Rows attached by other handles, and parts of an attach that end inside a
// chunk, are not compared. A committed range may be committed again: OK means that its holders have it now.
BANYAN_API banyan_code banyan_commit(banyan_session *session, uint32_t layer, uint64_t first, uint64_t count,
                                     banyan_error *error);

// ---- read: rows as they are held -----------------------------------------------------------------

// Reads K and V of rows [first, first + count) of one layer from the workers that hold them, as they were
// attached or appended: k [count][kv_heads][k_dim], v [count][kv_heads][v_dim] of the session's KV type, for
// BANYAN_INT8 and BANYAN_FP8 also k_scale and v_scale [count][kv_heads] (else NULL); v is NULL if V is in K.
// The buffers are the caller's; a call that fails may have written parts of them. Rows are read in pieces of
// 256 KiB, up to 32 at once from several workers; each piece is compared with the checksum of its holder's
// memory, and another holder is tried if one fails. Steps are not disturbed. Blocks; any thread. The client's
// timeout limits the time without progress.
// OUT_OF_RANGE: past the shortest layer. FAILED_PRECONDITION, reason FORGOTTEN: see banyan_spec.forget.
// ABORTED: the session was truncated meanwhile. DATA_LOSS: no worker has the rows, or the rows that they send
// do not match their checksums (HASH_MISMATCH). INVALID_ARGUMENT: a layer without K and V of its own.
BANYAN_API banyan_code banyan_read_rows(banyan_session *session, uint32_t layer, uint64_t first,
                                        uint64_t count, void *k, float *k_scale, void *v, float *v_scale,
                                        banyan_error *error);

// ---- snapshots: sessions as files ----------------------------------------------------------------

// Reports the progress of a snapshot or a restore, in bytes of K and V. Runs on the thread that made the
// call: once at the beginning, then at least every 200 ms, even if nothing moves. Return false to cancel: the
// call finishes the files at hand and returns CANCELLED, and leaves nothing behind, as after any failure.
typedef bool (*banyan_progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);

typedef struct banyan_snapshot_options {
    bool zstd;                // compress each file
    uint32_t threads;         // files at a time, 1 to 16; each takes up to 128 MiB of this process. 0: 2
    uint64_t file_bytes;      // at most so many bytes of K and V per file, 4096 to 64 MiB; 0: 64 MiB
    banyan_progress progress; // NULL: none
    void *progress_arg;
} banyan_snapshot_options;

typedef struct banyan_snapshot {
    uint64_t session;       // the session that was written, or the new one of a restore
    uint64_t tokens;        // of each layer
    uint64_t longest_layer; // tokens of the session's longest layer, which may have more
    uint64_t forgotten;     // the session's floor (banyan_session_info.forgotten)
    uint64_t files, bytes;  // bytes of K and V
    uint64_t stored_bytes;  // of the files; less if they are compressed
    uint64_t took_ns;
    // The temporary fork, if it could not be deleted: the service deletes it after some minutes without use.
    // 0: it was deleted
    uint64_t fork_left;
} banyan_snapshot;

// Writes a consistent copy of the session to a new folder while the session is in use: manifest.json and
// .safetensors files. It holds the tokens that all layers have (those of the shortest); of a session that
// forgets, the remaining rows and the floor. The folder appears under its name only when all of it is on the
// disk. The rows are read from a temporary fork (banyan_session_pin); steps wait only while that is made.
// options, out: NULL is allowed. Blocks, and runs `threads` threads of its own; must not be called from a
// callback. ALREADY_EXISTS, reason FILE: the path exists. UNAVAILABLE or NOT_FOUND, reason FILE: the file
// system refuses. DATA_LOSS, reason HASH_MISMATCH: rows do not match their seals, and a scrub of the session
// has been started. UNAVAILABLE: workers that may have more rows are absent. Other errors are those of
// banyan_session_pin and banyan_read_rows.
BANYAN_API banyan_code banyan_session_snapshot(banyan_session *session, const char *path,
                                               const banyan_snapshot_options *options, banyan_snapshot *out,
                                               banyan_error *error);

typedef struct banyan_restore_options {
    const char *name;                         // of the new session; NULL: none
    uint32_t replicas, members, chunk_tokens; // 0: as in the snapshot
    uint64_t idle_ttl_ns;                     // 0: as in the snapshot
    uint32_t threads;                         // this and the next two: as for a snapshot
    banyan_progress progress;
    void *progress_arg;
} banyan_restore_options;

// Creates a session from a folder that banyan_session_snapshot has written, in this or another cluster, on
// any number of workers. Each file is compared with the manifest. The new session has no tokens until all of
// them have arrived; if the original had forgotten rows, it has the same floor. After a failure no session is
// left, unless the message says otherwise. options, about: NULL is allowed. Blocks, and runs threads like
// banyan_session_snapshot.
// INVALID_ARGUMENT, reason FILE: the folder is not a snapshot, or is damaged. NOT_FOUND or UNAVAILABLE,
// reason FILE: a file is missing or cannot be read. Other errors are those of banyan_session_create_at,
// banyan_attach and banyan_commit.
BANYAN_API banyan_code banyan_session_restore(banyan_client *client, const char *path,
                                              const banyan_restore_options *options, banyan_session **out,
                                              banyan_snapshot *about, banyan_error *error);

// Reads a snapshot's manifest, and checks that each file exists and has the right size. Reads no rows, and
// needs no cluster. out: as for a restore, without session and took_ns; NULL is allowed. The errors with
// reason FILE are those of banyan_session_restore.
BANYAN_API banyan_code banyan_snapshot_check(const char *path, banyan_snapshot *out, banyan_error *error);

// ---- attend -------------------------------------------------------------------------------------

// Attention mass: the share of a row's attention that each part of the context received. The mass of a part
// is exp(lse of its keys alone - lse of all), its posterior probability (docs/concepts/energy.md). It costs
// up to one and a half times the step itself; o and lse have the same bits with and without it. Values are
// float32. For each row and head, bins + sink = workers + sink = 1, up to rounding; all are 0 if the row saw
// nothing, and NaN if its lse is NaN.
typedef struct banyan_mass_worker {
    char name[65];
    uint64_t tokens; // keys below `visible` that it computed
} banyan_mass_worker;

typedef struct banyan_mass {
    // Set by the caller:
    // The most bins to divide the context into, 1 .. 4096. A bin is one or more whole chunks.
    uint32_t bins;
    bool per_head; // masses for each query head; else their mean over the query heads
    // Results, cleared when a call begins; freed by banyan_mass_free:
    banyan_code code;  // of the masses, if the item's code is OK; o and lse are right in any case
    char message[256]; // why there are no masses
    uint32_t rows;     // of the item
    uint32_t heads;    // 1, or the number of query heads
    uint32_t n_bins;   // bin b: positions [b * bin_tokens, (b + 1) * bin_tokens) below `visible`
    uint64_t bin_tokens, visible;
    uint32_t n_workers; // workers that computed a part
    banyan_mass_worker *workers;
    float *bin;    // [rows][heads][n_bins]
    float *worker; // [rows][heads][n_workers]
    float *sink;   // [rows][heads] mass of the attention sink; 0 if the session has none
} banyan_mass;
BANYAN_API void banyan_mass_free(banyan_mass *mass); // frees its fields; NULL is allowed

// A partial answer covers only the tokens that workers have, when others are lost or are on workers that are
// no longer waited for (if these return, answers are complete again). It is exact over the tokens that it
// covers, and it lists all others. Unless an item allows it, the item fails with DATA_LOSS or UNAVAILABLE,
// reason MISSING_RANGE. While it is uncertain whether a worker is gone (its link has just broken, or the
// coordinator has just started), the item waits until its deadline. Appends are acknowledged as always: by
// all workers that must hold them, or they fail.
typedef struct banyan_partial {
    // Results, cleared when a call begins; freed by banyan_partial_free
    uint32_t n; // 0: the answer is complete, with the same bits as an exact one
    // [n] the tokens that the item's rows together should have seen but did not: ascending and disjoint.
    // Tokens that masks hide from all rows are not listed. All rows were computed over the same tokens.
    banyan_range *missing;
    uint64_t seen; // tokens that the rows together saw. 0: none; o is 0 and lse −inf (or the sink's logit)
} banyan_partial;
BANYAN_API void banyan_partial_free(banyan_partial *partial); // frees its fields; NULL is allowed

typedef struct banyan_item {
    banyan_session *session;
    uint32_t layer;
    uint64_t first; // position of the first row
    uint32_t rows;
    const float *q;
    // Both or neither (v is NULL if V is in K): appended at [first, first + rows) before attention is
    // computed
    const void *k, *v;
    const float *k_scale, *v_scale; // only with k and v of BANYAN_INT8 and BANYAN_FP8; else NULL
    // Rows see at most the keys [0, visible). 0: first + rows, or the block's end if that is larger; for a
    // layer that is not causal, all its keys including this append
    uint64_t visible;
    uint64_t block_first, block_count; // rows at positions [block_first, block_first + block_count) see each
                                       // other's keys, later ones too (image tokens, prefixes); count 0: none
    float *o;
    float *lse; // NULL: not needed
    // NULL: no masses. An item with masses has at most 4096 rows and 16 MiB, and rows * q_heads * bins is at
    // most 2^20 (INVALID_ARGUMENT). Masses use part of the item's deadline.
    banyan_mass *mass;
    // NULL: an exact answer or an error. Otherwise a partial answer is allowed, and this lists what it lacks;
    // masses cover the tokens seen. Such an item has at most 4096 rows and 16 MiB (INVALID_ARGUMENT).
    // RESOURCE_EXHAUSTED: more than 262144 ranges are missing from the answers of one call. A coordinator
    // without partial answers replies exactly or with an error.
    banyan_partial *partial;
    // NULL: none. Otherwise the W3C trace context of the span that this item is part of, the value of the
    // header traceparent (docs/operating/tracing.md):
    // "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01". If its flags say sampled, every process that
    // takes part in the item records spans. A malformed value is INVALID_ARGUMENT. Read before the call
    // returns.
    const char *traceparent;
    // Results
    banyan_code code;    // of this item: an invalid item does not fail the others
    banyan_error *error; // NULL or the caller's, filled if code is not OK
    uint64_t length;     // of the layer after the step
    uint64_t digest;     // plan digest: the same data, request and digest give the same bits
} banyan_item;

typedef struct banyan_worker_trace {
    char worker[65];
    uint32_t rank;
    int32_t parent;      // rank of its parent in the tree; −1: the root
    uint64_t queue_ns;   // from the complete frame to the start of its own computation
    uint64_t compute_ns; // of its own part
    uint64_t wait_ns;    // from its own part to its children's parts merged
    uint64_t tokens;     // keys that it computed
} banyan_worker_trace;

typedef struct banyan_trace { // where a call's time went
    uint64_t total_ns;        // as measured by the client
    uint64_t coordinator_ns;  // inside the coordinator, without tree and masses
    uint64_t tree_ns;         // from sending the frame to the root to its answer; the largest over plans
    uint64_t mass_ns;         // for masses, if an item requested them
    uint32_t n_workers;
    banyan_worker_trace *workers; // freed by banyan_trace_free. For the frames that carried the call,
                                  // including other calls' items in them; several frames add up
} banyan_trace;
BANYAN_API void banyan_trace_free(banyan_trace *trace); // frees its fields; NULL is allowed

// Computes attention for any number of items, of any sessions of this client, in one call. timeout_ns 0: the
// client's. trace may be NULL. OK means that the call as a whole was answered, and each item has its own
// code. Otherwise every item has the call's code.
//
// A failed append has not been made and never will be, unless the reason of the item's error is UNCONFIRMED
// (so give items an `error`). Then a worker or the answer is missing, and the rows may have been stored or
// may yet be acknowledged: all of them or none. Repeating the same append settles it either way, and may be
// done until it is answered. Different bytes in its place are accepted if it was not stored (else
// FAILED_PRECONDITION). banyan_session_get_info returns the current lengths of the layers. An item that needs
// several messages (more than 4096 rows or 16 MiB) is several appends, one after the other: `length` shows
// how far they got.
BANYAN_API banyan_code banyan_attend(banyan_client *client, banyan_item *items, size_t n_items,
                                     uint64_t timeout_ns, banyan_trace *trace, banyan_error *error);

// The callback of an asynchronous attend. It runs exactly once on the library's thread, unless the call
// returned an error; it must not block and may start further calls. The items (and what they point to) belong
// to the caller and must stay valid until then.
typedef void (*banyan_attend_fn)(void *arg, banyan_code code, const banyan_error *error, banyan_item *items,
                                 size_t n_items);
// Starts an attend and returns at once; see banyan_attend_fn.
BANYAN_API banyan_code banyan_attend_async(banyan_client *client, banyan_item *items, size_t n_items,
                                           uint64_t timeout_ns, banyan_attend_fn done, void *arg,
                                           banyan_error *error);
// The same with a queue instead of callbacks: banyan_poll fetches completions on any thread of the caller,
// and banyan_poll_fd is readable while there are any. A call counts against calls_max until its completion
// has been fetched.
BANYAN_API banyan_code banyan_attend_queue(banyan_client *client, banyan_item *items, size_t n_items,
                                           uint64_t timeout_ns, void *tag, banyan_error *error);
BANYAN_API int banyan_poll_fd(banyan_client *client); // owned by the client
typedef struct banyan_completion {
    void *tag;
    banyan_code code;
    banyan_item *items;
    size_t n_items;
    banyan_error error;
} banyan_completion;
// Fetches at most `max` completions and returns their number; never blocks.
BANYAN_API size_t banyan_poll(banyan_client *client, banyan_completion *out, size_t max);

// ---- cluster ------------------------------------------------------------------------------------

typedef struct banyan_worker_info {
    char name[65], host[65], endpoint[128], state[16], kernel[65], engine[16];
    // capacity_bytes, used_bytes, free_bytes and cold_bytes are 0 while the worker is lost
    uint64_t capacity_bytes, used_bytes, bandwidth, chunks, tokens, steps, heartbeat_age_ns, last_compute_ns;
    uint32_t threads;
    uint64_t quarantined_bytes, quarantined_sessions; // of used_bytes: see banyan_quarantine_get_list
    bool draining;           // it gets no new chunks, and its chunks move away: see banyan_worker_drain
    char drain_reason[129];  // the operator's reason for draining or cordoning it
    uint32_t moves;          // moves of chunks to this worker in progress; one move may carry several chunks
    bool slow;               // it is much slower than `bandwidth`, and the others are not
    uint64_t seen_bandwidth; // its recent speed; 0: unknown
    uint64_t cold_bytes;     // of used_bytes: on disk only (--store), read back when used
    char version[32];        // of its program; "": an older build that does not report it
    // Why a worker with --device auto computes on its processor although there is hardware for a device:
    // printable ASCII; "": no reason to report
    char no_device[192];
    uint64_t free_bytes; // for new chunks; capacity_bytes - used_bytes - free_bytes is reserved
    bool cordoned;       // it gets no new chunks, and keeps those that it has: see banyan_worker_cordon
    // Who has drained or cordoned it, and when (seconds since 1970): the name of a token. "" and 0: unknown,
    // or the worker drains itself
    char drain_by[65];
    uint64_t drain_at_s;
} banyan_worker_info;
typedef struct banyan_limit {    // how much of something may be in use at once
    char name[65], flag[65];     // flag: the option that raises it; "": none
    uint64_t used, max, refused; // refused: how often it was reached since the start
    // For a limit of each worker: the worker closest to it, with its numbers; refused counts all workers.
    // "": the limit is the coordinator's.
    char worker[65];
} banyan_limit;
typedef struct banyan_cluster_info {
    char version[32], cluster[65];
    uint64_t term, uptime_ns, sessions, steps, frames, chunks, clients;
    uint32_t n_workers;
    banyan_worker_info *workers;
    uint32_t n_limits;
    banyan_limit *limits;
    uint64_t thin_chunks;               // chunks with too few copies; these are restored in the background
    uint64_t moves;                     // moves of chunks between workers in progress
    uint64_t moved_chunks, moved_bytes; // since the coordinator's start
    uint64_t wished_chunks;             // chunks that a rebalance has yet to move
    // Audits (banyan-coordinator --audit) of one step in `audit_every`; 0: none. Since the coordinator's
    // start: recomputed steps, those whose answers were wrong, and those that could not be recomputed
    uint64_t audit_every, audited, audit_differences, audit_skipped;
    uint64_t kept_steps, kept_bytes; // kept steps (banyan_session_get_kept_step) and their memory
    uint32_t n_endpoints; // where the coordinator listens, as seen on its machine: 0.0.0.0 is all addresses
    char endpoints[16][300];
    bool needs_token; // clients need a token
    // Of this client: its tenant and its access (docs/operating/tenants.md); "": the coordinator runs an
    // older build
    char tenant[65], access[17];
    char pass[129]; // for operators and admins: accepted by workers in place of a token, for 10 minutes
    // "ready": the coordinator serves, and a worker is active. Otherwise the reason; "": an older build
    char readiness[161];
    // This client's access does not show workers, limits and figures of the whole cluster: these are empty,
    // and `sessions` counts the tenant's
    bool restricted;
} banyan_cluster_info;
// Reads the state of the coordinator and of all workers, as far as this client's access shows it.
BANYAN_API banyan_code banyan_cluster_get_info(banyan_client *client, banyan_cluster_info *out,
                                               banyan_error *error);
BANYAN_API void banyan_cluster_info_free(banyan_cluster_info *info); // frees its fields; NULL is allowed

typedef struct banyan_session_list {
    uint32_t n;
    banyan_session_info *sessions;
} banyan_session_list; // entries without layers
// Lists the sessions of the caller's tenant; of all tenants for operators and admins.
BANYAN_API banyan_code banyan_session_get_list(banyan_client *client, banyan_session_list *out,
                                               banyan_error *error);
BANYAN_API void banyan_session_list_free(banyan_session_list *list); // frees its fields; NULL is allowed

// Quarantine: sessions that workers hold for another store, or in a later state than this store has. They are
// neither served nor dropped, and return by themselves when the coordinator is started on the store that has
// them.
typedef struct banyan_quarantined {
    char worker[65];
    uint64_t session, life, bytes; // life: the run of the coordinator that laid it out; bytes: of K and V
    bool newer;                    // the store has an earlier state of the session, which is unavailable
} banyan_quarantined;
typedef struct banyan_quarantine_list {
    uint32_t n;
    banyan_quarantined *sessions;
} banyan_quarantine_list;
// Lists what is in quarantine. worker: NULL for all.
BANYAN_API banyan_code banyan_quarantine_get_list(banyan_client *client, const char *worker,
                                                  banyan_quarantine_list *out, banyan_error *error);
// Frees its fields; NULL is allowed.
BANYAN_API void banyan_quarantine_list_free(banyan_quarantine_list *list);
// Drops what a worker has in quarantine: one session, or all (0). This cannot be undone. *sessions and *bytes
// (may be NULL): how much was dropped. NOT_FOUND: no such worker, or no such session there; UNAVAILABLE: the
// worker is not active.
BANYAN_API banyan_code banyan_quarantine_drop(banyan_client *client, const char *worker, uint64_t session,
                                              uint64_t *sessions, uint64_t *bytes, banyan_error *error);

// Tokens: which clients are admitted, as which tenant, and with which access (docs/operating/tenants.md).
// These calls are for admins; while there is no token, anyone who can reach the coordinator may create the
// first one.
typedef struct banyan_token_info {
    uint64_t id;
    char name[65], tenant[65], access[17]; // access: read-only, user, operator, admin
    // Seconds since 1970. expires_s 0: never. used_s: accurate to some minutes; 0: not used yet
    uint64_t created_s, expires_s, used_s;
} banyan_token_info;
typedef struct banyan_token_list {
    uint32_t n;
    banyan_token_info *tokens;
} banyan_token_list;
// Creates a token. name: must be unique. tenant: NULL is "default"; created if it does not exist. life_s: its
// lifetime in seconds; 0: until it is revoked. out and *id (may be NULL): the token, which is not shown
// again. ALREADY_EXISTS: another token has the name; FAILED_PRECONDITION: the first one must be an admin's.
// The call is not repeated: after UNAVAILABLE or DEADLINE_EXCEEDED the token may have been created without
// anyone having received it: revoke it by its name.
BANYAN_API banyan_code banyan_token_create(banyan_client *client, const char *name, const char *access,
                                           const char *tenant, uint64_t life_s, char out[65], uint64_t *id,
                                           banyan_error *error);
// Lists all tokens by id, without their secrets.
BANYAN_API banyan_code banyan_token_get_list(banyan_client *client, banyan_token_list *out,
                                             banyan_error *error);
BANYAN_API void banyan_token_list_free(banyan_token_list *list); // frees its fields; NULL is allowed
// Revokes a token by name, or by id if name is NULL. Clients that present it are refused from now on, and
// connections that used it are closed. NOT_FOUND: no such token; FAILED_PRECONDITION: it is the last admin
// token.
BANYAN_API banyan_code banyan_token_revoke(banyan_client *client, const char *name, uint64_t id,
                                           banyan_error *error);

// A tenant's quota and its use (docs/operating/quotas.md). Anything beyond it is refused: RESOURCE_EXHAUSTED,
// reason QUOTA.
typedef struct banyan_quota {
    char name[32];          // "bytes", "sessions", "steps_per_s", "steps_in_flight", "connections", "watches"
    uint64_t max;           // 0: no limit
    uint64_t used, refused; // refused: how often, since the coordinator's start
} banyan_quota;
typedef struct banyan_tenant_quotas {
    char tenant[65];
    uint32_t n;
    banyan_quota quotas[16];
} banyan_tenant_quotas;
typedef struct banyan_quota_list {
    uint32_t n;
    banyan_tenant_quotas *tenants;
} banyan_quota_list;
// Sets the given quotas [n], by `name` and `max`, at once and permanently; the others stay. tenant: NULL for
// the caller's. *out (may be NULL): all quotas of the tenant afterwards. NOT_FOUND: no such tenant;
// PERMISSION_DENIED: the token is not an admin's.
BANYAN_API banyan_code banyan_quota_set(banyan_client *client, const char *tenant, const banyan_quota *quotas,
                                        uint32_t n, banyan_tenant_quotas *out, banyan_error *error);
// Lists quotas. tenant: NULL for all tenants with an operator's or admin's token, else for the caller's.
BANYAN_API banyan_code banyan_quota_get_list(banyan_client *client, const char *tenant,
                                             banyan_quota_list *out, banyan_error *error);
BANYAN_API void banyan_quota_list_free(banyan_quota_list *list); // frees its fields; NULL is allowed

// Events in the cluster: workers joining and leaving, sessions losing copies, refusals, each with its reason.
// The coordinator keeps the newest (--events, 4096) in memory. 'banyanctl help events' lists their kinds.
typedef struct banyan_event {
    uint64_t seq;           // rises by 1 while a coordinator runs; (term, seq) also rises across restarts
    uint64_t term;          // of the coordinator
    uint64_t time_ns;       // since 1970, UTC, on the coordinator's clock
    char kind[33];          // "worker-lost", …
    char severity[9];       // "info", "warn" or "error"
    char worker[65];        // the worker concerned, or ""
    uint64_t session;       // the session concerned, or 0
    char session_name[129]; // "" if it has none
    uint64_t epoch;         // of the session after the event; 0: not given
    uint32_t count; // events that it stands for: beyond a few per second, events of one kind are grouped
    char text[256]; // one line, with the reason
} banyan_event;
typedef struct banyan_events_options {
    uint64_t term, seq; // where an earlier answer ended; both 0: from the oldest event kept
    // Filters; NULL or 0 is no filter:
    const char *const *kinds; // [n_kinds, at most 64] kinds, or groups of them such as "worker"
    uint32_t n_kinds;
    const char *severity; // this severity or above
    const char *worker;
    uint64_t session; // the session by id, or below by name
    const char *session_name;
    uint64_t since_ns; // from this time onwards
    uint32_t max;      // 1 to 256; 0: 256
    uint64_t wait_ns;  // how long to wait for the first one, at most 50 s; 0: do not wait
} banyan_events_options;
typedef struct banyan_events {
    uint32_t n;
    banyan_event *events; // oldest first
    uint64_t term, seq;   // where the next call continues
    bool more;            // the next call would find events at once
    // The coordinator has restarted since `term`, or is another one: `events` begins with its oldest one
    bool anew;
    uint64_t lost; // events after the given `seq` that are no longer kept
} banyan_events;
// Reads events. OK with n = 0: none arrived in time. RESOURCE_EXHAUSTED: too many calls are waiting. options
// NULL: all events. A waiting call continues across a restart of the coordinator, or at another one that
// takes over.
BANYAN_API banyan_code banyan_events_read(banyan_client *client, const banyan_events_options *options,
                                          banyan_events *out, banyan_error *error);
BANYAN_API void banyan_events_free(banyan_events *events); // frees its fields; NULL is allowed

// A backup: a consistent copy of the coordinator's store, taken while it serves (docs/operating/backup.md).
// `write` receives it piece by piece, in order, on the calling thread; returning false ends it (CANCELLED).
// RESOURCE_EXHAUSTED: another backup is running. DATA_LOSS: it was damaged in transit. Pieces written before
// an error are of no use.
typedef struct banyan_backup {
    uint64_t bytes;                             // bytes written
    uint64_t sum;                               // checksum of the copy
    uint64_t sessions, tokens, chunks, workers; // in the copy; tokens: attached ones
    uint64_t term;
} banyan_backup;
typedef bool (*banyan_backup_write)(void *arg, const void *data, size_t len);
BANYAN_API banyan_code banyan_backup_take(banyan_client *client, banyan_backup_write write, void *arg,
                                          banyan_backup *out, banyan_error *error); // out may be NULL
// Confirms, at a coordinator whose store was restored, that all workers are back. Its sessions are then
// served, except those of which a worker has a newer state. *sessions (may be NULL): how many.
// FAILED_PRECONDITION: nothing was restored, or workers are missing. without_absent: accept anyway; what only
// missing workers hold counts as lost.
BANYAN_API banyan_code banyan_backup_accept(banyan_client *client, bool without_absent, uint64_t *sessions,
                                            banyan_error *error);

// Draining takes a worker out of use durably. Its chunks move to other workers while their sessions stay in
// use, and it gets no new ones; once `chunks` is 0 it can be stopped without loss. These calls return at
// once; banyan_worker_get_drain shows the progress. A worker stays drained across its restarts until it is
// resumed.
typedef struct banyan_drain {
    bool draining;
    uint64_t chunks;   // chunks that it still has
    uint64_t bytes;    // of K and V in them, counted as if they were full
    uint64_t sessions; // sessions that it is a member of
    char stuck[256];   // why nothing moves now, for people; "": chunks are moving, or none are left
} banyan_drain;
// Drains a worker. reason: for people, at most 128 printable bytes; NULL: none, or the earlier one. out may
// be NULL. NOT_FOUND: no such worker.
BANYAN_API banyan_code banyan_worker_drain(banyan_client *client, const char *worker, const char *reason,
                                           banyan_drain *out, banyan_error *error);
// Cordons a worker, durably: it gets no new chunks, and keeps and serves those that it has. If it was
// draining, the drain ends. Arguments as for banyan_worker_drain; banyan_worker_resume ends the cordon.
BANYAN_API banyan_code banyan_worker_cordon(banyan_client *client, const char *worker, const char *reason,
                                            banyan_drain *out, banyan_error *error);
// Puts a worker back into use; chunks that have moved away stay there until a rebalance. A worker that is
// draining itself to stop (banyan-worker --drain, after SIGTERM) continues: see out->draining. out may be
// NULL. NOT_FOUND: no such worker.
BANYAN_API banyan_code banyan_worker_resume(banyan_client *client, const char *worker, banyan_drain *out,
                                            banyan_error *error);
// Reads the progress of a drain, or what a worker that is not draining has. NOT_FOUND: no such worker.
BANYAN_API banyan_code banyan_worker_get_drain(banyan_client *client, const char *worker, banyan_drain *out,
                                               banyan_error *error);

// Removes a lost worker that will not return from the list. NOT_FOUND: no such worker. FAILED_PRECONDITION,
// with advice: it is connected, or holds the only copy of chunks, or sessions have not released it yet.
// Nothing is lost: a process that joins under the name again is treated as a new worker.
BANYAN_API banyan_code banyan_worker_forget(banyan_client *client, const char *worker, banyan_error *error);

typedef struct banyan_chunk_move {
    uint64_t session, first; // first: position of the chunk's first token
    char from[65], to[65];   // workers
    uint64_t bytes;
} banyan_chunk_move;
typedef struct banyan_balance {
    uint64_t chunks, bytes; // that move or would move
    uint32_t n_moves;       // the first 1024 of them
    banyan_chunk_move *moves;
} banyan_balance;
// Rebalances: moves chunks so that load matches worker speed. dry_run: only reports what would move. Returns
// at once; sessions stay in use. A later rebalance replaces an earlier one. out may be NULL.
BANYAN_API banyan_code banyan_rebalance(banyan_client *client, bool dry_run, banyan_balance *out,
                                        banyan_error *error);
BANYAN_API void banyan_balance_free(banyan_balance *balance); // frees its fields; NULL is allowed

typedef struct banyan_scrub {
    uint64_t chunks;   // sealed chunks: full ones whose checksum, which all copies must match, is stored
    uint64_t left;     // of these and of differing ones, those that the requested scrub has yet to compare
    uint64_t unsealed; // full chunks without a seal so far
    uint64_t lost;     // chunks whose sealed or committed rows no worker has: steps over them are DATA_LOSS
    // Since the coordinator's start, over all sessions: copies compared; wrong copies, which are no longer
    // used; times that workers of an unsealed chunk disagreed, so that it is unknown whose rows are right.
    uint64_t compared, corrupt, disputed;
    uint64_t healed; // wrong copies that workers reloaded from their files (--store)
    // Unsealed full chunks whose workers had different rows when last compared: it is unknown whose are
    // right, and steps use those of the serving worker.
    uint64_t differ;
} banyan_scrub;
// Starts a scrub: compares the memory of the session's full chunks, or of all (0), with their seals at all
// their workers, now rather than when they are due. Returns at once and continues by itself; banyan_get_scrub
// shows the progress. out may be NULL. NOT_FOUND: no such session.
BANYAN_API banyan_code banyan_scrub_begin(banyan_client *client, uint64_t session, banyan_scrub *out,
                                          banyan_error *error);
// Reads the progress of a scrub. NOT_FOUND: no such session.
BANYAN_API banyan_code banyan_get_scrub(banyan_client *client, uint64_t session, banyan_scrub *out,
                                        banyan_error *error);

typedef struct banyan_plan_node {
    uint32_t rank;
    int32_t parent;
    char worker[65], host[65];
    uint64_t chunks, tokens;
} banyan_plan_node;
typedef struct banyan_plan_info {
    uint64_t plan, epoch, digest;
    char engine[16], why[288];
    double predicted_us;
    uint32_t n_nodes;
    banyan_plan_node *nodes;
} banyan_plan_info;
// Reads the tree of workers that currently answers the session's steps.
BANYAN_API banyan_code banyan_session_get_plan(banyan_session *session, banyan_plan_info *out,
                                               banyan_error *error);
BANYAN_API void banyan_plan_info_free(banyan_plan_info *info); // frees its fields; NULL is allowed

// ---- watching -----------------------------------------------------------------------------------

// Watching, for operators: what a session's recent steps attended to and where their time went. The client
// that makes the steps is not affected. While a watch waits, the service records the session's next steps; it
// keeps up to 64 of them (1 MiB) for the next watch, for the 64 sessions watched last. Steps whose client
// requests a trace or masses are also kept.
typedef struct banyan_watch_options {
    uint32_t steps;   // 1 .. 64: an item of an attend is a step. 0: 1
    uint64_t wait_ns; // how long to wait for so many new steps, at most 50 s; kept ones then fill up the rest
    bool all_layers;  // else only `layer`
    uint32_t layer;
    bool trace;         // only steps with a trace
    uint32_t mass_bins; // not 0: only steps with masses; new ones with at most so many bins, 1 .. 1024
    bool mass_per_head; // for each query head: q_heads * mass_bins is at most 65536
} banyan_watch_options;

typedef struct banyan_watched_step {
    uint64_t step; // its number in the session
    uint32_t layer, rows, attempts;
    uint64_t first, visible;
    bool append;
    uint64_t missing;   // tokens that its rows should have seen: the client accepted a partial answer
    uint64_t age_ns;    // since it was answered
    banyan_trace trace; // n_workers 0: no trace. total_ns: inside the service
    banyan_mass mass;   // of its last row, rows 1; n_bins 0: no masses, `message` may say why
} banyan_watched_step;

typedef struct banyan_watch {
    uint32_t n;
    banyan_watched_step *steps; // oldest first
} banyan_watch;
// Watches a session. OK with n = 0: there was no such step. RESOURCE_EXHAUSTED: too many watches are open.
BANYAN_API banyan_code banyan_session_watch(banyan_session *session, const banyan_watch_options *options,
                                            banyan_watch *out, banyan_error *error);
BANYAN_API void banyan_watch_free(banyan_watch *watch); // frees its fields; NULL is allowed

// ---- kept steps ---------------------------------------------------------------------------------

// The service keeps one step of each session with its request and answer (banyan-coordinator --keep-steps),
// so that it can be recomputed from the session's rows (banyan_read_rows). Another step replaces it after a
// second at the earliest; a step that an audit has found wrong stays. Of a step with many rows, some are
// kept.
enum { BANYAN_KEPT_ROWS = 4 };
typedef enum banyan_audited {
    BANYAN_AUDIT_NONE = 0, // the service has not recomputed it
    BANYAN_AUDIT_RIGHT = 1,
    BANYAN_AUDIT_WRONG = 2
} banyan_audited;
typedef struct banyan_kept_step {
    uint64_t incarnation; // of the session when the step ran: if it is unchanged, so are the rows that it saw
    uint64_t first, rows; // of the step; rows 0: none is kept, or its rows no longer belong to the session
    uint32_t layer;
    bool append;
    uint64_t visible, block_first, block_count; // as in banyan_item; visible is never 0
    uint64_t plan_digest, age_ns;               // age: since it was answered
    banyan_audited audited;
    char workers[513]; // for an audited step: the session's members at the time
    uint32_t n;        // rows kept
    uint64_t positions[BANYAN_KEPT_ROWS];
    uint32_t q_heads, k_dim, v_dim;
    float *q, *o, *lse; // [n][q_heads][k_dim], [n][q_heads][v_dim], [n][q_heads]
} banyan_kept_step;
// Reads the session's kept step; out->rows 0: none is kept.
BANYAN_API banyan_code banyan_session_get_kept_step(banyan_session *session, banyan_kept_step *out,
                                                    banyan_error *error);
BANYAN_API void banyan_kept_step_free(banyan_kept_step *step); // frees its fields; NULL is allowed

typedef struct banyan_edge_down { // one worker currently cannot reach the other
    char from[65], to[65];
} banyan_edge_down;
// What a daemon reports about itself and its machine: a coordinator, or a worker at its endpoint
// (banyan_worker_info.endpoint; it needs no token). Fields are zero if unknown, or if it runs an older build.
typedef struct banyan_examined {
    bool serving; // false while it stops
    char version[32];
    uint64_t term, uptime_ns, rtt_ns;
    // Its clock when it answered, since 1970. 0: nothing below is reported, because it runs an older build or
    // requires an operator's token
    uint64_t wall_ns;
    int64_t skew_ns;           // its clock minus this machine's, give or take half of rtt_ns
    uint64_t files, files_max; // approximate number of open descriptors, and the limit
    uint64_t memory_bytes, memory_available_bytes; // of its machine
    uint64_t disk_bytes, disk_free_bytes;          // on the disk of its store
    uint32_t n_edges_down;
    banyan_edge_down *edges_down; // of a coordinator
    // When its certificate and its CA expire, in seconds since 1970; 0: it has none, or runs an older build
    int64_t tls_expires_s, tls_ca_expires_s;
} banyan_examined;
// Connects to one endpoint, asks, and disconnects. Errors are as for banyan_connect.
BANYAN_API banyan_code banyan_examine(const char *endpoint, const banyan_options *options,
                                      banyan_examined *out, banyan_error *error);
BANYAN_API void banyan_examined_free(banyan_examined *examined); // frees its fields; NULL is allowed

// Measures a round trip to the coordinator's health service.
BANYAN_API banyan_code banyan_ping(banyan_client *client, uint64_t *rtt_ns, banyan_error *error);

#ifdef __cplusplus
}
#endif
#endif
