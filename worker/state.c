// SPDX-License-Identifier: Apache-2.0
#include "worker/state.h"

bool worker_term_check(struct worker *worker, uint64_t term, struct proto_request *request)
{
    struct proto_status status;
    // Another worker's step of a term that is not known here is of a plan that is not, either.
    if (term > worker->term && proto_request_role(request) == BANYAN__PB__ROLE__ROLE_WORKER) {
        proto_status_set(&status, COMMON_ABORTED, PROTO_REASON_OLD_PLAN,
                         "term %" PRIu64 " has not begun here: the coordinator must begin it", term);
        proto_request_fail_status(request, &status);
        return false;
    }
    if (term >= worker->term) {
        worker->term = term;
        if (worker->plans_term < term) { // membership may have seen the term first
            worker_plans_close(worker);
            worker->plans_term = term;
        }
        return true;
    }
    proto_status_set(&status, COMMON_ABORTED, PROTO_REASON_OLD_TERM,
                     "term %" PRIu64 " is over: term %" PRIu64 " has begun", term, worker->term);
    proto_request_fail_status(request, &status);
    return false;
}

void worker_fail(struct proto_request *request, const struct common_error *err, enum proto_reason reason)
{
    struct proto_status status;
    proto_status_set(&status, err->code, reason, "%s", err->message);
    proto_request_fail_status(request, &status);
}

void worker_hand_emptied(struct worker *worker)
{
    if (worker->drained &&
        worker->n_steps + worker->n_prepares == 0) // not on this stack: the step that ended is still on it
        common_timer_start(worker->drain_timer, 0, false);
}
