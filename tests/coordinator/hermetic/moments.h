// SPDX-License-Identifier: Apache-2.0
// What the operations (operations.c), the faults (faults.c) that strike them and who does that
// (moments_test.c) have in common.
#ifndef TESTS_COORDINATOR_MOMENTS_H
#define TESTS_COORDINATOR_MOMENTS_H

#include "tests/coordinator/hermetic/hermetic.h"

struct scene {
    struct sim_cluster *cluster;
    struct sim_client *client;
    uint32_t replicas;                       // of each session
    uint64_t session, before;                // tokens of value 1
    struct sim_call *call, *opened, *beside; // beside: another one under way, or NULL
    bool loses, restarts;                    // of the fault; loses: rows may have gone
};

struct operation {
    const char *name;
    uint64_t before;
    void (*prepare)(struct scene *scene); // NULL: nothing
    struct sim_call *(*start)(struct scene *scene);
    void (*check)(struct scene *scene, bool done); // done: the client got that answer
    bool writes;                                   // to the store, before it is answered
    bool step;                                     // no death of one of several holders fails it
};

struct fault {
    const char *name;
    void (*strike)(struct scene *scene);      // and what mends it; the coordinator runs afterwards
    enum { NEITHER, LOSES, RESTARTS } effect; // a worker dies; the coordinator has another life
};

enum { MOMENT_FAULTS = 23, MOMENT_OPERATIONS = 15 };
extern const struct fault moment_faults[MOMENT_FAULTS];
extern const struct operation moment_operations[MOMENT_OPERATIONS];

// Whether a client may get this answer from the operation that the fault hits.
bool moment_allows(const struct scene *scene, const struct operation *operation, const struct fault *fault,
                   enum common_code code);

bool moment_fills_disk(const struct fault *fault);

struct sim_shape moment_shape(const struct scene *scene); // of its sessions

// Until each chunk of each session has all its copies; while a client has a ticket for it, that takes two
// minutes.
void moment_wait_whole(const struct scene *scene);

#endif
