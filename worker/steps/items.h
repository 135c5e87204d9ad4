// SPDX-License-Identifier: Apache-2.0
// Items of a step, before anything of them is stored or computed: whether they fit their session, and whether memory has
// what they read, and room for what they bring. Loop thread.
#ifndef WORKER_ITEMS_H
#define WORKER_ITEMS_H

#include <stdbool.h>

#include "proto/rpc/step.h"
#include "worker/session/session.h"

struct worker;
struct worker_wants;

// Shape of an item against its session. NULL, or what is wrong.
const char *worker_item_problem(const struct worker_session *session, const struct proto_step_item *item);

bool worker_any_cold(const struct worker *worker); // any rows at all
// Adds the layers of chunks that the item reads, and all those of chunks that it appends to: their files are
// rewritten. Nothing where it will be refused.
void worker_item_wants(const struct worker *worker, const struct proto_step *step,
                       const struct proto_step_item *item, struct worker_wants *wants);
// Whether any of these rows are on the disk. They are being read then, without a wait.
bool worker_item_cold(struct worker *worker, const struct proto_step *step,
                      const struct proto_step_item *item);
// The next layers of its session are read as well.
void worker_item_ahead(struct worker *worker, const struct proto_step_item *item);

// Whether there is memory for the rows that the step appends, as far as it is tried: each needs a page or two.
bool worker_step_has_room(struct worker *worker, const struct proto_step *step);

#endif
