// SPDX-License-Identifier: Apache-2.0
// What must hold when the faults of chaos_test have ceased.
#include "coordinator/place/moves.h"
#include "tests/sim/chaos.h"

#include <string.h>

#include "common/base/clock.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/state.h"
#include "worker/core/state.h"

static bool ended(struct op *op)
{
    for (uint64_t until = sim_clock() + 60 * COMMON_NS_PER_S; sim_clock() < until && !op->call->done;)
        sim_advance(COMMON_NS_PER_MS);
    if (!op->call->done)
        chaos_violated(op, "a call does not end");
    chaos_check_all();
    return true;
}

enum { TRIES = 100 }; // 100 ms apart

#define UNTIL_OK(op, make, what)                                                                             \
    do {                                                                                                     \
        for (int tries = 0;; tries++) {                                                                      \
            if (chaos.n_ops + 4 > OPS)                                                                       \
                chaos.n_ops = 0; /* all have been checked */                                                 \
            (op) = (make);                                                                                   \
            if (ended(op) && (op)->call->code == COMMON_OK)                                                  \
                break;                                                                                       \
            if (tries == TRIES || !chaos_passes((op)->call->code))                                           \
                chaos_violated(op, what);                                                                    \
            sim_advance(100 * COMMON_NS_PER_MS);                                                             \
        }                                                                                                    \
    } while (0)

// What the client does not know the outcome of is there as a whole, or not at all.
static void ends_where_something_does(struct model *m, uint32_t layer)
{
    uint32_t length = chaos_prefix(m, layer);
    struct op *op = NULL;
    for (int tries = 0; length < TOKENS && tries < TRIES; tries++) {
        if (chaos.n_ops + 4 > OPS)
            chaos.n_ops = 0;
        ended(op = chaos_start_read(m, layer, length));
        if (op->call->code == COMMON_OK)
            length++;
        else if (chaos_passes(op->call->code))
            sim_advance(100 * COMMON_NS_PER_MS);
        else
            break;
    }
    if (length && !m->ends[layer][length] && length < TOKENS)
        chaos_violated(op, "a part of what was written is there");
}

// The session may have gone further than its clients' answers say, and have forgotten what they have recorded
// of the layer.
static bool may_be_past(const struct model *m, uint32_t layer)
{
    uint32_t length = chaos_prefix(m, layer);
    return chaos_may_be_forgotten(m, layer, length ? length - 1 : 0);
}

static void settle(struct model *m)
{
    struct op *op;
    if (m->must_cut)
        for (int tries = 0; m->must_cut; tries++) {
            if (chaos.n_ops + 4 > OPS)
                chaos.n_ops = 0;
            ended(op = chaos_start_truncate(m, m->lossy ? 0 : m->cut));
            // Both of these have made m->cut 0 (chaos_check.c).
            bool to_0 = op->call->code == COMMON_OUT_OF_RANGE || !strcmp(op->call->reason, "FORGOTTEN");
            if (tries == TRIES || (m->must_cut && !to_0 && !chaos_passes(op->call->code)))
                chaos_violated(op, "a session is not truncated");
            sim_advance(100 * COMMON_NS_PER_MS);
        }
    if (m->lossy || chaos_kills_excuse()) { // whatever it has lost, it can be used again
        for (uint32_t l = 0; l < LAYERS && !m->lossy; l++)
            if (chaos_prefix(m, l) && !may_be_past(m, l))
                UNTIL_OK(op, chaos_start_read(m, l, chaos_prefix(m, l) - 1),
                         "acknowledged rows do not come back");
        UNTIL_OK(op, chaos_start_truncate(m, 0), "a session is not truncated to 0");
    }
    for (uint32_t l = 0; l < LAYERS; l++) {
        bool past = false; // the append to the layer before may have raised the floor
        for (uint32_t other = l; other < LAYERS; other++)
            past = past || may_be_past(m, other);
        if (past)
            UNTIL_OK(op, chaos_start_truncate(m, 0), "a session that has forgotten is not truncated to 0");
        if (chaos_prefix(m, l))
            UNTIL_OK(op, chaos_start_read(m, l, chaos_prefix(m, l) - 1),
                     "acknowledged rows do not come back");
        if (!m->lossy && !chaos_kills_excuse())
            ends_where_something_does(m, l);
        if (m->lossy) // nobody can say that a chunk was empty (chaos_check.c)
            UNTIL_OK(op, chaos_start_truncate(m, 0), "a session is not truncated to 0");
        if (chaos_prefix(m, l) < TOKENS)
            UNTIL_OK(op, chaos_start_append(m, l, chaos_prefix(m, l), 1), "a session takes no append");
        UNTIL_OK(op, chaos_start_read(m, l, chaos_prefix(m, l) - 1), "what was appended cannot be read");
    }
}

