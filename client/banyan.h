// SPDX-License-Identifier: Apache-2.0
// libbanyan: exact attention over a context that lives in a Banyan cluster.
//
// A session is one sequence: its keys and values are held by the cluster's workers. A caller attaches context
// (bulk) or appends it (small, with a step), sends query rows and receives attention outputs. Every call is
// blocking, thread-safe and safe to repeat; attend alone has asynchronous forms too (banyan_attend_async,
// banyan_attend_queue). One thread of the library serves any number of calls; a blocking call that is
// alone does its work on the caller's thread.
//
// Layouts. Row-major, densely packed, host byte order (little endian):
//   q [rows][q_heads][k_dim] float32
//   k [rows][kv_heads][k_dim], v [rows][kv_heads][v_dim] of the session's KV type; v is NULL where V lies in K
//   k_scale, v_scale [rows][kv_heads] float32, of BANYAN_INT8 and BANYAN_FP8: element = scale * code
//   o [rows][q_heads][v_dim] float32
//   lse [rows][q_heads] float32, natural logarithm, −inf where a row saw no key
// with the heads and dimensions of the item's layer.
// Positions are global and start at 0. The row at position p sees the keys at positions ≤ p (and < visible
// where that is given), unless a mask of the layer says otherwise.
//
// Memory. Buffers that a call reads or writes belong to the caller and must stay until the call has returned
// (blocking) or its callback has run (asynchronous). What the library allocates is freed by the function
// named beside it.
//
// Errors. Functions return a code; the sentence that says what to do is in struct banyan_error when one is
// passed (NULL is allowed). A call that failed has changed nothing that a repetition of it would not set
// right. Outputs are written only on success; but an item that is too large for one frame (more than 4096
// rows or 16 MiB) is sent in parts, and parts of its outputs may be written when it fails. A call whose
// connection was lost is sent again by the library, until its deadline, where that is safe: the coordinator
// may restart.
//
// Where what is: connection, sessions, attach, read, attend are what a model needs; cluster, watching and a step that
// is kept are an operator's. One file all the same, which is long: one include, one version, one contract to read.
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
    BANYAN_UNKNOWN =
        2, // how it ended is not known (reason AUDIT_LOG), or a code that this version does not know
    BANYAN_INVALID_ARGUMENT = 3,    // wrong whatever the state
    BANYAN_DEADLINE_EXCEEDED = 4,   // no answer in time
    BANYAN_NOT_FOUND = 5,           // no such session, worker or token file
    BANYAN_ALREADY_EXISTS = 6,      // another session has the name
    BANYAN_PERMISSION_DENIED = 7,   // not with this role
    BANYAN_RESOURCE_EXHAUSTED = 8,  // memory or a limit; nothing was changed
    BANYAN_FAILED_PRECONDITION = 9, // other bytes at an acknowledged position; a hole
    BANYAN_ABORTED = 10, // overtaken by a truncate or a new layout: ask for the session's state and try again
    BANYAN_OUT_OF_RANGE = 11,    // position beyond the end, of an append too
    BANYAN_UNIMPLEMENTED = 12,   // not in this version
    BANYAN_INTERNAL = 13,        // a defect of Banyan
    BANYAN_UNAVAILABLE = 14,     // a worker or the coordinator is not there now: try again
    BANYAN_DATA_LOSS = 15,       // no worker holds the tokens any more
    BANYAN_UNAUTHENTICATED = 16, // the token is missing, or is not the cluster's
} banyan_code;

BANYAN_API const char *banyan_code_name(banyan_code code); // "OK", "NOT_FOUND", …
BANYAN_API const char *banyan_version(void);               // "0.1.0"

typedef struct banyan_range {
    uint64_t first, count;
} banyan_range; // tokens [first, first + count)

typedef struct banyan_error {
    banyan_code code;
    char message[384]; // one line
    char reason[32];   // machine-readable: HOLE, MISSING_RANGE, HASH_MISMATCH, … or ""
    // Token ranges concerned (a hole, what a lost worker held); where they are more than 16 the last one spans the rest
    uint32_t n_ranges;
    banyan_range ranges[16];
    char worker[65];   // worker concerned, or ""
    uint64_t retry_ns; // reason QUOTA: of a rate, when the call may work, from then on; else 0
} banyan_error;

// ---- connection ---------------------------------------------------------------------------------

typedef struct banyan_client banyan_client;

typedef struct banyan_options {
    const char *token_file; // NULL: no token
    uint64_t timeout_ns;    // for calls that state none; 0: 30 s
    uint32_t calls_max; // asynchronous calls outstanding; more are RESOURCE_EXHAUSTED; 0: 16384. A call for
                        // the queue counts until it is fetched
    uint64_t connect_timeout_ns; // how long banyan_connect waits for the first answer; 0: timeout_ns
    const char *token;           // itself, where token_file is NULL: copied; NULL: none
    // For tls:// and nng+tls:// (PEM files; all NULL: none): whom to believe, and, where the cluster asks clients for a certificate,
    // one's own and its key, which nobody else may be able to read. Read once, by banyan_connect.
    const char *tls_ca, *tls_cert, *tls_key;
} banyan_options;

// Connects to a coordinator: "nng+tcp://127.0.0.1:7411", "tcp://…" or "unix:///path" (lowest latency), or over TLS, with tls_ca:
// "tls://host:7413" (TLS 1.3), "nng+tls://host:7414" (1.2, host is a name). The name or address must be in the coordinator's
// certificate; nothing falls back to a connection without TLS. NULL: BANYAN_ENDPOINT, else "nng+tcp://127.0.0.1:7411". Blocks until the coordinator has answered, and keeps
// trying when nobody is there yet. options may be NULL. UNAVAILABLE when it cannot be reached, with the reason (over nng
// it may take 1 s more to find that out); NOT_FOUND when
// the token file, or one of the certificates', does not exist. What travels over TCP carries checksums, unless BANYAN_CHECKSUMS says "never";
// "always": over unix sockets, too. An answer that was damaged on its way is UNAVAILABLE.
// Spans of items with a traceparent are exported where BANYAN_TRACE_FILE, or OpenTelemetry's variables with the protocol
// http/json, say so (docs/TRACING.md); INVALID_ARGUMENT when that file cannot be opened.
// The endpoint may be a list, A,B, of coordinators that may serve the cluster, one at a time. Calls go to the one that
// serves, and on to another when that one does, as after a lost connection: only calls that may be sent twice.
BANYAN_API banyan_code banyan_connect(const char *endpoint, const banyan_options *options,
                                      banyan_client **out, banyan_error *error);

