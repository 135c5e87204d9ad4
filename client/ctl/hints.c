// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/hints.h"

#include <stddef.h>

static const struct {
    banyan_reason reason;
    banyan_code code; // OK: any
    const char *step;
} hints[] = {
    {BANYAN_REASON_TOKEN, BANYAN_OK, "'banyanctl token list' shows the tokens and what each permits"},
    {BANYAN_REASON_HOLE, BANYAN_OK,
     "'banyanctl attach' sends the tokens, 'banyanctl session commit SESSION FIRST COUNT' makes attached "
     "ones visible; 'banyanctl session show SESSION' lists the holes"},
    {BANYAN_REASON_MISSING_RANGE, BANYAN_UNAVAILABLE,
     "'banyanctl workers' shows which workers are missing: start them again, and it continues by itself"},
    {BANYAN_REASON_MISSING_RANGE, BANYAN_DATA_LOSS,
     "'banyanctl session truncate' to a length before the lost tokens and attach them again, or "
     "'banyanctl session delete'"},
    {BANYAN_REASON_WORKER_LOST, BANYAN_OK, "'banyanctl workers' shows the state of each worker; try again"},
    {BANYAN_REASON_QUARANTINE, BANYAN_OK, "'banyanctl quarantine list' shows what is held back"},
    {BANYAN_REASON_RESTORED, BANYAN_OK,
     "'banyanctl workers' shows which workers are back; when all are, run 'banyanctl accept'"},
    {BANYAN_REASON_COVERAGE, BANYAN_OK,
     "try again; if it fails again, 'banyanctl doctor' looks for the cause"},
    {BANYAN_REASON_FULL, BANYAN_OK, "'banyanctl workers' shows the memory; delete sessions or add workers"},
    {BANYAN_REASON_OLD_INCARNATION, BANYAN_OK,
     "'banyanctl session show SESSION' shows its length now; then try again"},
    {BANYAN_REASON_QUOTA, BANYAN_OK,
     "'banyanctl quota show' shows the tenant's quotas and what is used of them"},
    {BANYAN_REASON_OTHER_BYTES, BANYAN_OK,
     "another program writes to this session: 'banyanctl session show SESSION' shows its length; let one of "
     "them write, and the others to a fork ('banyanctl session fork')"},
    {BANYAN_REASON_CREDENTIALS, BANYAN_UNAUTHENTICATED,
     "give --token-file or set BANYAN_TOKEN_FILE to the file with the cluster's client token"},
    {BANYAN_REASON_ACCESS, BANYAN_OK,
     "give --token-file or set BANYAN_TOKEN_FILE to the file with a token that permits it"},
    {BANYAN_REASON_UNREACHABLE, BANYAN_OK,
     "give --endpoint or set BANYAN_ENDPOINT if the coordinator is elsewhere"},
    {BANYAN_REASON_NO_ANSWER, BANYAN_OK,
     "give a longer --timeout, or see 'banyanctl workers' for a worker that does not answer"},
    {BANYAN_REASON_NO_WORKER, BANYAN_OK,
     "'banyanctl workers' lists the workers; 'banyanctl join-command' prints how to start one"},
    {BANYAN_REASON_NO_SESSION, BANYAN_OK, "'banyanctl sessions' lists the sessions"},
    {BANYAN_REASON_UNKNOWN_WORKER, BANYAN_OK, "'banyanctl workers' lists the workers"},
    {BANYAN_REASON_NAME_TAKEN, BANYAN_OK,
     "choose another name, or see 'banyanctl sessions' for the one that has it"},
    {BANYAN_REASON_PAST_END, BANYAN_OK, "'banyanctl session show SESSION' shows how many tokens there are"},
    {BANYAN_REASON_STORE, BANYAN_OK,
     "make room on the disk of the coordinator's --store: 'banyanctl doctor' shows how much is free"},
};

const char *ctl_hint(const banyan_error *error)
{
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (hints[i].reason == error->reason && (hints[i].code == BANYAN_OK || hints[i].code == error->code))
            return hints[i].step;
    return NULL;
}
