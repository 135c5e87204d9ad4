// SPDX-License-Identifier: Apache-2.0
// Keeps refused attempts from filling the disk: in a window of time a few records stand for themselves, of
// one host at most half of them, and what comes above is counted. As long as that goes on, each window is
// twice as long as the one before, up to 64 s: a flood that never ends makes 17 records in 64 s. Pure.
#ifndef COORDINATOR_TRAIL_FLOOD_H
#define COORDINATOR_TRAIL_FLOOD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"

#define COORDINATOR_TRAIL_FLOOD_MOST    16 // records of a window
#define COORDINATOR_TRAIL_FLOOD_HOST    8  // of these, of one host
#define COORDINATOR_TRAIL_FLOOD_NS      COMMON_NS_PER_S
#define COORDINATOR_TRAIL_FLOOD_MOST_NS (64 * COMMON_NS_PER_S)

struct coordinator_trail_flood { // all zero: quiet
    uint64_t from_ns, length_ns;
    uint32_t told;
    uint64_t held;
    struct {
        uint64_t host;
        uint32_t told;
    } hosts[COORDINATOR_TRAIL_FLOOD_MOST];
};

// Whether one of this peer ("NAME@ADDRESS:PORT") is recorded; false: it was counted.
bool coordinator_trail_flood_admits(struct coordinator_trail_flood *flood, const char *peer, uint64_t now_ns);

// How many were counted in a window that is over, or in any with `end`; 0: none. To be called several times a
// second.
uint64_t coordinator_trail_flood_over(struct coordinator_trail_flood *flood, uint64_t now_ns, bool end);

// Where the address begins in what names a peer.
const char *coordinator_trail_address(const char *peer);

#endif