static void deleted_everywhere(struct model *m)
{
    struct op *op;
    for (int tries = 0; ended(op = chaos_start_delete(m)) && op->call->code != COMMON_OK; tries++) {
        if (op->call->code == COMMON_NOT_FOUND) // it was deleted before
            break;
        if (tries == TRIES || !chaos_passes(op->call->code))
            chaos_violated(op, "a session is not deleted");
        sim_advance(100 * COMMON_NS_PER_MS);
        chaos.n_ops = chaos.n_ops + 4 > OPS ? 0 : chaos.n_ops;
    }
    for (int tries = 0; tries < TRIES; tries++) {
        bool held = false;
        for (uint32_t w = 0; w < chaos.n_workers; w++)
            for (uint64_t at = 0; at < TOKENS; at += 16)
                held = held || sim_worker_holds(chaos.cluster->workers[w], m->id, at);
        if (!held)
            return;
        sim_advance(100 * COMMON_NS_PER_MS);
    }
    chaos_violated(op, "a worker still holds what was deleted");
}

// Each named session is found; no other is, once those are found and deleted whose makers got no answer.
static void find_strangers(void)
{
    for (uint32_t name = 1; name <= NAMES; name++)
        for (int tries = 0;; tries++) {
            struct op *op = chaos_start_find(name);
            ended(op);
            if (op->call->code == COMMON_OK || op->call->code == COMMON_NOT_FOUND)
                break;
            if (tries == TRIES || !chaos_passes(op->call->code))
                chaos_violated(op, "a name cannot be asked for");
            sim_advance(100 * COMMON_NS_PER_MS);
            chaos.n_ops = chaos.n_ops + 4 > OPS ? 0 : chaos.n_ops;
        }
}

static void watches_end(void)
{
    for (int tries = 0; !chaos_has_no_watch(); tries++) {
        if (tries == TRIES)
            chaos_violated(NULL, "the coordinator still watches for somebody");
        sim_advance(100 * COMMON_NS_PER_MS);
    }
}

static void names_are_free(void)
{
    for (uint32_t name = 1; name <= NAMES; name++) {
        struct op *op;
        UNTIL_OK(op, chaos_start_create(name), "a name is not free again");
        struct sim_call *call = sim_delete(chaos.cluster->client, op->call->session);
        if (sim_wait(call) != COMMON_OK)
            chaos_violated(op, "the last session of a name is not deleted");
    }
}

// Sessions whose makers got no answer, and that have no name either.
static void delete_the_rest(void)
{
    const struct coordinator_sessions *sessions = &chaos.cluster->coordinator->sessions;
    for (int tries = 0; sessions->n; tries++) {
        if (tries == TRIES)
            chaos_violated(NULL, "a session cannot be deleted");
        for (uint32_t i = 0; i < sessions->n_slots; i++)
            if (sessions->slots[i])
                sim_wait(sim_delete(chaos.cluster->client, sessions->slots[i]->id));
        sim_advance(100 * COMMON_NS_PER_MS);
    }
}

// Nothing is counted for anybody any more. A wrong store may have left sessions with workers: they are in
// quarantine.
static bool all_given_back(void)
{
    const struct coordinator *c = chaos.cluster->coordinator;
    bool back = c->steps.items == 0 && c->steps.bytes == 0 && !c->sessions.parked;
    for (uint32_t i = 0; i < chaos.n_workers && !chaos.was_wrong; i++) {
        const struct worker *w = chaos.cluster->workers[i]->worker;
        back = back && !w->sessions.count && !worker_store_used(w->store);
    }
    for (uint32_t i = 0; i < c->cluster.n_workers; i++)
        back = back && !c->cluster.workers[i]->chunks && !c->cluster.workers[i]->tokens &&
               !c->cluster.workers[i]->load_bytes;
    return back;
}

static void everything_is_given_back(void)
{
    for (int tries = 0; !all_given_back(); tries++) {
        if (tries == TRIES)
            chaos_violated(NULL, "memory, chunks or steps are counted for nobody");
        sim_advance(100 * COMMON_NS_PER_MS);
    }
}

// Nothing is under way: so nothing is frozen, held, or waited for. What the store has refused meanwhile has
// given back what it took.
static bool nothing_in_hand(void)
{
    const struct coordinator_sessions *sessions = &chaos.cluster->coordinator->sessions;
    bool idle = !sessions->commits.head;
    for (uint32_t i = 0; i < sessions->n_slots; i++) {
        const struct coordinator_session *s = sessions->slots[i];
        idle = idle && (!s || (!s->shared && !s->writing && !s->exclusive && !s->doors && !s->n_waiting &&
                               !s->floor_next && !s->placing));
        for (uint32_t l = 0; s && l < s->spec->layers; l++)
            idle = idle && !s->layers[l].pending;
    }
    for (uint32_t i = 0; i < chaos.n_workers; i++) {
        const struct worker *w = chaos.cluster->workers[i]->worker;
        size_t cursor = 0;
        void *session;
        idle = idle && !w->n_steps && !w->flight_bytes && !w->follows.bringing.count;
        while (worker_map_next(&w->sessions, &cursor, &session))
            if (((struct worker_session *)session)->life == w->life) // else it is in quarantine
                idle = idle && !((struct worker_session *)session)->frozen.n;
    }
    return idle;
}

