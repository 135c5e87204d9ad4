// SPDX-License-Identifier: Apache-2.0
// Members in the order of their ranks, with their hosts numbered. Private to reduce/.
#ifndef REDUCE_ROSTER_H
#define REDUCE_ROSTER_H

#include "common/base/status.h"
#include "reduce/shape.h"

// Ranks go host by host, so the rank of a member depends on the members alone; what a tree adds is who is
// whose parent.
struct reduce_roster {
    uint32_t n, n_hosts;
    uint32_t *order; // [n] index of the member that has a rank
    uint32_t *hosts; // [n] number of the host of a rank: 0, 0, 0, 1, 1, ...
    uint32_t *sizes; // [n_hosts] members
    uint32_t *cores; // [n_hosts] the most that a member reports
};

// INVALID_ARGUMENT with a sentence: none, too many, a bad or a duplicate name, no bandwidth, no cores.
// RESOURCE_EXHAUSTED. Fini after success only.
enum common_code reduce_roster_init(struct reduce_roster *roster, const struct reduce_member *members,
                                    uint32_t n, struct common_error *err);
void reduce_roster_fini(struct reduce_roster *roster);

#endif
