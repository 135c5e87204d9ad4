// SPDX-License-Identifier: Apache-2.0
#include "common/base/clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts); // cannot fail for the two clocks used here
    return (uint64_t)ts.tv_sec * COMMON_NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t common_clock_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t common_clock_wall_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

uint64_t common_clock_after(uint64_t delta_ns)
{
    uint64_t at;
    return __builtin_add_overflow(common_clock_ns(), delta_ns, &at) ? COMMON_NO_DEADLINE : at;
}

uint64_t common_clock_left(uint64_t deadline_ns)
{
    if (deadline_ns == COMMON_NO_DEADLINE)
        return COMMON_NO_DEADLINE;
    uint64_t now = common_clock_ns();
    return deadline_ns > now ? deadline_ns - now : 0;
}
