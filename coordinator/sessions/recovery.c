// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sessions/recovery.h"

#include "common/clock.h"

#define RECOVERY_NS (5 * COMMON_NS_PER_S) // workers try again within 2 s

struct coordinator_parked {          // at most as many as the server serves requests
    struct coordinator_parked *next; // in the order in which they came
    struct proto_request *request;
    coordinator_handle_fn handle;
    void *arg;
};

bool coordinator_recovering(const struct coordinator_session *s)
{
    struct coordinator_core *core = s->sessions->core;
    if (!s->unknown || core->stopping)
        return false;
    uint64_t now = common_clock_ns();
    coordinator_here(core, now);
    return coordinator_presence_patience(&core->presence, core->started_ns, RECOVERY_NS, now) > 0;
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

bool coordinator_park(struct coordinator_session *s, struct proto_request *request,
                      coordinator_handle_fn handle, void *arg)
{
    struct coordinator_sessions *sessions = s->sessions;
    if (!coordinator_recovering(s) && !is_learning(s))
        return false;
    struct coordinator_parked *parked = coordinator_alloc(sizeof(*parked));
    *parked = (struct coordinator_parked){.request = request, .handle = handle, .arg = arg};
    *sessions->parked_tail = parked;
    sessions->parked_tail = &parked->next;
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
            proto_request_fail(parked.request, COMMON_DEADLINE_EXCEEDED, "nobody waits for it any more", NULL,
                               0);
        else
            parked.handle(parked.arg, parked.request);
    }
}
