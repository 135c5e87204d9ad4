// SPDX-License-Identifier: Apache-2.0
// Taking back an append that has failed. Its holders throw away what they have stored of it, and take no more
// of it if it comes late. Only when all of them have said so does the client get its error: from then on the
// rows come back by nothing, no restart of the coordinator either. One that cannot be notified leaves the
// outcome open: it is notified when it comes back (layout_send.h), unless the coordinator ends before.
#ifndef COORDINATOR_UNDO_H
#define COORDINATOR_UNDO_H

#include "coordinator/cluster/gather.h"
#include "coordinator/steps/steps.h"

struct coordinator_item;
struct coordinator_session;

// done(item, OK): all holders have; anything else: one of them may still have its part. Never on this stack.
void coordinator_undo(struct coordinator_session *s, struct coordinator_item *item,
                      coordinator_gather_fn done);

#endif
