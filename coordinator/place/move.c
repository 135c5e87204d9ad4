// SPDX-License-Identifier: Apache-2.0
#include "coordinator/place/move.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "common/loop/machine.h"
#include "coordinator/check/seals.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/edges.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/dropping.h"
#include "coordinator/sync/layout_send.h"
#include "coordinator/sync/repair.h"
#include "coordinator/sync/returned.h"
#include "proto/model/limits.h"
#include "proto/model/spec.h"

// Of one pull: it must be over well before a control call is, at the rate that is allowed.
#define PULL_S         1
#define PULL_BYTES_MAX (UINT64_C(1) << 30)
#define PUT_AGAIN_NS   (4 * COMMON_NS_PER_S)

enum move_state {
    MOVE_COPYING,
    MOVE_WAITING,
    MOVE_CLOSING,
    MOVE_STORING,
    MOVE_TELLING,
    MOVE_OVER,
    MOVE_STATES
};

#define TO(state) (1u << MOVE_##state)
const struct common_machine coordinator_move_machine = {
    .name = "move",
    .n = MOVE_STATES,
    .states = {"copying", "waiting", "closing", "storing", "telling", "over"},
    .next = {[MOVE_COPYING] = TO(WAITING) | TO(OVER),
             [MOVE_WAITING] = TO(CLOSING) | TO(OVER), // OVER: the session was deleted
             [MOVE_CLOSING] = TO(STORING) | TO(OVER),
             [MOVE_STORING] = TO(TELLING) | TO(OVER), // OVER: the store refused
             [MOVE_TELLING] = TO(OVER),
             [MOVE_OVER] = 0},
};

static void set_state(struct coordinator_move *m, enum move_state state)
{
    common_machine_move(&coordinator_move_machine, m->state, state);
    m->state = (uint8_t)state;
}

// ---- the end ------------------------------------------------------------------------------------

static void is_not_moving(struct coordinator_chunk *chunk)
{
    chunk->moving = false;
    coordinator_chunk_call_off(chunk);
}

static void leave_session(struct coordinator_move *m)
{
    struct coordinator_session *s = m->s;
    if (!s)
        return;
    for (struct coordinator_move **at = &s->moves; *at; at = &(*at)->next)
        if (*at == m) {
            *at = m->next;
            break;
        }
    for (uint32_t i = 0; i < m->n; i++) {
        struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, m->items[i].index);
        if (chunk && chunk->id == m->items[i].id)
            is_not_moving(chunk);
    }
}

static void move_over(struct coordinator_move *m, uint32_t moved)
{
    bool alone = m->s && m->state >= MOVE_CLOSING;
    if (m->s && m->put)
        m->s->move_tries.put_again_ns = common_clock_after(PUT_AGAIN_NS);
    leave_session(m);
    set_state(m, MOVE_OVER);
    m->to->visitors--;
    m->to->moves--;
    m->to->big_moves -= m->big;
    uint64_t unfilled = m->promised > m->bytes ? m->promised - m->bytes : 0; // heartbeats show the rest
    m->to->promised_bytes -= unfilled < m->to->promised_bytes ? unfilled : m->to->promised_bytes;
    if (alone)
        coordinator_session_release(m->s);
    m->done(m->arg, m->session, m->to, m->refused, moved, m->bytes);
    free(m);
}

// The worker is not to have what it was told of. Where it has the session otherwise, it is told all of that again.
static void move_fail(struct coordinator_move *m, const char *why)
{
    struct coordinator_session *s = m->s;
    // Of what fails again and again the events are ever fewer; the log has all.
    bool told = !s || (s->move_tries.failed & (s->move_tries.failed - 1)) == 0;
    const struct coordinator_event event = {.kind = PROTO_EVENT_COPY_FAILED,
                                            .severity = PROTO_EVENT_WARN,
                                            .worker = m->to->name,
                                            .session = m->session,
                                            .session_name = s ? s->name : ""};
    if (!m->sessions->core->stopping)
        coordinator_events_tell(told ? m->sessions->core->events : NULL, &event,
                                "chunks could not be moved: %s session=%016" PRIx64 " chunks=%u to=%s", why,
                                m->session, m->n, m->to->name);
    if (s && coordinator_session_has_member(s, m->to)) {
        coordinator_session_doubt(s, m->to);
    } else if (!m->sessions->core->stopping) {
        if (s)
            coordinator_returned_forget(s, m->to, NULL);
        coordinator_session_drop_at(m->sessions, m->session, m->to);
    }
    move_over(m, 0);
}

