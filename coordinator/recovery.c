// SPDX-License-Identifier: Apache-2.0
#include "common/clock.h"
#include "coordinator/session.h"

#define RECOVERY_NS (5 * COMMON_NS_PER_S) // workers try again within 2 s

struct coordinator_parked { // at most as many as the server serves requests
    struct coordinator_parked *next;
    struct proto_request *request;
    void (*handle)(void *arg, struct proto_request *request);
};

bool coordinator_recovering(const struct coordinator_session *s)
{
    struct coordinator *c = s->c;
    if (!s->unknown || c->stopping)
        return false;
    uint64_t now = common_clock_ns();
    coordinator_here(c, now);
    return coordinator_presence_patience(&c->presence, c->started_ns, RECOVERY_NS, now) > 0;
}

bool coordinator_park(struct coordinator_session *s, struct proto_request *request,
                      void (*handle)(void *arg, struct proto_request *request))
{
    if (!coordinator_recovering(s))
        return false;
    struct coordinator_parked *parked = coordinator_alloc(sizeof(*parked));
    *parked = (struct coordinator_parked){.next = s->c->parked, .request = request, .handle = handle};
    s->c->parked = parked;
    return true;
}

void coordinator_unpark(struct coordinator *c)
{
    struct coordinator_parked *list = c->parked;
    c->parked = NULL;
    while (list) {
        struct coordinator_parked parked = *list;
        free(list);
        list = parked.next;
        parked.handle(c, parked.request); // may be parked again
    }
}
