// SPDX-License-Identifier: Apache-2.0
// States of a session of the script (docs/concepts/states.md): what was put, and what is found.
#ifndef TESTS_FAILPOINTS_STATES_H
#define TESTS_FAILPOINTS_STATES_H

#include <stdbool.h>
#include <stdint.h>

#include "client/banyan.h"

enum { SCRIPT_STATES = 8, SCRIPT_STATE_LAYER = 0 };

struct script_states { // of one session, by ascending positions
    uint32_t n;
    bool maybe; // a fork's: it may have those of its origin, or some of the first ones, or none
    struct script_state {
        uint64_t position, seed; // seed: of its bytes and its digest
    } at[SCRIPT_STATES];
};

// In the model alone.
void script_states_add(struct script_states *states, uint64_t position, uint64_t seed);
void script_states_cut(struct script_states *states, uint64_t length);

banyan_code script_state_put(banyan_session *session, uint64_t position, uint64_t seed, banyan_error *error);
// Reads the newest state at or before a position. *same: it is what the model has there.
banyan_code script_state_check(banyan_session *session, const struct script_states *states, uint64_t position,
                               bool *same, banyan_error *error);

#endif
