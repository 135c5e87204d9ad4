// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/cuts.h"

#include "common/hash/hash.h"

enum common_code coordinator_cut_check(const struct coordinator_cut *cut, struct proto_status *status)
{
    if (!cut->cut != !cut->after)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, "",
                                "a truncate needs both cut and after, or neither");
    if (cut->settle && !cut->cut)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, "", "settle needs cut and after");
    return COMMON_OK;
}

enum coordinator_cut_verdict coordinator_cut_judge(const struct coordinator_session *s,
                                                   const struct coordinator_cut *cut,
                                                   struct proto_status *status)
{
    if (!cut->cut)
        return COORDINATOR_CUT_DO;
    if (cut->cut == s->cut)
        return COORDINATOR_CUT_ANSWER;
    if (cut->after == s->cut)
        return cut->settle ? COORDINATOR_CUT_STORE : COORDINATOR_CUT_DO;
    if (cut->settle)
        return COORDINATOR_CUT_ANSWER;
    proto_status_set(status, COMMON_ABORTED, "OLD_INCARNATION",
                     "another truncate came first: read the session's state and try again");
    return COORDINATOR_CUT_REFUSE;
}

uint64_t coordinator_cut_next(uint64_t cut)
{
    uint64_t next = common_mix64(cut);
    return next ? next : 1;
}
