// SPDX-License-Identifier: Apache-2.0
// Tickets to put rows of a session (rows/attach.h): until when clients may use them, and for which positions.
// While one is good, rows may be on their way to holders that no layer has. Pure.
#ifndef COORDINATOR_TICKETS_H
#define COORDINATOR_TICKETS_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/session/rangeset.h"

struct coordinator_tickets { // zeroed: none was given
    uint64_t number;         // of those that are given now: holders refuse older ones (place/move.h)
    uint64_t until_ns;       // when the last one ends
    uint64_t all_ns;         // until then they may name any position
    struct coordinator_rangeset positions; // owned; after that, these: of tickets that have not ended
};

// One was given now, for [first, first + count).
void coordinator_tickets_give(struct coordinator_tickets *tickets, uint64_t first, uint64_t count,
                              uint64_t now_ns, uint64_t life_ns);

static inline bool coordinator_tickets_good(const struct coordinator_tickets *tickets, uint64_t now_ns)
{
    return now_ns < tickets->until_ns;
}

// The first positions of [from, end) that tickets may name, while some are good. False: none.
bool coordinator_tickets_next(const struct coordinator_tickets *tickets, uint64_t now_ns, uint64_t from,
                              uint64_t end, struct proto_range *out);

void coordinator_tickets_free(struct coordinator_tickets *tickets); // what it owns

#endif
