// SPDX-License-Identifier: Apache-2.0
#include "worker/control/farewell.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "proto/rpc/rpc.h"
#include "worker/core/membership.h"

#define ANSWER_NS (1 * COMMON_NS_PER_S)

struct worker_farewell {
    struct proto_channel *channel;
    uint64_t call;
    bool calling;
    void (*done)(void *arg);
    void *arg;
};

static void answered(void *arg, const struct proto_reply *reply)
{
    struct worker_farewell *f = arg;
    f->calling = false;
    if (reply->code != COMMON_CANCELLED) // whatever it says: there is nothing left to do here
        f->done(f->arg);
}

enum common_code worker_farewell_new(const struct worker_membership *membership, const char *name,
                                     void (*done)(void *arg), void *arg, struct worker_farewell **out)
{
    struct worker_farewell *f = calloc(1, sizeof *f);
    if (!f)
        return COMMON_RESOURCE_EXHAUSTED;
    *f = (struct worker_farewell){.done = done, .arg = arg};
    *out = f;
    if (!worker_membership_lacks(membership)) {
        Banyan__Pb__WorkerDrainRequest body = BANYAN__PB__WORKER_DRAIN_REQUEST__INIT;
        body.worker = (char *)name;
        body.reason = "its process has ended";
        body.instance = worker_membership_instance(membership);
        body.ends = true;
        struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_WORKER_DRAIN,
                                  .body = &body.base,
                                  .deadline_ns = common_clock_after(ANSWER_NS),
                                  .done = answered,
                                  .arg = f};
        f->channel = worker_membership_channel(membership);
        f->calling = proto_channel_call(f->channel, &call, &f->call, NULL) == COMMON_OK;
    }
    if (!f->calling)
        done(arg);
    return COMMON_OK;
}

void worker_farewell_free(struct worker_farewell *f)
{
    if (!f)
        return;
    if (f->calling)
        proto_channel_cancel(f->channel, f->call);
    free(f);
}
