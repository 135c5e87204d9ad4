// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/tickets.h"

void coordinator_tickets_give(struct coordinator_tickets *tickets, uint64_t first, uint64_t count,
                              uint64_t now_ns, uint64_t life_ns)
{
    if (!coordinator_tickets_good(tickets, now_ns))
        coordinator_rangeset_free(&tickets->positions);
    tickets->until_ns = now_ns + life_ns;
    if (!coordinator_rangeset_add(&tickets->positions, first, count, NULL)) // too many ranges
        tickets->all_ns = tickets->until_ns;
}

bool coordinator_tickets_next(const struct coordinator_tickets *tickets, uint64_t now_ns, uint64_t from,
                              uint64_t end, struct proto_range *out)
{
    struct proto_range range = {.first = from, .count = end - from};
    if (now_ns >= tickets->all_ns && !coordinator_rangeset_next(&tickets->positions, from, &range))
        return false;
    if (range.first >= end)
        return false;
    uint64_t to = range.first + range.count < end ? range.first + range.count : end;
    *out = (struct proto_range){.first = range.first, .count = to - range.first};
    return true;
}

void coordinator_tickets_free(struct coordinator_tickets *tickets)
{
    coordinator_rangeset_free(&tickets->positions);
}
