// SPDX-License-Identifier: Apache-2.0
// The calling end of the simulated transport: as proto/stream/stream_channel.c, over a simulated link.
//
//   BACKOFF --timer--> DIALLING --accepted--> READY
//      ^______________any loss or refusal_______|
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "proto/rpc/transport.h"
#include "proto/stream/stream_hello.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_dial.h"
#include "tests/sim/sim_link.h"

#define BACKOFF_MIN_NS (10 * COMMON_NS_PER_MS)
#define BACKOFF_MAX_NS COMMON_NS_PER_S

static void retreat(struct sim_dial *s, enum common_code code, const char *text)
{
    struct proto_channel *channel = s->channel;
    bool was_ready = s->state == SIM_READY;
    s->state = SIM_BACKOFF;
    common_timer_start(s->timer, s->backoff_ns, false);
    s->backoff_ns = s->backoff_ns * 2 < BACKOFF_MAX_NS ? s->backoff_ns * 2 : BACKOFF_MAX_NS;
    struct sim_link *link = s->link;
    s->link = NULL;
    channel->peer_sums = false;
    // From here on callbacks may close the channel; the channel's memory, not `s`, is kept by the reference.
    char why[COMMON_ERROR_BYTES];
    snprintf(why, sizeof why, "%.300s (%.60s)", text, channel->endpoint_text);
    proto_channel_ref(channel);
    if (link)
        sim_link_close(link, SIM_DIALLER);
    if (was_ready && channel->state_fn)
        channel->state_fn(channel->state_arg, false);
    if (!channel->closing)
        proto_channel_fail_sent(channel, COMMON_UNAVAILABLE, why);
    // A peer that is not there may come; one that refuses us will refuse those who wait, too
    // (proto/stream/stream_channel.c).
    if (!channel->closing && code != COMMON_UNAVAILABLE && !was_ready)
        proto_channel_fail_waiting(channel, code, why);
    proto_channel_unref(channel);
}

static void become_ready(struct sim_dial *s)
{
    struct proto_channel *channel = s->channel;
    s->state = SIM_READY;
    channel->peer_sums = channel->sums; // the hello's answers had them
    s->heard_ns = sim_clock();
    s->backoff_ns = BACKOFF_MIN_NS;
    common_timer_stop(s->timer);
    proto_channel_ref(channel);
    proto_channel_drain(channel); // those who waited come before those who get an answer
    if (!channel->closing && channel->state_fn && s->state == SIM_READY)
        channel->state_fn(channel->state_arg, true);
    proto_channel_unref(channel);
}

static void take_frame(struct sim_dial *s, struct common_blob *blob)
{
    struct proto_channel *channel = s->channel;
    struct proto_prefix prefix;
    struct common_error err;
    enum common_code code = proto_prefix_decode(blob->data, &prefix, &err);
    if (code == COMMON_OK && prefix.kind != PROTO_FRAME_REPLY)
        code = common_error_set(&err, COMMON_INVALID_ARGUMENT, "a server that calls back");
    proto_channel_ref(channel);
    if (code == COMMON_OK && prefix.payload_len > channel->payload_max) {
        struct proto_prefix as_is = prefix;
        struct proto_message *message;
        as_is.payload_len = 0;
        as_is.skipped = true;
        code = proto_message_open(&channel->pool, &as_is, blob, 0, &channel->peer_sums, &message, &err);
        if (code == COMMON_OK) {
            uint64_t id = message->header->request;
            char text[128];
            snprintf(text, sizeof text, "an answer of %llu bytes is above the limit of %llu",
                     (unsigned long long)prefix.payload_len, (unsigned long long)channel->payload_max);
            proto_message_release(&channel->pool, message);
            proto_channel_fail_call(channel, id, COMMON_RESOURCE_EXHAUSTED, text);
        }
    } else if (code == COMMON_OK && !proto_channel_deliver(channel, &prefix, blob, 0, &err)) {
        code = err.code == COMMON_UNAVAILABLE ? err.code : COMMON_INVALID_ARGUMENT;
    }
    if (code != COMMON_OK && !channel->closing)
        retreat(s, code, err.message);
    proto_channel_unref(channel);
}

static bool take(void *owner, struct sim_message *message)
{
    struct sim_dial *s = owner;
    switch (message->kind) {
    case SIM_ACCEPTED:
        become_ready(s);
        break;
    case SIM_REFUSED:
        retreat(s, message->code, message->text);
        break;
    case SIM_FRAME:
        s->heard_ns = sim_clock();
        take_frame(s, message->blob);
        break;
    case SIM_CLOSED:
        retreat(s, COMMON_UNAVAILABLE, "the peer closed the link");
        break;
    case SIM_BROKEN:
        retreat(s, COMMON_UNAVAILABLE, "the link broke: Connection reset by peer");
        break;
    case SIM_DIAL:
        assert(false);
    }
    return true;
}