// Ends outstanding calls with CANCELLED (their callbacks run before this returns), and all that begin from now on, in any
// thread: the client stays valid until banyan_disconnect. For who cannot know whether another thread is about to make a
// call: banyan_shutdown, wait for the threads, banyan_disconnect. Not from a callback. NULL is allowed; a second one
// does nothing.
BANYAN_API void banyan_shutdown(banyan_client *client);

// banyan_shutdown, and the end of the client: no thread may be about to begin a call, nor be in banyan_shutdown.
// Completions in the queue that were not fetched are dropped. Sessions of this client must not be used
// afterwards, only closed. Not from a callback. NULL is allowed.
BANYAN_API void banyan_disconnect(banyan_client *client);

// ---- sessions -----------------------------------------------------------------------------------

typedef enum banyan_kv_type {
    BANYAN_F32 = 1,
    BANYAN_F16 = 2,  // IEEE binary16
    BANYAN_BF16 = 3, // bfloat16
    // Quantised: one byte an element, and one float32 scale per token and KV head, for K and for V. Answers
    // are exact for the elements scale * code; what quantising itself costs is in docs/PRECISION.md.
    BANYAN_INT8 = 4, // int8_t -128 .. 127
    BANYAN_FP8 = 5,  // OCP FP8 e4m3: bias 7, no infinities, 0x7f and 0xff NaN, largest 448
} banyan_kv_type;

BANYAN_API bool
banyan_kv_scaled(banyan_kv_type type); // BANYAN_INT8, BANYAN_FP8: k_scale and v_scale go along

// Quantises `rows` rows of `dim` floats (a row: one KV head of one token) to BANYAN_INT8 or BANYAN_FP8, each
// with the scale max|x| / 127 or max|x| / 448 and codes rounded to nearest, ties to even. A row of zeros has
// scale 0; one that holds a NaN or an infinity has scale NaN: it shows in every answer that looks at it.
// codes [rows][dim], scales [rows]. INVALID_ARGUMENT for another type.
BANYAN_API banyan_code banyan_quantise(banyan_kv_type type, const float *x, size_t rows, uint32_t dim,
                                       void *codes, float *scales);

// Layers of a model that differ: a kind of layer has its own heads, dimensions and mask. Fields are as in
// banyan_spec.
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
    // 0: as few workers as the length deserves. n: exactly n workers, or all there are; more only where
    // memory is short, or replicas is larger.
    uint32_t members;
    // 0: kept until deleted, or as the coordinator's --session-ttl says. Else the session is deleted when it was not used for so long. Use is what
    // reaches the coordinator: create, open, info, steps, fork, truncate, attach, commit. An attach counts as
    // going on for as long as a ticket that it was given is good (coordinator: --ticket-life), also after its
    // end.
    uint64_t idle_ttl_ns;
    uint64_t mask_chunk; // 0: none; else the row at position p sees keys from p - p % mask_chunk on
    bool not_causal; // rows see later keys too, all that are visible; with no window, mask_chunk and alibi
    bool v_in_k;     // V is the first v_dim elements of K: v is NULL everywhere, and K alone is held
    // Layers that differ. n_kinds 0: they are alike, as the fields above say, and what is below is NULL. Else
    // of the fields above q_heads to sinks and mask_chunk to v_in_k are 0 and NULL.
    uint32_t n_kinds;
    const banyan_kind *kinds;   // [n_kinds], at most 64
    const uint32_t *layer_kind; // [layers] which kind, or BANYAN_LAYER_LOCAL: the layer holds nothing here
    const uint32_t *shares;     // NULL or [layers]: BANYAN_SHARES_NONE, or the lower layer whose K and V
                                // this one reads; then nothing is attached or appended to it
    const float *const *layer_sinks; // NULL or [layers]: NULL, or [q_heads of the layer] logits
    // 0: all is kept. Else rows that windows (or mask_chunk) have left behind are forgotten, and their memory is given
    // back: those that no row sees from `forget` tokens before where the newest append or commit of each layer began
    // on. So far back may be truncated and forked; calls that go further are refused with FAILED_PRECONDITION, reason
    // FORGOTTEN. (After a restart of the coordinator nothing more is forgotten until each layer was written to.)
    uint64_t forget;
    // Workers that hold each part of the session, 1 to 3; 0: as the coordinator likes, now 1. The loss of all but
    // one of them loses nothing and fails no call that has time enough. Memory is taken for each.
    uint32_t replicas;
} banyan_spec;

typedef struct banyan_session banyan_session; // a client's hold on a session; thread-safe

// name: NULL or a unique printable name. After DEADLINE_EXCEEDED or UNAVAILABLE it may have been made: then the client deletes
// it in the background, while it is connected.
BANYAN_API banyan_code banyan_session_create(banyan_client *client, const banyan_spec *spec, const char *name,
                                             banyan_session **out, banyan_error *error);
// The same, and the session begins with a floor, as if it had forgotten all that no row at or past it sees
// (banyan_spec.forget): to make one again of which no more is there. Of each layer the rows below its
// banyan_session_info.layer_forgotten count as committed, and are refused with FORGOTTEN, from the start; a layer with
// neither window nor mask_chunk begins at 0 as ever. What is attached and committed from there on is all that it has. A
// step that sees a row which has not been is refused: OUT_OF_RANGE, or FAILED_PRECONDITION with reason HOLE. The floor
// does not rise meanwhile where the first rows of one layer are committed last. floor 0: as banyan_session_create.
// With a floor it attaches to workers, some calls for each layer. OK means that all has been done; after a failure the
// session is gone, or the message says that it is not. INVALID_ARGUMENT: a floor, and a spec with forget 0.
// OUT_OF_RANGE: a floor past the coordinator's --max-session-tokens, or past 2^18 chunks. UNIMPLEMENTED: a coordinator
// of an older build. Otherwise as banyan_session_create, banyan_attach and banyan_commit.
BANYAN_API banyan_code banyan_session_create_at(banyan_client *client, const banyan_spec *spec,
                                                const char *name, uint64_t floor, banyan_session **out,
                                                banyan_error *error);
