// SPDX-License-Identifier: Apache-2.0
// Time in nanoseconds. Deadlines are absolute monotonic times inside a process and remaining times on the
// wire.
#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H

#include <stdint.h>

#define COMMON_NS_PER_US   UINT64_C(1000)
#define COMMON_NS_PER_MS   UINT64_C(1000000)
#define COMMON_NS_PER_S    UINT64_C(1000000000)
#define COMMON_NO_DEADLINE UINT64_MAX

uint64_t common_clock_ns(void);      // CLOCK_MONOTONIC
uint64_t common_clock_wall_ns(void); // CLOCK_REALTIME, for what leaves the process (ticket expiry)

// now + delta, saturating at COMMON_NO_DEADLINE.
uint64_t common_clock_after(uint64_t delta_ns);

// Nanoseconds left until `deadline_ns`; 0 when it has passed; COMMON_NO_DEADLINE stays itself.
uint64_t common_clock_left(uint64_t deadline_ns);

#endif
