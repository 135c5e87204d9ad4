// SPDX-License-Identifier: Apache-2.0
// Truncates, one after another. Any thread.
#ifndef CLIENT_LIB_TRUNCATE_H
#define CLIENT_LIB_TRUNCATE_H

#include <stdbool.h>
#include <stdint.h>

#include "client/lib/core/internal.h"

void client_cuts_init(struct client_cuts *cuts, uint64_t last);
void client_cuts_fini(struct client_cuts *cuts);
// ABORTED while a truncate is in doubt: what is written now, it could take away.
banyan_code client_cuts_may_write(const struct banyan_session *session, banyan_error *error);
// A truncate; blocks. *states not 0: nothing has happened, and this session has states of it, which are to be
// cut first; then once more with seen_to.
banyan_code client_truncate(banyan_session *session, uint64_t length, bool seen_to, uint64_t *states,
                            banyan_error *error);
// Of one call of the application's: however often it is sent, it is done once. INTERNAL: no random numbers.
banyan_code client_draw_key(uint64_t *key, banyan_error *error);

#endif
