// SPDX-License-Identifier: Apache-2.0
// Who goes into a frame next: deficit round robin over tenants. Pure: no clock, no network.
//
//   fresh   [c]                          a tenant that was not here goes first, once
//   ring    [a: · · · · · ·]  [b: ·]     the others take turns; each has its own items in their order
//            └ credit 1 ──▶ one item of cost 1, or of more: then it owes, and pays 1 a turn
//
// Each turn of a tenant brings it `weight` units of credit, and it sends as long as it has some; what an item costs
// beyond that is owed, and paid off turn by turn. So tenants that wait share by cost, not by the number of items. A
// tenant that has nothing left stays in the ring until it owes nothing and its turn has come once more: nobody gets
// ahead of the others by going away and coming back.
//
// Promises. Of one tenant the order is kept. Between two turns of a tenant, each other one sends `weight` items at most;
// one that was not here waits for those alone that were fresh before it. While anybody waits, somebody goes.
//
// Cost. A turn either sends, or pays a unit that an item has cost: at most COORDINATOR_FAIR_COST_MOST + 2 turns an item,
// however many tenants wait; finding a tenant's flow is one comparison while one tenant pushes, else a hash.
#ifndef COORDINATOR_FAIR_H
#define COORDINATOR_FAIR_H

#include <stdint.h>

#include "common/base/list.h"

#define COORDINATOR_FAIR_COST_MOST 64            // what costs more counts as this
#define COORDINATOR_FAIR_UNIT      (1024 * 1024) // bytes of K and V that a row sees: a unit of cost
#define COORDINATOR_FAIR_BUCKETS   64

struct coordinator_fair_flow;

struct coordinator_fair {
    struct common_list fresh, ring; // flows that have a turn to come
    struct coordinator_fair_flow *buckets[COORDINATOR_FAIR_BUCKETS];
    struct coordinator_fair_flow *last;  // that was pushed to
    struct coordinator_fair_flow *spare; // flows are used again
    uint32_t n;                          // items
};

void coordinator_fair_init(struct coordinator_fair *fair);
void coordinator_fair_fini(struct coordinator_fair *fair); // no items are left

// The item is the tenant's last one from now on. Its link is in no list. weight: 1 and on, of all of the tenant's items.
void coordinator_fair_push(struct coordinator_fair *fair, uint32_t tenant, uint32_t weight,
                           struct common_list *item);
// Whose turn it is; the same until it is taken, removed, or a tenant that was not here comes. NULL: none
// waits.
struct common_list *coordinator_fair_next(struct coordinator_fair *fair);
// Takes what coordinator_fair_next has just returned. cost: at least 1.
void coordinator_fair_take(struct coordinator_fair *fair, struct common_list *item, uint32_t cost);
// An item goes away without having been sent: costs nothing.
void coordinator_fair_remove(struct coordinator_fair *fair, struct common_list *item);

// What rows cost that see so many bytes of K and V each: 1, and 1 for each COORDINATOR_FAIR_UNIT of them. (A worker
// reads a unit in some 40 µs; an item that reads next to nothing takes it about as long.)
uint32_t coordinator_fair_cost(uint64_t rows, uint64_t tokens, uint64_t token_bytes);

#endif
