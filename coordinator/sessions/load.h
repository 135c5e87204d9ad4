// SPDX-License-Identifier: Apache-2.0
// Sessions, members, chunks and ranges as the store knows them, at the start of a coordinator.
#ifndef COORDINATOR_LOAD_H
#define COORDINATOR_LOAD_H

#include "coordinator/session/sessions.h"
#include "coordinator/store/store.h"

struct coordinator_loader { // lives as long as the reader is used
    struct coordinator_sessions *sessions;
    struct common_error *err;
};

// What coordinator_store_open calls for all that it reads; the sessions room is empty before.
void coordinator_sessions_reader(struct coordinator_loader *loader, struct coordinator_store_reader *out);

#endif
