// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/move_queue.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"

#define REST_NS   COMMON_NS_PER_S
#define READY_MAX 128 // with so many READY no more are let go
#define TICK_MAX  256 // sessions that are searched for strays with each tick

_Static_assert(WORKER_WAITING == 2 * COORDINATOR_NEEDS, "a line for each need, of big and of small moves");

// ---- what is wanted -----------------------------------------------------------------------------

static bool holds_any(const struct coordinator_session *s, const struct coordinator_worker *w)
{
    for (uint32_t i = 0; i < s->layout.n; i++)
        if (coordinator_chunk_copy_at(&s->layout.chunks[i], w) < COORDINATOR_COPIES_MAX)
            return true;
    return false;
}

// When it comes back, the session has its members without it. Others that hold nothing have not yet been given a chunk.
bool coordinator_session_without(const struct coordinator_session *s, const struct coordinator_worker *w)
{
    bool goes = w->draining || w->state == COORDINATOR_WORKER_LOST || w->state == COORDINATOR_WORKER_ABSENT;
    return goes && s->n_members > 1 && !holds_any(s, w);
}

bool coordinator_session_wants_moves(const struct coordinator_session *s)
{
    if (s->thin || s->thick || s->wished)
        return true;
    for (uint32_t i = 0; i < s->n_members; i++)
        if (s->members[i]->draining || coordinator_session_without(s, s->members[i]))
            return true;
    return false;
}

// Also that something has begun whose end is to be told.
static bool is_to_be_looked_at(const struct coordinator_session *s)
{
    return s->copying || coordinator_session_wants_moves(s);
}

static enum coordinator_move_need need_of(const struct coordinator_session *s)
{
    return s->single ? COORDINATOR_NEED_LAST : s->thin ? COORDINATOR_NEED_COPY : COORDINATOR_NEED_PLACE;
}

// ---- places -------------------------------------------------------------------------------------

static void leave_place(struct coordinator_session *s)
{
    struct coordinator_move_ticket *t = &s->move_ticket;
    common_list_remove(&t->link);
    s->sessions->move_queue->n_ready -= t->place == COORDINATOR_MOVE_READY;
    s->sessions->move_queue->behind -= t->place == COORDINATOR_MOVE_BEHIND;
    if (t->behind)
        t->behind->visitors--;
    t->behind = NULL;
    t->place = COORDINATOR_MOVE_IDLE;
}

static void enter_place(struct coordinator_session *s, struct common_list *list,
                        enum coordinator_move_place place)
{
    common_list_push(list, &s->move_ticket.link);
    s->move_ticket.place = (uint8_t)place;
}

void coordinator_move_queue_again(struct coordinator_session *s)
{
    enum coordinator_move_need need = need_of(s);
    leave_place(s);
    s->move_ticket.need = (uint8_t)need;
    enter_place(s, &s->sessions->move_queue->ready[need], COORDINATOR_MOVE_READY);
    s->sessions->move_queue->n_ready++;
    coordinator_turn_mark(&s->sessions->core->turn, COORDINATOR_PHASE_SESSIONS);
}

void coordinator_move_queue_behind(struct coordinator_session *s, struct coordinator_worker *w, bool big)
{
    enum coordinator_move_need need = need_of(s);
    leave_place(s);
    s->move_ticket.need = (uint8_t)need;
    s->move_ticket.behind = w;
    s->move_ticket.until_ns = common_clock_after(REST_NS);
    if (w)
        w->visitors++;
    s->sessions->move_queue->behind++;
    struct common_list *lines = w ? w->waiting : s->sessions->move_queue->waiting;
    enter_place(s, &lines[big * COORDINATOR_NEEDS + need], COORDINATOR_MOVE_BEHIND);
}

static void rest(struct coordinator_session *s, enum coordinator_move_place place, uint32_t rests)
{
    leave_place(s);
    s->move_ticket.until_ns = common_clock_after(REST_NS << rests);
    enter_place(s, &s->sessions->move_queue->resting[rests], place);
}

