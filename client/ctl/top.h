// SPDX-License-Identifier: Apache-2.0
// What `top` shows: one frame made of two looks at the cluster.
#ifndef CLIENT_CTL_TOP_H
#define CLIENT_CTL_TOP_H

#include <stdio.h>

#include "client/ctl/ctl.h"

enum ctl_top_sort { // by a column; the letter of each is its key: ctl_top_sorts
    CTL_TOP_NAME,
    CTL_TOP_STATE,
    CTL_TOP_MEMORY,
    CTL_TOP_SPEED,
    CTL_TOP_SEEN,
    CTL_TOP_TOKENS,
    CTL_TOP_STEPS,
    CTL_TOP_SORTS
};
extern const struct ctl_top_sort_key {
    const char *word; // of --sort
    char key;         // to press
} ctl_top_sorts[CTL_TOP_SORTS];

struct ctl_top_look {
    banyan_cluster_info info;
    uint64_t at_ns;     // when it was had; 0: there is none
    uint64_t answer_ns; // round trip of a ping before it
};

struct ctl_top_view {
    const char *endpoint;
    unsigned width, height; // of the terminal; height 0: as many lines as there are
    bool color, live;       // live: with the keys, and over what was there
    enum ctl_top_sort sort;
    bool reverse;
    const char *trouble; // why there is no newer look; NULL: this is the newest
    uint64_t trouble_ns; // for how long
};

// Draws it. before: an earlier look, for rates; at_ns 0: there is none, and rates are "-".
void ctl_top_draw(FILE *out, const struct ctl_top_look *now, const struct ctl_top_look *before,
                  const struct ctl_top_view *view);
json_t *ctl_top_json(const struct ctl_top_look *now, const struct ctl_top_look *before,
                     const struct ctl_top_view *view);

#endif