void coordinator_moves_session_gone(struct coordinator_session *s)
{
    for (struct coordinator_move *m = s->moves; m; m = m->next)
        m->s = NULL;
    s->moves = NULL;
}

// ---- telling the worker -------------------------------------------------------------------------

// Of the session's chunks those that are to be at the worker, too. Where the session is alone, with what is acknowledged:
// after a restart of the coordinator its rows count for that, as the others' do for the append that they have a part of.
static void tell_chunks(struct coordinator_move *m, struct coordinator_gather *gather)
{
    struct coordinator_session *s = m->s;
    uint64_t *lengths = coordinator_alloc(s->spec->layers * sizeof(*lengths));
    const struct coordinator_chunk *chunks[COORDINATOR_MOVE_CHUNKS];
    struct coordinator_layout_message message = {.session = s->id,
                                                 .incarnation = s->incarnation,
                                                 .epoch = s->layout.epoch,
                                                 .spec = s->spec,
                                                 .chunks = chunks,
                                                 .forgotten = s->floor};
    for (uint32_t i = 0; i < m->n; i++)
        chunks[message.n++] = coordinator_layout_find(&s->layout, m->items[i].index);
    message.incoming = message.n;
    for (uint32_t l = 0; l < s->spec->layers; l++)
        lengths[l] = coordinator_rangeset_length(&s->layers[l]);
    if (m->state == MOVE_CLOSING) {
        message.lengths = lengths;
        message.settled = coordinator_session_settled(s);
    }
    coordinator_layout_send(m->to, &message, gather);
    free(lengths);
}

// ---- fetching rows ------------------------------------------------------------------------------

struct pull {
    Banyan__Pb__ChunkPullRequest m;
    Banyan__Pb__RowsRange *ranges, **pointers; // [PROTO_PULL_RANGES_MAX]
    uint64_t bytes;
};

static struct pull *pull_new(void)
{
    struct pull *p = coordinator_alloc(sizeof(*p));
    p->ranges = coordinator_alloc(PROTO_PULL_RANGES_MAX * sizeof(*p->ranges));
    p->pointers = coordinator_alloc(PROTO_PULL_RANGES_MAX * sizeof(*p->pointers));
    banyan__pb__chunk_pull_request__init(&p->m);
    p->m.ranges = p->pointers;
    return p;
}

static void pull_free(struct pull *p)
{
    free(p->ranges);
    free(p->pointers);
    free(p);
}

// A copy that `to` is not known not to reach; after a move that has failed, another one first.
static const struct coordinator_worker *source_of(const struct coordinator_session *s,
                                                  const struct coordinator_chunk *chunk,
                                                  const struct coordinator_worker *to)
{
    const struct coordinator_worker *from = NULL;
    uint32_t copies = coordinator_chunk_copies(chunk);
    for (uint32_t i = 0; i < copies; i++) {
        uint32_t copy = (s->move_tries.failed + i) % copies;
        const struct coordinator_worker *w = coordinator_chunk_holder(chunk, copy);
        if (!coordinator_session_copy_usable(chunk, copy))
            continue;
        if (!coordinator_edges_apart(to->cluster, to, w))
            return w;
        from = from ? from : w;
    }
    return from;
}

