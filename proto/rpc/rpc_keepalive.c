// SPDX-License-Identifier: Apache-2.0
// The keep-alive of a channel: a network that swallows everything breaks no link, and who waits for an answer
// would wait until its deadline.
//
//   a call is out ──▶ WATCHING ──no sign for quiet_ns──▶ ASKED (HealthCheck)
//                       ▲   │                             │ │ │
//                       │   └── no call is out: nothing   │ │ └── the host: none for 2 × quiet_ns, and something
//                       ├───────────── a sign ────────────┘ │     is owed: LOST
//                       └── this process was away ──────────┴── the process: none for mute_ns: LOST
//
// There are two kinds of signs. The host's: bytes of any answer, and acknowledgements of TCP. The process's:
// bytes alone. What stands between the two ends and acknowledges in the far one's place, or is the far one's
// kernel while its process is stopped, gives the first kind forever. So with mute_ns the far process is
// asked, and has to respond: the answer, or a note that it is reading what was sent before the question
// (stream_server.c). Where it says that it gives no notes, it is judged as a host alone.
//
// Silence counts from the question on, and from our own return on: the timer looks every quiet_ns, and one
// that is late by half of that has found us away.
#include <stdio.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "proto/rpc/transport.h"

#define PATIENCE 2 // with a host: quiet_ns from the question to the verdict

static void answered(void *arg, const struct proto_reply *reply)
{
    struct proto_channel *channel = arg;
    (void)reply; // whatever it says: it has been heard
    channel->asking = false;
}

static void ask(struct proto_channel *channel, uint64_t now)
{
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                              .body = &body.base,
                              .deadline_ns = now + channel->mute_ns + 2 * PATIENCE * channel->quiet_ns,
                              .done = answered,
                              .arg = channel};
    channel->asked_ns = now;
    if (!channel->asking)
        channel->asking =
            proto_channel_call(channel, &call, NULL, NULL) == COMMON_OK; // else no memory: later
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void look_after(struct proto_channel *channel, uint64_t now, uint64_t ns)
{
    channel->look_ns = now + ns;
    common_timer_start(channel->keepalive, ns, false);
}

static void begin(struct proto_channel *channel, uint64_t now)
{
    channel->watched_ns = now;
    channel->asked_ns = 0;
    look_after(channel, now, channel->quiet_ns);
}

static void give_up(struct proto_channel *channel, const char *format, uint64_t silent_ns)
{
    char text[112];
    snprintf(text, sizeof text, format, (unsigned long long)(silent_ns / COMMON_NS_PER_MS));
    channel->watching = false;
    channel->ops->lose(channel, text); // may close the channel
}

static void on_time(void *arg)
{
    struct proto_channel *channel = arg;
    uint64_t now = common_clock_ns(), quiet = channel->quiet_ns;
    struct proto_signs signs;
    channel->watching = !common_list_empty(&channel->sent) && channel->ops->connected(channel);
    if (!channel->watching)
        return;
    if (now > channel->look_ns + quiet / 2) { // we were away
        begin(channel, now);
        return;
    }
    channel->ops->signs(channel, &signs);
    bool judged = channel->mute_ns && signs.notes; // the process, too
    uint64_t heard = later(signs.heard_ns, channel->watched_ns),
             spoke = later(signs.spoke_ns, channel->watched_ns), sign = judged ? spoke : heard;
    // It was silent for quiet_ns before the question: half of that is room for clocks that are coarse.
    uint64_t before = channel->asked_ns ? channel->asked_ns - quiet / 2 : 0;
    bool deaf = heard < before && signs.owed, mute = judged && spoke < before;
    if (deaf && now - channel->asked_ns >= PATIENCE * quiet) {
        give_up(channel, "the peer's host has not acknowledged anything for %llu ms", now - heard);
        return;
    }
    if (mute && now - channel->asked_ns >= channel->mute_ns) {
        common_log_warn("%s: %s is silent although something acknowledges its packets: closing the link",
                        channel->name, channel->endpoint_text);
        channel->mutes++;
        give_up(channel,
                "the peer's process has been silent for %llu ms, although something acknowledges its packets",
                now - spoke);
        return;
    }
    if (!deaf && !mute && now - sign >= quiet)
        ask(channel, now), sign = now;
    look_after(channel, now, !deaf && !mute && now - sign < quiet ? quiet - (now - sign) : quiet);
}

void proto_keepalive_watch(struct proto_channel *channel)
{
    if (!channel->keepalive || channel->watching)
        return;
    channel->watching = true;
    begin(channel, common_clock_ns());
}

enum common_code proto_keepalive_init(struct proto_channel *channel)
{
    if (!channel->quiet_ns || !channel->ops->signs)
        return COMMON_OK;
    return common_timer_new(channel->loop, on_time, channel, &channel->keepalive);
}

void proto_keepalive_fini(struct proto_channel *channel)
{
    common_timer_free(channel->keepalive);
    channel->keepalive = NULL;
}
