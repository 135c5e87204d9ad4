// SPDX-License-Identifier: Apache-2.0
// Waiting for something that goes on in the cluster, with a bar on a terminal: how much is left, and how fast
// it goes.
#ifndef CLIENT_CTL_WAIT_H
#define CLIENT_CTL_WAIT_H

#include "client/ctl/ctl.h"

struct ctl_wait_left {      // when asked
    uint64_t chunks, bytes; // bytes 0 to the end: they are not counted, and not shown
    bool over;              // it is done
    char stuck[256];        // why nothing moves; "": it does
};

// Fills *left. Anything but OK, which it has reported, ends the wait with this code.
typedef enum ctl_exit (*ctl_wait_fn)(struct ctl *ctl, const char *name, struct ctl_wait_left *left);

struct ctl_wait_given { // on the command line: CTL_WAIT_OPTIONS, ctl_wait_check
    bool wait;
    uint64_t limit_ns; // 0: no limit
};

// Asks every 200 ms until it is over, or for at most the limit: TIMEOUT then, and it says what is left. Why
// nothing moves is reported on stderr when that has lasted for two seconds, once for each reason. The bar is
// on stderr, where that is a terminal. `what` begins a sentence, and `goes_on` ends one: "w0", "go on
// moving".
enum ctl_exit ctl_wait(struct ctl *ctl, const char *what, const char *goes_on, const char *name,
                       const struct ctl_wait_given *given, ctl_wait_fn ask);

// --wait and --wait-timeout into a struct ctl_wait_given. more: what else --wait's help says.
// clang-format off
#define CTL_WAIT_OPTIONS(given, more)                                                                        \
    {"wait", 'w', COMMON_OPTION_FLAG, &(given).wait, NULL,                                                   \
     "Return when it is finished. A terminal shows a progress bar. Ctrl-C ends only the\nwaiting." more, \
     0, 0},                                                                                                  \
    {"wait-timeout", 0, COMMON_OPTION_DURATION, &(given).limit_ns, "TIME",                                   \
     "Exit with 6 after waiting this long; --timeout is per call. Default: no limit.", 0, 0}
// clang-format on
// USAGE, which it has reported: a limit without --wait.
enum ctl_exit ctl_wait_check(const struct ctl_wait_given *given);

// What a coordinator was asked to do is lost with it, and its successor says that nothing is left.
// ctl_wait_term: its term, before it is asked. ctl_wait_same_term: STATE, and advice to run `again`, if
// another one answers meanwhile.
enum ctl_exit ctl_wait_term(struct ctl *ctl, uint64_t *term);
enum ctl_exit ctl_wait_same_term(struct ctl *ctl, uint64_t term, const char *again);

struct ctl_drain_seen { // of one worker, by look after look; zero before the first
    banyan_drain now;
    unsigned empty_looks; // in a row, in which it had no chunks
};
// After a look that has filled `now`, some 200 ms after the one before: it has no chunks, and its sessions
// have released it, or have had time to.
bool ctl_drain_over(struct ctl_drain_seen *seen); // ctl_worker.c

#endif
