// SPDX-License-Identifier: Apache-2.0
#include "proto/stream/stream_link.h"

#include <assert.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/loop/machine.h"
#include "common/memory/block.h"
#include "proto/rpc/transport.h"

enum {
    BIG_ROUND = 4 << 20,   // bytes of big frames read in one turn of the loop: others want theirs
    LARGE_START = 4 << 10, // bytes read of what may be a big frame: they are copied once more
    SMALL_ROOM = 16 << 10, // less room than this at the end of a buffer in use: take a new one
    IOV_ROUND = 256,       // pieces a write: bounded by IOV_MAX
    PROBES = 3,            // of a closed window, without an answer: the peer's host is silent
};

#define SCHEMES "dial tls:// (nng+tls://) where tcp:// (nng+tcp://) stands"

static void link_assert(const struct proto_link *link)
{
    assert(link->state == PROTO_LINK_CLOSED || link->in || link->ops->readable);
    assert(link->state != PROTO_LINK_FAILED || link->failed_code != COMMON_OK);
}

#define TO(state) (1u << PROTO_LINK_##state)
static const struct common_machine link_machine = {
    .name = "link",
    .n = PROTO_LINK_STATES,
    .states = {"open", "paused", "failed", "closed"},
    .next = {[PROTO_LINK_OPEN] = TO(PAUSED) | TO(FAILED) | TO(CLOSED),
             [PROTO_LINK_PAUSED] = TO(OPEN) | TO(FAILED) | TO(CLOSED),
             [PROTO_LINK_FAILED] = TO(CLOSED),
             [PROTO_LINK_CLOSED] = 0},
};
#undef TO

static void link_move(struct proto_link *link, enum proto_link_state to)
{
    common_machine_move(&link_machine, link->state, to);
    link->state = to;
    link_assert(link);
}

static void link_unref(struct proto_link *link)
{
    assert(link->refs > 0);
    if (--link->refs > 0)
        return;
    assert(link->state == PROTO_LINK_CLOSED);
    free(link);
}

static void link_kick(struct proto_link *link)
{
    if (link->kicked || link->state == PROTO_LINK_CLOSED)
        return;
    link->kicked = true;
    event_active(&link->kick_event, EV_TIMEOUT, 1);
}

void proto_link_fail(struct proto_link *link, enum common_code code, const char *text)
{
    if (!proto_link_works(link))
        return;
    link->failed_code = code;
    link_move(link, PROTO_LINK_FAILED);
    snprintf(link->failed_text, sizeof link->failed_text, "%s", text);
    event_del(&link->read_event);
    event_del(&link->write_event);
    link_kick(link);
}

// ---- writing --------------------------------------------------------------------------------------------

static void out_count(struct proto_link *link, size_t more, size_t less)
{
    link->out_bytes += more - less;
    if (link->unread)
        *link->unread += more - less;
}

static void out_free(struct proto_link *link, struct proto_link_out *out)
{
    proto_done_fn sent = out->sent;
    void *sent_arg = out->sent_arg;
    common_list_remove(&out->link);
    out_count(link, 0, out->left);
    if (out->owner)
        *out->owner = NULL;
    proto_gather_free(out->gather);
    free(out);
    if (sent)
        sent(sent_arg);
}

// Writes what it can. Cuts what is written off the list. Returns false when the socket has failed.
static bool write_some(struct proto_link *link, struct iovec *iov, size_t n, size_t *next, size_t *left)
{
    struct common_error err;
    err.code = COMMON_OK;
    while (*left > 0 && !link->io.shaking) {
        size_t count = n - *next < IOV_ROUND ? n - *next : IOV_ROUND, offered = 0;
        for (size_t i = 0; i < count; i++)
            offered += iov[*next + i].iov_len;
        size_t bytes = proto_io_write(&link->io, iov + *next, count, &err);
        bool full = bytes < offered;
        *left -= bytes;
        while (bytes > 0) {
            struct iovec *v = &iov[*next];
            size_t step = bytes < v->iov_len ? bytes : v->iov_len;
            v->iov_base = (uint8_t *)v->iov_base + step;
            v->iov_len -= step;
            bytes -= step;
            if (v->iov_len == 0)
                ++*next;
        }
        if (err.code != COMMON_OK) {
            proto_link_fail(link, err.code, err.message);
            return false;
        }
        if (full) // it would say EAGAIN: save the call
            return true;
    }
    return true;
}