static void everything_comes_to_rest(void)
{
    for (int tries = 0; !nothing_in_hand(); tries++) {
        if (tries == TRIES)
            chaos_violated(NULL, "rows are frozen, or a session is held, by nobody");
        sim_advance(100 * COMMON_NS_PER_MS);
    }
}

static void all_calls_end(void)
{
    for (int i = 0; !chaos_check_all(); i++) {
        if (i == 1000)
            for (uint32_t k = 0; k < chaos.n_ops; k++)
                if (!chaos.ops[k].checked)
                    chaos_violated(&chaos.ops[k], "a call does not end");
        sim_advance(100 * COMMON_NS_PER_MS);
    }
}

// No worker is drained any more, and every chunk is at as many workers as it should be. What is at none stays
// so.
static void copies_are_restored(void)
{
    const struct coordinator_sessions *sessions = &chaos.cluster->coordinator->sessions;
    for (uint32_t i = 0; i < chaos.n_workers; i++)
        if (sim_wait(sim_drain(chaos.cluster->client, chaos.cluster->workers[i]->name, true)) != COMMON_OK)
            chaos_violated(NULL, "a worker is not used again");
    for (uint64_t until = sim_clock() + 700 * COMMON_NS_PER_S;; sim_advance(COMMON_NS_PER_S)) {
        uint32_t wrong = 0; // rows that were put, and may still be: until their tickets have ended
        for (uint32_t i = 0; i < sessions->n_slots; i++) {
            struct coordinator_session *s = sessions->slots[i];
            if (s && !coordinator_session_has_missing(s))
                wrong += s->thin + s->thick + s->awaited;
        }
        if (!wrong && !sessions->moves->n)
            return;
        if (sim_clock() > until)
            chaos_violated(NULL, "chunks have fewer copies than they should, or more");
    }
}

// No tree does without an edge between the only two.
static bool needs(const struct coordinator_session *s, const struct sim_worker *a, const struct sim_worker *b)
{
    uint32_t has = 0;
    for (uint32_t i = 0; i < s->n_members; i++)
        has += !strcmp(s->members[i]->name, a->name) || !strcmp(s->members[i]->name, b->name);
    return has == 2 && s->n_members == 2;
}

void chaos_edges_swallow(void)
{
    struct sim_cluster *cluster = chaos.cluster;
    uint32_t a = (uint32_t)sim_random(chaos.n_workers), b = (uint32_t)sim_random(chaos.n_workers);
    if (!(chaos.faults & UINT64_C(1) << SWALLOW) || a == b)
        return;
    const struct sim_worker *from = cluster->workers[a], *to = cluster->workers[b];
    sim_advance(3 * COMMON_NS_PER_S); // who is new is not judged by others
    sim_net_swallow(from->loop, to->loop);
    if (sim_random(2))
        sim_net_swallow(to->loop, from->loop);
    for (uint32_t i = 0; i < chaos.n_models; i++) {
        struct model *m = &chaos.models[i];
        const struct coordinator_session *s = coordinator_session_any(&cluster->coordinator->sessions, m->id);
        struct op *op;
        for (uint32_t l = 0; l < LAYERS && s && !m->deleted && !m->lossy && !chaos_kills_excuse(); l++)
            if (chaos_prefix(m, l) && !m->must_cut && !may_be_past(m, l) && !needs(s, from, to))
                UNTIL_OK(op, chaos_start_read(m, l, chaos_prefix(m, l) - 1),
                         "an edge that swallows keeps a step from being answered");
    }
    sim_net_heal();
    sim_advance(7 * COMMON_NS_PER_S); // a dial that is under way is given up after 5 s
}

void chaos_end(void)
{
    chaos.ending = true;
    all_calls_end();
    chaos_snapshot_over();
    for (uint32_t i = 0; i < chaos.n_clients; i++)
        sim_client_deadline(chaos.clients[i], 10 * COMMON_NS_PER_S);
    if (sim_random(2)) // what is in the store, and not only in memory, is what counts
        chaos_disturb(KILL_COORDINATOR);
    if (!sim_wait_active(chaos.cluster, chaos.n_workers))
        chaos_violated(NULL, "not all workers become active");
    chaos_flips_end();
    copies_are_restored();
    sim_advance(
        COMMON_NS_PER_S); // what was sent over slow links that are gone has come: sessions may be made yet
    find_strangers();
    all_calls_end();
    chaos_snapshot_calm();
    chaos_pins_are_gone();
    chaos_edges_swallow();
    everything_comes_to_rest();
    find_strangers(); // a fork may have waited for the store until now, though its caller had given up
    all_calls_end();
    for (uint32_t i = 0; i < chaos.n_models; i++)
        if (!chaos.models[i].deleted)
            settle(&chaos.models[i]);
    watches_end();
    for (uint32_t i = 0; i < chaos.n_models; i++)
        deleted_everywhere(&chaos.models[i]);
    names_are_free();
    delete_the_rest();
    everything_is_given_back();
}
