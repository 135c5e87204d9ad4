// SPDX-License-Identifier: Apache-2.0
// Chunks whose rows are gone here, because their file is damaged. Loop thread.
#ifndef WORKER_LOSE_H
#define WORKER_LOSE_H

#include <stdbool.h>

#include "proto/banyan.pb-c.h"

struct worker;
struct worker_chunk;
struct worker_session;

void worker_lose_chunk(void *worker, struct worker_chunk *chunk); // as worker_disk_options.damaged
// A layout names a chunk that was lost here, and not as one that is to be copied here: its maker has not heard of the
// loss, and the chunk would be here again, without its rows.
bool worker_names_lost(const struct worker *worker, const Banyan__Pb__LayoutSetRequest *body);
void worker_lost_comes(struct worker *worker, const Banyan__Pb__LayoutSetRequest *body); // after it was set
// Leaves out of the session what is lost here and could not be left out for want of memory: else the
// session's inventory would name it. False: there is no memory yet.
bool worker_lose_again(struct worker *worker, struct worker_session *session);

#endif