// What of it waits for the socket, if it can be written at all.
static void await_writable(struct proto_link *link)
{
    bool waits = proto_io_unsent(&link->io) || (!common_list_empty(&link->outs) && !link->io.shaking);
    if (!proto_link_works(link))
        return;
    if (!waits) {
        event_del(&link->write_event);
    } else if (!event_pending(&link->write_event, EV_WRITE, NULL)) {
        link->wrote_ns = common_clock_ns();
        if (event_add(&link->write_event, NULL) != 0)
            proto_link_fail(link, COMMON_RESOURCE_EXHAUSTED, "out of memory to wait for a socket");
    }
}

// What TLS has taken goes first. false: the socket is full, or the link has failed.
static bool flush(struct proto_link *link)
{
    struct common_error err;
    if (!proto_io_unsent(&link->io))
        return true;
    if (proto_io_flush(&link->io, &err) != COMMON_OK) {
        proto_link_fail(link, err.code, err.message);
        return false;
    }
    link->wrote_ns = common_clock_ns();
    return !proto_io_unsent(&link->io);
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct proto_link *link = arg;
    link->refs++;
    bool flows = flush(link);
    while (flows && !link->io.shaking && !common_list_empty(&link->outs) && proto_link_works(link)) {
        struct proto_link_out *out = common_list_entry(link->outs.next, struct proto_link_out, link);
        size_t before = out->left;
        bool alive = write_some(link, out->gather->iov, out->gather->n, &out->next, &out->left);
        out_count(link, 0, before - out->left);
        if (out->left < before) {
            out->started = true;
            link->wrote_ns = common_clock_ns();
        }
        if (!alive || out->left > 0)
            break;
        out_free(link, out); // its callback may close the link
    }
    await_writable(link);
    if (link->state == PROTO_LINK_PAUSED)
        proto_link_resume(link);
    link_unref(link);
}

bool proto_link_send(struct proto_link *link, struct proto_gather *gather, proto_done_fn sent, void *sent_arg,
                     struct proto_link_out **owner)
{
    size_t next = 0, left = gather->bytes, total = gather->bytes;
    link->said = true;
    if (!proto_link_works(link)) {
        if (sent)
            sent(sent_arg);
        return true; // it goes where the link goes
    }
    bool first = common_list_empty(&link->outs);
    if (first && !write_some(link, gather->iov, gather->n, &next, &left)) {
        if (sent)
            sent(sent_arg);
        return true;
    }
    if (left == 0) {
        if (proto_io_unsent(&link->io))
            await_writable(link);
        if (sent)
            sent(sent_arg);
        return true;
    }
    struct proto_gather rest = {.iov = gather->iov + next, .n = gather->n - next, .bytes = left};
    struct proto_link_out *out = calloc(1, sizeof *out);
    if (out) {
        if (next == 0) {
            out->gather = proto_gather_keep(&rest); // copies what is left of the head
        } else { // the head is gone: borrowed pieces only, which keep would copy the first of
            struct iovec none = {(void *)"", 0}, *iov = malloc((rest.n + 1) * sizeof *iov);
            if (iov) {
                iov[0] = none;
                memcpy(iov + 1, rest.iov, rest.n * sizeof *iov);
                struct proto_gather shifted = {.iov = iov, .n = rest.n + 1, .bytes = left};
                out->gather = proto_gather_keep(&shifted);
                free(iov);
            }
        }
    }
    if (!out || !out->gather) {
        free(out);
        if (left == total)
            return false;
        proto_link_fail(link, COMMON_RESOURCE_EXHAUSTED, "out of memory in the middle of a frame");
        if (sent)
            sent(sent_arg);
        return true;
    }
    out->left = left;
    out->started = left < total;
    out->sent = sent;
    out->sent_arg = sent_arg;
    out->owner = owner;
    if (owner)
        *owner = out;
    out_count(link, left, 0);
    common_list_push(&link->outs, &out->link);
    if (first)
        await_writable(link);
    return true;
}

