// SPDX-License-Identifier: Apache-2.0
// One connected stream socket that carries frames, used by both ends. Reads fill one aligned buffer in which
// small frames are used in place; big frames are read straight into a blob of their own. Writes go out at
// once on the caller's stack and wait only when the socket is full. An owner with a wire of its own (nng's:
// proto/sp_server.c) reads for itself and has everything else from here. Under TLS (proto_link_secure)
// nothing is read or written before its handshake has ended; frames that are sent earlier wait.
//
//            may_read says no
//     OPEN ◀─────────────────▶ PAUSED
//      │    proto_link_resume    │
//      │                         │   failure, end of file, garbage
//      ├────────────┬────────────┘
//      │            ▼
//      │          FAILED: the owner's `failed` comes in the next turn of the loop
//      │            │
//      ▼            ▼            proto_link_close, from each of them
//     CLOSED: nothing comes any more
#ifndef PROTO_STREAM_LINK_H
#define PROTO_STREAM_LINK_H

#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/loop/loop.h"
#include "common/memory/blob.h"
#include "proto/rpc/rpc.h"
#include "proto/stream/link_io.h"
#include "proto/wire/frame.h"

#define PROTO_LINK_BUFFER       (64 * 1024)
#define PROTO_LINK_HELLO_BUFFER 4096 // before the hello is done: no stranger gets more memory than this

struct proto_link;
struct proto_signs; // transport.h

struct proto_link_ops {
    // There may be bytes: the owner takes them with proto_link_read. It may close the link. Instead of the
    // three about frames, and the link then has no buffer. NULL: the link reads frames.
    void (*readable)(void *owner);
    // A whole frame lies at blob->data + offset. It may close the link. A false return fails the link with
    // *err.
    bool (*frame)(void *owner, const struct proto_prefix *prefix, struct common_blob *blob, size_t offset,
                  struct common_error *err);
    // A frame whose payload is above the limit: only its header lies there, the payload will be skipped.
    // NULL: such a frame fails the link.
    bool (*oversize)(void *owner, const struct proto_prefix *prefix, struct common_blob *blob, size_t offset,
                     struct common_error *err);
    // The handshake of TLS has ended well: the owner looks at whom it has, and may fail the link. It may not
    // close it. NULL: anybody will do.
    void (*secured)(void *owner);
    // Asked before there is memory for a frame that is too large for the buffer, of so many bytes. False: it
    // goes the way of one whose payload is above the limit. NULL: always true.
    bool (*may_begin)(void *owner, uint64_t bytes);
    // The link is of no use any more; the owner calls proto_link_close.
    void (*failed)(void *owner, enum common_code code, const char *text);
    // Asked before each frame; false: stop reading until proto_link_resume. NULL: always true.
    bool (*may_read)(void *owner);
};

// A frame that waits for the socket.
struct proto_link_out {
    struct common_list link;
    struct proto_gather *gather; // kept; what is written is cut off
    size_t next;                 // first iovec not written
    size_t left;                 // bytes
    bool started;
    bool owns_rest; // the rest was copied: `gather` holds all of it
    proto_done_fn sent;
    void *sent_arg;
    struct proto_link_out **owner; // cleared when this goes
};

enum proto_link_state {
    PROTO_LINK_OPEN,
    PROTO_LINK_PAUSED,
    PROTO_LINK_FAILED,
    PROTO_LINK_CLOSED,
    PROTO_LINK_STATES
};

