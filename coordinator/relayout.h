// SPDX-License-Identifier: Apache-2.0
// Placing chunks: choosing holders, making it durable, telling them. What is placed may be named by steps and
// tickets only afterwards.
#ifndef COORDINATOR_RELAYOUT_H
#define COORDINATOR_RELAYOUT_H

#include "coordinator/state.h"

// Runs once: failure NULL when every chunk asked for is ready. session NULL: it was deleted meanwhile
// (failure says so).
typedef void (*coordinator_placed_fn)(void *arg, struct coordinator_session *session,
                                      const struct proto_status *failure);

// Whether chunks [first, last] are all ready and their holders there.
bool coordinator_placed(const struct coordinator_session *s, uint64_t first, uint64_t last);

// Sees to it that they are; perhaps at once. `fn` may be NULL. bulk: the memory of whole chunks will be
// needed soon (attach). An empty chunk of a worker that is gone is placed anew; one with committed rows is a
// failure that names them.
void coordinator_place(struct coordinator_session *s, uint64_t first, uint64_t last, bool bulk,
                       coordinator_placed_fn fn, void *arg);

// Places the next chunk when the last one is half full, so that a step need not wait for it. past: where rows
// that were just committed end.
void coordinator_place_ahead(struct coordinator_session *s, uint64_t past);

void coordinator_relayout_pump(struct coordinator_session *s); // the session is open again
void coordinator_relayout_session_gone(struct coordinator_session *s);

// Sends LayoutSet in as many calls as it takes: `n` chunks of the session to a worker that holds them.
// `incarnation` and `epoch` as given.
struct coordinator_layout_message {
    uint64_t session, incarnation, epoch;
    const Banyan__Pb__Spec *spec;
    const struct coordinator_chunk *const *chunks;
    uint32_t n;
    bool replace;
    bool idle;  // the chunks are not to be computed (yet)
    bool claim; // what another life has told the worker of the session is the store's too (store.h)
};
void coordinator_layout_send(struct coordinator_worker *w, const struct coordinator_layout_message *message,
                             struct coordinator_gather *gather);

// Everything of the session that the worker holds, or should forget: with replace.
void coordinator_layout_send_all(struct coordinator_session *s, struct coordinator_worker *w,
                                 struct coordinator_gather *gather);
void coordinator_layout_claim(struct coordinator_session *s, struct coordinator_worker *w,
                              struct coordinator_gather *gather); // the same, by reconciling

#endif
