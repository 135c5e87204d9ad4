// SPDX-License-Identifier: Apache-2.0
// The keep-alive of a channel: a network that swallows everything breaks no link, and who waits for an answer
// would wait until its deadline.
//
//   a call is out ──▶ WATCHING ──no sign of the peer's host for quiet_ns──▶ ASKED (HealthCheck)
//                       ▲   │                                                │     │
//                       │   └── no call is out: nothing                      │     └── none for 2 × quiet_ns, and
//                       └──────────────── a sign ────────────────────────────┘         something is owed: LOST
//
// Signs are those of the host, not of the process: bytes of any answer, and acknowledgements of TCP. A process
// that computes, does not read or is stopped is judged by heartbeats, elsewhere. Silence counts from the question
// on, so that our own absence proves nothing.
#include <stdio.h>

#include "common/clock.h"
#include "proto/transport.h"

#define PATIENCE 2 // quiet_ns from the question to the verdict

static void answered(void *arg, const struct proto_reply *reply)
{
    struct proto_channel *channel = arg;
    (void)reply; // whatever it says: its host has been heard
    channel->asking = false;
}

static void ask(struct proto_channel *channel, uint64_t now)
{
    Banyan__Pb__HealthCheckRequest body = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                              .body = &body.base,
                              .deadline_ns = now + 2 * PATIENCE * channel->quiet_ns,
                              .done = answered,
                              .arg = channel};
    channel->asked_ns = now;
    if (!channel->asking)
        channel->asking =
            proto_channel_call(channel, &call, NULL, NULL) == COMMON_OK; // else no memory: later
}

static void on_time(void *arg)
{
    struct proto_channel *channel = arg;
    uint64_t now = common_clock_ns(), quiet = channel->quiet_ns;
    struct proto_signs signs;
    channel->watching = !proto_list_empty(&channel->sent) && channel->ops->connected(channel);
    if (!channel->watching)
        return;
    channel->ops->signs(channel, &signs);
    uint64_t heard = signs.heard_ns > channel->watched_ns ? signs.heard_ns : channel->watched_ns;
    // It was silent for quiet_ns before the question: half of that is room for clocks that are coarse.
    bool silent = channel->asked_ns && heard < channel->asked_ns - quiet / 2;
    if (silent && signs.owed && now - channel->asked_ns >= PATIENCE * quiet) {
        char text[96];
        snprintf(text, sizeof text, "the peer's host has not acknowledged anything for %llu ms",
                 (unsigned long long)((now - heard) / COMMON_NS_PER_MS));
        channel->watching = false;
        channel->ops->lose(channel, text); // may close the channel
        return;
    }
    uint64_t from = heard, left = quiet;
    if (silent && signs.owed)
        from = channel->asked_ns, left = PATIENCE * quiet;
    else if (now - heard >= quiet)
        ask(channel, now), from = now, left = PATIENCE * quiet;
    common_timer_start(channel->keepalive, now - from < left ? left - (now - from) : quiet, false);
}

void proto_keepalive_watch(struct proto_channel *channel)
{
    if (!channel->keepalive || channel->watching)
        return;
    channel->watching = true;
    channel->watched_ns = common_clock_ns();
    channel->asked_ns = 0;
    common_timer_start(channel->keepalive, channel->quiet_ns, false);
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
