// SPDX-License-Identifier: Apache-2.0
#include "proto/sp_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "proto/stream/stream_hello.h"
#include "proto/wire/wire.h"

enum {
    // A ping has 100 bytes. With what was read ahead and unread answers, 256 strangers hold 48 MiB at most.
    STRANGER_FRAME_MAX = 64 << 10,
    STRANGER_OUT_MAX = 64 << 10,
    STRANGER_MESSAGES_MAX =
        64,              // what a channel of ours has under way: with a wrong token it has all its answers
    OUT_MAX = 4 << 20,   // as for streams
    REQUESTS_MAX = 256,  // four times what a channel of ours has under way
    BIG_ROUND = 4 << 20, // bytes of a big message read in one turn of the loop: others want theirs
    HEADER_CREDENTIALS = 4,
};
#define HELLO_NS    (5 * COMMON_NS_PER_S)
#define STRANGER_NS (10 * COMMON_NS_PER_S)
#define STALL_NS    (30 * COMMON_NS_PER_S)

void proto_sp_link_unref(struct proto_sp_link *link)
{
    if (--link->refs > 0)
        return;
    proto_server_unref(link->server);
    explicit_bzero(&link->reader, sizeof link->reader); // the beginning of its last message
    free(link);
}

bool proto_sp_link_known(struct proto_sp_link *link, char *text)
{
    struct proto_sp_server *sp = link->sp;
    if (link->known)
        return true;
    if (sp->n_known >= sp->server->links_max && !proto_sp_crowd_out_silent(sp)) {
        proto_limit_reached(sp->server, PROTO_LIMIT_NNG_CLIENTS, text);
        return false;
    }
    if (!proto_caller_enters(sp->server, &link->caller, text))
        return false;
    link->known = true;
    common_list_remove(&link->link);
    common_list_push(&sp->known, &link->link);
    sp->n_strangers--, sp->server->n_strangers--;
    sp->n_known++, sp->server->n_nng++;
    proto_caller_known(sp->server, &link->caller);
    return true;
}

// What has come of a message counts, not what was declared: a sender that stops holds what it has sent.
static void count_reading(struct proto_sp_link *link, size_t bytes)
{
    link->sp->reading += bytes - link->reading;
    link->reading = bytes;
}

void proto_sp_link_close(struct proto_sp_link *link)
{
    struct proto_link *io = link->io;
    if (!io)
        return;
    link->io = NULL;
    common_list_remove(&link->link);
    proto_caller_gone(link->server, &link->caller);
    if (link->known)
        link->sp->n_known--, link->server->n_nng--;
    else
        link->sp->n_strangers--, link->server->n_strangers--;
    count_reading(link, 0);
    link->sp = NULL;
    proto_link_close(io);
    proto_sp_reader_fini(&link->reader);
    common_blob_unref(link->rest);
    link->rest = NULL;
    struct common_list gone;
    common_list_move(&link->requests, &gone);
    while (!common_list_empty(&gone)) {
        struct proto_request *request = common_list_entry(gone.next, struct proto_request, link);
        common_list_remove(&request->link);
        proto_request_cancel(request);
    }
    proto_sp_link_unref(link);
}

uint64_t proto_sp_link_spare(const struct proto_sp_link *link, uint64_t now_ns)
{
    const struct proto_link *io = link->io;
    uint64_t moved_ns = io->read_ns > io->wrote_ns ? io->read_ns : io->wrote_ns;
    bool idle = proto_sp_between(&link->reader) && !link->rest && common_list_empty(&io->outs);
    return link->caller.requests == 0 && (idle || now_ns - moved_ns > COMMON_NS_PER_S) ? moved_ns
                                                                                       : UINT64_MAX;
}

void proto_sp_link_check(struct proto_sp_link *link, uint64_t now_ns)
{
    uint64_t stall_ns = now_ns > STALL_NS ? now_ns - STALL_NS : 0, age_ns = now_ns - link->since_ns;
    if (!link->known && link->reader.state == PROTO_SP_HELLO && age_ns > HELLO_NS)
        proto_link_fail(link->io, COMMON_DEADLINE_EXCEEDED, "no nng handshake in time");
    else if (!link->known && age_ns > STRANGER_NS)
        proto_link_fail(link->io, COMMON_UNAVAILABLE, "no valid request in time"); // it may dial again
    else if (proto_link_hung_up(link->io))
        proto_link_fail(link->io, COMMON_UNAVAILABLE, "the peer closed the link");
    else if (proto_link_stalls(link->io, stall_ns) ||
             (!proto_sp_between(&link->reader) && link->io->state == PROTO_LINK_OPEN &&
              link->io->read_ns < stall_ns))
        proto_link_fail(link->io, COMMON_DEADLINE_EXCEEDED, "no byte of a begun message has moved for 30 s");
}

