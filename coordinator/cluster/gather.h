// SPDX-License-Identifier: Apache-2.0
// Waiting for several answers: counts them down and keeps the first failure.
#ifndef COORDINATOR_GATHER_H
#define COORDINATOR_GATHER_H

#include "coordinator/turn.h"

typedef void (*coordinator_gather_fn)(void *arg, enum common_code code, const char *text);

struct coordinator_gather {
    struct coordinator_turn *turn;
    uint32_t pending;
    enum common_code code;
    char text[256];
    coordinator_gather_fn done;
    void *arg;
    struct coordinator_completion completion;
};

// `done` runs once when all that were added have finished after the seal: as a completion, never on the stack of
// the last of them. The gather is gone then.
struct coordinator_gather *coordinator_gather_new(struct coordinator_turn *turn, coordinator_gather_fn done,
                                                  void *arg);
void coordinator_gather_add(struct coordinator_gather *gather);
void coordinator_gather_finish(struct coordinator_gather *gather, enum common_code code, const char *text);
void coordinator_gather_seal(struct coordinator_gather *gather); // nothing more will be added

#endif