// By id, or by name where id is 0.
BANYAN_API banyan_code banyan_session_open(banyan_client *client, uint64_t id, const char *name,
                                           banyan_session **out, banyan_error *error);
// Releases the hold; the session lives on (until its idle time-to-live). No call of this hold may be in
// flight. Tells the coordinator, which takes a round trip, at most a second. May be called in a callback.
// NULL is allowed.
BANYAN_API void banyan_session_close(banyan_session *session);
// Destroys the session and everything held for it. The hold is still to be closed.
BANYAN_API banyan_code banyan_session_delete(banyan_session *session, banyan_error *error);

BANYAN_API uint64_t banyan_session_id(const banyan_session *session); // never 0
// With its defaults filled in; valid until close.
BANYAN_API const banyan_spec *banyan_session_spec(const banyan_session *session);

typedef struct banyan_hole { // tokens of a layer that are not committed, below others that are
    uint32_t layer;
    uint64_t first, count;
} banyan_hole;

typedef struct banyan_session_info {
    // length: of the shortest layer that has K and V of its own
    uint64_t id, incarnation, epoch, chunks, bytes, length, steps, idle_ns;
    char name[129], state[16];
    uint32_t n_layers;
    uint64_t
        *layer_lengths; // [n_layers] tokens committed from 0 on without a hole; a layer that reads another's
                        // K and V has its length, one that holds nothing 0
    uint32_t n_members;
    char (*members)[65];       // names of the workers that hold a part
    uint64_t forgotten;        // no truncate or fork goes further back, but to 0 (banyan_spec.forget)
    uint64_t *layer_forgotten; // [n_layers] rows below it are forgotten; they count in length, not in bytes
    uint32_t n_holes;
    banyan_hole *holes; // [n_holes] by layer, ascending; of very many the first ones
    char tenant[65];    // whose it is; "": said to operators and admins only
    // Chunks of which nobody knows what was appended last: their workers have been away since the coordinator's start. There
    // may be more tokens than `length`
    uint64_t unknown_chunks;
} banyan_session_info;
// A hold remembers the history (incarnation) it has seen. When somebody else truncates the session, calls of
// this hold are refused with ABORTED until it asks for the state with this.
BANYAN_API banyan_code banyan_session_get_info(banyan_session *session, banyan_session_info *out,
                                               banyan_error *error);
BANYAN_API void banyan_session_info_free(banyan_session_info *info); // what it points to; NULL is allowed

typedef struct banyan_holding { // what a worker holds of a session
    char worker[65];
    uint64_t bytes; // of its copies, of committed rows
} banyan_holding;

typedef struct banyan_session_memory {
    uint64_t bytes; // as banyan_session_info.bytes: one copy of each row
    uint64_t
        shared_bytes; // of these: other sessions have the same chunks (forks), and the memory is there once
    uint32_t n_holdings;
    banyan_holding *holdings; // [n_holdings] of all workers that hold a part
} banyan_session_memory;
// Whose memory it takes. The coordinator looks at all its sessions for this: not for every step. UNIMPLEMENTED: a
// coordinator of an older build.
BANYAN_API banyan_code banyan_session_get_memory(banyan_session *session, banyan_session_memory *out,
                                                 banyan_error *error);
BANYAN_API void
banyan_session_memory_free(banyan_session_memory *memory); // what it points to; NULL is allowed

// Keeps the first `length` tokens of every layer (all, where there are fewer). Steps in flight end first.
// OUT_OF_RANGE beyond the longest layer; FAILED_PRECONDITION, reason FORGOTTEN: banyan_spec.forget. ABORTED:
// somebody else has truncated the session since this hold last saw its state. It is done at most once, however
// often it is sent, and never after a later write of this hold: after UNAVAILABLE, DEADLINE_EXCEEDED or CANCELLED
// it may have been done, and until it is known, appends, attaches and commits of this hold are refused with
// ABORTED. banyan_session_get_info or the next truncate finds out; once either has succeeded, it has been done, or
// never will be. Truncates of one hold wait for each other. Whoever goes on with a session after another process
// has ended truncates first (to the length that it has): then none of that process's truncates can come after.
BANYAN_API banyan_code banyan_session_truncate(banyan_session *session, uint64_t length, banyan_error *error);
// A new session with the first `length` tokens; full chunks are shared, not copied. length ≤ the shortest
// layer. FAILED_PRECONDITION, reason FORGOTTEN: banyan_spec.forget.
BANYAN_API banyan_code banyan_session_fork(banyan_session *session, uint64_t length, const char *name,
                                           banyan_session **out, banyan_error *error);

// A fork for a while, for reading a session at one point while it goes on: it is deleted when nobody has used it for
// idle_ttl_ns (banyan_spec.idle_ttl_ns; 0: as its origin), also when its maker has died.
BANYAN_API banyan_code banyan_session_pin(banyan_session *session, uint64_t length, uint64_t idle_ttl_ns,
                                          const char *name, banyan_session **out, banyan_error *error);

// ---- attach: bulk context -----------------------------------------------------------------------

// Sends K and V of `count` tokens of one layer straight to the workers that are to hold them. Layers and
// ranges in any order, from any number of threads; a range may be sent again until it is committed. Not
// visible before commit. What is not committed is dropped when nothing of the session was attached for a while
// (workers: --attach-ttl, 15 minutes), and goes with a worker that is lost or was out of reach for some heartbeats:
// the commit names it then, and attaching it again is the remedy. The client's timeout is a limit on standing still: it runs anew whenever something
// arrives. v is NULL where V lies in K.
// INVALID_ARGUMENT: a layer without K and V of its own.
BANYAN_API banyan_code banyan_attach(banyan_session *session, uint32_t layer, uint64_t first, uint64_t count,
                                     const void *k, const void *v, banyan_error *error);
// The same for BANYAN_INT8 and BANYAN_FP8, with the scales; banyan_attach refuses such a session, and this
// one any other.
BANYAN_API banyan_code banyan_attach_scaled(banyan_session *session, uint32_t layer, uint64_t first,
                                            uint64_t count, const void *k, const float *k_scale,
                                            const void *v, const float *v_scale, banyan_error *error);