// Adds rows of the chunk from (*layer, *position) on, `most` bytes or so of them. True: all that are left.
static bool pull_rows(struct pull *p, const struct coordinator_session *s,
                      const struct coordinator_chunk *chunk, uint32_t *layer, uint64_t *position,
                      uint64_t most)
{
    uint64_t ct = s->layout.chunk_tokens, first = chunk->index * ct, end = first + ct;
    for (; *layer < s->spec->layers; ++*layer, *position = 0) {
        struct proto_range range;
        struct proto_layer of = proto_spec_layer(s->spec, *layer);
        uint64_t row = of.k_row + of.v_row, from = *position > first ? *position : first;
        bool has =
            proto_spec_stores(s->spec, *layer) && !coordinator_session_given_back(s, *layer, chunk->index);
        while (has && from < end && coordinator_rangeset_next(&s->layers[*layer], from, &range) &&
               range.first < end) {
            uint64_t count = range.first + range.count < end ? range.count : end - range.first;
            uint64_t room = p->bytes < most ? (most - p->bytes) / row + 1 : 0;
            *position = range.first;
            if (!room || p->m.n_ranges == PROTO_PULL_RANGES_MAX)
                return false;
            count = count < room ? count : room;
            Banyan__Pb__RowsRange *out = &p->ranges[p->m.n_ranges];
            *out = (Banyan__Pb__RowsRange)BANYAN__PB__ROWS_RANGE__INIT;
            out->layer = *layer;
            out->first = range.first;
            out->count = count;
            p->pointers[p->m.n_ranges++] = out;
            p->bytes += count * row;
            *position = from = range.first + count;
        }
    }
    return true;
}

static bool pull_address(struct coordinator_move *m, struct pull *p, const struct coordinator_chunk *chunk)
{
    const struct coordinator_session *s = m->s;
    const struct coordinator_worker *from = source_of(s, chunk, m->to);
    if (!from)
        return false;
    p->m.term = m->sessions->core->term;
    p->m.session = s->id;
    p->m.incarnation = s->incarnation;
    p->m.chunk = chunk->id;
    p->m.first = (uint64_t)chunk->index * s->layout.chunk_tokens;
    p->m.from = (char *)from->edge_endpoint;
    p->m.bytes_per_s = m->sessions->core->options.move_bytes_per_s;
    return true;
}

// Leaves out the chunks that have changed. False: none is left.
static bool check_items(struct coordinator_move *m)
{
    struct coordinator_session *s = m->s;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, m->items[i].index);
        if (!chunk || chunk->id != m->items[i].id)
            continue;
        bool compared =
            chunk->seal == m->items[i].seal || (!m->items[i].returned && !coordinator_worker_sums(m->to));
        if (compared && coordinator_chunk_may_move(s, chunk, m->to, m->items[i].replaces))
            m->items[kept++] = m->items[i];
        else
            is_not_moving(chunk);
    }
    m->n = kept;
    return kept > 0;
}

static void copy_next(struct coordinator_move *m);

static void copied(void *arg, const struct proto_reply *reply)
{
    COMMON_FAILPOINT("move_copied");
    struct coordinator_move *m = arg;
    m->refused = reply->code != COMMON_OK;
    if (reply->code == COMMON_OK)
        m->bytes += ((const Banyan__Pb__ChunkPullReply *)reply->message->body)->bytes;
    if (reply->code != COMMON_OK || !m->s)
        move_fail(m, m->s ? reply->text : "the session was deleted");
    else
        copy_next(m);
}

static void move_alone(void *arg, struct coordinator_session *s);

// Of what a worker has come back with nobody has lost anything by it: it was struck off long ago.
static void copy_wrong(struct coordinator_move *m, struct coordinator_chunk *chunk)
{
    if (m->items[m->at].returned) {
        common_log_warn("a returning worker's copy does not match its seal and is ignored "
                        "worker=%s session=%016" PRIx64 " chunk=%" PRIu64,
                        m->to->name, m->session, chunk->id);
        coordinator_returned_forget(m->s, m->to, chunk);
    } else {
        coordinator_session_tell(m->s, COPY_CORRUPT, ERROR,
                                 "a copy does not match its seal and is ignored: its source is checked "
                                 "session=%016" PRIx64 " chunk=%" PRIu64 " to=%s",
                                 m->s->id, chunk->id, m->to->name);
        m->sessions->seals->refused++;
        coordinator_chunk_ask(m->s, chunk);
    }
    move_fail(m, "a copy does not match its seal");
}

