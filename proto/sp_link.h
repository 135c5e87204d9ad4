// SPDX-License-Identifier: Apache-2.0
// One connection of an nng client at the serving end: nng's wire (sp_reader.h) over a link (stream_link.h),
// and the requests that came by it. On the server's loop, like everything here: an answer is written where it
// is made.
//
// A link is a stranger until a message has shown the token (any frame, if the server requires none). What a
// stranger can cost is small and ends soon:
//
//                     stranger                                     known
//   of a message      frames of 64 KiB; larger ones are skipped    payload_max; above it the payload is skipped
//   messages          64, then closed                              any number
//   requests served   none                                         256, and those of one client (rpc.h): not read beyond
//   unread answers    64 KiB: not read beyond                      4 MiB: not read beyond
//   time              5 s to the handshake, 10 s to the token      30 s without a byte of what is begun
//   links             256, then the oldest goes (sp_server.c)      links_max; then one that is silent goes
#ifndef PROTO_SP_LINK_H
#define PROTO_SP_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/loop/loop.h"
#include "proto/rpc/transport.h"
#include "proto/sp_reader.h"
#include "proto/stream/acceptor.h"
#include "proto/stream/stream_link.h"

// An endpoint listened on.
struct proto_sp_server {
    struct proto_server *server;
    struct proto_acceptor *acceptor;
    bool tls; // OpenSSL's, under our own reading of nng's wire: nng's clients need 1.2 of it
    struct common_timer *tick;
    struct common_list strangers; // oldest first
    struct common_list known;
    uint32_t n_strangers, n_known;
    size_t reading; // bytes that have come of messages that are not whole
    uint8_t *head;  // where an answer's beginning is put together
    size_t head_cap;
    uint8_t in[PROTO_LINK_BUFFER]; // what has just been read, for all links
};

// What happens to the message that is being read.
enum proto_sp_use {
    PROTO_SP_EMPTY,    // it is no frame: an empty answer, as a caller cannot take for one
    PROTO_SP_OVERSIZE, // refused; its payload is skipped
    PROTO_SP_UNKNOWN,  // likewise, from a stranger
    PROTO_SP_FULL,     // likewise, for want of room
    PROTO_SP_CROWDED,  // refused: as many clients as may be are here, and all of them are busy
    PROTO_SP_REQUEST,
};

struct proto_sp_link {
    struct common_list link;    // in the server's strangers or known
    struct proto_sp_server *sp; // while io
    struct proto_server *server;
    struct proto_link *io; // NULL: closed
    unsigned refs;         // the list, and each request
    bool known;
    uint32_t n_strange; // messages of a stranger
    uint64_t since_ns;
    struct proto_sp_reader reader;
    enum proto_sp_use use;
    const char *why; // EMPTY
    struct proto_prefix prefix;
    size_t reading; // its share of sp->reading
    struct common_list requests;
    struct proto_caller caller;
    struct common_blob *rest; // read, but not to be taken now
    size_t rest_at;
    char peer[80];
};

// A place for one more client, where all are taken: one that is silent goes. false: there is none.
// sp_server.c
bool proto_sp_crowd_out_silent(struct proto_sp_server *sp);

// Takes fd over. NULL: out of memory (fd stays the caller's).
struct proto_sp_link *proto_sp_link_new(struct proto_sp_server *sp, int fd, const char *peer);

// Its callers are gone: requests are cancelled.
void proto_sp_link_close(struct proto_sp_link *link);

// When a byte last moved on a link that may be closed for another: nothing is served, and nothing is under
// way or it does not move. UINT64_MAX: it may not be.
uint64_t proto_sp_link_spare(const struct proto_sp_link *link, uint64_t now_ns);

// Once a second: fails a link whose time is up.
void proto_sp_link_check(struct proto_sp_link *link, uint64_t now_ns);

// ---- between sp_link.c and sp_request.c -----------------------------------------------------------------

// Serves the whole message of link->reader, as link->use says. It may close the link.
void proto_sp_serve(struct proto_sp_link *link);

bool proto_sp_link_may_read(struct proto_sp_link *link); // another message, now
// The token has been shown. False: there is no place; text (PROTO_LIMIT_TEXT bytes) says of what.
bool proto_sp_link_known(struct proto_sp_link *link, char *text);
void proto_sp_link_unref(struct proto_sp_link *link);

#endif
