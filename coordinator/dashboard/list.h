// SPDX-License-Identifier: Apache-2.0
// Pages of sessions in an order that somebody asks for. Sorting looks at every session once; the order is kept for some
// seconds, so that scrolling through it costs a page at a time, and does not shift.
#ifndef COORDINATOR_DASHBOARD_LIST_H
#define COORDINATOR_DASHBOARD_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COORDINATOR_LIST_PAGE 200       // sessions of one answer
#define COORDINATOR_LIST_MOST (1 << 18) // sessions that are sorted; the rest of so many is only counted
#define COORDINATOR_LIST_TEXT 64        // bytes of a filter

struct coordinator_list_wish {
    uint32_t sort; // index of its name in list.c
    bool down;
    char text[COORDINATOR_LIST_TEXT + 1]; // in the name or the id; "": all
    char state[16];                       // "": all
};

struct coordinator_list { // zeroed: empty
    struct coordinator_list_wish wish;
    uint64_t made_ns;        // 0: never
    uint64_t *ids;           // [n], owned
    size_t n, cap, matching; // matching: n, and those that were too many
};
void coordinator_list_fini(struct coordinator_list *list);

#endif