// The rows of a sealed chunk have come: each piece was what the sender's memory has, and that may be wrong.
static void compared(void *arg, const struct proto_reply *reply)
{
    struct coordinator_move *m = arg;
    struct coordinator_session *s = m->s;
    struct coordinator_chunk *chunk = s ? coordinator_layout_find(&s->layout, m->items[m->at].index) : NULL;
    m->to->sums--;
    if (!chunk || chunk->id != m->items[m->at].id) {
        move_fail(m, "a chunk, or the session, was deleted");
    } else if (reply->code == COMMON_UNIMPLEMENTED && m->items[m->at].returned) {
        m->to->sums_unknown = m->to->life; // nobody can say what it has come back with
        coordinator_returned_forget(s, m->to, NULL);
        move_fail(m, "a worker's older build cannot compute checksums");
    } else if (reply->code == COMMON_UNIMPLEMENTED) {
        m->to->sums_unknown = m->to->life;
        m->at++;
        copy_next(m);
    } else if (reply->code != COMMON_OK) {
        move_fail(m, reply->text);
    } else if (((const Banyan__Pb__ChunkSumReply *)reply->message->body)->seal != chunk->seal) {
        copy_wrong(m, chunk);
    } else {
        m->items[m->at].seal = chunk->seal;
        m->at++;
        copy_next(m);
    }
}

static bool must_compare(const struct coordinator_move *m, const struct coordinator_chunk *chunk)
{
    return chunk->seal && m->items[m->at].seal != chunk->seal && coordinator_worker_sums(m->to);
}

static void copy_next(struct coordinator_move *m)
{
    struct coordinator_session *s = m->s;
    uint64_t rate = m->sessions->core->options.move_bytes_per_s,
             most = rate && rate < PULL_BYTES_MAX / PULL_S ? rate * PULL_S : PULL_BYTES_MAX;
    for (; m->at < m->n; m->at++, m->layer = 0, m->position = 0) {
        const struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, m->items[m->at].index);
        struct pull *p = pull_new();
        if (!chunk || chunk->id != m->items[m->at].id || !pull_address(m, p, chunk)) {
            pull_free(p);
            continue; // left out in the end
        }
        pull_rows(p, s, chunk, &m->layer, &m->position, most);
        bool any = p->m.n_ranges > 0;
        if (any)
            coordinator_worker_call(m->to, BANYAN__PB__METHOD__METHOD_CHUNK_PULL, &p->m.base, copied, m);
        pull_free(p);
        if (any)
            return;
        if (must_compare(m, chunk)) {
            m->layer = 0;
            m->position = 0;
            m->to->sums++;
            coordinator_seal_call(s, chunk, m->to, m->items[m->at].returned ? chunk->seal : 0, true, compared,
                                  m);
            return;
        }
    }
    set_state(m, MOVE_WAITING);
    if (coordinator_session_exclusive(s, COORDINATOR_SESSION_RELAYOUT, move_alone, m) != COMMON_OK)
        move_fail(m, "too many operations are waiting for the session");
}

static void copying_told(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("move_copying_told");
    struct coordinator_move *m = arg;
    m->refused = code != COMMON_OK;
    if (code != COMMON_OK || !m->s)
        move_fail(m, m->s ? text : "the session was deleted");
    else
        copy_next(m);
}

// ---- closing ------------------------------------------------------------------------------------

// The chunk as the store shall have it, with the new copy last in this state.
static struct coordinator_chunk chunk_with(const struct coordinator_move *m,
                                           const struct coordinator_move_item *item,
                                           enum coordinator_copy_state state)
{
    struct coordinator_chunk chunk = *coordinator_layout_find(&m->s->layout, item->index);
    uint32_t copy = coordinator_chunk_copies(&chunk);
    coordinator_chunk_arrive(&chunk, state);
    coordinator_chunk_counts(m->sessions, &chunk, 1u << copy);
    for (uint32_t i = 0; i < copy; i++) // one that is not SYNC any more is struck off anyway
        if (chunk.copies[i].worker == item->replaces && chunk.copies[i].state == COORDINATOR_COPY_SYNC)
            coordinator_copy_set_state(&chunk.copies[i], COORDINATOR_COPY_LEAVING);
    return chunk;
}

