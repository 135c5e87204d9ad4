// SPDX-License-Identifier: Apache-2.0
// Preloaded into a process: a clock that is BANYAN_TEST_SKEW_S seconds ahead. Only the time of day is.
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *out)
{
    const char *skew = getenv("BANYAN_TEST_SKEW_S");
    int result = (int)syscall(SYS_clock_gettime, clock, out);
    if (result == 0 && clock == CLOCK_REALTIME && skew)
        out->tv_sec += atol(skew);
    return result;
}
