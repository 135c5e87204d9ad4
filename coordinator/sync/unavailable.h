// SPDX-License-Identifier: Apache-2.0
// Why a session cannot be used now: the error that a caller gets, with ranges and workers.
#ifndef COORDINATOR_UNAVAILABLE_H
#define COORDINATOR_UNAVAILABLE_H

#include "coordinator/session/session.h"

// DATA_LOSS or UNAVAILABLE with the token ranges of [first, first + count) that no worker can answer for now,
// and the workers' names. OK: nothing is missing, and *status is as it was.
enum common_code coordinator_session_missing(struct coordinator_session *s, uint64_t first, uint64_t count,
                                             uint32_t layer, struct proto_status *status);
// Whether committed rows may turn up past `length`, where a layer ends as far as it is known: what holders that have
// not come back since a restart of the coordinator have appended is in no store (named.h). OK: none will; else as
// coordinator_session_missing, with the ranges up to `most` at least.
enum common_code coordinator_session_unsettled(struct coordinator_session *s, uint64_t length, uint64_t most,
                                               uint32_t layer, struct proto_status *status);
// The same of all layers that end before `most`, each where it ends.
enum common_code coordinator_session_unsettled_any(struct coordinator_session *s, uint64_t most,
                                                   struct proto_status *status);

#endif
