// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core.h"

#include <inttypes.h>

#include "common/base/clock.h"
#include "common/log/log.h"

uint64_t coordinator_clock_ns(const struct coordinator_core *core)
{
    return core->clock_zero_ns + common_clock_ns();
}

void coordinator_here(struct coordinator_core *core, uint64_t now_ns)
{
    uint64_t away_ns = coordinator_presence_note(&core->presence, now_ns);
    if (away_ns && !core->stopping)
        coordinator_tell(core, COORDINATOR_AWAY, WARN,
                         "process was paused; heartbeat timers adjusted away_ms=%" PRIu64,
                         away_ns / COMMON_NS_PER_MS);
}

enum common_code coordinator_gone(const struct coordinator_core *core, const char **text)
{
    *text = core->stopping ? "the coordinator is stopping" : "the session was deleted";
    return core->stopping ? COMMON_UNAVAILABLE : COMMON_NOT_FOUND;
}
