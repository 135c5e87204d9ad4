// SPDX-License-Identifier: Apache-2.0
// A client that watches a session (SessionWatch), beside those that make its steps.
#ifndef TESTS_SIM_SIM_WATCH_H
#define TESTS_SIM_SIM_WATCH_H

#include "tests/sim/sim_client.h"

struct sim_wish { // as in SessionWatchRequest
    uint32_t steps, layer, mass_bins;
    uint64_t wait_ns;
    bool trace, mass_heads;
    uint64_t (*from)(uint32_t layer, uint64_t at); // the first row that the one at `at` sees; NULL: row 0
};

struct sim_watched { // a step
    uint64_t step, first, visible;
    uint32_t layer, rows, n_traces;
    bool append, strangers; // strangers: a trace that is not a worker's
    bool has_mass;
    enum common_code mass_code;                  // of a mass that could not be had: why
    uint64_t mass_visible, mass_tokens, missing; // missing: tokens that the answer left out
    // The largest difference from the mass of keys that all weigh the same, as those of sim_client.h do.
    float mass_off;
};

// The reply's steps are call->watched, oldest first.
struct sim_call *sim_watch(struct sim_client *client, uint64_t session, const struct sim_wish *wish);

#endif
