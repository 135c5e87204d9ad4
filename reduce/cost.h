// SPDX-License-Identifier: Apache-2.0
// Time of one step over a tree, by playing it (formula and picture in cost.c). Private to reduce/.
#ifndef REDUCE_COST_H
#define REDUCE_COST_H

#include "reduce/shape.h"

struct reduce_sim; // working memory for trees over one list of members

// hosts[n]: number of the host of each rank, below n_hosts; the same for every tree that is played.
// cores[n_hosts]: what the members of a host share. Both are copied. NULL: out of memory.
struct reduce_sim *reduce_sim_new(uint32_t n, const uint32_t *hosts, uint32_t n_hosts, const uint32_t *cores,
                                  const struct reduce_cost *cost);
void reduce_sim_free(struct reduce_sim *sim); // NULL is allowed

// When the root has merged everything, in nanoseconds after it holds the frame. compute_ns[n]: from the end
// of a rank's sends to its own partial; NULL: none. Gives up, with INFINITY, once the time must pass
// `limit_ns`.
double reduce_sim_run(struct reduce_sim *sim, const struct reduce_node *nodes, const double *compute_ns,
                      double limit_ns);

// How much longer a host's members compute because they share its cores: max(1, members / cores).
double reduce_cost_share(uint32_t members, uint32_t cores);

#endif
