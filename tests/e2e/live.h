// SPDX-License-Identifier: Apache-2.0
// A session that a thread of its own steps all the time, and compares each answer with float64. How long the
// longest step took is printed, and not judged.
#ifndef TESTS_E2E_LIVE_H
#define TESTS_E2E_LIVE_H

#include <pthread.h>
#include <stdatomic.h>

#include "tests/e2e/support.h"

struct live {
    banyan_client *client;
    banyan_session *session;
    struct context context;
    pthread_t thread;
    uint64_t length, room; // acknowledged; no more is appended
    atomic_bool over;
    atomic_uint_least64_t steps, longest_ns; // of those since the last look
    char wrong[700];                         // the first thing that must not be
};

// Makes the session, attaches so many tokens, and begins. Of three steps one reads, the others append, up to
// `room`.
void live_start(struct live *l, const struct harness_cluster *cluster, const banyan_spec *spec,
                uint64_t attached, uint64_t room);
bool live_step(struct live *l, bool append); // one more, on the caller's thread; false: something was wrong
void live_goes_on(struct live *l);           // some steps from now on; nothing was wrong
void live_pause(struct live *l, const char *what); // prints the longest step since the last time
void live_stop(struct live *l);                    // every token that was acknowledged is there

banyan_worker_info live_worker_info(banyan_client *client, const char *name);

#endif
