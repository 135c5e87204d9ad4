// SPDX-License-Identifier: Apache-2.0
// Commands that destroy something say what before they do it: --dry-run says only that; on a terminal they
// ask.
#ifndef CLIENT_CTL_CAREFUL_H
#define CLIENT_CTL_CAREFUL_H

#include "client/ctl/ctl.h"

struct ctl_careful { // on the command line: CTL_CAREFUL_OPTIONS
    bool dry_run, yes;
};

// clang-format off
#define CTL_CAREFUL_OPTIONS(given)                                                                           \
    {"dry-run", 'n', COMMON_OPTION_FLAG, &(given).dry_run, NULL,                                             \
     "Only show what would be done.", 0, 0},                                                                  \
    {"yes", 'y', COMMON_OPTION_FLAG, &(given).yes, NULL,                                                     \
     "Do not ask. By default the command asks if standard input and output are a terminal.", 0, 0}
// clang-format on

// Whether ctl_careful_may will say what is to be done, so that it has to be found out: it is a dry run, or
// the user is asked.
bool ctl_careful_speaks(const struct ctl_careful *given);

// `words`: what is to be done, as in "would delete session x"; `what`: the same as JSON, an object whose
// reference it takes. True: do it. False: *exit_code is OK after a dry run, which has printed it, and TIMEOUT
// where the user does not want it (docs/reference/exit-codes.md).
bool ctl_careful_may(struct ctl *ctl, const struct ctl_careful *given, const char *words, json_t *what,
                     enum ctl_exit *exit_code);

#endif