void coordinator_move_queue_busy(struct coordinator_session *s)
{
    rest(s, COORDINATOR_MOVE_BUSY, 0);
}

void coordinator_move_queue_rest(struct coordinator_session *s, bool longer)
{
    struct coordinator_move_ticket *t = &s->move_ticket;
    rest(s, COORDINATOR_MOVE_RESTING, longer ? t->rests : 0);
    t->rests += longer && t->rests + 1 < COORDINATOR_RESTS;
}

void coordinator_move_queue_init(struct coordinator_sessions *sessions)
{
    struct coordinator_move_queue *queue = coordinator_alloc(sizeof(*queue));
    sessions->move_queue = queue;
    for (uint32_t i = 0; i < COORDINATOR_NEEDS; i++)
        common_list_init(&queue->ready[i]);
    for (uint32_t i = 0; i < WORKER_WAITING; i++)
        common_list_init(&queue->waiting[i]);
    for (uint32_t i = 0; i < COORDINATOR_RESTS; i++)
        common_list_init(&queue->resting[i]);
}

void coordinator_move_queue_fini(struct coordinator_sessions *sessions)
{
    free(sessions->move_queue);
    sessions->move_queue = NULL;
}

void coordinator_move_queue_enter(struct coordinator_session *s)
{
    common_list_init(&s->move_ticket.link);
}

void coordinator_move_queue_leave(struct coordinator_session *s)
{
    leave_place(s);
}

// ---- marks --------------------------------------------------------------------------------------

void coordinator_move_queue_mark(struct coordinator_session *s)
{
    struct coordinator_move_ticket *t = &s->move_ticket;
    bool listed = t->place == COORDINATOR_MOVE_READY || t->place == COORDINATOR_MOVE_BEHIND;
    if (s->state == COORDINATOR_SESSION_GONE || (listed && need_of(s) >= t->need) ||
        (!listed && t->place != COORDINATOR_MOVE_IDLE) || !is_to_be_looked_at(s))
        return;
    coordinator_move_queue_again(s);
}

static void end_rest(struct coordinator_session *s)
{
    leave_place(s);
    if (is_to_be_looked_at(s))
        coordinator_move_queue_again(s);
}

void coordinator_move_queue_wake(struct coordinator_session *s)
{
    struct coordinator_move_ticket *t = &s->move_ticket;
    bool rests = t->place == COORDINATOR_MOVE_BUSY || t->place == COORDINATOR_MOVE_RESTING;
    if (rests && common_clock_ns() >= s->move_again_ns)
        end_rest(s);
    else
        coordinator_move_queue_mark(s);
}

void coordinator_move_queue_wake_all(struct coordinator_sessions *sessions)
{
    for (uint32_t i = 0; i < sessions->n_slots; i++) {
        struct coordinator_session *s = sessions->slots[i];
        if (!s)
            continue;
        s->move_ticket.rests = 0;
        coordinator_move_queue_wake(s);
    }
}

void coordinator_move_queue_settled(struct coordinator_session *s)
{
    if (s->move_ticket.place == COORDINATOR_MOVE_BUSY)
        end_rest(s);
}

// ---- taking -------------------------------------------------------------------------------------

static struct coordinator_session *first_of(const struct common_list *list)
{
    return common_list_entry(list->next, struct coordinator_session, move_ticket.link);
}

struct coordinator_session *coordinator_move_queue_pop(struct coordinator_sessions *sessions)
{
    for (uint32_t i = 0; i < COORDINATOR_NEEDS; i++) {
        struct common_list *list = &sessions->move_queue->ready[i];
        if (common_list_empty(list))
            continue;
        struct coordinator_session *s = first_of(list);
        leave_place(s);
        sessions->move_queue->looks++;
        return s;
    }
    return NULL;
}

bool coordinator_worker_takes_move(const struct coordinator_worker *w, bool big)
{
    return big ? w->big_moves < COORDINATOR_BIG_MOVES : w->moves - w->big_moves < COORDINATOR_SMALL_MOVES;
}