bool proto_sp_link_may_read(struct proto_sp_link *link)
{
    return link->caller.requests < REQUESTS_MAX && !proto_caller_full(link->server, &link->caller) &&
           link->io->out_bytes < (link->known ? OUT_MAX : STRANGER_OUT_MAX);
}

// ---- messages -------------------------------------------------------------------------------------------

// Whether the token stands in a header's beginning. Protobuf writes fields in the order of their numbers, and
// the checksum stands before them, so it does: 294 bytes hold everything up to the longest token.
static bool shows_token(struct proto_sp_link *link, const uint8_t *header, size_t len)
{
    struct proto_cursor cursor = {header, header + len};
    struct proto_field field;
    ProtobufCBinaryData none = {0};
    if (proto_server_admit(link->server, &none, link->peer, &link->caller.identity))
        return true;
    while (cursor.at < cursor.end && proto_wire_field(&cursor, &field)) {
        if (field.number != HEADER_CREDENTIALS || field.wire != PROTO_WIRE_BYTES)
            continue;
        ProtobufCBinaryData credentials = {.len = field.len, .data = (uint8_t *)(uintptr_t)field.data};
        return proto_server_admit(link->server, &credentials, link->peer, &link->caller.identity);
    }
    return false;
}

static bool use_empty(struct proto_sp_link *link, const char *why)
{
    link->use = PROTO_SP_EMPTY;
    link->why = why;
    return proto_sp_keep(&link->reader, 0);
}

// Decides, from a message's beginning, what is kept of it. false: out of memory.
static bool admit(struct proto_sp_link *link)
{
    struct proto_server *server = link->server;
    struct proto_sp_reader *reader = &link->reader;
    struct proto_prefix *prefix = &link->prefix;
    size_t total;
    if (reader->have < PROTO_PREFIX_BYTES)
        return use_empty(link, "a message shorter than a frame");
    if (proto_prefix_decode(reader->small, prefix, NULL) != COMMON_OK ||
        prefix->kind != PROTO_FRAME_REQUEST ||
        !proto_frame_total(prefix, PROTO_HEADER_MAX, SIZE_MAX / 4, &total) || total != reader->len)
        return use_empty(link, "the message is not a request frame");
    size_t head = proto_frame_payload_at(prefix->header_len), shown = reader->have - PROTO_PREFIX_BYTES;
    if (shown > prefix->header_len)
        shown = prefix->header_len;
    char text[PROTO_LIMIT_TEXT]; // said when the request is answered
    bool crowded = !link->known && shows_token(link, reader->small + PROTO_PREFIX_BYTES, shown) &&
                   !proto_sp_link_known(link, text);
    if (!link->known && head > STRANGER_FRAME_MAX)
        return use_empty(link, "a large request without a token at its beginning");
    if (crowded)
        link->use = PROTO_SP_CROWDED;
    else if (prefix->payload_len > server->payload_max)
        link->use = PROTO_SP_OVERSIZE;
    else if (!link->known && total > STRANGER_FRAME_MAX)
        link->use = PROTO_SP_UNKNOWN;
    else if (total > STRANGER_FRAME_MAX &&
             server->lanes[PROTO_LANE_CLIENTS].bytes + link->sp->reading + total > server->bytes_max)
        link->use = PROTO_SP_FULL;
    else
        link->use = PROTO_SP_REQUEST;
    size_t keep = link->use == PROTO_SP_REQUEST ? total : head;
    if (!proto_sp_keep(reader, keep))
        return use_empty(link, "out of memory for a message");
    return true;
}

// Takes bytes until they are used up, or no more may be. What it serves may close the link.
static void take(struct proto_sp_link *link, const uint8_t **at, size_t *n)
{
    struct proto_sp_reader *reader = &link->reader;
    while (link->io && proto_link_works(link->io)) {
        if (proto_sp_between(reader) && !proto_sp_link_may_read(link)) {
            if (link->io->state == PROTO_LINK_OPEN)
                proto_link_pause(link->io);
            return;
        }
        switch (proto_sp_take(reader, at, n)) {
        case PROTO_SP_MORE:
            return;
        case PROTO_SP_FAILED:
            proto_link_fail(link->io, COMMON_INVALID_ARGUMENT, reader->why);
            return;
        case PROTO_SP_ASK:
            if (!admit(link))
                proto_link_fail(link->io, COMMON_RESOURCE_EXHAUSTED, "out of memory for a message");
            break;
        case PROTO_SP_MESSAGE:
            count_reading(link, 0);
            proto_sp_serve(link);
            if (!link->io)
                return;
            proto_sp_next(reader);
            if (!link->known && ++link->n_strange == STRANGER_MESSAGES_MAX)
                proto_link_fail(link->io, COMMON_INVALID_ARGUMENT, "messages and no token in any of them");
            break;
        }
    }
}