struct proto_link {
    struct common_loop *loop;
    const struct proto_link_ops *ops;
    void *owner;
    struct proto_io io;
    unsigned refs;
    enum proto_link_state state;
    bool in_parse, kicked; // a loop over frames is on the stack; a turn of its own is asked for
    enum common_code failed_code;
    char failed_text[COMMON_ERROR_BYTES];
    struct event read_event, write_event, kick_event;
    // reading
    uint64_t reader; // owner of what comes in (common's block.h): a number of its own until proto_link_trust
    struct common_blob *in;
    size_t in_start, in_end;
    bool large;              // the last frame was above the buffer, and the next one may be
    struct common_blob *big; // a frame above the buffer, being read
    struct proto_prefix big_prefix;
    uint64_t *begun; // where the bytes of `big` are counted while it is read; NULL: nowhere
    size_t big_have, big_len;
    uint64_t skip; // bytes of an oversize frame still to come
    uint32_t header_max;
    uint64_t payload_max;
    uint64_t read_ns; // when bytes last came, for frames that stall
    // writing
    struct common_list outs;
    size_t out_bytes;
    size_t *unread;    // NULL, or where the out_bytes of several links are summed
    uint64_t wrote_ns; // when bytes last went, for readers that stall
    bool said;         // a frame was sent since proto_link_owes_a_note looked last
};

// Frames still go in and out.
static inline bool proto_link_works(const struct proto_link *link)
{
    return link->state == PROTO_LINK_OPEN || link->state == PROTO_LINK_PAUSED;
}

// Takes over fd (non-blocking, connected). Limits are those of the hello until proto_link_set_limits. NULL:
// out of memory (fd stays the caller's).
struct proto_link *proto_link_new(struct common_loop *loop, int fd, const struct proto_link_ops *ops,
                                  void *owner);
// Puts TLS on a new link, before anything is sent: its handshake begins in the loop's next turn. `tls` is not
// kept. RESOURCE_EXHAUSTED.
enum common_code proto_link_secure(struct proto_link *link, const struct common_tls *tls,
                                   const struct common_tls_link_options *options, struct common_error *err);

bool proto_link_set_limits(struct proto_link *link, uint32_t header_max,
                           uint64_t payload_max); // false: out of memory

// Sends a frame. `sent` (may be NULL) runs once its bytes are not needed any more, on this stack or later,
// also when the link fails. When it has to wait and `owner` is not NULL, *owner names it until then. false:
// out of memory; nothing was sent, `sent` has not run.
bool proto_link_send(struct proto_link *link, struct proto_gather *gather, proto_done_fn sent, void *sent_arg,
                     struct proto_link_out **owner);

// The borrowed bytes of a waiting frame go away: it is dropped if not begun (returns false), else the rest is
// copied (true).
bool proto_link_out_detach(struct proto_link *link, struct proto_link_out *out);

// The peer is a daemon: what comes in is no one client's, and its buffers go from one such link to the other
// as they are.
void proto_link_trust(struct proto_link *link);

void proto_link_fail(struct proto_link *link, enum common_code code,
                     const char *text); // `failed` comes in the next turn
void proto_link_resume(struct proto_link *link);

// For an owner that reads for itself. Bytes read; 0: nothing now, or the link has failed.
size_t proto_link_read(struct proto_link *link, void *to, size_t len);
void proto_link_pause(struct proto_link *link); // an open one; `readable` runs again after proto_link_resume

// Nothing comes afterwards, except `sent` of what waits: on this stack. The memory goes with the last
// reference.
void proto_link_close(struct proto_link *link);

// Signs of the peer's host: bytes that came and acknowledgements of TCP. That of a unix socket is ours.
void proto_link_signs(const struct proto_link *link, struct proto_signs *out);

// Whether the peer may take this process for gone, though it is at work on what it was sent: since `since_ns`
// nothing was said to it, and bytes of it have come, or the link is paused. `owed`: answers are.
bool proto_link_owes_a_note(struct proto_link *link, bool owed, uint64_t since_ns);

// A link that is not read does not see its end by itself: whether a paused one has come to it.
bool proto_link_hung_up(const struct proto_link *link);

// Whether a frame has been half read, or an answer half written, without a byte moving since `since_ns`.
bool proto_link_stalls(const struct proto_link *link, uint64_t since_ns);

#endif
