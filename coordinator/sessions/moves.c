// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sessions/moves.h"

#include <inttypes.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/sessions/candidates.h"
#include "coordinator/sessions/dropping.h"
#include "coordinator/sessions/layout_send.h"
#include "coordinator/sessions/move.h"
#include "coordinator/sessions/rebalance.h"
#include "coordinator/sessions/repair.h"
#include "coordinator/sessions/returned.h"
#include "coordinator/sessions/spread.h"
#include "coordinator/sessions/table.h"
#include "coordinator/store/store.h"

#define MOVES_MAX         64
#define SESSION_MOVES_MAX 4
#define WORKER_MOVES_MAX  2
#define LOOK_MAX          256 // sessions, after a move has ended
#define AGAIN_NS          COMMON_NS_PER_S
#define HALVED_MAX        6 // COORDINATOR_MOVE_CHUNKS, to one
#define BATCH_S           2 // how long the rows of one move travel, at the rate that is allowed

// ---- choosing -----------------------------------------------------------------------------------

struct choice { // of one move
    struct coordinator_session *s;
    struct coordinator_worker *active[COORDINATOR_WORKERS_MAX];
    struct coordinator_candidate *candidates; // [n]
    uint32_t n;
    struct coordinator_worker *to; // NULL: not yet
    struct coordinator_move_item items[COORDINATOR_MOVE_CHUNKS];
    uint32_t n_items;
    bool refused; // there is one that cannot move now
};

static uint32_t candidate_of(const struct choice *c, const struct coordinator_worker *w)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->active[i] == w)
            return i;
    return UINT32_MAX;
}

static struct coordinator_worker *draining_holder(const struct coordinator_chunk *chunk)
{
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        if (coordinator_chunk_holder(chunk, i)->draining)
            return coordinator_chunk_holder(chunk, i);
    return NULL;
}

// Who should get the copy: not on the hosts of those that stay.
static uint32_t choose_target(const struct choice *c, const struct coordinator_chunk *chunk,
                              const struct coordinator_worker *replaces)
{
    uint32_t has[COORDINATOR_COPIES_MAX], n_has = 0;
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++) {
        const struct coordinator_worker *w = coordinator_chunk_holder(chunk, i);
        uint32_t at = w == replaces ? UINT32_MAX : candidate_of(c, w);
        if (at != UINT32_MAX)
            has[n_has++] = at;
    }
    return coordinator_placement_follow(c->candidates, c->n, has, n_has, c->s->layout.chunk_tokens,
                                        coordinator_session_chunk_room(c->s));
}

// Who has come back with it, where a copy could be put.
static uint32_t choose_returned(const struct choice *c, const struct coordinator_chunk *chunk)
{
    const struct coordinator_worker *back = coordinator_returned_holder(c->s, chunk);
    uint32_t to = back ? candidate_of(c, back) : UINT32_MAX;
    if (to == UINT32_MAX || (c->candidates[to].apart && !c->candidates[to].member))
        return UINT32_MAX;
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        if (strcmp(coordinator_chunk_holder(chunk, i)->host, back->host) == 0)
            return UINT32_MAX; // there may be another host by now
    return to;
}

// Rows that the worker keeps for another session count as there, and a chunk without a seal is compared with nothing.
static bool is_kept_uncompared(const struct choice *c, const struct coordinator_chunk *chunk,
                               const struct coordinator_worker *to)
{
    return !chunk->seal && coordinator_returned_keeps(c->s->sessions, to, chunk);
}

static void choose_item(struct choice *c, const struct coordinator_chunk *chunk,
                        struct coordinator_worker *replaces)
{
    uint64_t bytes = coordinator_session_chunk_bytes(c->s), room = coordinator_session_chunk_room(c->s);
    uint32_t to = replaces ? UINT32_MAX : choose_returned(c, chunk);
    if (to == UINT32_MAX)
        to = choose_target(c, chunk, replaces);
    if (to == UINT32_MAX || c->active[to]->moves >= WORKER_MOVES_MAX ||
        !coordinator_chunk_may_move(c->s, chunk, c->active[to], replaces) ||
        is_kept_uncompared(c, chunk, c->active[to])) {
        c->refused = true;
        return;
    }
    if (c->to && c->to != c->active[to])
        return; // the next move's
    c->to = c->active[to];
    c->items[c->n_items++] =
        (struct coordinator_move_item){.index = chunk->index,
                                       .replaces = replaces,
                                       .returned = coordinator_returned_keeps(c->s->sessions, c->to, chunk)};
    struct coordinator_candidate *candidate = &c->candidates[to];
    candidate->free_bytes -= room < candidate->free_bytes ? room : candidate->free_bytes;
    candidate->load_bytes += bytes;
    candidate->follows += c->s->layout.chunk_tokens;
    coordinator_candidates_join(c->candidates, c->active, c->n, to);
}