static void told_all(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("move_told");
    struct coordinator_move *m = arg;
    struct coordinator_session *s = m->s;
    (void)text;
    if (code != COMMON_OK)
        coordinator_session_doubt_all(s); // it has happened: whoever did not hear of it will
    move_over(m, m->n);
}

// Whether the worker has been sent the session's layout since it was last asked for the rows, by somebody who knew nothing of
// them: also by a repair that has begun and ended since.
static bool may_have_dropped(const struct coordinator_move *m)
{
    return m->dropped || m->repaired || m->to->visit != m->visit || coordinator_session_in_doubt(m->s, m->to);
}

static void stored(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("move_stored");
    struct coordinator_move *m = arg;
    struct coordinator_session *s = m->s;
    m->storing = false;
    if (code != COMMON_OK) {
        move_fail(m, text);
        return;
    }
    set_state(m, MOVE_TELLING);
    bool gone = may_have_dropped(m);
    for (uint32_t i = 0; i < m->n; i++) {
        const struct coordinator_move_item *item = &m->items[i];
        const struct coordinator_chunk *there = coordinator_layout_find(&s->layout, item->index);
        // What another one has was found to be wrong meanwhile, and nobody has compared what came from there.
        bool wrong = item->suspect && item->seal != there->seal;
        struct coordinator_chunk chunk = chunk_with(m, item,
                                                    gone    ? COORDINATOR_COPY_GONE
                                                    : wrong ? COORDINATOR_COPY_WRONG
                                                            : COORDINATOR_COPY_SYNC);
        struct coordinator_chunk *put = coordinator_session_put_chunk(s, &chunk);
        if (!put)
            abort();                                        // there was one in its place
        if (put->lost && !coordinator_chunk_all_unfit(put)) // its source has lost it meanwhile
            coordinator_chunk_keep(s, put);
        m->sessions->returned_chunks += item->returned;
    }
    coordinator_session_add_member(s, m->to);
    coordinator_session_raise_epoch(s, "chunk copies added");
    coordinator_session_recount(s);
    common_log_info("chunk copies added session=%016" PRIx64 " chunks=%u to=%s epoch=%" PRIu64, s->id, m->n,
                    m->to->name, s->layout.epoch);
    struct coordinator_gather *gather = coordinator_gather_new(&m->sessions->core->turn, told_all, m);
    coordinator_layout_send_members(s, gather);
    coordinator_gather_seal(gather);
}

// It has every row: so it may count.
static void closed(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("move_closed");
    struct coordinator_move *m = arg;
    struct coordinator_session *s = m->s;
    m->refused = code != COMMON_OK;
    if (code != COMMON_OK || !check_items(m) || !coordinator_worker_active(m->to) || may_have_dropped(m)) {
        move_fail(m, code == COMMON_OK ? "the chunks or the worker have changed meanwhile" : text);
        return;
    }
    set_state(m, MOVE_STORING);
    struct coordinator_batch *batch = coordinator_batch_new();
    for (uint32_t i = 0; i < m->n; i++) {
        m->items[i].suspect = false;
        struct coordinator_chunk chunk = chunk_with(m, &m->items[i], COORDINATOR_COPY_SYNC);
        coordinator_batch_copies(batch, s->id, &chunk);
    }
    coordinator_batch_joins(batch, s->id, m->to);
    coordinator_batch_numbers(batch, s->id, s->incarnation, s->layout.epoch + 1);
    m->storing = true;
    coordinator_store_submit(m->sessions->store, batch, stored, m);
}

struct closing { // a pull
    struct coordinator_gather *gather;
    bool compared;
};

// What was compared with its seal and had to be fetched once more was taken away meanwhile.
static void closing_pulled(void *arg, const struct proto_reply *reply)
{
    struct closing closing = *(struct closing *)arg;
    bool fetched =
        reply->code == COMMON_OK && ((const Banyan__Pb__ChunkPullReply *)reply->message->body)->bytes > 0;
    free(arg);
    if (closing.compared && fetched)
        coordinator_gather_finish(closing.gather, COMMON_UNAVAILABLE,
                                  "rows that had been compared with their seal are gone");
    else
        coordinator_gather_finish(closing.gather, reply->code, reply->text);
}

