// SPDX-License-Identifier: Apache-2.0
// A store that was made from a backup (store/restore.h) may know less than workers do. Its sessions are withheld, with
// UNAVAILABLE, reason RESTORED, until an operator says that all workers are back: only then has everybody said who has a
// newer state, and that is in quarantine. No copy is struck off meanwhile. Sessions made since are served.
#ifndef COORDINATOR_RESTORED_H
#define COORDINATOR_RESTORED_H

#include "coordinator/session/sessions.h"
#include "coordinator/store/store.h"
#include "proto/rpc/status.h"

// At the start: all that the store knows are in.
void coordinator_restored_withhold(struct coordinator_sessions *sessions);

// Whether the operator's word may be taken. without_absent: also while workers that hold chunks of the store's sessions are not there.
// FAILED_PRECONDITION: nothing waits for it, or who is not there (named in the text).
enum common_code coordinator_restored_check(const struct coordinator_sessions *sessions, bool without_absent,
                                            struct common_error *err);

// Durably. Once done says OK (coordinator_restored_serve), the sessions are served.
void coordinator_restored_accept(struct coordinator_sessions *sessions, coordinator_store_fn done, void *arg);
uint64_t coordinator_restored_serve(struct coordinator_sessions *sessions); // how many

#endif