// Makes the range visible once its holders have it, as it was attached. FAILED_PRECONDITION names what is
// missing; nothing is changed then. Ranges of commits that run side by side may overlap. DATA_LOSS: the range
// is committed, but a worker, which is named, has lost rows of it: attach the range again, then commit it
// again; reason HASH_MISMATCH: rows in a worker's memory are not those that this session handle has attached,
// and they were thrown away: likewise. What another handle has attached, and parts of an attach that end inside
// a chunk, are not compared. A range that is committed already may be committed again: OK means that its holders have it now.
BANYAN_API banyan_code banyan_commit(banyan_session *session, uint32_t layer, uint64_t first, uint64_t count,
                                     banyan_error *error);

// ---- read: rows as they are held -----------------------------------------------------------------

// Reads K and V of rows [first, first + count) of one layer from the workers that hold them, as they were attached or
// appended: k [count][kv_heads][k_dim], v [count][kv_heads][v_dim] of the session's KV type, with BANYAN_INT8 and
// BANYAN_FP8 also k_scale and v_scale [count][kv_heads] (else NULL); v is NULL where V lies in K. The buffers are the
// caller's, and may be written in part when the call fails. Pieces of 256 KiB, up to 32 under way, at several workers;
// each is compared with the sum of it that its holder's memory has, and another holder is asked where one fails. It
// disturbs no step. Blocks; any thread. The client's timeout is a limit on standing still.
// OUT_OF_RANGE: past the shortest layer. FAILED_PRECONDITION, reason FORGOTTEN: banyan_spec.forget. ABORTED: the session
// was truncated meanwhile. DATA_LOSS: no worker has the rows, or what they send is not what they say it is
// (HASH_MISMATCH). INVALID_ARGUMENT: a layer without K and V of its own.
BANYAN_API banyan_code banyan_read_rows(banyan_session *session, uint32_t layer, uint64_t first,
                                        uint64_t count, void *k, float *k_scale, void *v, float *v_scale,
                                        banyan_error *error);

// ---- attend -------------------------------------------------------------------------------------

// Attention mass: which part of a row's attention each part of the context took. The mass of a part is
// exp(lse of its keys alone - lse of all), its posterior probability (docs/ENERGY.md). It costs up to one
// and a half times the step itself; o and lse have the same bits with and without it. Values are float32,
// each row and head adds up: bins + sink = workers + sink = 1, to rounding; 0 everywhere where a row saw
// nothing, NaN where its lse is.
typedef struct banyan_mass_worker {
    char name[65];
    uint64_t tokens; // keys below `visible` that it computed
} banyan_mass_worker;

typedef struct banyan_mass {
    // Wanted, by the caller:
    // Stretches of whole chunks, at most: 1 .. 4096. As many as there are chunks: chunk by chunk.
    uint32_t bins;
    bool per_head; // of each query head; else the mean over the query heads
    // Results, set to nothing when a call begins; banyan_mass_free:
    banyan_code code;  // where the item's is OK: of the masses. o and lse are right whatever it says
    char message[256]; // why there are none
    uint32_t rows;     // of the item
    uint32_t heads;    // 1, or the query heads
    uint32_t n_bins;   // bin b: positions [b * bin_tokens, (b + 1) * bin_tokens) below `visible`
    uint64_t bin_tokens, visible;
    uint32_t n_workers; // that computed a part
    banyan_mass_worker *workers;
    float *bin;    // [rows][heads][n_bins]
    float *worker; // [rows][heads][n_workers]
    float *sink;   // [rows][heads] what the attention sink took; 0 where the session has none
} banyan_mass;
BANYAN_API void banyan_mass_free(banyan_mass *mass); // what it points to; NULL is allowed

// A partial answer: over the tokens that workers have, where some are lost, or at workers that nobody waits for any
// more (they may yet come back: then answers are whole again). It is exact over what it was computed over, and declares
// everything else. Without leave such an item is DATA_LOSS or UNAVAILABLE, reason MISSING_RANGE. While it is not
// certain that a worker has gone (its link broke just now; the coordinator has just started) the item waits, until its
// deadline. An append is acknowledged as always: by all workers that are to have it, or it fails.
typedef struct banyan_partial {
    // Results, set to nothing when a call begins; banyan_partial_free
    uint32_t n; // 0: the answer is whole, bit for bit what it is without leave
    // [n] what the item's rows, taken together, would have seen and have not: ascending, apart. What their masks hide
    // from all of them is not named. All rows were computed over the same.
    banyan_range *missing;
    uint64_t
        seen; // tokens that the rows, taken together, saw. 0: none: o is 0, and lse −inf (or the sink's logit)
} banyan_partial;
BANYAN_API void banyan_partial_free(banyan_partial *partial); // what it points to; NULL is allowed

typedef struct banyan_item {
    banyan_session *session;
    uint32_t layer;
    uint64_t first; // position of the first row
    uint32_t rows;
    const float *q;
    // Both or none (v is NULL where V lies in K): appended at [first, first + rows) before the rows look
    const void *k, *v;
    const float *k_scale, *v_scale; // with k and v of BANYAN_INT8 and BANYAN_FP8, and only then; else NULL
    // Keys [0, visible) at most. 0: first + rows, or the block's end where that is larger; of a layer that is not
    // causal, all that it has with this append
    uint64_t visible;
    uint64_t block_first, block_count; // rows at positions [block_first, block_first + block_count) see each
                                       // other's keys, later ones too (image tokens, prefixes); count 0: none
    float *o;
    float *lse; // NULL: not wanted
    // NULL: not wanted. Such an item has at most 4096 rows and 16 MiB, and rows * q_heads * bins is at most
    // 2^20 (INVALID_ARGUMENT). For an item with a deadline: masses take their part of it.
    banyan_mass *mass;
    // NULL: exact, or an error. Else a partial answer is taken, and this says what it lacks; masses are of what was seen.
    // Such an item has at most 4096 rows and 16 MiB (INVALID_ARGUMENT). RESOURCE_EXHAUSTED: more than 262144 ranges are
    // missing from the answers of one call. A coordinator that does not know of it answers exactly or with an error.
    banyan_partial *partial;
    // NULL: none. Else the W3C trace context of the span that this item is a part of, the header traceparent's value
    // (docs/TRACING.md): "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01". Where its flags say sampled, spans are made
    // of the item in every process that has a part in it. Anything malformed is INVALID_ARGUMENT. Read before the call returns.
    const char *traceparent;
    // Results
    banyan_code code;    // of this item: a bad item fails alone
    banyan_error *error; // NULL or the caller's, filled when code is not OK
    uint64_t length;     // of the layer after the step
    uint64_t digest;     // plan digest: same data, same request, same digest, same bits
} banyan_item;

