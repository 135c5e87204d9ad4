// SPDX-License-Identifier: Apache-2.0
#include "coordinator/place/moves.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/place/choosing.h"
#include "coordinator/place/move.h"
#include "coordinator/place/spread.h"
#include "coordinator/session/move_queue.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/dropping.h"
#include "coordinator/sync/layout_send.h"
#include "coordinator/sync/repair.h"

#define MOVES_MAX         256
#define SESSION_MOVES_MAX 4
#define LOOK_MAX          64 // sessions in a turn: some microseconds each
#define LATER_NS          COMMON_NS_PER_MS
#define AGAIN_NS          COMMON_NS_PER_S
#define HALVED_MAX        6 // COORDINATOR_MOVE_CHUNKS, to one
#define FAILED_MAX        3 // moves, one after the other: the receiver gets none for PAUSE_NS, twice that, …
#define PAUSE_NS          (10 * COMMON_NS_PER_MS)
#define PAUSES_MAX        7 // 1.28 s

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
    coordinator_session_raise_epoch(s, "a worker is no longer a member");
    struct coordinator_gather *gather = coordinator_gather_new(&s->sessions->core->turn, parting_told, p);
    coordinator_layout_send_members(s, gather);
    coordinator_gather_seal(gather);
}

static void parting_alone(void *arg, struct coordinator_session *s)
{
    struct parting *p = arg;
    if (!s) {
        p->w->visitors--;
        free(p);
        return;
    }
    if (!coordinator_session_has_member(s, p->w) || !coordinator_session_without(s, p->w)) {
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
        if (!coordinator_session_without(s, s->members[i]))
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

// A receiver at which moves fail one after the other gets none for a while, that others are preferred meanwhile.
static void judge_receiver(struct coordinator_worker *to, bool failed)
{
    uint64_t now = common_clock_ns();
    if (now < to->moves_again_ns)
        return; // begun before
    to->moves_failed = failed ? to->moves_failed + 1 : 0;
    if (to->moves_failed < FAILED_MAX)
        return;
    uint32_t shift = to->moves_failed - FAILED_MAX;
    to->moves_again_ns = now + (PAUSE_NS << (shift < PAUSES_MAX ? shift : PAUSES_MAX));
}

static void moved(void *arg, uint64_t session, struct coordinator_worker *to, bool refused, uint32_t n,
                  uint64_t bytes)
{
    struct coordinator_sessions *sessions = arg;
    struct coordinator_session *s = coordinator_session_any(sessions, session);
    sessions->moves->n--;
    sessions->moves->chunks += n;
    sessions->moves->bytes += bytes;
    coordinator_move_queue_room(sessions);
    if (n || refused)
        judge_receiver(to, refused);
    if (s && n)
        coordinator_session_uneven(s); // another holder may serve
    if (s) {
        s->copied += n;
        s->moves_failed = n ? 0 : s->moves_failed + 1;
        // What is too much at once for a worker's memory, until it is in its files, comes a part at a time
        uint32_t halved = s->moves_halved;
        s->moves_halved = n ? halved - (halved > 0) : halved + (halved < HALVED_MAX);
    }
    if (s && !n)
        s->move_again_ns = common_clock_after(AGAIN_NS);
    if (s)
        coordinator_move_queue_wake(s);
    coordinator_turn_mark(&sessions->core->turn, COORDINATOR_PHASE_SESSIONS);
}

static void tell_begun(struct coordinator_session *s, const struct coordinator_choice *c)
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
                            "copying chunks: %s session=%016" PRIx64 " to=%s",
                            !from            ? "they have too few copies"
                            : from->draining ? "a worker is draining"
                                             : "load follows worker speed",
                            s->id, c->to->name);
}

// Once nothing moves, nothing has begun to, and nothing that failed is to be tried again.
static void tell_ended(struct coordinator_session *s)
{
    if (!s->copying || s->moves || (s->moves_failed && common_clock_ns() < s->move_again_ns))
        return;
    if (s->copied)
        coordinator_session_note(s, COPY_ENDED, INFO, "chunks were copied session=%016" PRIx64 " chunks=%u",
                                 s->id, s->copied);
    s->copying = false;
    s->copied = 0;
}

