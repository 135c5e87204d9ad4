// SPDX-License-Identifier: Apache-2.0
// What the ids of sessions look like outside: on the wire, in the store, at workers. Inside an id is a place, the generation
// (how many were made) and the slot (where it is among those that live). Outside it is that place through a permutation of 64
// bits with a key that the store alone has, so that who has ids, in whatever number, learns from them neither how many
// sessions others have made nor when, nor how many there are.
//
//      generation | slot + 1          left and right half, 32 bits each
//           L          R              four rounds of (L, R) = (R, L ^ F(round, R)), F: SipHash-2-4 of both, its low half:
//            \________/               a Feistel network (Luby and Rackoff 1988). Backwards it is the same, from the last
//           the id, 64 bits           round to the first.
//
// A store of before there were keys has none: its ids are the places themselves, now as ever. Any thread.
#ifndef COORDINATOR_IDS_H
#define COORDINATOR_IDS_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator_ids {
    bool keyed; // false: as they are
    uint64_t key[2];
};

struct coordinator_place {
    uint32_t generation;
    uint32_t number; // slot + 1; 0 or too large: it is no session's id
};

// 0, which is no id, comes out for one place under each key, and for {0, 0} without one: another generation is to be taken.
uint64_t coordinator_ids_of(const struct coordinator_ids *ids, struct coordinator_place place);
struct coordinator_place coordinator_ids_place(const struct coordinator_ids *ids, uint64_t id);

// Ids of chunks, which clients get with tickets, likewise; nobody asks what number one has. 0 is none, as above.
uint64_t coordinator_ids_of_chunk(const struct coordinator_ids *ids, uint64_t nth);

#endif