typedef struct banyan_worker_trace {
    char worker[65];
    uint32_t rank;
    int32_t parent;      // rank of its parent in the tree; −1: the root
    uint64_t queue_ns;   // frame complete → its own computation begins
    uint64_t compute_ns; // of its own part
    uint64_t wait_ns;    // own part ready → its children's are merged
    uint64_t tokens;     // keys that it computed
} banyan_worker_trace;

typedef struct banyan_trace { // where a call's time went
    uint64_t total_ns;        // seen by the caller's side of the wire
    uint64_t coordinator_ns;  // inside the coordinator, tree and masses excluded
    uint64_t tree_ns;         // frame sent to the root → answer, the largest over the call's plans
    uint64_t mass_ns;         // for masses, where an item asked for them
    uint32_t n_workers;
    banyan_worker_trace *workers; // allocated when asked for; banyan_trace_free. Of the frames that carried
                                  // the call, other calls' items in them included; several frames add up
} banyan_trace;
BANYAN_API void banyan_trace_free(banyan_trace *trace); // what it points to; NULL is allowed

// Any number of items in one call, of any sessions of this client. timeout_ns 0: the client's. trace may be
// NULL. The code is OK when the call as a whole was answered: then each item has its own code. When it is not
// OK every item has that code.
//
// An append that fails is not there and never will be, unless the reason of the item's error is UNCONFIRMED (so give
// items an `error`): then a worker or the answer is missing, and the rows may be there, or may yet be acknowledged:
// all of them or none. The same append again settles it, whichever it is, and may be repeated until it is answered.
// Other bytes in its place are accepted if it is not there (else FAILED_PRECONDITION). banyan_session_get_info says how
// long the layers are at the moment. An item that needs several messages (more than 4096 rows or 16 MiB) is several
// appends, one after the other: `length` says how far they have come.
BANYAN_API banyan_code banyan_attend(banyan_client *client, banyan_item *items, size_t n_items,
                                     uint64_t timeout_ns, banyan_trace *trace, banyan_error *error);

// Asynchronous attend. `done` runs exactly once on the library's thread, unless this returns an error; it
// must not block and may start further calls. items (and what they point to) stay with the caller and must
// live until then.
typedef void (*banyan_attend_fn)(void *arg, banyan_code code, const banyan_error *error, banyan_item *items,
                                 size_t n_items);
// Returns at once; see banyan_attend_fn.
BANYAN_API banyan_code banyan_attend_async(banyan_client *client, banyan_item *items, size_t n_items,
                                           uint64_t timeout_ns, banyan_attend_fn done, void *arg,
                                           banyan_error *error);
// The same with a queue instead of callbacks: completions are fetched with banyan_poll on a thread of the
// caller's, from any thread; banyan_poll_fd is readable while there are any. A call counts against calls_max
// until its completion has been fetched.
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
BANYAN_API size_t banyan_poll(banyan_client *client, banyan_completion *out,
                              size_t max); // never blocks; number fetched

// ---- cluster ------------------------------------------------------------------------------------

typedef struct banyan_worker_info {
    char name[65], host[65], endpoint[128], state[16], kernel[65], engine[16];
    // capacity_bytes, used_bytes and cold_bytes are 0 while it is lost
    uint64_t capacity_bytes, used_bytes, bandwidth, chunks, tokens, steps, heartbeat_age_ns, last_compute_ns;
    uint32_t threads;
    uint64_t quarantined_bytes, quarantined_sessions; // of used_bytes: see banyan_quarantine_get_list
    bool draining;           // it gets no chunks, and those that it has go elsewhere: banyan_worker_drain
    char drain_reason[129];  // as it was given
    uint32_t moves;          // of chunks to this worker, under way: several chunks of a session go in one
    bool slow;               // it computes far slower than `bandwidth` says, and the others do not
    uint64_t seen_bandwidth; // at which it has computed of late; 0: not known
    uint64_t cold_bytes;     // of used_bytes: in its files alone (--store), and read when they are used
    char version[32];        // of its program; "": it has not said, an older build
    // Why it computes on its processor, though it was to look for a device (--device auto) and there is hardware for one:
    // printable ASCII; "": nothing to say
    char no_device[192];
} banyan_worker_info;
typedef struct banyan_limit {    // what may be had at once of something
    char name[65], flag[65];     // flag: that raises it; "": none does
    uint64_t used, max, refused; // refused: times that it was reached since the start
    // Of a limit that each worker has: the one that is nearest to it, with its numbers; refused is of all
    // workers. "": the limit is the coordinator's.
    char worker[65];
} banyan_limit;
typedef struct banyan_cluster_info {
    char version[32], cluster[65];
    uint64_t term, uptime_ns, sessions, steps, frames, chunks, clients;
    uint32_t n_workers;
    banyan_worker_info *workers;
    uint32_t n_limits;
    banyan_limit *limits;
    uint64_t
        thin_chunks; // with fewer copies than their sessions ask for; they are restored in the background
    uint64_t moves;  // of chunks between workers, under way
    uint64_t moved_chunks, moved_bytes; // since the coordinator's start
    uint64_t wished_chunks;             // that a balance wants elsewhere, and that have not begun to move
    // Audits (banyan-coordinator --audit): one step in `audit_every`, 0: none. Since the coordinator's start: steps that
    // were computed again, of these those whose answers were wrong, and those that could not be computed again
    uint64_t audit_every, audited, audit_differences, audit_skipped;
    uint64_t kept_steps, kept_bytes; // banyan_session_get_kept_step: sessions that have one, and their memory
    uint32_t n_endpoints; // where the coordinator listens, as its machine says it: 0.0.0.0 is all addresses
    char endpoints[16][300];
    bool needs_token; // of clients
    // Of this client: whose sessions it sees, and what it may (docs/TENANTS.md); "": a coordinator of an older build
    char tenant[65], access[17];
    char pass[129]; // of operators and admins: what workers take in the place of a token, for 10 minutes
} banyan_cluster_info;
// Asks the coordinator for its state and that of all workers.
BANYAN_API banyan_code banyan_cluster_get_info(banyan_client *client, banyan_cluster_info *out,
                                               banyan_error *error);
