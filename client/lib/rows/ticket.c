// SPDX-License-Identifier: Apache-2.0
#include "client/lib/rows/ticket.h"
#include "client/lib/core/error.h"

#include <stdlib.h>
#include <string.h>

#define TICKETS_MAX     64
#define TICKET_SPARE_NS (2 * COMMON_NS_PER_S)
#define PAGE_TOKENS     16

void client_ticket_unref(struct client_ticket *ticket)
{
    if (!ticket || --ticket->refs > 0)
        return;
    free(ticket->holders);
    free(ticket->endpoints);
    free(ticket->chunks);
    free(ticket->seals);
    free(ticket);
}

static uint32_t holder_at(const struct client_ticket *ticket, uint32_t chunk, uint32_t nth)
{
    const uint8_t *packed = ticket->holders[chunk][1 + nth];
    return (uint32_t)packed[0] | (uint32_t)packed[1] << 8;
}

static bool read_chunk(struct client_ticket *ticket, uint32_t nth, const Banyan__Pb__AttachChunk *chunk)
{
    if (chunk->first != ticket->first + (uint64_t)nth * ticket->chunk_tokens || chunk->n_holders == 0 ||
        chunk->n_holders > CLIENT_TICKET_HOLDERS)
        return false;
    ticket->chunks[nth] = chunk->chunk;
    ticket->seals[nth] = chunk->seal;
    ticket->holders[nth][0][0] = (uint8_t)chunk->n_holders;
    for (size_t i = 0; i < chunk->n_holders; i++) {
        if (chunk->holders[i] >= ticket->n_workers)
            return false;
        ticket->holders[nth][1 + i][0] = (uint8_t)chunk->holders[i];
        ticket->holders[nth][1 + i][1] = (uint8_t)(chunk->holders[i] >> 8);
    }
    return true;
}

// A while before its life is over, for the way of what is sent with it, and half of its life from now on at
// least: every ticket is used, however short its life and however long it has travelled. Workers have the
// last word. An older coordinator says no life, and its clock need not be this machine's: then the worker's
// word is the only one.
static uint64_t stale_from(uint64_t life_ns, uint64_t asked_ns)
{
    uint64_t half = life_ns / 2, spare = half < TICKET_SPARE_NS ? half : TICKET_SPARE_NS;
    uint64_t least = common_clock_after(half);
    if (!life_ns || life_ns - spare > UINT64_MAX - asked_ns)
        return UINT64_MAX;
    return asked_ns + life_ns - spare > least ? asked_ns + life_ns - spare : least;
}

banyan_code client_ticket_read(const Banyan__Pb__AttachOpenReply *reply, uint64_t first, uint64_t count,
                               uint32_t chunk_tokens, uint64_t asked_ns, struct client_ticket **out,
                               banyan_error *error)
{
    banyan_code code = BANYAN_INTERNAL;
    struct client_ticket *ticket = NULL;
    uint64_t n_chunks = count / chunk_tokens;
    if (n_chunks == 0 || n_chunks > CLIENT_TICKET_CHUNKS_MAX || reply->n_chunks != n_chunks ||
        reply->n_workers == 0 || reply->n_workers > CLIENT_TICKET_CHUNKS_MAX || reply->ticket.len == 0 ||
        reply->ticket.len > sizeof ticket->proof)
        goto refuse;
    ticket = calloc(1, sizeof *ticket);
    if (!ticket)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    *ticket = (struct client_ticket){
        .refs = 1,
        .first = first,
        .count = count,
        .stale_ns = stale_from(reply->life_ns, asked_ns),
        .incarnation = reply->incarnation,
        .chunk_tokens = chunk_tokens,
        .n_chunks = (uint32_t)n_chunks,
        .n_workers = (uint32_t)reply->n_workers,
        .proof_len = reply->ticket.len,
    };
    memcpy(ticket->proof, reply->ticket.data, reply->ticket.len);
    ticket->holders = calloc(ticket->n_chunks, sizeof *ticket->holders);
    ticket->endpoints = calloc(ticket->n_workers, sizeof *ticket->endpoints);
    ticket->chunks = calloc(ticket->n_chunks, sizeof *ticket->chunks);
    ticket->seals = calloc(ticket->n_chunks, sizeof *ticket->seals);
    if (!ticket->holders || !ticket->endpoints || !ticket->chunks || !ticket->seals) {
        client_ticket_unref(ticket);
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    }
    for (uint32_t i = 0; i < ticket->n_workers; i++) {
        if (strlen(reply->workers[i]->endpoint) >= sizeof *ticket->endpoints)
            goto refuse;
        client_copy_text(ticket->endpoints[i], sizeof ticket->endpoints[i], reply->workers[i]->endpoint);
    }
    for (uint32_t i = 0; i < ticket->n_chunks; i++)
        if (!read_chunk(ticket, i, reply->chunks[i]))
            goto refuse;
    *out = ticket;
    return BANYAN_OK;

refuse:
    client_ticket_unref(ticket);
    return client_error_set(error, code, "the coordinator's placement does not cover the requested range");
}