// A copy too many: a coordinator died between giving a chunk to another holder and taking it from the first. Or one that
// was to leave, and must stay.
static void tidy(struct coordinator_session *s, struct coordinator_chunk *chunk)
{
    uint32_t copies = coordinator_chunk_copies(chunk);
    if (chunk->leaving) { // a chunk that may be struck off is, before anybody looks here
        chunk->leaving = 0;
        coordinator_session_recount(s);
        return;
    }
    if (copies <= s->spec->replicas || coordinator_chunk_unfit(chunk))
        return;
    const struct coordinator_worker *w = draining_holder(chunk);
    chunk->leaving = (uint8_t)(1u << (w ? coordinator_chunk_copy_at(chunk, w) : copies - 1));
    coordinator_session_recount(s);
    coordinator_session_settle(s);
}

// What was planned has come true, or cannot any more.
static bool wish_is_void(const struct choice *c, const struct coordinator_wish *wish)
{
    const struct coordinator_chunk *chunk = coordinator_layout_find(&c->s->layout, wish->index);
    return !chunk || chunk->id != wish->id || chunk->lost || !coordinator_chunk_held_by(chunk, wish->from) ||
           coordinator_chunk_held_by(chunk, wish->to) || candidate_of(c, wish->to) == UINT32_MAX ||
           (wish->slow && !coordinator_worker_slow(wish->from));
}

static void drop_void_wishes(struct choice *c)
{
    struct coordinator_moves *moves = &c->s->sessions->moves;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < moves->n_wishes; i++)
        if (moves->wishes[i].session != c->s->id || !wish_is_void(c, &moves->wishes[i]))
            moves->wishes[kept++] = moves->wishes[i];
    moves->n_wishes = kept;
}

static void choose_wishes(struct choice *c)
{
    const struct coordinator_moves *moves = &c->s->sessions->moves;
    bool any = false;
    drop_void_wishes(c);
    for (uint32_t i = 0; i < moves->n_wishes && c->n_items < COORDINATOR_MOVE_CHUNKS; i++) {
        const struct coordinator_wish *wish = &moves->wishes[i];
        any = any || wish->session == c->s->id;
        if (wish->session != c->s->id || (c->to && c->to != wish->to) ||
            candidate_of(c, wish->to) == UINT32_MAX || wish->to->moves >= WORKER_MOVES_MAX)
            continue;
        const struct coordinator_chunk *chunk = coordinator_layout_find(&c->s->layout, wish->index);
        if (!chunk || chunk->id != wish->id || chunk->moving ||
            !coordinator_chunk_may_move(c->s, chunk, wish->to, wish->from) ||
            is_kept_uncompared(c, chunk, wish->to))
            continue;
        c->to = wish->to;
        c->items[c->n_items++] =
            (struct coordinator_move_item){.index = wish->index,
                                           .replaces = wish->from,
                                           .returned =
                                               coordinator_returned_keeps(c->s->sessions, wish->to, chunk)};
    }
    c->s->wished = any;
    c->refused = c->refused || (any && !c->n_items);
}

static void forget_wishes(struct coordinator_sessions *sessions, const struct choice *c)
{
    struct coordinator_moves *moves = &sessions->moves;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < moves->n_wishes; i++) {
        bool chosen = false;
        for (uint32_t k = 0; k < c->n_items && moves->wishes[i].session == c->s->id; k++)
            chosen = chosen || c->items[k].index == moves->wishes[i].index;
        if (!chosen)
            moves->wishes[kept++] = moves->wishes[i];
    }
    moves->n_wishes = kept;
}

static void choose(struct choice *c)
{
    struct coordinator_session *s = c->s;
    uint64_t rate = s->sessions->core->options.move_bytes_per_s,
             most = rate / (coordinator_session_chunk_bytes(s) / BATCH_S + 1) + 1;
    uint32_t batch = rate && most < COORDINATOR_MOVE_CHUNKS ? (uint32_t)most : COORDINATOR_MOVE_CHUNKS;
    batch = batch >> s->moves_halved ? batch >> s->moves_halved : 1;
    for (uint32_t i = 0; i < s->layout.n && c->n_items < batch; i++) {
        struct coordinator_chunk *chunk = &s->layout.chunks[i];
        if (chunk->moving)
            continue;
        tidy(s, chunk);
        struct coordinator_worker *drained = chunk->leaving ? NULL : draining_holder(chunk);
        if (drained)
            choose_item(c, chunk, drained);
        else if (coordinator_chunk_copies(chunk) < s->spec->replicas)
            choose_item(c, chunk, NULL);
    }
    if (!c->n_items && s->wished)
        choose_wishes(c);
}

