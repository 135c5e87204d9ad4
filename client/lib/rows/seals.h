// SPDX-License-Identifier: Apache-2.0
// What is read of a session, compared with what was sealed (docs/reference/wire.md, "Seals"): for readers of
// all of it, each row once, and must not pass on what a wrong memory has. Sums of rows are taken as they
// come, from any layer and in any order; a chunk can be judged once all of its rows have come.
#ifndef CLIENT_SEALS_H
#define CLIENT_SEALS_H

#include <stdint.h>

#include "client/banyan.h"

struct banyan_session;
struct client_seals; // opaque

// From now on what is read through this hold of the session, below `length`, is counted. Before any read.
// RESOURCE_EXHAUSTED.
banyan_code client_seals_begin(struct banyan_session *session, uint64_t length, banyan_error *error);

// Rows have come, with this sum, of a chunk with this seal (0: it has none, as far as the ticket says). I/O
// thread. seals NULL: nobody counts.
void client_seals_add(struct client_seals *seals, uint32_t layer, uint64_t first, uint64_t count,
                      uint64_t sum, uint64_t seal);

// No read is under way. DATA_LOSS, HASH_MISMATCH: the rows of a sealed chunk, all of which have come, are not
// what was sealed; it names the first one's tokens. OK does not cover chunks without a seal, or of which rows
// have not come.
banyan_code client_seals_check(const struct banyan_session *session, banyan_error *error);

void client_seals_free(struct client_seals *seals); // NULL is allowed

#endif
