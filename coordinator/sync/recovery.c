// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/recovery.h"

#include <string.h>

#include "common/base/clock.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"

#define RECOVERY_NS (5 * COMMON_NS_PER_S) // workers try again within 2 s

struct coordinator_parked {          // at most as many as the server serves requests
    struct coordinator_parked *next; // in the order in which they came
    struct proto_request *request;
    coordinator_handle_fn handle;
    void *arg;
};

static bool just_started(struct coordinator_core *core)
{
    uint64_t now = common_clock_ns();
    coordinator_here(core, now);
    return coordinator_presence_patience(&core->presence, core->started_ns, RECOVERY_NS, now) > 0;
}

bool coordinator_recovering(const struct coordinator_session *s)
{
    struct coordinator_core *core = s->sessions->core;
    return s->unknown && !core->stopping && just_started(core);
}

// Workers that are members of no session are not in the store: while none is active, some may come.
static bool some_may_come(const struct coordinator_cluster *cluster)
{
    bool any = false;
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        const struct coordinator_worker *w = cluster->workers[i];
        if (w && (w->state == COORDINATOR_WORKER_ABSENT || w->state == COORDINATOR_WORKER_JOINING))
            return true;
        any = any || (w && coordinator_worker_active(w));
    }
    return !any;
}

bool coordinator_placing_waits(const struct coordinator_sessions *sessions,
                               const struct proto_status *failure)
{
    bool none = failure->code == COMMON_UNAVAILABLE && !failure->reason[0],
         full = failure->code == COMMON_RESOURCE_EXHAUSTED && !strcmp(failure->reason, "LIMIT");
    return (none || full) && !sessions->core->stopping && some_may_come(sessions->cluster) &&
           just_started(sessions->core);
}

// It has waited long enough: who has not come is struck off, and the others say once more what they have. What of it is
// known meanwhile is less than there is.
static bool is_learning(struct coordinator_session *s)
{
    (void)coordinator_session_has_missing(s); // its counts are those of now
    return s->unknown && !s->sessions->core->stopping &&
           !s->strike_again_ns && // the store takes what is found
           (s->awaited || s->repairing || s->state == COORDINATOR_SESSION_RELAYOUT);
}

static void queue_call(struct coordinator_sessions *sessions, struct proto_request *request,
                       coordinator_handle_fn handle, void *arg)
{
    struct coordinator_parked *parked = coordinator_alloc(sizeof(*parked));
    *parked = (struct coordinator_parked){.request = request, .handle = handle, .arg = arg};
    *sessions->parked_tail = parked;
    sessions->parked_tail = &parked->next;
}

void coordinator_park_placing(struct coordinator_sessions *sessions, struct proto_request *request,
                              coordinator_handle_fn handle, void *arg)
{
    queue_call(sessions, request, handle, arg);
}

bool coordinator_park(struct coordinator_session *s, struct proto_request *request,
                      coordinator_handle_fn handle, void *arg)
{
    if (!coordinator_recovering(s) && !is_learning(s))
        return false;
    queue_call(s->sessions, request, handle, arg);
    return true;
}

void coordinator_unpark(struct coordinator_sessions *sessions)
{
    struct coordinator_parked *list = sessions->parked;
    sessions->parked = NULL;
    sessions->parked_tail = &sessions->parked;
    while (list) {
        struct coordinator_parked parked = *list;
        free(list);
        list = parked.next;
        if (proto_request_over(parked.request))
            proto_request_fail(parked.request, COMMON_DEADLINE_EXCEEDED,
                               "the deadline passed before the call was started", NULL, 0);
        else
            parked.handle(parked.arg, parked.request);
    }
}
