// SPDX-License-Identifier: Apache-2.0
// May an item go now? Everything that must hold before it may be queued is decided here, and nothing is done.
#ifndef COORDINATOR_ADMIT_H
#define COORDINATOR_ADMIT_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator_item;
struct coordinator_session;

enum coordinator_verdict {
    COORDINATOR_ADMIT_GO,      // way.visible, length_before and missing are set
    COORDINATOR_ADMIT_REFUSED, // failure says why
    COORDINATOR_ADMIT_WAIT,    // in the session's lane
    COORDINATOR_ADMIT_PLACE,   // its chunks must be placed first
    COORDINATOR_ADMIT_RETRY    // later; failure says why
};

// pumped: it comes from the head of the lane, so nobody is before it.
enum coordinator_verdict coordinator_item_admit(struct coordinator_item *item, struct coordinator_session *s,
                                                bool pumped);

#endif