// ---- parting ------------------------------------------------------------------------------------

struct parting { // of a member that has no part in the session any more: the session is its own
    struct coordinator_session *s;
    struct coordinator_worker *w; // its record stays: it is a member, and then a visitor
};

static void parting_over(struct parting *p)
{
    struct coordinator_session *s = p->s;
    p->w->visitors--;
    free(p);
    coordinator_session_release(s);
}

static void parting_told(void *arg, enum common_code code, const char *text)
{
    struct parting *p = arg;
    (void)text;
    if (code != COMMON_OK)
        coordinator_session_doubt_all(p->s);
    parting_over(p);
}

static void parting_stored(void *arg, enum common_code code, const char *text)
{
    struct parting *p = arg;
    struct coordinator_session *s = p->s;
    (void)text;
    if (code != COMMON_OK) {
        s->move_again_ns = common_clock_after(AGAIN_NS);
        parting_over(p);
        return;
    }
    coordinator_session_leave(s, p->w);
    coordinator_session_drop_at(s->sessions, s->id, p->w);
    coordinator_session_raise_epoch(s, "a worker has no part in it any more");
    struct coordinator_gather *gather = coordinator_gather_new(&s->sessions->core->turn, parting_told, p);
    coordinator_layout_send_members(s, gather);
    coordinator_gather_seal(gather);
}

static bool holds_any(const struct coordinator_session *s, const struct coordinator_worker *w)
{
    for (uint32_t i = 0; i < s->layout.n; i++)
        if (coordinator_chunk_copy_at(&s->layout.chunks[i], w) < COORDINATOR_COPIES_MAX)
            return true;
    return false;
}

// One that is being drained, or is lost: when it comes back, the session has its members without it. Others that hold
// nothing have not yet been given a chunk.
static bool has_no_part(const struct coordinator_session *s, const struct coordinator_worker *w)
{
    bool goes = w->draining || w->state == COORDINATOR_WORKER_LOST || w->state == COORDINATOR_WORKER_ABSENT;
    return goes && s->n_members > 1 && !holds_any(s, w);
}

static void parting_alone(void *arg, struct coordinator_session *s)
{
    struct parting *p = arg;
    if (!s) {
        p->w->visitors--;
        free(p);
        return;
    }
    if (!coordinator_session_has_member(s, p->w) || !has_no_part(s, p->w)) {
        parting_over(p);
        return;
    }
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_member_drop(batch, s->id, p->w->name);
    coordinator_batch_numbers(batch, s->id, s->incarnation, s->layout.epoch + 1);
    coordinator_store_submit(s->sessions->store, batch, parting_stored, p);
}

static void part(struct coordinator_session *s)
{
    for (uint32_t i = 0; i < s->n_members && !s->exclusive; i++) {
        if (!has_no_part(s, s->members[i]))
            continue;
        struct parting *p = coordinator_alloc(sizeof(*p));
        *p = (struct parting){.s = s, .w = s->members[i]};
        p->w->visitors++;
        if (coordinator_session_exclusive(s, COORDINATOR_SESSION_RELAYOUT, parting_alone, p) != COMMON_OK) {
            p->w->visitors--;
            free(p);
        }
    }
}

// ---- looking ------------------------------------------------------------------------------------

static bool wants(const struct coordinator_session *s)
{
    for (uint32_t i = 0; i < s->n_members; i++)
        if (s->members[i]->draining || has_no_part(s, s->members[i]))
            return true;
    return s->thin > 0 || s->thick > 0 || s->wished;
}