static void closing_pull(struct coordinator_move *m, const struct pull *p, bool is_compared,
                         struct coordinator_gather *gather)
{
    struct closing *closing = coordinator_alloc(sizeof(*closing));
    *closing = (struct closing){.gather = gather, .compared = is_compared};
    coordinator_gather_add(gather);
    coordinator_worker_call(m->to, BANYAN__PB__METHOD__METHOD_CHUNK_PULL, &p->m.base, closing_pulled,
                            closing);
}

static void closing_told(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("move_closing_told");
    struct coordinator_move *m = arg;
    struct coordinator_session *s = m->s;
    m->refused = code != COMMON_OK;
    if (code != COMMON_OK) {
        move_fail(m, text);
        return;
    }
    struct coordinator_gather *gather = coordinator_gather_new(&m->sessions->core->turn, closed, m);
    for (uint32_t i = 0; i < m->n; i++) {
        const struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, m->items[i].index);
        uint32_t layer = 0;
        uint64_t position = 0;
        for (bool all = false; !all;) {
            struct pull *p = pull_new();
            bool there = pull_address(m, p, chunk);
            all = pull_rows(p, s, chunk, &layer, &position, UINT64_MAX);
            if (p->m.n_ranges && there)
                closing_pull(m, p, m->items[i].seal != 0, gather);
            pull_free(p);
            if (!there) {
                coordinator_gather_add(gather);
                coordinator_gather_finish(gather, COMMON_UNAVAILABLE, "no holder of the rows is connected");
                break;
            }
        }
    }
    coordinator_gather_seal(gather);
}

static void tell_closing(struct coordinator_move *m)
{
    struct coordinator_gather *gather = coordinator_gather_new(&m->sessions->core->turn, closing_told, m);
    tell_chunks(m, gather);
    coordinator_gather_seal(gather);
}

// ---- tickets ------------------------------------------------------------------------------------
// A ticket that has not ended names the holders of before the move. With it a client could put rows to these alone, and
// they would be missed when it commits. So holders refuse such tickets before the rows are copied for the last time, and
// say which chunks have rows that no commit has: these stay. A client that is refused asks for another ticket, which it
// gets when the session is open again, with the holders of then (AttachOpen waits for that).

struct refusing { // of tickets, at one holder
    struct coordinator_move *m;
    struct coordinator_gather *gather;
};

static void tickets_refused(void *arg, const struct proto_reply *reply)
{
    struct refusing r = *(struct refusing *)arg;
    free(arg);
    const Banyan__Pb__LayoutSetReply *body =
        reply->code == COMMON_OK ? (const void *)reply->message->body : NULL;
    for (size_t i = 0; body && i < body->n_put; i++)
        for (uint32_t k = 0; k < r.m->n; k++)
            r.m->items[k].put = r.m->items[k].put || r.m->items[k].id == body->put[i];
    coordinator_gather_finish(r.gather, reply->code, reply->text);
}

static void refuse_tickets_at(struct coordinator_move *m, struct coordinator_worker *w,
                              struct coordinator_gather *gather)
{
    const struct coordinator_session *s = m->s;
    Banyan__Pb__LayoutChunk chunks[COORDINATOR_MOVE_CHUNKS], *pointers[COORDINATOR_MOVE_CHUNKS];
    Banyan__Pb__LayoutSetRequest request = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    request.term = m->sessions->core->term;
    request.session = s->id;
    request.incarnation = s->incarnation;
    request.epoch = s->layout.epoch;
    request.spec = s->spec;
    request.life = coordinator_store_life(m->sessions->store);
    request.visit = w->visit_number;
    request.forgotten = s->floor;
    request.tickets = s->tickets.number;
    request.chunks = pointers;
    for (uint32_t i = 0; i < m->n; i++) {
        const struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, m->items[i].index);
        if (!coordinator_chunk_held_by(chunk, w) || !coordinator_chunk_being_put(s, chunk))
            continue;
        uint32_t n = (uint32_t)request.n_chunks++;
        chunks[n] = (Banyan__Pb__LayoutChunk)BANYAN__PB__LAYOUT_CHUNK__INIT;
        chunks[n].chunk = chunk->id;
        chunks[n].first = (uint64_t)chunk->index * s->layout.chunk_tokens;
        chunks[n].compute = coordinator_chunk_serves(chunk) == w;
        pointers[n] = &chunks[n];
    }
    if (!request.n_chunks)
        return;
    struct refusing *r = coordinator_alloc(sizeof(*r));
    *r = (struct refusing){.m = m, .gather = gather};
    coordinator_gather_add(gather);
    coordinator_worker_call(w, BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &request.base, tickets_refused, r);
}

