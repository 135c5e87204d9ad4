// SPDX-License-Identifier: Apache-2.0
#include "worker/control/empty.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "proto/rpc/rpc.h"
#include "worker/core/membership.h"

#define ASK_NS      (200 * COMMON_NS_PER_MS)
#define CALL_NS     (5 * COMMON_NS_PER_S)
#define STUCK_ASKS  10 // nothing has moved for so long: that is reported
#define EMPTY_ASKS  10 // sessions release a worker soon after its last chunk is gone
#define REASON      "its process is shutting down"
#define STUCK_BYTES 256

struct worker_empty {
    const struct worker_membership *membership;
    struct proto_channel *channel; // of the call: to the coordinator that was active then
    struct common_timer *timer;
    const char *name; // the worker's
    uint64_t instance, until_ns, call;
    uint64_t chunks; // left, as last reported; UINT64_MAX: not reported yet
    bool calling;
    unsigned stuck_asks, empty_asks;
    char told[STUCK_BYTES]; // why nothing moves, as it was logged last
    void (*done)(void *arg, bool empty);
    void *arg;
};

static void tell_stuck(struct worker_empty *e, const char *stuck)
{
    e->stuck_asks = stuck[0] ? e->stuck_asks + 1 : 0;
    if (e->stuck_asks < STUCK_ASKS || strncmp(e->told, stuck, sizeof e->told - 1) == 0)
        return;
    common_log_warn("this worker cannot drain yet: %s chunks=%" PRIu64, stuck, e->chunks);
    snprintf(e->told, sizeof e->told, "%s", stuck);
}

static void asked(void *arg, const struct proto_reply *reply)
{
    struct worker_empty *e = arg;
    e->calling = false;
    if (reply->code == COMMON_CANCELLED)
        return;
    if (reply->code != COMMON_OK) {
        tell_stuck(e, reply->text);
    } else {
        const Banyan__Pb__WorkerDrainReply *body = (const void *)reply->message->body;
        if (e->chunks == UINT64_MAX)
            common_log_info("draining: chunks move to other workers before this one stops chunks=%" PRIu64
                            " sessions=%" PRIu64,
                            body->chunks, body->sessions);
        e->chunks = body->chunks;
        tell_stuck(e, body->stuck);
        e->empty_asks = body->chunks ? 0 : e->empty_asks + 1;
        if (e->empty_asks && (!body->sessions || e->empty_asks >= EMPTY_ASKS)) {
            common_timer_stop(e->timer);
            e->done(e->arg, true);
            return;
        }
    }
    common_timer_start(e->timer, ASK_NS, false);
}

static void ask(struct worker_empty *e)
{
    Banyan__Pb__WorkerDrainRequest body = BANYAN__PB__WORKER_DRAIN_REQUEST__INIT;
    body.worker = (char *)e->name;
    body.reason = (char *)REASON;
    body.instance = e->instance;
    uint64_t deadline_ns = common_clock_after(CALL_NS);
    struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_WORKER_DRAIN,
                              .body = &body.base,
                              .deadline_ns = deadline_ns < e->until_ns ? deadline_ns : e->until_ns,
                              .done = asked,
                              .arg = e};
    e->channel = worker_membership_channel(e->membership);
    e->calling = proto_channel_call(e->channel, &call, &e->call, NULL) == COMMON_OK;
    if (!e->calling)
        common_timer_start(e->timer, ASK_NS, false); // no memory: later
}

static void tick(void *arg)
{
    struct worker_empty *e = arg;
    if (common_clock_ns() < e->until_ns) {
        ask(e);
        return;
    }
    if (e->chunks == UINT64_MAX)
        common_log_warn("--drain-timeout has passed, and the coordinator has not answered");
    else
        common_log_warn("--drain-timeout has passed: this worker stops with chunks that have no other copy "
                        "or too few chunks=%" PRIu64,
                        e->chunks);
    e->done(e->arg, false);
}

enum common_code worker_empty_new(struct common_loop *loop, struct worker_membership *membership,
                                  const char *name, uint64_t limit_ns, void (*done)(void *arg, bool empty),
                                  void *arg, struct worker_empty **out)
{
    struct worker_empty *e = calloc(1, sizeof *e);
    if (!e)
        return COMMON_RESOURCE_EXHAUSTED;
    *e = (struct worker_empty){.membership = membership,
                               .name = name,
                               .instance = worker_membership_instance(membership),
                               .until_ns = limit_ns ? common_clock_after(limit_ns) : UINT64_MAX,
                               .chunks = UINT64_MAX,
                               .done = done,
                               .arg = arg};
    if (common_timer_new(loop, tick, e, &e->timer) != COMMON_OK) {
        free(e);
        return COMMON_RESOURCE_EXHAUSTED;
    }
    common_timer_start(e->timer, 0, false);
    *out = e;
    return COMMON_OK;
}

void worker_empty_free(struct worker_empty *e)
{
    if (!e)
        return;
    if (e->calling)
        proto_channel_cancel(e->channel, e->call);
    common_timer_free(e->timer);
    free(e);
}