static void begin_move(const struct coordinator_choice *c)
{
    struct coordinator_session *s = c->s;
    s->sessions->moves->n++;
    s->move_ticket.rests = 0;
    coordinator_choice_begun(c);
    tell_begun(s, c);
    coordinator_move_begin(s, c->to, c->big, c->items, c->n_items, moved, s->sessions);
}

// Begins one move of it, and puts it where it is looked at again in time.
static void try_session(struct coordinator_session *s)
{
    if (common_clock_ns() < s->move_again_ns) {
        coordinator_move_queue_rest(s, false);
        return;
    }
    if (!coordinator_session_may_move(s)) {
        coordinator_move_queue_busy(s);
        return;
    }
    part(s);
    if (coordinator_moves_of(s) >= SESSION_MOVES_MAX)
        return; // when one is over
    struct coordinator_choice *c = coordinator_choose(s);
    if (c->n_items) {
        bool more = c->more;
        begin_move(c);
        if (more)
            coordinator_move_queue_again(s);
    } else if (c->busy) {
        coordinator_move_queue_behind(s, c->any ? NULL : c->busy, c->big);
    } else if (!s->moves && c->refused) {
        coordinator_move_queue_rest(s, true);
    } else if (!s->moves) {
        coordinator_move_queue_busy(s); // a copy is leaving, or a member
    }
    coordinator_choice_free(c);
}

static void look_at(struct coordinator_session *s)
{
    if (coordinator_session_wants_moves(s))
        try_session(s);
    if (s->move_ticket.place == COORDINATOR_MOVE_IDLE || s->move_ticket.place == COORDINATOR_MOVE_RESTING)
        tell_ended(s);
}

static void timer_over(void *arg)
{
    struct coordinator_sessions *sessions = arg;
    coordinator_turn_mark(&sessions->core->turn, COORDINATOR_PHASE_SESSIONS);
}

// The next turn comes by itself: this one has done its part.
static void go_on_later(struct coordinator_sessions *sessions)
{
    struct coordinator_moves *moves = sessions->moves;
    if (!moves->timer &&
        common_timer_new(sessions->core->loop, timer_over, sessions, &moves->timer) != COMMON_OK)
        abort();
    common_timer_start(moves->timer, LATER_NS, false);
}

// A turn may come here several times.
static void look(struct coordinator_sessions *sessions)
{
    struct coordinator_moves *moves = sessions->moves;
    if (moves->turn != sessions->core->turn.turns) {
        moves->turn = sessions->core->turn.turns;
        moves->left = LOOK_MAX;
    }
    if (moves->n < MOVES_MAX && moves->left)
        coordinator_move_queue_advance(sessions);
    while (moves->left && moves->n < MOVES_MAX) {
        if (!sessions->move_queue->n_ready) // who was let go went elsewhere
            coordinator_move_queue_advance(sessions);
        struct coordinator_session *s = coordinator_move_queue_pop(sessions);
        if (!s)
            return; // all receivers are busy
        moves->left--;
        look_at(s);
    }
    if (moves->n < MOVES_MAX && sessions->move_queue->n_ready)
        go_on_later(sessions);
}

void coordinator_moves_init(struct coordinator_sessions *sessions)
{
    sessions->moves = coordinator_alloc(sizeof(*sessions->moves));
    coordinator_move_queue_init(sessions);
}

void coordinator_moves_tick(struct coordinator_sessions *sessions)
{
    coordinator_move_queue_tick(sessions);
    look(sessions);
}

void coordinator_moves_drain(struct coordinator_sessions *sessions)
{
    look(sessions);
}

void coordinator_moves_fini(struct coordinator_sessions *sessions)
{
    common_timer_free(sessions->moves->timer);
    free(sessions->moves);
    coordinator_move_queue_fini(sessions);
    sessions->moves = NULL;
}