struct client_ticket *client_ticket_find(struct banyan_session *session, uint64_t position)
{
    uint64_t now = common_clock_ns();
    uint64_t incarnation = atomic_load(&session->incarnation);
    for (struct client_ticket *t = session->tickets; t; t = t->next)
        if (position >= t->first && position - t->first < t->count && t->incarnation == incarnation &&
            t->stale_ns > now)
            return t;
    return NULL;
}

void client_ticket_drop(struct banyan_session *session, struct client_ticket *ticket)
{
    if (!ticket->cached)
        return;
    struct client_ticket **at = &session->tickets;
    while (*at != ticket)
        at = &(*at)->next;
    *at = ticket->next;
    ticket->cached = false;
    session->n_tickets--;
    client_ticket_unref(ticket);
}

void client_ticket_keep(struct banyan_session *session, struct client_ticket *ticket)
{
    if (session->n_tickets == TICKETS_MAX) {
        struct client_ticket *oldest = session->tickets;
        while (oldest->next)
            oldest = oldest->next;
        client_ticket_drop(session, oldest);
    }
    ticket->next = session->tickets;
    ticket->cached = true;
    session->tickets = ticket;
    session->n_tickets++;
    session->ticket_end = ticket->first + ticket->count;
}

void client_tickets_free(struct banyan_session *session)
{
    while (session->tickets)
        client_ticket_drop(session, session->tickets);
}

void client_ticket_range(const struct banyan_session *session, uint64_t first, uint64_t count, bool exactly,
                         uint64_t *ask_first, uint64_t *ask_count)
{
    uint64_t tokens = session->spec.chunk_tokens;
    uint64_t from = first / tokens;
    uint64_t to = (first + count - 1) / tokens + 1; // chunks [from, to)
    // Asking ahead places chunks, and takes memory and quota for them. Where rows come in order, an eighth
    // of what is there saves most of the asking. A range that is longer is asked for as it is.
    if (!exactly && from > 0 && session->ticket_end == from * tokens) {
        uint64_t ahead = from / 8 > to - from ? from / 8 - (to - from) : 0;
        to += ahead < CLIENT_TICKET_AHEAD_MAX ? ahead : CLIENT_TICKET_AHEAD_MAX;
    }
    if (to - from > CLIENT_TICKET_CHUNKS_MAX)
        to = from + CLIENT_TICKET_CHUNKS_MAX;
    *ask_first = from * tokens;
    *ask_count = (to - from) * tokens;
}

static uint32_t chunk_of(const struct client_ticket *ticket, uint64_t position)
{
    return (uint32_t)((position - ticket->first) / ticket->chunk_tokens);
}

uint64_t client_ticket_chunk(const struct client_ticket *ticket, uint64_t position)
{
    return ticket->chunks[chunk_of(ticket, position)];
}

uint64_t client_ticket_seal(const struct client_ticket *ticket, uint64_t position)
{
    return ticket->seals[chunk_of(ticket, position)];
}

uint32_t client_ticket_holders(const struct client_ticket *ticket, uint64_t position)
{
    return ticket->holders[chunk_of(ticket, position)][0][0];
}

const char *client_ticket_endpoint(const struct client_ticket *ticket, uint64_t position, uint32_t nth)
{
    return ticket->endpoints[holder_at(ticket, chunk_of(ticket, position), nth)];
}

uint64_t client_ticket_cut(const struct client_ticket *ticket, uint64_t position, uint64_t count,
                           size_t row_bytes)
{
    uint64_t end = ticket->first + ticket->count;
    uint64_t stop = count < end - position ? position + count : end;
    uint64_t most = CLIENT_PUT_BYTES / row_bytes;
    most = most > 0 ? most : 1;
    uint32_t chunk = chunk_of(ticket, position);
    uint64_t to = position;
    for (uint32_t c = chunk; to < stop; c++) {
        if (memcmp(ticket->holders[c], ticket->holders[chunk], sizeof *ticket->holders) != 0)
            break;
        uint64_t next = ticket->first + (uint64_t)(c + 1) * ticket->chunk_tokens;
        next = next < stop ? next : stop;
        if (next - position <= most) {
            to = next;
            continue;
        }
        if (to == position) { // a part of one chunk
            to = position + most;
            uint64_t page = to / PAGE_TOKENS * PAGE_TOKENS;
            to = page > position ? page : to;
        }
        break;
    }
    return to - position;
}
