// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sessions/room.h"

#include <stdlib.h>

#include "coordinator/check/regain.h"
#include "coordinator/check/scrub.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/place/drain.h"
#include "coordinator/place/move.h"
#include "coordinator/place/moves.h"
#include "coordinator/place/placing.h"
#include "coordinator/place/rebalance.h"
#include "coordinator/place/spread.h"
#include "coordinator/place/strike.h"
#include "coordinator/place/wishes.h"
#include "coordinator/prefix/prefix.h"
#include "coordinator/rows/reshape.h"
#include "coordinator/session/move_queue.h"
#include "coordinator/session/states.h"
#include "coordinator/session/table.h"
#include "coordinator/sync/condition.h"
#include "coordinator/sync/dropping.h"
#include "coordinator/sync/failover.h"
#include "coordinator/sync/named.h"
#include "coordinator/sync/news.h"
#include "coordinator/sync/reconcile.h"
#include "coordinator/sync/recovery.h"
#include "coordinator/sync/repair.h"
#include "coordinator/sync/returned.h"

// ---- a session's moments ------------------------------------------------------------------------

static void session_ending(struct coordinator_session *s)
{
    coordinator_repairs_session_gone(s);
    coordinator_moves_session_gone(s);
    coordinator_returned_session_gone(s);
    coordinator_prefix_session_gone(s);
}

static void session_ended(struct coordinator_session *s)
{
    coordinator_placing_session_gone(s);
    coordinator_session_forget_named(s);
}

static const struct coordinator_session_hooks hooks = {
    .settled = coordinator_failover_pump,
    .opened = coordinator_placing_pump,
    .served = coordinator_move_queue_settled,
    .counted = coordinator_move_queue_mark,
    .ending = session_ending,
    .ended = session_ended,
    .make_room = coordinator_prefix_make_room,
    .visit = coordinator_visit_session,
};

// ---- the end of a turn --------------------------------------------------------------------------

static bool plan_is_old(const struct coordinator_session *s)
{
    uint32_t active = 0;
    if (!s->plan)
        return false;
    for (uint32_t i = 0; i < s->n_members; i++) {
        bool is = coordinator_worker_active(s->members[i]);
        if (is != (coordinator_plan_rank(s->plan, s->members[i]) != UINT32_MAX))
            return true;
        active += is;
    }
    return s->plan->state == COORDINATOR_PLAN_RETIRED || active != s->plan->n;
}

// A worker has become ACTIVE, or has ceased to be: what was derived from that is made anew.
static void take_changes(struct coordinator_sessions *sessions)
{
    if (sessions->seen_changes == sessions->cluster->changes)
        return;
    sessions->seen_changes = sessions->cluster->changes;
    sessions->unpark = true;
    for (uint32_t i = 0; i < sessions->n_slots; i++) {
        struct coordinator_session *s = sessions->slots[i];
        if (!s)
            continue;
        coordinator_repairs_recheck(s);
        coordinator_session_recount(s);
        s->move_ticket.rests = 0;
        coordinator_move_queue_wake(s);
        if (s->spec->replicas > 1)
            coordinator_session_settle(s);
        if (plan_is_old(s))
            coordinator_session_drop_plan(s);
    }
}

static void drain_sessions(void *arg)
{
    struct coordinator_sessions *sessions = arg;
    struct coordinator_session *s;
    take_changes(sessions);
    coordinator_reconciles_drain(sessions);
    while ((s = coordinator_sessions_take_settled(sessions)))
        coordinator_session_let_in(s);
    if (!sessions->core->stopping) {
        coordinator_moves_drain(sessions);
        coordinator_spreads_drain(sessions);
    }
    coordinator_scrub_drain(sessions);
    coordinator_sessions_reap(sessions);
    if (sessions->unpark)
        coordinator_unpark(sessions);
    sessions->unpark = false;
}

// ---- ticks --------------------------------------------------------------------------------------

