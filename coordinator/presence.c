// SPDX-License-Identifier: Apache-2.0
#include "coordinator/presence.h"

void coordinator_presence_init(struct coordinator_presence *p, uint64_t interval_ns, uint64_t now_ns)
{
    *p = (struct coordinator_presence){.interval_ns = interval_ns, .seen_ns = now_ns, .back_ns = now_ns};
}

uint64_t coordinator_presence_note(struct coordinator_presence *p, uint64_t now_ns)
{
    uint64_t gap_ns = now_ns > p->seen_ns ? now_ns - p->seen_ns : 0;
    uint64_t late_ns = gap_ns > p->interval_ns ? gap_ns - p->interval_ns : 0;
    p->seen_ns += gap_ns;
    if (late_ns <= p->interval_ns)
        return 0;
    p->back_ns = p->seen_ns;
    return late_ns;
}

uint64_t coordinator_presence_patience(const struct coordinator_presence *p, uint64_t since_ns,
                                       uint64_t patience_ns, uint64_t now_ns)
{
    uint64_t from_ns = since_ns > p->back_ns ? since_ns : p->back_ns;
    uint64_t silent_ns = now_ns > from_ns ? now_ns - from_ns : 0;
    return silent_ns < patience_ns ? patience_ns - silent_ns : 0;
}
