// SPDX-License-Identifier: Apache-2.0
// Placing chunks: choosing holders, making it durable, telling them. What is placed may be named by steps and
// tickets only afterwards.
#ifndef COORDINATOR_PLACING_H
#define COORDINATOR_PLACING_H

#include "coordinator/session/session.h"

// Runs once, never on the stack of coordinator_place: failure NULL when every chunk asked for is ready. session
// NULL: it was deleted meanwhile (failure says so).
typedef void (*coordinator_placed_fn)(void *arg, struct coordinator_session *session,
                                      const struct proto_status *failure);

// Whether chunks [first, last] are all ready and their holders there, and none of them is to go elsewhere.
bool coordinator_placed(const struct coordinator_session *s, uint64_t first, uint64_t last);

// Sees to it that they are. `fn` may be NULL. bulk: the memory of whole chunks will be
// needed soon (attach). An empty chunk of a worker that is gone, or has no memory for it, is placed anew; one with
// committed rows is a failure that names them.
void coordinator_place(struct coordinator_session *s, uint64_t first, uint64_t last, bool bulk,
                       coordinator_placed_fn fn, void *arg);

// The worker has had no memory for rows of an append in chunks [first, last], which are to be taken back everywhere. It is
// believed. Whether it holds one of them without rows: coordinator_place gives such a one to somebody else.
bool coordinator_placing_refused(struct coordinator_session *s, struct coordinator_worker *w, uint64_t first,
                                 uint64_t last);

// Places the next chunk when the last one is half full, so that a step need not wait for it. past: where rows
// that were just committed end.
void coordinator_place_ahead(struct coordinator_session *s, uint64_t past);

// The session is open: the next request may start.
void coordinator_placing_pump(struct coordinator_session *s);
void coordinator_placing_session_gone(struct coordinator_session *s); // all requests fail with NOT_FOUND

// What its placings have of the tenant's quota and no chunk of it yet: for tests.
uint64_t coordinator_placing_reserved(const struct coordinator_session *s);

#endif