static void all_refuse_tickets(void *arg, enum common_code code, const char *text)
{
    struct coordinator_move *m = arg;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        struct coordinator_chunk *chunk = coordinator_layout_find(&m->s->layout, m->items[i].index);
        m->put = m->put || m->items[i].put;
        if (m->items[i].put)
            is_not_moving(chunk);
        else
            m->items[kept++] = m->items[i];
    }
    m->n = kept;
    if (code != COMMON_OK || !kept)
        move_fail(m, code == COMMON_OK ? "they have attached rows that are not committed" : text);
    else
        tell_closing(m);
}

static bool any_is_being_put(const struct coordinator_move *m)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (coordinator_chunk_being_put(m->s, coordinator_layout_find(&m->s->layout, m->items[i].index)))
            return true;
    return false;
}

static void refuse_tickets(struct coordinator_move *m)
{
    struct coordinator_session *s = m->s;
    struct coordinator_gather *gather =
        coordinator_gather_new(&m->sessions->core->turn, all_refuse_tickets, m);
    s->tickets.number++;
    for (uint32_t i = 0; i < s->n_members; i++)
        if (coordinator_worker_active(s->members[i]))
            refuse_tickets_at(m, s->members[i], gather);
    coordinator_gather_seal(gather);
}

static void move_alone(void *arg, struct coordinator_session *s)
{
    COMMON_FAILPOINT("move_closing");
    struct coordinator_move *m = arg;
    m->s = s;
    if (!s) {
        move_fail(m, "the session was deleted");
        return;
    }
    set_state(m, MOVE_CLOSING);
    m->visit = m->to->visit;
    m->repaired = false;
    bool known = !s->withheld && !s->broken && !s->unknown && !s->named;
    if (!known || !coordinator_worker_active(m->to) || coordinator_session_in_doubt(s, m->to) ||
        !check_items(m)) {
        move_fail(m, "the chunks or the worker have changed meanwhile");
        return;
    }
    if (any_is_being_put(m))
        refuse_tickets(m);
    else
        tell_closing(m);
}

// ---- beginning ----------------------------------------------------------------------------------

void coordinator_move_begin(struct coordinator_session *s, struct coordinator_worker *to, bool big,
                            const struct coordinator_move_item *items, uint32_t n, coordinator_moved_fn done,
                            void *arg)
{
    struct coordinator_move *m = coordinator_alloc(sizeof(*m));
    *m = (struct coordinator_move){.next = s->moves,
                                   .sessions = s->sessions,
                                   .s = s,
                                   .session = s->id,
                                   .to = to,
                                   .big = big,
                                   .n = n,
                                   .promised = n * coordinator_session_chunk_room(s),
                                   .done = done,
                                   .arg = arg};
    memcpy(m->items, items, n * sizeof(*items));
    for (uint32_t i = 0; i < n; i++) {
        struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, items[i].index);
        m->items[i].id = chunk->id;
        chunk->moving = true;
        coordinator_chunk_expect(chunk, to);
    }
    s->moves = m;
    to->visitors++;
    to->moves++;
    to->big_moves += big;
    to->promised_bytes += m->promised;
    struct coordinator_gather *gather = coordinator_gather_new(&s->sessions->core->turn, copying_told, m);
    tell_chunks(m, gather);
    coordinator_gather_seal(gather);
}
