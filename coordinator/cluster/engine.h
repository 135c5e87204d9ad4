// SPDX-License-Identifier: Apache-2.0
// Which engine a plan gets. `stream` always works; an engine whose collectives need a group that the workers
// have formed among themselves (reduce/module.h) is chosen where all members of the plan are of one group
// that is whole: all of its members are ACTIVE, and none of them has said that the engine has failed. When
// a group ceases to be whole its plans are retired, and what is under way on them goes again by `stream`;
// when it is whole (again, or newly formed), plans of its members by `stream` are.
#ifndef COORDINATOR_ENGINE_H
#define COORDINATOR_ENGINE_H

#include "coordinator/cluster/cluster.h"

struct coordinator_plan;

// Whether the group that the worker registered with can serve plans. False: it has none.
bool coordinator_group_whole(const struct coordinator_worker *w);

// The member whose engine and group a plan of these workers uses; NULL: stream.
const struct coordinator_worker *coordinator_engine_choose(struct coordinator_worker *const *workers,
                                                           uint32_t n);

// Does it still hold for a plan, and is there nothing better for it?
bool coordinator_engine_fits(const struct coordinator_plan *plan);

// Retires plans whose engine is not the one that they would get now, where their members are of that group.
void coordinator_plans_engine_changed(struct coordinator_cluster *cluster, const char *group);

// The engine has failed on this worker: its plans go. In a group of a size none is made with it until its
// members register with another group; where any workers may make a plan, until this one registers again.
void coordinator_engine_lose(struct coordinator_worker *w, const char *why);

#endif
