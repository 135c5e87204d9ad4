// SPDX-License-Identifier: Apache-2.0
// Attend calls: checked and packed on any thread, sent and scattered on the I/O thread.
#ifndef CLIENT_LIB_ATTEND_H
#define CLIENT_LIB_ATTEND_H

#include <stddef.h>
#include <stdint.h>

#include "client/banyan.h"

struct client_attend;
// Runs on the I/O thread when the call has ended; owns the attend from then on.
typedef void (*client_attend_done_fn)(struct client_attend *attend);

// Checks and packs; any thread. OK: `done` will run exactly once, never on this stack.
banyan_code client_attend_submit(struct banyan_client *client, banyan_item *items, size_t n_items,
                                 uint64_t timeout_ns, banyan_trace *trace, client_attend_done_fn done,
                                 void *arg, banyan_error *error);
banyan_code client_attend_code(const struct client_attend *attend);
const banyan_error *client_attend_error(const struct client_attend *attend);
void *client_attend_arg(const struct client_attend *attend);
banyan_item *client_attend_items(const struct client_attend *attend, size_t *n_items);
void client_attend_free(struct client_attend *attend);

#endif