// Keeps what may not be taken yet.
static void keep_rest(struct proto_sp_link *link, const uint8_t *at, size_t n)
{
    if (n == 0 || !link->io || !proto_link_works(link->io))
        return;
    link->rest = common_blob_new_of(n, link->io->reader);
    link->rest_at = 0;
    if (link->rest)
        memcpy(link->rest->data, at, n);
    else
        proto_link_fail(link->io, COMMON_RESOURCE_EXHAUSTED, "out of memory for a receive buffer");
}

// Reads the kept part of a big message into its place.
static void read_big(struct proto_sp_link *link)
{
    size_t round = 0, want;
    uint8_t *to;
    while (round < BIG_ROUND && (want = proto_sp_room(&link->reader, &to)) > 0) {
        size_t got = proto_link_read(link->io, to, want);
        proto_sp_filled(&link->reader, got);
        round += got;
        if (got < want)
            return;
    }
    size_t none = 0;
    const uint8_t *nothing = link->sp->in;
    take(link, &nothing, &none); // it may be whole now
}

static void on_readable(void *owner)
{
    struct proto_sp_link *link = owner;
    uint8_t *to;
    link->refs++;
    if (link->rest) {
        struct common_blob *rest = link->rest;
        const uint8_t *at = rest->data + link->rest_at;
        size_t n = rest->len - link->rest_at;
        common_blob_ref(rest);
        take(link, &at, &n);
        if (link->rest && n == 0) {
            common_blob_unref(link->rest);
            link->rest = NULL;
        } else if (link->rest) {
            link->rest_at = rest->len - n;
        }
        common_blob_unref(rest);
    } else if (proto_sp_room(&link->reader, &to) >= sizeof link->sp->in) {
        read_big(link);
    } else {
        struct proto_sp_server *sp = link->sp;
        const uint8_t *at = sp->in;
        size_t n = proto_link_read(link->io, sp->in, sizeof sp->in), got = n;
        if (n > 0) {
            take(link, &at, &n);
            keep_rest(link, at, n);
            if (link->io)               // else sp may be gone
                memset(sp->in, 0, got); // the next link reads into it, too
        }
    }
    if (link->io)
        count_reading(link, link->reader.blob ? link->reader.kept : 0);
    proto_sp_link_unref(link);
}

static void on_failed(void *owner, enum common_code code, const char *text)
{
    struct proto_sp_link *link = owner;
    // A peer that leaves is no fault; one that sends nonsense is.
    if (code != COMMON_UNAVAILABLE)
        proto_server_refused(link->server, link->peer, text);
    proto_sp_link_close(link);
}

static void on_secured(void *owner)
{
    struct proto_sp_link *link = owner;
    struct common_error err;
    if (!proto_hello_client_shown(link->server, link->io->io.tls, &err))
        proto_link_fail(link->io, err.code, err.message);
}

static const struct proto_link_ops link_ops = {
    .readable = on_readable,
    .secured = on_secured,
    .failed = on_failed,
};

struct proto_sp_link *proto_sp_link_new(struct proto_sp_server *sp, int fd, const char *peer)
{
    struct proto_sp_link *link = calloc(1, sizeof *link);
    if (!link)
        return NULL;
    uint8_t hello[PROTO_SP_HELLO_BYTES];
    proto_sp_hello(PROTO_SP_REP, hello);
    struct iovec iov = {hello, sizeof hello};
    struct proto_gather gather = {.iov = &iov, .n = 1, .bytes = sizeof hello};
    link->io = proto_link_new(sp->server->loop, fd, &link_ops, link);
    if (!link->io) {
        explicit_bzero(&link->reader, sizeof link->reader); // the beginning of its last message
        free(link);
        return NULL;
    }
    link->sp = sp;
    link->server = sp->server;
    link->refs = 1;
    link->since_ns = common_clock_ns();
    snprintf(link->peer, sizeof link->peer, "%s", peer);
    proto_sp_reader_init(&link->reader);
    link->reader.owner = link->io->reader;
    common_list_init(&link->requests);
    common_list_push(&sp->strangers, &link->link);
    sp->n_strangers++, sp->server->n_strangers++;
    proto_caller_init(&link->caller);
    link->caller.io = link->io;
    link->caller.fail = proto_link_fail;
    proto_server_ref(sp->server);
    const struct common_tls_link_options options = {.end = COMMON_TLS_ACCEPT_OLD,
                                                    .demands = sp->server->tls_client_cert};
    struct common_error err;
    if (sp->tls && proto_link_secure(link->io, sp->server->tls, &options, &err) != COMMON_OK)
        proto_link_fail(link->io, err.code, err.message);
    else if (!proto_link_send(link->io, &gather, NULL, NULL, NULL))
        proto_link_fail(link->io, COMMON_RESOURCE_EXHAUSTED, "out of memory for a handshake");
    return link;
}