bool proto_link_out_detach(struct proto_link *link, struct proto_link_out *out)
{
    out->owner = NULL;
    if (!out->started) {
        out_free(link, out);
        if (common_list_empty(&link->outs))
            await_writable(link);
        return false;
    }
    struct proto_gather *copy =
        common_block_take(sizeof *copy + sizeof(struct iovec) + out->left, link->reader);
    if (!copy) {
        proto_link_fail(link, COMMON_RESOURCE_EXHAUSTED, "out of memory in the middle of a frame");
        out_free(link, out);
        return true;
    }
    struct iovec *iov = (struct iovec *)(void *)(copy + 1);
    uint8_t *at = (uint8_t *)(iov + 1);
    *iov = (struct iovec){at, out->left};
    for (size_t i = out->next; i < out->gather->n; i++)
        if (out->gather->iov[i].iov_len > 0) {
            memcpy(at, out->gather->iov[i].iov_base, out->gather->iov[i].iov_len);
            at += out->gather->iov[i].iov_len;
        }
    *copy = (struct proto_gather){.iov = iov, .n = 1, .bytes = out->left};
    proto_gather_free(out->gather);
    out->gather = copy;
    out->next = 0;
    return true;
}

// ---- reading --------------------------------------------------------------------------------------------

static bool unique(const struct common_blob *blob)
{
    return __atomic_load_n(&blob->refs, __ATOMIC_ACQUIRE) == 1;
}

// Makes room for `need` bytes from in_start on (a multiple of 64): in place, at the front, or in a new buffer
// when messages still use this one.
static bool make_room(struct proto_link *link, size_t need)
{
    size_t have = link->in_end - link->in_start;
    if (need <= link->in->cap - link->in_start)
        return true;
    struct common_blob *to = link->in;
    if (!unique(link->in)) {
        to = common_blob_new_of(link->in->cap, link->reader);
        if (!to)
            return false;
    }
    memmove(to->data, link->in->data + link->in_start, have);
    if (to != link->in) {
        common_blob_unref(link->in);
        link->in = to;
    }
    link->in_start = 0;
    link->in_end = have;
    return true;
}

static bool deliver_frame(struct proto_link *link, const struct proto_prefix *prefix,
                          struct common_blob *blob, size_t offset, bool oversize)
{
    struct common_error err;
    err.code = COMMON_OK; // the text is not cleared: this is on the path of a step
    bool (*take)(void *, const struct proto_prefix *, struct common_blob *, size_t, struct common_error *) =
        oversize ? link->ops->oversize : link->ops->frame;
    if (take(link->owner, prefix, blob, offset, &err))
        return true;
    if (err.code == COMMON_OK)
        common_error_set(&err, COMMON_INVALID_ARGUMENT,
                         "the peer sent a frame that this end does not accept");
    // Without memory for it the frame is lost, and the link with it; the next link is as good as any.
    bool spared = err.code == COMMON_DATA_LOSS || err.code == COMMON_UNAVAILABLE;
    proto_link_fail(link,
                    spared                                  ? err.code
                    : err.code == COMMON_RESOURCE_EXHAUSTED ? COMMON_UNAVAILABLE
                                                            : COMMON_INVALID_ARGUMENT,
                    err.message);
    return false;
}

void proto_link_pause(struct proto_link *link)
{
    link_move(link, PROTO_LINK_PAUSED);
    event_del(&link->read_event);
}

// The peer's bytes are none of ours, or have come to their end. Where they are TLS, that is why.
static void fail_read(struct proto_link *link, const struct common_error *err)
{
    size_t have = link->in_end - link->in_start;
    if (!link->io.tls && link->in && proto_looks_like_tls(link->in->data + link->in_start, have))
        proto_link_fail(link, COMMON_INVALID_ARGUMENT, "the peer uses TLS, and this end does not: " SCHEMES);
    else
        proto_link_fail(link, err->code, err->message);
}

// The big frame is whole, or goes with the link.
static struct common_blob *big_end(struct proto_link *link)
{
    struct common_blob *big = link->big;
    if (big && link->begun)
        *link->begun -= link->big_len;
    link->big = NULL;
    return big;
}