static void moved(void *arg, uint64_t session, uint32_t n, uint64_t bytes)
{
    struct coordinator_sessions *sessions = arg;
    struct coordinator_session *s = coordinator_session_any(sessions, session);
    sessions->moves.n--;
    sessions->moves.chunks += n;
    sessions->moves.bytes += bytes;
    sessions->moves.due = true;
    if (s && n)
        s->spread_seen = COORDINATOR_UNEVEN; // another holder may serve
    if (s) {
        s->copied += n;
        s->moves_failed = n ? 0 : s->moves_failed + 1;
        // What is too much at once for a worker's memory, until it is in its files, comes a part at a time
        uint32_t halved = s->moves_halved;
        s->moves_halved = n ? halved - (halved > 0) : halved + (halved < HALVED_MAX);
    }
    if (s && !n)
        s->move_again_ns = common_clock_after(AGAIN_NS);
    coordinator_turn_mark(&sessions->core->turn, COORDINATOR_PHASE_SESSIONS);
}

static void tell_begun(struct coordinator_session *s, const struct choice *c)
{
    const struct coordinator_worker *from = c->items[0].replaces;
    const struct coordinator_event event = {.kind = PROTO_EVENT_COPY_BEGUN,
                                            .worker = c->to->name,
                                            .session = s->id,
                                            .session_name = s->name,
                                            .epoch = s->layout.epoch};
    if (s->copying)
        return;
    s->copying = true;
    coordinator_events_note(s->sessions->core->events, &event,
                            "chunks of it are copied: %s session=%016" PRIx64 " to=%s",
                            !from            ? "they have too few copies"
                            : from->draining ? "a worker is emptied"
                                             : "workers are to have as much as they are fast",
                            s->id, c->to->name);
}

// Once nothing moves, nothing has begun to, and nothing that failed is to be tried again.
static void tell_ended(struct coordinator_session *s)
{
    if (!s->copying || s->moves || (s->moves_failed && common_clock_ns() < s->move_again_ns))
        return;
    if (s->copied)
        coordinator_session_note(s, COPY_ENDED, INFO,
                                 "chunks of it were copied session=%016" PRIx64 " chunks=%u", s->id,
                                 s->copied);
    s->copying = false;
    s->copied = 0;
}

static void begin_moves(struct coordinator_session *s)
{
    struct coordinator_sessions *sessions = s->sessions;
    if (!wants(s) || common_clock_ns() < s->move_again_ns || !coordinator_session_may_move(s))
        return;
    part(s);
    while (sessions->moves.n < MOVES_MAX && coordinator_moves_of(s) < SESSION_MOVES_MAX) {
        struct choice *c = coordinator_alloc(sizeof(*c));
        c->s = s;
        c->candidates = coordinator_candidates(s, c->active, &c->n);
        choose(c);
        bool any = c->n_items > 0;
        if (any) {
            forget_wishes(sessions, c);
            sessions->moves.n++;
            tell_begun(s, c);
            coordinator_move_begin(s, c->to, c->items, c->n_items, moved, sessions);
        } else if (c->refused) {
            s->move_again_ns = common_clock_after(AGAIN_NS);
        }
        free(c->candidates);
        free(c);
        if (!any)
            break;
    }
}

static void look_at(struct coordinator_session *s)
{
    begin_moves(s);
    tell_ended(s);
}

// Up to `most` sessions from the cursor on.
static void look(struct coordinator_sessions *sessions, uint32_t most)
{
    struct coordinator_moves *moves = &sessions->moves;
    for (uint32_t i = 0; i < most && i < sessions->n_slots && moves->n < MOVES_MAX; i++) {
        moves->cursor = moves->cursor < sessions->n_slots ? moves->cursor : 0;
        if (sessions->slots[moves->cursor])
            look_at(sessions->slots[moves->cursor]);
        moves->cursor++;
    }
}

// Those of sessions that are gone.
static void drop_lone_wishes(struct coordinator_sessions *sessions)
{
    struct coordinator_moves *moves = &sessions->moves;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < moves->n_wishes; i++)
        if (coordinator_session_any(sessions, moves->wishes[i].session))
            moves->wishes[kept++] = moves->wishes[i];
    moves->n_wishes = kept;
}

void coordinator_moves_tick(struct coordinator_sessions *sessions)
{
    drop_lone_wishes(sessions);
    if (sessions->core->stopping)
        return;
    coordinator_rebalance_slow(sessions);
    look(sessions, UINT32_MAX);
    coordinator_rebalance_ended(sessions);
    coordinator_spreads_look(sessions);
}

void coordinator_moves_drain(struct coordinator_sessions *sessions)
{
    if (!sessions->moves.due || sessions->core->stopping)
        return;
    sessions->moves.due = false;
    look(sessions, LOOK_MAX);
    coordinator_spreads_look(sessions);
}

void coordinator_moves_fini(struct coordinator_sessions *sessions)
{
    free(sessions->moves.wishes);
    sessions->moves.wishes = NULL;
}
