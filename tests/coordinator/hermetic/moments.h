// SPDX-License-Identifier: Apache-2.0
// What the operations (moments_test.c) and the faults (faults.c) that strike them have in common.
#ifndef TESTS_COORDINATOR_MOMENTS_H
#define TESTS_COORDINATOR_MOMENTS_H

#include "tests/coordinator/hermetic/hermetic.h"

struct scene {
    struct sim_cluster *cluster;
    struct sim_client *client;
    uint64_t session, before;                // tokens of value 1
    struct sim_call *call, *opened, *beside; // beside: another one under way, or NULL
    bool loses, restarts;                    // of the fault
};

struct operation {
    const char *name;
    uint64_t before;
    void (*prepare)(struct scene *scene); // NULL: nothing
    struct sim_call *(*start)(struct scene *scene);
    void (*check)(struct scene *scene, bool done); // done: the client was told so
    bool writes;                                   // to the store, before it is answered
};

struct fault {
    const char *name;
    void (*strike)(struct scene *scene);      // and what mends it; the coordinator runs afterwards
    enum { NEITHER, LOSES, RESTARTS } effect; // a worker loses its memory; the coordinator has another life
};

enum { MOMENT_FAULTS = 21 };
extern const struct fault moment_faults[MOMENT_FAULTS];

// Whether a client may be told this by an operation that the fault strikes.
bool moment_allows(const struct fault *fault, enum common_code code);

bool moment_fills_disk(const struct fault *fault);

#endif