// Takes one step with what is in the buffer. False: nothing more to do with it now.
static bool parse_one(struct proto_link *link)
{
    size_t have = link->in_end - link->in_start, total;
    if (link->skip > 0) {
        size_t n = have < link->skip ? have : (size_t)link->skip;
        link->in_start += n;
        link->skip -= n;
        return link->skip == 0;
    }
    if (have < PROTO_PREFIX_BYTES)
        return false;
    if (link->ops->may_read && !link->ops->may_read(link->owner)) {
        proto_link_pause(link);
        return false;
    }
    struct proto_prefix prefix;
    struct common_error err;
    enum common_code code = proto_prefix_decode(link->in->data + link->in_start, &prefix, &err);
    if (code != COMMON_OK) {
        fail_read(link, &err);
        return false;
    }
    bool oversize =
        !proto_frame_total(&prefix, link->header_max, link->payload_max, &total) ||
        (total > link->in->cap && link->ops->may_begin && !link->ops->may_begin(link->owner, total));
    if (oversize) {
        size_t head = proto_frame_payload_at(prefix.header_len);
        if (!link->ops->oversize || prefix.header_len > link->header_max || head > link->in->cap ||
            prefix.payload_len > UINT64_C(1) << 40) {
            char text[160];
            snprintf(text, sizeof text, "a frame of %u + %llu bytes is above the limits", prefix.header_len,
                     (unsigned long long)prefix.payload_len);
            proto_link_fail(link, COMMON_RESOURCE_EXHAUSTED, text);
            return false;
        }
        total = head;
    }
    if (have >= total) {
        struct common_blob *blob = common_blob_ref(link->in);
        size_t at = link->in_start;
        link->in_start += total;
        link->large = false;
        if (oversize)
            link->skip = (prefix.payload_len + 63) & ~UINT64_C(63);
        bool go = deliver_frame(link, &prefix, blob, at, oversize);
        common_blob_unref(blob);
        return go;
    }
    if (total <= link->in->cap) {
        if (!make_room(link, total))
            proto_link_fail(link, COMMON_RESOURCE_EXHAUSTED, "out of memory for a receive buffer");
        return false;
    }
    link->big = common_blob_new_of(total, link->reader);
    if (!link->big) {
        proto_link_fail(link, COMMON_RESOURCE_EXHAUSTED, "out of memory for a big frame");
        return false;
    }
    memcpy(link->big->data, link->in->data + link->in_start, have);
    link->large = true;
    link->big_prefix = prefix;
    link->big_have = have;
    link->big_len = total;
    if (link->begun)
        *link->begun += total;
    link->in_start = link->in_end;
    return false;
}

static void parse_all(struct proto_link *link)
{
    if (link->in_parse)
        return; // a callback resumed the link: the loop below goes on
    link->in_parse = true;
    while (link->state == PROTO_LINK_OPEN && !link->big && parse_one(link))
        continue;
    link->in_parse = false;
}

// Room for what comes next: the same buffer from its front if no frame in it is held, or another.
static void renew_buffer(struct proto_link *link)
{
    if (!proto_link_works(link) || !link->in || link->in_start != link->in_end)
        return;
    size_t front =
        (size_t)(-link->skip & 63); // the next frame starts aligned also behind bytes that are skipped
    if (unique(link->in)) {
        link->in_start = link->in_end = front;
    } else if (link->in->cap - link->in_end < SMALL_ROOM) {
        struct common_blob *fresh = common_blob_new_of(link->in->cap, link->reader);
        if (!fresh) {
            proto_link_fail(link, COMMON_RESOURCE_EXHAUSTED, "out of memory for a receive buffer");
            return;
        }
        common_blob_unref(link->in);
        link->in = fresh;
        link->in_start = link->in_end = front;
    }
}

size_t proto_link_read(struct proto_link *link, void *to, size_t len)
{
    struct common_error err;
    err.code = COMMON_OK;
    size_t got = proto_io_read(&link->io, to, len, &err);
    if (got > 0)
        link->read_ns = common_clock_ns();
    else if (err.code != COMMON_OK)
        fail_read(link, &err);
    if (proto_io_unsent(&link->io)) // what TLS itself answers
        await_writable(link);
    return got;
}

