// SPDX-License-Identifier: Apache-2.0
// A session of a client of load.h, and what was acknowledged of it.
#ifndef TESTS_CHAOS_HELD_H
#define TESTS_CHAOS_HELD_H

#include <stdbool.h>
#include <stdint.h>

#include "client/banyan.h"
#include "tests/e2e/context.h"

enum { HELD_ROOM = 360, HELD_BLOCK = 40 }; // rows at most, rows of an attach at most

#define HELD_LONG_NS UINT64_C(30000000000) // a deadline that outlasts any fault, and what follows from it

struct held {
    banyan_session *session; // NULL: none
    struct context context;
    uint64_t length;  // acknowledged, of each layer
    uint64_t written; // what may be there beyond that
    unsigned lost;    // copies that had gone when it had all of its own
    unsigned left;    // what a fork still does before it is deleted; 0: it stays
    bool must_empty;  // rows are gone: a truncate to 0 comes first
};

// Creates session `number`. Their layers, types and members differ, and their holders where replicas is 0.
// Fails the test when it cannot.
void held_make(struct held *h, banyan_client *client, uint64_t number, uint32_t replicas, uint64_t seed);
// `session` is a fork of h with so many tokens, and other bytes to come.
void held_fork(struct held *to, const struct held *h, banyan_session *session, uint64_t length,
               uint64_t seed);
// It was truncated: other bytes come next.
void held_forget(struct held *h, uint64_t length, uint64_t seed);
void held_free(struct held *h); // and closes the session

unsigned held_replicas(const struct held *h);
// Ranges that an error names are in order, not empty, and lie in what the session has or may have. all_gone:
// the only record of which rows there were may be gone with them, so that chunks beyond them are named, which
// were placed ahead.
bool held_ranges_are_right(const struct held *h, bool all_gone, const banyan_error *error);

#endif
