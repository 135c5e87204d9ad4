// SPDX-License-Identifier: Apache-2.0
// A set of token positions as disjoint ranges in ascending order that never touch: what of a layer is
// committed. Pure.
#ifndef COORDINATOR_RANGESET_H
#define COORDINATOR_RANGESET_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/rpc/status.h" // struct proto_range

#define COORDINATOR_RANGES_MAX 4096 // of one set; a set that would have more refuses

struct coordinator_rangeset {   // zeroed: the empty set
    struct proto_range *ranges; // owned
    uint32_t n, cap;
    uint32_t pending; // reserved: ranges that are being stored, and will be added
};

void coordinator_rangeset_free(struct coordinator_rangeset *set); // what it owns; the set is empty then

// Adds [first, first + count), count > 0. *merged (may be NULL) is the range of the set that now holds it.
// False when the set would have too many ranges or memory is short: nothing was changed.
bool coordinator_rangeset_add(struct coordinator_rangeset *set, uint64_t first, uint64_t count,
                              struct proto_range *merged);

// The same for what a file holds, which may have more ranges than a set takes by itself. False: memory is
// short.
bool coordinator_rangeset_load(struct coordinator_rangeset *set, uint64_t first, uint64_t count);

// Widens [*first, *first + *count) to the union with every range of the set that it overlaps or touches.
// False when there is none.
bool coordinator_rangeset_join(const struct coordinator_rangeset *set, uint64_t *first, uint64_t *count);

// Whether the set and what is pending leave room for [first, first + count). A set that does not start at 0
// keeps room for the range that does.
bool coordinator_rangeset_room(const struct coordinator_rangeset *set, uint64_t first, uint64_t count);

// Keeps memory for one range more, whatever is added meanwhile. False: memory is short. Each is given back, or becomes a range: keep
// cannot fail where there was room when it was reserved.
bool coordinator_rangeset_reserve(struct coordinator_rangeset *set);
void coordinator_rangeset_unreserve(struct coordinator_rangeset *set);
void coordinator_rangeset_keep(struct coordinator_rangeset *set, uint64_t first, uint64_t count);

void coordinator_rangeset_clip(struct coordinator_rangeset *set,
                               uint64_t end); // forgets everything at and after `end`

bool coordinator_rangeset_contains(const struct coordinator_rangeset *set, uint64_t first, uint64_t count);
bool coordinator_rangeset_intersects(const struct coordinator_rangeset *set, uint64_t first, uint64_t count);

// End of the range that starts at 0; 0: there is none.
uint64_t coordinator_rangeset_length(const struct coordinator_rangeset *set);
uint64_t coordinator_rangeset_end(const struct coordinator_rangeset *set);   // end of the last range
uint64_t coordinator_rangeset_count(const struct coordinator_rangeset *set); // tokens in it

uint64_t coordinator_rangeset_overlap(const struct coordinator_rangeset *set, uint64_t first,
                                      uint64_t count); // tokens of the range in it

// The length that the set would have with [first, first + count) in it.
uint64_t coordinator_rangeset_length_with(const struct coordinator_rangeset *set, uint64_t first,
                                          uint64_t count);

// What the set has at and after `from`, up to its first hole. False: nothing.
bool coordinator_rangeset_next(const struct coordinator_rangeset *set, uint64_t from,
                               struct proto_range *out);

// The parts of [first, first + count) that are not in the set, ascending: writes at most `max`, returns how
// many there are.
uint32_t coordinator_rangeset_missing(const struct coordinator_rangeset *set, uint64_t first, uint64_t count,
                                      struct proto_range *out, uint32_t max);

#endif
