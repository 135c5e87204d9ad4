// SPDX-License-Identifier: Apache-2.0
// SessionWatch: calls that wait for steps to be seen.
#ifndef COORDINATOR_WATCHERS_H
#define COORDINATOR_WATCHERS_H

#include "coordinator/steps/watch.h"

// Handler (proto_method.handle).
void coordinator_handle_session_watch(struct coordinator_steps *steps, struct proto_request *request);

// Looks at the session's next steps without a call that waits: until so many were seen, or the time is over, its steps
// cost what those of a watch cost; what is seen is kept, for coordinator_watch_seen. One look of each kind a session, and
// COORDINATOR_LOOKS_MAX in all. Whether one is under way now; false: there are too many.
struct coordinator_look {
    uint32_t steps, mass_bins; // at most PROTO_WATCH_STEPS_MAX, PROTO_WATCH_BINS_MAX; mass_bins 0: traces
    uint64_t wait_ns;
};
bool coordinator_watchers_look(struct coordinator_steps *steps, struct coordinator_session *s,
                               const struct coordinator_look *look);

// Something was seen: its waiter is notified when it was the last.
void coordinator_watchers_saw(struct coordinator_watch *watch, const struct coordinator_seen *seen);
void coordinator_watchers_end(struct coordinator_watch *watch, enum common_code code, const char *text);
void coordinator_watchers_stop(struct coordinator_steps *steps); // who waits gets UNAVAILABLE

#endif