// So many of those that wait: the most urgent ones.
static void let_go(struct common_list *lines, bool big, uint32_t n)
{
    for (uint32_t need = 0; need < COORDINATOR_NEEDS; need++)
        for (struct common_list *list = &lines[big * COORDINATOR_NEEDS + need]; n && !common_list_empty(list);
             n--)
            coordinator_move_queue_again(first_of(list));
}

// The first of them may not be able to use that room: two try.
void coordinator_move_queue_room(struct coordinator_sessions *sessions)
{
    for (uint32_t big = 0; big < 2; big++)
        sessions->move_queue->room[big] += 2;
}

void coordinator_move_queue_advance(struct coordinator_sessions *sessions)
{
    struct coordinator_move_queue *queue = sessions->move_queue;
    const struct coordinator_cluster *cluster = sessions->cluster;
    for (uint32_t big = 0; big < 2; big++) {
        let_go(queue->waiting, big, queue->room[big]);
        queue->room[big] = 0;
    }
    for (uint32_t i = 0; i < cluster->n_workers && queue->behind && queue->n_ready < READY_MAX; i++) {
        queue->next = queue->next < cluster->n_workers ? queue->next : 0;
        struct coordinator_worker *w = cluster->workers[queue->next++];
        if (!w)
            continue;
        bool all = !coordinator_worker_active(w) || w->draining;
        if (all || coordinator_worker_takes_move(w, true))
            let_go(w->waiting, true, all ? UINT32_MAX : COORDINATOR_BIG_MOVES - w->big_moves);
        if (all || coordinator_worker_takes_move(w, false))
            let_go(w->waiting, false, all ? UINT32_MAX : COORDINATOR_SMALL_MOVES - (w->moves - w->big_moves));
    }
}

static uint32_t let_go_old(struct common_list *lines, uint32_t most, uint64_t now)
{
    for (uint32_t line = 0; line < WORKER_WAITING; line++)
        for (;
             most && !common_list_empty(&lines[line]) && first_of(&lines[line])->move_ticket.until_ns <= now;
             most--)
            coordinator_move_queue_again(first_of(&lines[line]));
    return most;
}

// Those that have waited for a while may find another receiver by now: some of them.
static void let_go_all_old(struct coordinator_sessions *sessions, uint64_t now)
{
    struct coordinator_move_queue *queue = sessions->move_queue;
    const struct coordinator_cluster *cluster = sessions->cluster;
    uint32_t left = let_go_old(queue->waiting, TICK_MAX, now);
    for (uint32_t i = 0; i < cluster->n_workers && queue->behind; i++) {
        queue->next = queue->next < cluster->n_workers ? queue->next : 0;
        struct coordinator_worker *w = cluster->workers[queue->next++];
        left = w ? let_go_old(w->waiting, left, now) : left;
    }
}

void coordinator_move_queue_tick(struct coordinator_sessions *sessions)
{
    struct coordinator_move_queue *queue = sessions->move_queue;
    uint64_t now = common_clock_ns();
    for (uint32_t i = 0; i < COORDINATOR_RESTS; i++)
        while (!common_list_empty(&queue->resting[i]) &&
               first_of(&queue->resting[i])->move_ticket.until_ns <= now)
            end_rest(first_of(&queue->resting[i]));
    let_go_all_old(sessions, now);
    for (uint32_t i = 0; i < TICK_MAX && i < sessions->n_slots; i++) {
        queue->cursor = queue->cursor < sessions->n_slots ? queue->cursor : 0;
        struct coordinator_session *s = sessions->slots[queue->cursor++];
        if (!s || s->move_ticket.place != COORDINATOR_MOVE_IDLE || s->moves ||
            s->state == COORDINATOR_SESSION_GONE || !is_to_be_looked_at(s))
            continue;
        queue->strays++;
        coordinator_move_queue_again(s);
    }
}
