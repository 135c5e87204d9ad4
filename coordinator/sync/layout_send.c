// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/layout_send.h"

#include "common/base/failpoint.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/moving.h"
#include "coordinator/sync/returned.h"

#define PAGE_CHUNKS 1024

void coordinator_layout_send(struct coordinator_worker *w, const struct coordinator_layout_message *message,
                             struct coordinator_gather *gather)
{
    Banyan__Pb__LayoutChunk chunks[PAGE_CHUNKS], *pointers[PAGE_CHUNKS];
    uint32_t sent = 0;
    do {
        uint32_t n = message->n - sent < PAGE_CHUNKS ? message->n - sent : PAGE_CHUNKS;
        Banyan__Pb__LayoutSetRequest m = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
        m.term = w->cluster->core->term;
        m.session = message->session;
        m.incarnation = message->incarnation;
        m.epoch = message->epoch;
        m.spec = (Banyan__Pb__Spec *)message->spec;
        m.life = coordinator_store_life(w->cluster->store);
        m.visit = w->visit_number;
        m.replace = message->replace;
        m.more = message->replace && sent + n < message->n;
        m.page = message->replace ? sent + 1 : 0;
        m.n_lengths = message->lengths ? message->spec->layers : 0;
        m.lengths = message->lengths;
        m.settled = message->settled;
        m.forgotten = message->forgotten;
        m.tickets = message->tickets;
        m.n_chunks = n;
        m.chunks = pointers;
        for (uint32_t i = 0; i < n; i++) {
            const struct coordinator_chunk *chunk = message->chunks[sent + i];
            chunks[i] = (Banyan__Pb__LayoutChunk)BANYAN__PB__LAYOUT_CHUNK__INIT;
            chunks[i].chunk = chunk->id;
            chunks[i].first = (uint64_t)chunk->index * message->spec->chunk_tokens;
            chunks[i].incoming = sent + i >= message->n - message->incoming;
            chunks[i].copy = chunk == message->copy;
            chunks[i].compute = !chunks[i].copy && chunk->holder == w;
            pointers[i] = &chunks[i];
        }
        COMMON_FAILPOINT("layout_sent");
        coordinator_worker_call_gather(w, BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &m.base, gather);
        sent += n;
    } while (sent < message->n);
}

// What the worker keeps (returned.h) and no move brings there yet: no chunk is named twice. Returns how many there are now.
static uint32_t add_kept(const struct coordinator_session *s, const struct coordinator_worker *w,
                         const struct coordinator_chunk **chunks, uint32_t n)
{
    uint32_t kept = coordinator_returned_chunks(s, w, chunks + n), all = n;
    for (uint32_t i = 0; i < kept; i++) {
        const struct coordinator_chunk *chunk = chunks[n + i];
        uint32_t k = 0;
        while (k < n && chunks[k] != chunk)
            k++;
        if (k == n)
            chunks[all++] = chunk;
    }
    return all;
}

void coordinator_layout_send_all(struct coordinator_session *s, struct coordinator_worker *w,
                                 struct coordinator_gather *gather)
{
    uint32_t most = s->layout.n + 1 + coordinator_moves_of(s) * COORDINATOR_MOVE_CHUNKS +
                    coordinator_returned_chunks(s, w, NULL);
    const struct coordinator_chunk **mine = coordinator_alloc(most * sizeof(*mine));
    uint64_t *lengths = coordinator_alloc(s->spec->layers * sizeof(*lengths));
    const struct coordinator_chunk *copy = s->copy && coordinator_chunk_held_by(s->copy, w) ? s->copy : NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->layout.n; i++)
        if (coordinator_chunk_held_by(&s->layout.chunks[i], w))
            mine[n++] = &s->layout.chunks[i];
    if (copy) // it may be durable already that this one takes the place of what it is copied from
        mine[n++] = copy;
    uint32_t incoming = coordinator_moves_incoming(s, w, mine + n);
    incoming = add_kept(s, w, mine + n, incoming);
    n += incoming;
    for (uint32_t l = 0; l < s->spec->layers; l++)
        lengths[l] = coordinator_rangeset_length(&s->layers[l]);
    struct coordinator_layout_message m = {.session = s->id,
                                           .lengths = lengths,
                                           .settled = coordinator_session_settled(s),
                                           .forgotten = s->floor,
                                           .tickets = s->tickets,
                                           .incarnation = s->incarnation,
                                           .epoch = s->layout.epoch,
                                           .spec = s->spec,
                                           .chunks = mine,
                                           .n = n,
                                           .copy = copy,
                                           .incoming = incoming,
                                           .replace = true};
    coordinator_layout_send(w, &m, gather);
    free(mine);
    free(lengths);
}

void coordinator_layout_send_members(struct coordinator_session *s, struct coordinator_gather *gather)
{
    for (uint32_t i = 0; i < s->n_members; i++) {
        if (coordinator_worker_active(s->members[i]))
            coordinator_layout_send_all(s, s->members[i], gather);
        else
            coordinator_session_dirty(s, s->members[i]);
    }
}
