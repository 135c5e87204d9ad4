// SPDX-License-Identifier: Apache-2.0
// Waiting for something that goes on in the cluster, with a bar on a terminal: how much is left, and how fast it goes.
#ifndef CLIENT_CTL_WAIT_H
#define CLIENT_CTL_WAIT_H

#include "client/ctl.h"

struct ctl_wait_left { // when asked
    uint64_t chunks, bytes;
    bool over;       // it is done
    char stuck[256]; // why nothing moves; "": it does
};

// Fills *left. Anything but OK, which it has told, ends the wait with this code.
typedef enum ctl_exit (*ctl_wait_fn)(struct ctl *ctl, const char *name, struct ctl_wait_left *left);

// Asks every 200 ms until it is over, or for at most limit_ns (0: for ever): TIMEOUT then, and it says what is left.
// Why nothing moves is told on stderr when that has lasted for two seconds, once for each reason. The bar is on stderr,
// where that is a terminal. `what` begins a sentence: "w0", "the balance".
enum ctl_exit ctl_wait(struct ctl *ctl, const char *what, const char *name, uint64_t limit_ns,
                       ctl_wait_fn ask);

#endif