static void on_timer(void *arg)
{
    struct sim_dial *s = arg;
    if (s->state == SIM_DIALLING) {
        retreat(s, COMMON_UNAVAILABLE, "no answer to the hello in 5 s");
        return;
    }
    s->link = sim_link_dial(s->channel->loop, s->endpoint, take, s);
    if (!s->link) {
        struct proto_channel *channel = s->channel;
        bool nobody = !sim_net_listens(s->endpoint); // else the network is down
        proto_channel_ref(channel);
        retreat(s, COMMON_UNAVAILABLE, "cannot connect: Connection refused");
        if (nobody && !channel->closing && channel->refused_fn)
            channel->refused_fn(channel->state_arg);
        proto_channel_unref(channel);
        return;
    }
    s->state = SIM_DIALLING;
    common_timer_start(s->timer, PROTO_HELLO_NS, false);
}

// ---- operations -----------------------------------------------------------------------------------------

static enum common_code dial_open(struct proto_channel *channel, const struct proto_endpoint *endpoint,
                                  struct common_error *err)
{
    if (proto_role_is_daemon(channel->role) && endpoint->kind == PROTO_ENDPOINT_NNG_TCP)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "'%s' is only for clients: give the coordinator's tcp:// or unix:// endpoint",
                                channel->endpoint_text);
    if (proto_role_is_daemon(channel->role) && !channel->has_secret)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "a daemon needs the cluster secret to link to '%s'", channel->endpoint_text);
    struct sim_dial *s = calloc(1, sizeof *s);
    if (!s || common_timer_new(channel->loop, on_timer, s, &s->timer) != COMMON_OK) {
        free(s);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a channel");
    }
    s->channel = channel;
    s->nng = endpoint->kind == PROTO_ENDPOINT_NNG_TCP;
    proto_endpoint_format(endpoint, s->endpoint);
    s->backoff_ns = BACKOFF_MIN_NS;
    channel->state = s;
    common_timer_start(s->timer, 0, false); // nothing is called back from here
    return COMMON_OK;
}

static void dial_close(struct proto_channel *channel)
{
    struct sim_dial *s = channel->state;
    channel->state = NULL;
    if (s->link)
        sim_link_close(s->link, SIM_DIALLER);
    common_timer_free(s->timer);
    proto_scratch_fini(&s->scratch);
    free(s);
}

static bool dial_ready(const struct proto_channel *channel)
{
    const struct sim_dial *s = channel->state;
    return s && s->state == SIM_READY;
}

static void send_frame(struct sim_dial *s, const struct proto_gather *gather)
{
    struct sim_message *message = sim_message_new(SIM_FRAME);
    message->blob = sim_gather_blob(gather);
    sim_link_send(s->link, SIM_DIALLER, message);
}

static enum common_code dial_send(struct proto_channel *channel, struct proto_pending *call,
                                  struct proto_gather *gather, struct common_error *err)
{
    (void)call, (void)err;
    send_frame(channel->state, gather);
    return COMMON_OK;
}

static void dial_forget(struct proto_channel *channel, struct proto_pending *call, bool tell)
{
    struct sim_dial *s = channel->state;
    if (!s || s->state != SIM_READY || !tell || s->nng) // REQ has no way to tell
        return;
    struct proto_outgoing cancel = {.kind = PROTO_FRAME_ONE_WAY,
                                    .method = BANYAN__PB__METHOD__METHOD_CANCEL,
                                    .request = call->id,
                                    .summed = channel->sums};
    struct proto_gather gather;
    if (proto_frame_encode(&s->scratch, &cancel, 0, &gather, NULL) == COMMON_OK)
        send_frame(s, &gather);
}

static void dial_signs(const struct proto_channel *channel, struct proto_signs *out)
{
    const struct sim_dial *s = channel->state;
    bool carries = sim_link_carries(s->link);
    *out = (struct proto_signs){.heard_ns = carries ? sim_clock() : s->heard_ns,
                                .spoke_ns = s->heard_ns,
                                .owed = !carries,
                                .notes = true};
}

static void dial_lose(struct proto_channel *channel, const char *text)
{
    retreat(channel->state, COMMON_UNAVAILABLE, text);
}

const struct proto_channel_ops proto_stream_channel_ops = {
    .open = dial_open,
    .close = dial_close,
    .connected = dial_ready,
    .ready = dial_ready,
    .send = dial_send,
    .forget = dial_forget,
    .signs = dial_signs,
    .lose = dial_lose,
};

// Another object, so that rpc_channel.c can distinguish them: credentials travel with each call.
const struct proto_channel_ops proto_nng_channel_ops = {
    .open = dial_open,
    .close = dial_close,
    .connected = dial_ready,
    .ready = dial_ready,
    .send = dial_send,
    .forget = dial_forget,
    .signs = dial_signs,
    .lose = dial_lose,
};