static void read_big(struct proto_link *link)
{
    size_t round = 0;
    while (link->big && round < BIG_ROUND && proto_link_works(link)) {
        size_t want = link->big_len - link->big_have;
        size_t got = proto_link_read(link, link->big->data + link->big_have, want);
        if (got == 0)
            return;
        link->big_have += got;
        round += got;
        if (got < want)
            return;
        struct common_blob *blob = big_end(link);
        struct proto_prefix prefix = link->big_prefix;
        deliver_frame(link, &prefix, blob, 0, false);
        common_blob_unref(blob);
    }
}

// false: the handshake has not ended.
static bool shake(struct proto_link *link)
{
    struct common_error err;
    if (proto_io_shake(&link->io, &err) != COMMON_OK) {
        proto_link_fail(link, err.code, err.message);
        return false;
    }
    link->read_ns = common_clock_ns();
    if (!link->io.shaking && link->ops->secured)
        link->ops->secured(link->owner);
    await_writable(link);
    return !link->io.shaking && proto_link_works(link);
}

// Reads what has arrived, once around the buffer.
static void read_round(struct proto_link *link)
{
    if (link->io.shaking && !shake(link))
        return;
    if (link->ops->readable) {
        link->ops->readable(link->owner);
    } else if (link->big) {
        read_big(link);
    } else {
        size_t room = link->in->cap - link->in_end; // 0 only when a full buffer has just been resumed
        if (link->large && link->in_start == link->in_end && room > LARGE_START)
            room = LARGE_START; // the rest goes where it shall lie
        size_t got = room > 0 ? proto_link_read(link, link->in->data + link->in_end, room) : 0;
        link->in_end += got;
        if (got > 0 || room == 0)
            parse_all(link);
        if (link->big && proto_link_works(link))
            read_big(link);
    }
}

// What TLS still has does not make the socket readable: again, once the others have had their turn.
static void read_on(struct proto_link *link)
{
    static const struct timeval now = {0, 0};
    if (link->state != PROTO_LINK_OPEN || link->kicked || !proto_io_pending(&link->io))
        return;
    link->kicked = true;
    if (event_add(&link->kick_event, &now) != 0)
        event_active(&link->kick_event, EV_TIMEOUT, 1);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct proto_link *link = arg;
    struct common_loop *loop = link->loop;
    common_loop_enter(loop);
    link->refs++;
    read_round(link);
    common_loop_leave(loop); // before the buffer: what came in is on its way sooner
    renew_buffer(link);
    read_on(link);
    link_unref(link);
}

static void on_kick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct proto_link *link = arg;
    link->refs++;
    link->kicked = false;
    if (link->state == PROTO_LINK_FAILED)
        link->ops->failed(link->owner, link->failed_code, link->failed_text);
    else if (link->state == PROTO_LINK_OPEN && link->io.shaking)
        shake(link); // a dialler speaks first
    else if (link->state == PROTO_LINK_OPEN && link->ops->readable)
        link->ops->readable(link->owner);
    else if (link->state == PROTO_LINK_OPEN)
        parse_all(link);
    renew_buffer(link);
    if (link->state == PROTO_LINK_OPEN && !link->ops->readable && proto_io_pending(&link->io)) {
        read_round(link);
        renew_buffer(link);
    }
    read_on(link);
    link_unref(link);
}

void proto_link_resume(struct proto_link *link)
{
    if (link->state != PROTO_LINK_PAUSED)
        return;
    if (event_add(&link->read_event, NULL) != 0) {
        proto_link_fail(link, COMMON_RESOURCE_EXHAUSTED, "out of memory to wait for a socket");
        return;
    }
    link_move(link, PROTO_LINK_OPEN);
    link_kick(link); // for what lies in the buffer already
}

bool proto_link_hung_up(const struct proto_link *link)
{
    struct pollfd poll_fd = {.fd = link->io.fd, .events = POLLRDHUP};
    return link->state == PROTO_LINK_PAUSED && poll(&poll_fd, 1, 0) == 1;
}

static bool half_read(const struct proto_link *link)
{
    return link->big || link->skip > 0 || link->in_end > link->in_start;
}

