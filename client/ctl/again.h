// SPDX-License-Identifier: Apache-2.0
// --watch of commands that list: the same again and again.
#ifndef CLIENT_CTL_AGAIN_H
#define CLIENT_CTL_AGAIN_H

#include "client/ctl/ctl.h"

extern uint64_t ctl_again_ns; // --watch; 0: once

// clang-format off
#define CTL_AGAIN_OPTION                                                                                     \
    {"watch", 'w', COMMON_OPTION_DURATION, &ctl_again_ns, "TIME",                                            \
     "Repeat the output at this interval until interrupted; on a terminal, in place of\n"                  \
     "the previous output. Default: once.",                                       \
     UINT64_C(100000000), UINT64_C(3600000000000)}
// clang-format on

// Runs it once or, with --watch, until it fails in a way that does not pass by itself: it continues while
// there is no answer.
enum ctl_exit ctl_again(struct ctl *ctl, enum ctl_exit (*run)(struct ctl *ctl));

#endif