BANYAN_API void banyan_cluster_info_free(banyan_cluster_info *info); // what it points to; NULL is allowed

typedef struct banyan_session_list {
    uint32_t n;
    banyan_session_info *sessions;
} banyan_session_list; // entries without layers
// All sessions of the cluster.
BANYAN_API banyan_code banyan_session_get_list(banyan_client *client, banyan_session_list *out,
                                               banyan_error *error);
BANYAN_API void banyan_session_list_free(banyan_session_list *list); // what it points to; NULL is allowed

// What workers hold and the coordinator's store does not know: sessions of another store, or in a later state
// than this one has. They are neither served nor dropped, and come back by themselves when the coordinator is
// started on the store that knows them.
typedef struct banyan_quarantined {
    char worker[65];
    uint64_t session, life, bytes; // life: which life of which store laid it out; bytes: of K and V
    bool newer;                    // the store knows the session, in an earlier state: it is unavailable
} banyan_quarantined;
typedef struct banyan_quarantine_list {
    uint32_t n;
    banyan_quarantined *sessions;
} banyan_quarantine_list;
// worker: NULL for all.
BANYAN_API banyan_code banyan_quarantine_get_list(banyan_client *client, const char *worker,
                                                  banyan_quarantine_list *out, banyan_error *error);
BANYAN_API void
banyan_quarantine_list_free(banyan_quarantine_list *list); // what it points to; NULL is allowed
// Gives up what a worker has in quarantine: one session, or all (0). It cannot be undone. *sessions and *bytes
// (may be NULL): how much went. NOT_FOUND: no such worker, or no such session there; UNAVAILABLE: the worker is
// not active.
BANYAN_API banyan_code banyan_quarantine_drop(banyan_client *client, const char *worker, uint64_t session,
                                              uint64_t *sessions, uint64_t *bytes, banyan_error *error);

// Tokens: who may be a client, as which tenant, and what for (docs/TENANTS.md). For admins; the first one is made where there
// is none, by whoever reaches the coordinator then.
typedef struct banyan_token_info {
    uint64_t id;
    char name[65], tenant[65], access[17]; // access: read-only, user, operator, admin
    uint64_t created_s, expires_s,
        used_s; // since 1970; expires_s 0: never; used_s: to some minutes, 0: not yet
} banyan_token_info;
typedef struct banyan_token_list {
    uint32_t n;
    banyan_token_info *tokens;
} banyan_token_list;
// name: no other token has it. tenant: NULL is "default"; one that is not there is made. life_s: seconds that it is good for;
// 0: until it is revoked. out, and *id (may be NULL): the token, here and never again. ALREADY_EXISTS: another one has the
// name; FAILED_PRECONDITION: the first one must be an admin's. It is not sent twice: after UNAVAILABLE or DEADLINE_EXCEEDED it
// may have been made, and nobody knows it: revoke it by its name.
BANYAN_API banyan_code banyan_token_create(banyan_client *client, const char *name, const char *access,
                                           const char *tenant, uint64_t life_s, char out[65], uint64_t *id,
                                           banyan_error *error);
// All tokens that there are, without themselves, by id.
BANYAN_API banyan_code banyan_token_get_list(banyan_client *client, banyan_token_list *out,
                                             banyan_error *error);
BANYAN_API void banyan_token_list_free(banyan_token_list *list); // what it points to; NULL is allowed
// By name, or by id where name is NULL. Whoever shows it is refused from now on, and connections over which it was shown are
// closed. NOT_FOUND: there is none; FAILED_PRECONDITION: it is the last one of an admin.
BANYAN_API banyan_code banyan_token_revoke(banyan_client *client, const char *name, uint64_t id,
                                           banyan_error *error);