bool proto_link_stalls(const struct proto_link *link, uint64_t since_ns)
{
    return (half_read(link) && link->state != PROTO_LINK_PAUSED && link->read_ns < since_ns) ||
           ((!common_list_empty(&link->outs) || proto_io_unsent(&link->io)) && link->wrote_ns < since_ns);
}

bool proto_link_owes_a_note(struct proto_link *link, bool owed, uint64_t since_ns)
{
    bool said = link->said, paused = link->state == PROTO_LINK_PAUSED;
    link->said = false;
    return !said && link->out_bytes == 0 &&
           (paused || ((owed || half_read(link)) && link->read_ns >= since_ns));
}

void proto_link_signs(const struct proto_link *link, struct proto_signs *out)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    uint64_t now = common_clock_ns();
    *out = (struct proto_signs){.heard_ns = now, .spoke_ns = link->read_ns};
    if (getsockopt(link->io.fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return;
    uint64_t ago = info.tcpi_last_ack_recv * COMMON_NS_PER_MS, acked = now > ago ? now - ago : 0;
    out->heard_ns = link->read_ns > acked ? link->read_ns : acked;
    // A window that the peer has closed is probed, ever more rarely; who answers probes is there.
    out->owed = info.tcpi_unacked > 0 || info.tcpi_probes >= PROBES;
}

// ---- life -----------------------------------------------------------------------------------------------

struct proto_link *proto_link_new(struct common_loop *loop, int fd, const struct proto_link_ops *ops,
                                  void *owner)
{
    struct event_base *base = common_loop_base(loop);
    struct proto_link *link = calloc(1, sizeof *link);
    if (!link)
        return NULL;
    link->reader = common_block_owner();
    link->in = ops->readable ? NULL : common_blob_new_of(PROTO_LINK_HELLO_BUFFER, link->reader);
    if (!link->in && !ops->readable) {
        free(link);
        return NULL;
    }
    link->loop = loop;
    link->ops = ops;
    link->owner = owner;
    link->io.fd = fd;
    link->refs = 1;
    link->header_max = PROTO_LINK_HELLO_BUFFER / 2;
    link->payload_max = 0;
    link->read_ns = link->wrote_ns = common_clock_ns();
    common_list_init(&link->outs);
    event_assign(&link->read_event, base, fd, EV_READ | EV_PERSIST, on_readable, link);
    event_assign(&link->write_event, base, fd, EV_WRITE | EV_PERSIST, on_writable, link);
    event_assign(&link->kick_event, base, -1, 0, on_kick, link);
    if (event_add(&link->read_event, NULL) != 0) {
        common_blob_unref(link->in);
        free(link);
        return NULL;
    }
    return link;
}

enum common_code proto_link_secure(struct proto_link *link, const struct common_tls *tls,
                                   const struct common_tls_link_options *options, struct common_error *err)
{
    enum common_code code = proto_io_secure(&link->io, tls, options, err);
    if (code == COMMON_OK)
        link_kick(link);
    return code;
}

void proto_link_trust(struct proto_link *link)
{
    link->reader = COMMON_BLOCK_DAEMONS;
}

bool proto_link_set_limits(struct proto_link *link, uint32_t header_max, uint64_t payload_max)
{
    if (link->in->cap < PROTO_LINK_BUFFER) {
        struct common_blob *in = common_blob_new_of(PROTO_LINK_BUFFER, link->reader);
        if (!in)
            return false;
        size_t have = link->in_end - link->in_start;
        memcpy(in->data, link->in->data + link->in_start, have);
        common_blob_unref(link->in);
        link->in = in;
        link->in_start = 0;
        link->in_end = have;
    }
    link->header_max = header_max;
    link->payload_max = payload_max;
    return true;
}

void proto_link_close(struct proto_link *link)
{
    if (link->state == PROTO_LINK_CLOSED)
        return;
    link_move(link, PROTO_LINK_CLOSED);
    event_del(&link->read_event);
    event_del(&link->write_event);
    event_del(&link->kick_event);
    proto_io_close(&link->io);
    while (!common_list_empty(&link->outs))
        out_free(link, common_list_entry(link->outs.next, struct proto_link_out, link));
    common_blob_unref(link->in);
    common_blob_unref(big_end(link));
    link->in = NULL;
    link_unref(link);
}