// Puts and reads go to the workers and are not seen here: while a ticket is good, some may be under way.
static bool is_idle(const struct coordinator_session *s, uint64_t now_ns)
{
    uint64_t used_ns = s->last_used_ns > s->tickets.until_ns ? s->last_used_ns : s->tickets.until_ns;
    used_ns = used_ns > s->read_until_ns ? used_ns : s->read_until_ns;
    return coordinator_session_open(s) && !s->shared && !s->n_waiting && !s->placing && now_ns > used_ns &&
           now_ns - used_ns > s->spec->idle_ttl_ns;
}

static void reclaim_idle(struct coordinator_sessions *sessions, uint64_t now_ns)
{
    // What clients asked for while this process did not run comes in first.
    const struct coordinator_core *core = sessions->core;
    if (coordinator_presence_patience(&core->presence, 0,
                                      COORDINATOR_BEATS_MISSED * core->options.heartbeat_ns, now_ns))
        return;
    for (uint32_t i = 0; i < sessions->n_slots; i++) {
        struct coordinator_session *s = sessions->slots[i];
        if (s && s->spec->idle_ttl_ns && !s->kept && is_idle(s, now_ns))
            coordinator_session_reclaim(s);
        else if (s && s->name[0] && coordinator_states_left(s))
            coordinator_session_reclaim_states(s);
    }
}

static void move_tick(struct coordinator_sessions *sessions)
{
    coordinator_wishes_tick(sessions);
    if (sessions->core->stopping)
        return;
    coordinator_rebalance_slow(sessions);
    coordinator_moves_tick(sessions);
    coordinator_rebalance_ended(sessions);
    coordinator_spreads_look(sessions);
}

void coordinator_sessions_tick(struct coordinator_sessions *sessions, uint64_t now_ns)
{
    reclaim_idle(sessions, now_ns);
    coordinator_prefixes_tick(sessions, now_ns);
    coordinator_news_tick(sessions, now_ns);
    coordinator_failovers_tick(sessions);
    coordinator_droppings_tick(sessions);
    coordinator_returned_tick(sessions);
    coordinator_regain_tick(sessions);
    move_tick(sessions);
    coordinator_drains_tick(sessions);
    coordinator_strikes_tick(sessions);
    coordinator_conditions_tick(sessions);
    coordinator_scrub_tick(sessions);
    if (sessions->parked) { // their time may be over
        sessions->unpark = true;
        coordinator_turn_mark(&sessions->core->turn, COORDINATOR_PHASE_SESSIONS);
    }
}

// ---- the start and the end ----------------------------------------------------------------------

void coordinator_sessions_init(struct coordinator_sessions *sessions, struct coordinator_core *core,
                               struct coordinator_cluster *cluster)
{
    sessions->core = core;
    sessions->cluster = cluster;
    sessions->hooks = &hooks;
    sessions->slots = coordinator_alloc(core->options.max_sessions * sizeof(*sessions->slots));
    sessions->free_slots = coordinator_alloc(core->options.max_sessions * sizeof(*sessions->free_slots));
    sessions->parked_tail = &sessions->parked;
    common_list_init(&sessions->settled);
    common_list_init(&sessions->droppings);
    common_list_init(&sessions->uneven);
    common_list_init(&sessions->uneven_later);
    coordinator_moves_init(sessions);
    coordinator_wishes_init(sessions);
    coordinator_returned_init(sessions);
    coordinator_scrub_init(sessions);
    coordinator_prefixes_init(sessions);
    common_list_init(&sessions->opened);
    common_list_init(&sessions->gone);
    common_list_init(&sessions->reaped);
    coordinator_turn_set(&core->turn, COORDINATOR_PHASE_SESSIONS, drain_sessions, sessions);
}

void coordinator_sessions_fini(struct coordinator_sessions *sessions)
{
    coordinator_scrub_fini(sessions);
    for (uint32_t i = 0; i < sessions->n_slots; i++)
        if (sessions->slots[i])
            coordinator_session_destroy(sessions->slots[i]);
    coordinator_droppings_fini(sessions);
    coordinator_turn_drain(&sessions->core->turn);
    coordinator_moves_fini(sessions);
    coordinator_wishes_fini(sessions);
    coordinator_returned_fini(sessions);
    coordinator_prefixes_fini(sessions);
    free(sessions->seals);
    free(sessions->slots);
    free(sessions->free_slots);
}
