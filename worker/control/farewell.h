// SPDX-License-Identifier: Apache-2.0
// The last word of a process that ends as it was asked to: its
// coordinator then strikes a worker off that holds nothing, in place of missing it. Loop thread.
#ifndef WORKER_FAREWELL_H
#define WORKER_FAREWELL_H

#include "common/base/status.h"

struct worker_farewell; // opaque
struct worker_membership;

// done runs once: with the answer, after a second without one, or at once where no coordinator has this
// worker.
enum common_code worker_farewell_new(const struct worker_membership *membership, const char *name,
                                     void (*done)(void *arg), void *arg, struct worker_farewell **out);
void worker_farewell_free(struct worker_farewell *farewell); // before the membership; NULL is allowed

#endif
