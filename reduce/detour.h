// SPDX-License-Identifier: Apache-2.0
// A tree around edges that are down, for members whose order alone avoids none of them in the tree's own
// shape. Pure, as the planner. Private to it.
#ifndef REDUCE_DETOUR_H
#define REDUCE_DETOUR_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "reduce/shape.h"

// What it costs that `parent` has this child: so much where it does not reach it, 1 where the child does not
// reach its parent. One of the first kind costs more than any number of the others.
#define REDUCE_AVOID_COST (UINT64_C(1) << 32)
uint64_t reduce_avoid_pair(const struct reduce_avoid *avoid, uint32_t n, uint32_t parent, uint32_t child);

// Gives the nodes[n] another shape in which every parent reaches its children, if there is one. Ranks keep
// their parents as far as these reach them; the root is the first one from which all can be reached. members:
// as in the nodes, which avoid names. *found: there is one; if not, the nodes stay as they are.
// RESOURCE_EXHAUSTED: likewise.
enum common_code reduce_detour(struct reduce_node *nodes, uint32_t n, const struct reduce_avoid *avoid,
                               uint32_t n_avoid, bool *found);

#endif
