// SPDX-License-Identifier: Apache-2.0
#include "worker/core/state.h"

void worker_fail(struct proto_request *request, const struct common_error *err, const char *reason)
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
