// SPDX-License-Identifier: Apache-2.0
// Tickets: where the chunks of a range of one session live, and the proof that the coordinator says so.
// Cached a session; I/O thread only.
#ifndef CLIENT_TICKET_H
#define CLIENT_TICKET_H

#include "client/lib/core/internal.h"

#define CLIENT_TICKET_CHUNKS_MAX 1024 // a coordinator grants no more at once
#define CLIENT_TICKET_AHEAD_MAX  64   // chunks asked for beyond the need
#define CLIENT_TICKET_HOLDERS    16
#define CLIENT_PUT_BYTES         (UINT64_C(4) * 1024 * 1024)

struct client_ticket {
    struct client_ticket *next; // in the session's cache
    uint32_t refs;              // the cache and each put that uses it
    bool cached;
    uint64_t first, count, incarnation;
    uint64_t stale_ns; // a new one is asked for from then on (common_clock_ns)
    uint32_t chunk_tokens, n_chunks, n_workers;
    // [n_chunks]: number, then indices of workers, 16 bits each.
    uint8_t (*holders)[CLIENT_TICKET_HOLDERS + 1][2];
    char (*endpoints)[128]; // [n_workers]
    uint64_t *chunks;       // [n_chunks] their numbers
    uint64_t *seals;        // [n_chunks] 0: it has none
    size_t proof_len;
    uint8_t proof[512];
};

// Checks an answer against what was asked, at asked_ns. *out has one reference. INTERNAL when it makes no
// sense.
banyan_code client_ticket_read(const Banyan__Pb__AttachOpenReply *reply, uint64_t first, uint64_t count,
                               uint32_t chunk_tokens, uint64_t asked_ns, struct client_ticket **out,
                               banyan_error *error);
void client_ticket_unref(struct client_ticket *ticket);   // NULL is allowed
void client_tickets_free(struct banyan_session *session); // those in its cache

// The newest one of this incarnation that covers position and is good for a while yet; NULL: ask. No
// reference.
struct client_ticket *client_ticket_find(struct banyan_session *session, uint64_t position);
void client_ticket_keep(struct banyan_session *session,
                        struct client_ticket *ticket); // takes the reference; the oldest may go
void client_ticket_drop(struct banyan_session *session,
                        struct client_ticket *ticket); // from the cache, if it is there

// The range to ask for so that [first, first + count) can be sent: whole chunks, and some ahead where the
// session is written in order.
void client_ticket_range(const struct banyan_session *session, uint64_t first, uint64_t count, bool exactly,
                         uint64_t *ask_first, uint64_t *ask_count);

// How many tokens from position on, of at most count, travel in one put: in chunks of the same holders, at
// most CLIENT_PUT_BYTES, cut at a chunk's end, or where a chunk is larger at a multiple of 16 tokens.
// Position is covered by the ticket.
uint64_t client_ticket_cut(const struct client_ticket *ticket, uint64_t position, uint64_t count,
                           size_t row_bytes);

uint64_t client_ticket_chunk(const struct client_ticket *ticket, uint64_t position);
uint64_t client_ticket_seal(const struct client_ticket *ticket, uint64_t position);
uint32_t client_ticket_holders(const struct client_ticket *ticket, uint64_t position);
const char *client_ticket_endpoint(const struct client_ticket *ticket, uint64_t position, uint32_t nth);

#endif
