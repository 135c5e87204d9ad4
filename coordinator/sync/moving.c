// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/moving.h"

#include "common/base/clock.h"
#include "coordinator/cluster/worker.h"
#include "proto/model/spec.h"

#define PUT_QUIET_NS (2 * COMMON_NS_PER_S) // since the last ticket

// ---- what may move ------------------------------------------------------------------------------

bool coordinator_session_may_move(struct coordinator_session *s)
{
    return s->state == COORDINATOR_SESSION_ACTIVE && !s->withheld && !s->broken && !s->repairing &&
           !coordinator_session_has_missing(s) && !s->awaited && !s->unknown && !s->named &&
           !s->sessions->core->stopping;
}

bool coordinator_chunk_being_put(const struct coordinator_session *s, const struct coordinator_chunk *chunk)
{
    uint64_t ct = s->layout.chunk_tokens, first = chunk->index * ct, end = first + ct,
             now = common_clock_ns();
    struct proto_range range;
    if (!coordinator_tickets_good(&s->tickets, now))
        return false;
    for (uint64_t from = first;
         from < end && coordinator_tickets_next(&s->tickets, now, from, end, &range);) {
        uint64_t to = range.first + range.count;
        for (uint32_t l = 0; l < s->spec->layers; l++) {
            uint64_t at = coordinator_session_forgotten(s, l);
            at = proto_spec_stores(s->spec, l) ? (at > range.first ? at : range.first) : to;
            if (at < to && !coordinator_rangeset_contains(&s->layers[l], at, to - at))
                return true;
        }
        from = to;
    }
    return false;
}

// Nobody puts rows of the session just now, as far as is known: it is worth asking holders whether any are put.
static bool is_quiet(const struct coordinator_session *s)
{
    uint64_t now = common_clock_ns(), life = s->sessions->core->options.ticket_ns;
    return now >= s->move_tries.put_again_ns && now + life >= s->tickets.until_ns + PUT_QUIET_NS;
}

bool coordinator_chunk_may_move(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                                const struct coordinator_worker *to,
                                const struct coordinator_worker *replaces)
{
    bool room = replaces ? coordinator_chunk_held_by(chunk, replaces)
                         : coordinator_chunk_copies(chunk) < COORDINATOR_REPLICAS_MAX;
    return room && coordinator_chunk_copies(chunk) < COORDINATOR_COPIES_MAX && chunk->ready && chunk->known &&
           !chunk->lost && !coordinator_chunk_unfit(chunk) &&
           !coordinator_chunk_where(chunk, COORDINATOR_IN(LEAVING)) &&
           coordinator_chunk_copy_at(chunk, to) == COORDINATOR_COPIES_MAX &&
           coordinator_session_chunk_usable(chunk) && (!coordinator_chunk_being_put(s, chunk) || is_quiet(s));
}

// ---- what moves ---------------------------------------------------------------------------------

uint32_t coordinator_moves_of(const struct coordinator_session *s)
{
    uint32_t n = 0;
    for (const struct coordinator_move *m = s->moves; m; m = m->next)
        n++;
    return n;
}

uint32_t coordinator_moves_incoming(const struct coordinator_session *s, const struct coordinator_worker *to,
                                    const struct coordinator_chunk **out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->layout.n && s->moves; i++)
        if (coordinator_chunk_coming(&s->layout.chunks[i]) == to)
            out[n++] = &s->layout.chunks[i];
    return n;
}

bool coordinator_moves_go_to(const struct coordinator_session *s, const struct coordinator_worker *to)
{
    const struct coordinator_move *m = s->moves;
    while (m && m->to != to)
        m = m->next;
    return m != NULL;
}

void coordinator_moves_suspect(struct coordinator_session *s, const struct coordinator_chunk *chunk)
{
    for (struct coordinator_move *m = s->moves; m; m = m->next)
        for (uint32_t i = 0; i < m->n; i++)
            m->items[i].suspect = m->items[i].suspect || m->items[i].id == chunk->id;
}

bool coordinator_moves_store(const struct coordinator_session *s, const struct coordinator_worker *to)
{
    const struct coordinator_move *m = s->moves;
    while (m && !(m->storing && m->to == to))
        m = m->next;
    return m != NULL;
}

void coordinator_moves_dropped(struct coordinator_session *s, const struct coordinator_worker *at)
{
    for (struct coordinator_move *m = s->moves; m; m = m->next)
        m->dropped = m->dropped || m->to == at;
}

void coordinator_moves_repaired(struct coordinator_session *s, const struct coordinator_worker *at)
{
    for (struct coordinator_move *m = s->moves; m; m = m->next)
        m->repaired = m->repaired || m->to == at;
}
