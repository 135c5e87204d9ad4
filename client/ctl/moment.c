// SPDX-License-Identifier: Apache-2.0
// Moments as people give them.
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "common/base/clock.h"

// "2026-11-25T17:00:00Z", or the local time without the Z; seconds, or the time of day, may be left out.
static bool date_parse(const char *text, uint64_t *out_ns)
{
    static const char *const forms[] = {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S",
                                        "%Y-%m-%d %H:%M", "%Y-%m-%d"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct tm at = {.tm_isdst = -1};
        const char *end = strptime(text, forms[i], &at);
        bool utc = end && strcmp(end, "Z") == 0;
        if (!end || (*end && !utc))
            continue;
        time_t seconds = utc ? timegm(&at) : mktime(&at);
        if (seconds < 0)
            return false;
        *out_ns = (uint64_t)seconds * COMMON_NS_PER_S;
        return true;
    }
    return false;
}

bool ctl_moment_parse(const char *text, uint64_t *out_ns)
{
    uint64_t ago, now = common_clock_wall_ns();
    if (date_parse(text, out_ns))
        return true;
    if (common_parse_duration(text, &ago) != COMMON_OK)
        return false;
    *out_ns = ago < now ? now - ago : 1;
    return true;
}