// What a tenant may have, and has (docs/QUOTAS.md). What would be more is refused: RESOURCE_EXHAUSTED, reason QUOTA.
typedef struct banyan_quota {
    char name[32];          // "bytes", "sessions", "steps_per_s", "steps_in_flight", "connections", "watches"
    uint64_t max;           // 0: no limit
    uint64_t used, refused; // refused: times, since the coordinator's start
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
// Sets the quotas [n] that are named, by `name` and `max`, at once and for good; the others stay. tenant: NULL for one's own.
// *out (may be NULL): all of its quotas then. NOT_FOUND: no such tenant; PERMISSION_DENIED: the token is not an admin's.
BANYAN_API banyan_code banyan_quota_set(banyan_client *client, const char *tenant, const banyan_quota *quotas,
                                        uint32_t n, banyan_tenant_quotas *out, banyan_error *error);
// tenant: NULL for all with an operator's or admin's token, for one's own with any other.
BANYAN_API banyan_code banyan_quota_get_list(banyan_client *client, const char *tenant,
                                             banyan_quota_list *out, banyan_error *error);
BANYAN_API void banyan_quota_list_free(banyan_quota_list *list); // what it points to; NULL is allowed

// What has happened in the cluster: workers that came and went, sessions that lost copies, refusals, each with its reason.
// The coordinator keeps the newest (--events, 4096) in memory. Their kinds: 'banyanctl help events'.
typedef struct banyan_event {
    uint64_t seq;           // rises by 1 while a coordinator runs; (term, seq) rises over its restarts, too
    uint64_t term;          // of the coordinator
    uint64_t time_ns;       // since 1970, UTC, by the coordinator's clock
    char kind[33];          // "worker-lost", …
    char severity[9];       // "info", "warn" or "error"
    char worker[65];        // that it is about; ""
    uint64_t session;       // likewise; 0
    char session_name[129]; // "" where it has none
    uint64_t epoch;         // of the session, after it; 0: it says nothing of that
    uint32_t count; // of events that it stands for: of one kind only a few in a second stand for themselves
    char text[256]; // one line, with the reason
} banyan_event;
typedef struct banyan_events_options {
    uint64_t term, seq; // where an earlier answer has ended; both 0: from the oldest that is kept
    // Only those that are so; what is NULL or 0 asks for nothing:
    const char *const *kinds; // [n_kinds, at most 64] kinds, or groups of them: "worker"
    uint32_t n_kinds;
    const char *severity; // this one or a worse one
    const char *worker;
    uint64_t session; // about the session with this id, or with that name
    const char *session_name;
    uint64_t since_ns; // from this moment on
    uint32_t max;      // 1 to 256; 0: 256
    uint64_t wait_ns;  // for the first one, at most 50 s; 0: not at all
} banyan_events_options;
typedef struct banyan_events {
    uint32_t n;
    banyan_event *events; // oldest first
    uint64_t term, seq;   // where the next call goes on
    bool more;            // it would find some at once
    bool
        anew; // the coordinator has started anew since `term`, or is another one: what is here begins with its oldest
    uint64_t lost; // events behind `seq` that are not kept any more
} banyan_events;
// OK with n = 0: nothing came in time. RESOURCE_EXHAUSTED: too many wait already. options NULL: all. A call that waits goes
// on waiting at the next coordinator when one restarts, or when another one serves.
BANYAN_API banyan_code banyan_events_read(banyan_client *client, const banyan_events_options *options,
                                          banyan_events *out, banyan_error *error);
BANYAN_API void banyan_events_free(banyan_events *events); // what it points to; NULL is allowed

// A copy of the coordinator's store as it is at one moment, while it serves (docs/BACKUP.md). write takes it piece by
// piece, in order, on the calling thread; 0 ends it (CANCELLED). RESOURCE_EXHAUSTED: another one is being taken.
// DATA_LOSS: it did not come as it was sent. What was written before any error is of no use.
typedef struct banyan_backup {
    uint64_t bytes;                             // that were written
    uint64_t sum;                               // of the copy in it
    uint64_t sessions, tokens, chunks, workers; // in it; tokens: those that were attached
    uint64_t term;
} banyan_backup;
typedef bool (*banyan_backup_write)(void *arg, const void *data, size_t len);
BANYAN_API banyan_code banyan_backup_take(banyan_client *client, banyan_backup_write write, void *arg,
                                          banyan_backup *out, banyan_error *error); // out may be NULL
// Says that all workers are back at a coordinator whose store was restored: its sessions are served from now on, but
// those of which a worker has a newer state. *sessions (may be NULL): how many. FAILED_PRECONDITION: nothing was
// restored, or workers are not there; without_absent: what only they know is taken for lost.
BANYAN_API banyan_code banyan_backup_accept(banyan_client *client, bool without_absent, uint64_t *sessions,
                                            banyan_error *error);

// Takes a worker out of use, durably, and back into it. Its chunks go to other workers while their sessions are used,
// and no new ones come to it; once `chunks` is 0 it can be stopped, and nothing is lost. These return at once;
// banyan_worker_get_drain says how far it is. A worker that went away stays drained until it is resumed.
typedef struct banyan_drain {
    bool draining;
    uint64_t chunks;   // that it still has
    uint64_t bytes;    // likewise, of K and V, as they count when they are full
    uint64_t sessions; // that it is a member of
    char stuck[256];   // why nothing moves now, for people; "": it does, or there is nothing left
} banyan_drain;
// reason: for people, at most 128 printable bytes; NULL: none, or the one that was given before. out may be NULL.
// NOT_FOUND: the coordinator knows no such worker.
BANYAN_API banyan_code banyan_worker_drain(banyan_client *client, const char *worker, const char *reason,
                                           banyan_drain *out, banyan_error *error);
// It is used again; what has moved stays where it is until a balance. A worker whose own process is leaving
// (banyan-worker --drain, after SIGTERM) goes on doing so: out->draining. out may be NULL. NOT_FOUND likewise.
BANYAN_API banyan_code banyan_worker_resume(banyan_client *client, const char *worker, banyan_drain *out,
                                            banyan_error *error);
// How far it is, or what a worker has that is not drained. NOT_FOUND likewise.
BANYAN_API banyan_code banyan_worker_get_drain(banyan_client *client, const char *worker, banyan_drain *out,
                                               banyan_error *error);

// Strikes a worker off the list that is lost and will not come back. NOT_FOUND likewise. FAILED_PRECONDITION, with what to
// do: it is there, or chunks have no other copy, or sessions have not let go of it yet. Nothing is lost by it: a process
// that comes under the name again is taken as a new one.
BANYAN_API banyan_code banyan_worker_forget(banyan_client *client, const char *worker, banyan_error *error);

typedef struct banyan_chunk_move {
    uint64_t session, first; // first: position of the chunk's first token
    char from[65], to[65];   // workers
    uint64_t bytes;
} banyan_chunk_move;
typedef struct banyan_balance {
    uint64_t chunks, bytes; // that move, or would
    uint32_t n_moves;       // the first 1024 of them
    banyan_chunk_move *moves;
} banyan_balance;
// Moves chunks, so that each worker has as much of all sessions as it is fast; dry_run: only says what would move.
// Returns at once; sessions are used meanwhile. A later balance takes the place of an earlier one. out may be NULL.
BANYAN_API banyan_code banyan_rebalance(banyan_client *client, bool dry_run, banyan_balance *out,
                                        banyan_error *error);
BANYAN_API void banyan_balance_free(banyan_balance *balance); // what it points to; NULL is allowed

typedef struct banyan_scrub {
    uint64_t chunks;   // full ones whose rows are sealed: what all their workers must have is stored
    uint64_t left;     // of these, and of those that differ, not compared yet since that was asked for
    uint64_t unsealed; // full, and without a seal so far
    uint64_t lost;     // no worker has what was sealed, or what was committed: steps over them are DATA_LOSS
    // Since the coordinator's start, of all sessions: copies compared; of these, wrong, and used no more; times that workers of a chunk
    // without a seal did not agree, so that nobody can tell whose rows are right.
    uint64_t compared, corrupt, disputed;
    uint64_t healed; // copies that were wrong, and were taken from their workers' files (--store) again
    // Full chunks without a seal whose workers have different rows, when they were compared last: nobody can tell whose are right, and
    // whoever serves is answered from.
    uint64_t differ;
} banyan_scrub;
// Has the memory of the session's full chunks, or of all (0), compared at all their workers with what was sealed, now and not when it is
// their turn. Returns at once, it goes on by itself; get says how far it is. out may be NULL. NOT_FOUND: no such session.
BANYAN_API banyan_code banyan_scrub_begin(banyan_client *client, uint64_t session, banyan_scrub *out,
                                          banyan_error *error);
// How far it is. NOT_FOUND likewise.
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
// The tree of workers that answers the session's steps now.
BANYAN_API banyan_code banyan_session_get_plan(banyan_session *session, banyan_plan_info *out,
                                               banyan_error *error);
BANYAN_API void banyan_plan_info_free(banyan_plan_info *info); // what it points to; NULL is allowed

// ---- watching -----------------------------------------------------------------------------------

// What a session's last steps looked at and where their time went, for operators: beside the client that
// makes the steps, which notices nothing. While a watch waits, the service looks at the session's next steps;
// it keeps up to 64 of them (1 MiB) for the next watch, for the 64 sessions watched last. Steps whose client
// asks for a trace or masses itself are kept, too.
typedef struct banyan_watch_options {
    uint32_t steps;   // 1 .. 64: an item of an attend is a step. 0: 1
    uint64_t wait_ns; // for so many new ones, at most 50 s; then those that there are, kept ones included
    bool all_layers;  // else only `layer`
    uint32_t layer;
    bool trace;         // only steps with a trace
    uint32_t mass_bins; // not 0: only steps with masses; new ones with at most so many bins, 1 .. 1024
    bool mass_per_head; // of each query head: q_heads * mass_bins is at most 65536
} banyan_watch_options;

typedef struct banyan_watched_step {
    uint64_t step; // its number in the session
    uint32_t layer, rows, attempts;
    uint64_t first, visible;
    bool append;
    uint64_t missing;   // tokens that its rows would have seen: the client took a partial answer
    uint64_t age_ns;    // since it was answered
    banyan_trace trace; // n_workers 0: it has none. total_ns: inside the service
    banyan_mass mass;   // of its last row, rows 1; n_bins 0: it has none, `message` may say why
} banyan_watched_step;

typedef struct banyan_watch {
    uint32_t n;
    banyan_watched_step *steps; // oldest first
} banyan_watch;
// OK with n = 0: there was no such step. RESOURCE_EXHAUSTED: too many watch already.
BANYAN_API banyan_code banyan_session_watch(banyan_session *session, const banyan_watch_options *options,
                                            banyan_watch *out, banyan_error *error);
BANYAN_API void banyan_watch_free(banyan_watch *watch); // what it points to; NULL is allowed

// ---- a step that is kept ------------------------------------------------------------------------

// The service keeps a step of each session as it was asked and answered (banyan-coordinator --keep-steps), so that it
// can be computed again from the session's rows (banyan_read_rows). Another one takes its place after a second at the
// earliest; one that an audit has found wrong stays. Of a step of many rows, some.
enum { BANYAN_KEPT_ROWS = 4 };
typedef enum banyan_audited {
    BANYAN_AUDIT_NONE = 0, // the service has not computed it again
    BANYAN_AUDIT_RIGHT = 1,
    BANYAN_AUDIT_WRONG = 2
} banyan_audited;
typedef struct banyan_kept_step {
    uint64_t
        incarnation; // of the session, whose rows it saw: if that is still the session's, they are as they were
    uint64_t first,
        rows; // of the step; rows 0: none is kept, or rows that it saw are not the session's any more
    uint32_t layer;
    bool append;
    uint64_t visible, block_first, block_count; // as in banyan_item; visible is never 0
    uint64_t plan_digest, age_ns;               // age: since it was answered
    banyan_audited audited;
    char workers[513]; // of one that was audited: the session's members then
    uint32_t n;        // rows that are kept
    uint64_t positions[BANYAN_KEPT_ROWS];
    uint32_t q_heads, k_dim, v_dim;
    float *q, *o, *lse; // [n][q_heads][k_dim], [n][q_heads][v_dim], [n][q_heads]
} banyan_kept_step;
// The step that is kept of the session; out->rows 0: none is.
BANYAN_API banyan_code banyan_session_get_kept_step(banyan_session *session, banyan_kept_step *out,
                                                    banyan_error *error);
BANYAN_API void banyan_kept_step_free(banyan_kept_step *step); // what it points to; NULL is allowed

typedef struct banyan_edge_down { // one worker does not reach the other, now
    char from[65], to[65];
} banyan_edge_down;
// What a daemon says about itself and its machine: a coordinator, or a worker at its endpoint
// (banyan_worker_info.endpoint; it takes no token). Zero where it does not know, or is of an older build.
typedef struct banyan_examined {
    bool serving; // not while it stops, or leaves
    char version[32];
    uint64_t term, uptime_ns, rtt_ns;
    uint64_t
        wall_ns; // its clock when it answered, since 1970; 0: nothing of what follows is told, which is of an older build,
    // or for an operator's token
    int64_t skew_ns;           // its clock less this machine's, give or take half of rtt_ns
    uint64_t files, files_max; // descriptors that are open, about, and that may be
    uint64_t memory_bytes, memory_available_bytes; // of its machine
    uint64_t disk_bytes, disk_free_bytes;          // where its store is
    uint32_t n_edges_down;
    banyan_edge_down *edges_down; // of a coordinator
    // When its certificate and that of its authority end, in seconds since 1970; 0: it has none, or is of an older build
    int64_t tls_expires_s, tls_ca_expires_s;
} banyan_examined;
// Connects to this one endpoint, asks, and disconnects. Errors are banyan_connect's.
BANYAN_API banyan_code banyan_examine(const char *endpoint, const banyan_options *options,
                                      banyan_examined *out, banyan_error *error);
BANYAN_API void banyan_examined_free(banyan_examined *examined); // what it points to; NULL is allowed

// Round trip to the coordinator's health service.
BANYAN_API banyan_code banyan_ping(banyan_client *client, uint64_t *rtt_ns, banyan_error *error);

#ifdef __cplusplus
}
#endif
#endif
