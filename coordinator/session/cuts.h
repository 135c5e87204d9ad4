// SPDX-License-Identifier: Apache-2.0
// Truncates in their order. A truncate that its caller has given up may come late, over a link that was cut, when rows
// have been acknowledged that its caller wrote after it: it must not take them away. So each has a number of its own
// (its cut) and names the one that it follows; a session keeps the last, durably. Then of all that follow the same one,
// one is done; whoever wants none of them to be done later makes a number in their place (settle).
// docs/internals/decisions.md says why incarnations are not enough.
#ifndef COORDINATOR_CUTS_H
#define COORDINATOR_CUTS_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/session/session.h"

struct coordinator_cut {
    uint64_t cut, after; // as SessionTruncateRequest has them
    bool settle;
};

enum coordinator_cut_verdict {
    COORDINATOR_CUT_DO,
    COORDINATOR_CUT_STORE,  // its number, and no more
    COORDINATOR_CUT_ANSWER, // what the session has
    COORDINATOR_CUT_REFUSE, // with the status: another one came first
};

// Whether the numbers of a request make sense: INVALID_ARGUMENT.
enum common_code coordinator_cut_check(const struct coordinator_cut *cut, struct proto_status *status);

// What becomes of it. Nobody else may truncate until it is done: the session is TRUNCATING.
enum coordinator_cut_verdict coordinator_cut_judge(const struct coordinator_session *s,
                                                   const struct coordinator_cut *cut,
                                                   struct proto_status *status);

// The number of one that came without.
uint64_t coordinator_cut_next(uint64_t cut);

#endif
