// SPDX-License-Identifier: Apache-2.0
// Pages of sessions in a requested order. Making an order looks at every session once, on the loop; so some
// orders are kept, for as many viewers and filters at a time. One of the last seconds is not made again:
// scrolling through it costs a page at a time, and does not shift. All of them together take a share of the
// loop at most, whoever asks: when that is used up, an order that is kept is shown although it is older, and
// one that is not is refused for a moment.
#ifndef COORDINATOR_DASHBOARD_LIST_H
#define COORDINATOR_DASHBOARD_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COORDINATOR_LIST_PAGE 200       // sessions of one answer
#define COORDINATOR_LIST_MOST (1 << 18) // sessions that are sorted; the rest of so many is only counted
#define COORDINATOR_LIST_TEXT 192 // bytes of a filter: the 60 characters of the page's box, in any script
// Orders that are kept, 2 MiB each at most; the one longest unused gives way.
#define COORDINATOR_LISTS 8
// After an order is made so many times the processor time that it took goes by before the next one is.
#define COORDINATOR_LISTS_REST 10

struct coordinator_list_wish {
    uint32_t sort; // index of its name in list.c
    bool down;
    char text[COORDINATOR_LIST_TEXT + 1]; // in the name or the id; "": all
    char state[16];                       // "": all
};

struct coordinator_list {
    struct coordinator_list_wish wish;
    uint64_t made_ns, used_ns; // made_ns 0: empty
    uint64_t *ids;             // [n], owned
    size_t n, matching;        // matching: n, and those that were too many
};

struct coordinator_lists { // zeroed: empty
    struct coordinator_list kept[COORDINATOR_LISTS];
    uint64_t next_ns; // none is made before
};
void coordinator_lists_fini(struct coordinator_lists *lists);

#endif
