// SPDX-License-Identifier: Apache-2.0
#include "coordinator/place/rebalance.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/place/moves.h"
#include "coordinator/place/wishes.h"
#include "coordinator/session/move_queue.h"
#include "coordinator/session/table.h"
#include "coordinator/sync/moving.h"
#include "proto/rpc/rpc.h"

enum { WISHES_MAX = 4096, TOLD_MAX = 1024, SLOW_PAUSES = 30, SLOW_LOOKS = 3 };

struct share { // of a worker
    struct coordinator_worker *w;
    double target; // bytes
    uint64_t load, free_bytes;
};

struct balance {
    struct share shares[COORDINATOR_WORKERS_MAX];
    uint32_t n;
    struct coordinator_wish *wishes; // [n_wishes]
    uint64_t *bytes;                 // likewise
    uint32_t n_wishes;
    uint64_t total;
    double speed; // of all
};

static void take_shares(struct balance *b, const struct coordinator_cluster *cluster)
{
    double load = 0, speed = 0;
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        struct coordinator_worker *w = cluster->workers[i];
        if (!w || !coordinator_worker_takes(w))
            continue;
        b->shares[b->n++] =
            (struct share){.w = w, .load = w->load_bytes, .free_bytes = coordinator_worker_free_bytes(w)};
        load += (double)w->load_bytes;
        speed += (double)coordinator_worker_speed(w);
    }
    b->speed = speed;
    for (uint32_t i = 0; i < b->n; i++)
        b->shares[i].target = load * (double)coordinator_worker_speed(b->shares[i].w) / speed;
}

static struct share *share_of(struct balance *b, const struct coordinator_worker *w)
{
    for (uint32_t i = 0; i < b->n; i++)
        if (b->shares[i].w == w)
            return &b->shares[i];
    return NULL;
}

// Another copy is there. Where it is on the host of this one, too, that is no worse.
static bool host_is_taken(const struct coordinator_chunk *chunk, const struct coordinator_worker *from,
                          const struct coordinator_worker *to)
{
    if (!strcmp(from->host, to->host))
        return false;
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++) {
        const struct coordinator_worker *w = coordinator_chunk_holder(chunk, i);
        if (w != from && !strcmp(w->host, to->host))
            return true;
    }
    return false;
}

// Who is the furthest below its part, by more than half of the chunk: else it would be as far above. NULL: nobody.
static struct share *find_taker(struct balance *b, const struct coordinator_session *s,
                                const struct coordinator_chunk *chunk, const struct coordinator_worker *from,
                                uint64_t bytes)
{
    struct share *best = NULL;
    double most = (double)bytes / 2;
    for (uint32_t i = 0; i < b->n; i++) {
        struct share *to = &b->shares[i];
        double below = to->target - (double)to->load;
        if (to->free_bytes < coordinator_session_chunk_room(s) || below <= most ||
            host_is_taken(chunk, from, to->w) || !coordinator_chunk_may_move(s, chunk, to->w, from))
            continue;
        best = to;
        most = below;
    }
    return best;
}

static void wish(struct balance *b, const struct coordinator_session *s,
                 const struct coordinator_chunk *chunk, struct share *from, struct share *to)
{
    uint64_t bytes = coordinator_session_chunk_bytes(s), room = coordinator_session_chunk_room(s);
    b->bytes[b->n_wishes] = bytes;
    b->wishes[b->n_wishes++] = (struct coordinator_wish){
        .session = s->id, .id = chunk->id, .index = chunk->index, .from = from->w, .to = to->w};
    from->load -= bytes < from->load ? bytes : from->load;
    to->load += bytes;
    to->free_bytes -= room < to->free_bytes ? room : to->free_bytes;
    b->total += bytes;
}

static void balance_session(struct balance *b, struct coordinator_session *s)
{
    uint64_t bytes = coordinator_session_chunk_bytes(s);
    for (uint32_t i = 0; i < s->layout.n && b->n_wishes < WISHES_MAX; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        for (uint32_t copy = 0; copy < coordinator_chunk_copies(chunk) && !chunk->moving; copy++) {
            struct share *from = share_of(b, coordinator_chunk_holder(chunk, copy));
            if (!from || (double)from->load - from->target < (double)bytes / 2)
                continue;
            struct share *to = find_taker(b, s, chunk, from->w, bytes);
            if (!to)
                continue;
            wish(b, s, chunk, from, to);
            break; // one copy of a chunk at a time
        }
    }
}

// ---- slow workers -------------------------------------------------------------------------------

// A member of the session before others, then who is the furthest below its part. NULL: nobody.
static struct share *find_relief(struct balance *b, const struct coordinator_session *s,
                                 const struct coordinator_chunk *chunk, const struct coordinator_worker *from,
                                 const struct coordinator_worker *before)
{
    struct share *best = NULL;
    bool best_in = false;
    for (uint32_t i = 0; i < b->n; i++) {
        struct share *to = &b->shares[i];
        bool in = to->w == before || coordinator_session_has_member(s, to->w);
        if (coordinator_worker_slow(to->w) || to->free_bytes < coordinator_session_chunk_room(s) ||
            host_is_taken(chunk, from, to->w) || !coordinator_chunk_may_move(s, chunk, to->w, from))
            continue;
        if (best && (best_in > in ||
                     (best_in == in && best->target - (double)best->load >= to->target - (double)to->load)))
            continue;
        best = to;
        best_in = in;
    }
    return best;
}

// Whether somebody else who has it could serve it.
static bool is_elsewhere(const struct coordinator_chunk *chunk)
{
    for (uint32_t i = 1; i < coordinator_chunk_copies(chunk); i++)
        if (!coordinator_worker_slow(coordinator_chunk_holder(chunk, i)))
            return true;
    return false;
}

// What one slow worker serves of a session beyond its part.
static void relieve(struct balance *b, struct coordinator_session *s, struct share *from)
{
    const struct coordinator_worker *before = NULL;
    uint32_t served = 0,
             part = (uint32_t)((double)s->layout.n * (double)coordinator_worker_speed(from->w) / b->speed);
    for (uint32_t i = 0; i < s->layout.n; i++)
        served += coordinator_chunk_serves(&s->layout.chunks[i]) == from->w;
    for (uint32_t i = 0; i < s->layout.n && served > part && b->n_wishes < WISHES_MAX; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        if (coordinator_chunk_serves(chunk) != from->w || chunk->moving || is_elsewhere(chunk))
            continue;
        struct share *to = find_relief(b, s, chunk, from->w, before);
        if (!to)
            continue;
        wish(b, s, chunk, from, to);
        b->wishes[b->n_wishes - 1].slow = true;
        before = to->w;
        served--;
    }
}

static void balance_begin(struct balance *b, const struct coordinator_cluster *cluster)
{
    take_shares(b, cluster);
    b->wishes = coordinator_alloc(WISHES_MAX * sizeof(*b->wishes));
    b->bytes = coordinator_alloc(WISHES_MAX * sizeof(*b->bytes));
}

static void balance_free(struct balance *b)
{
    free(b->wishes);
    free(b->bytes);
    free(b);
}

static void balance_all(struct balance *b, struct coordinator_sessions *sessions)
{
    balance_begin(b, sessions->cluster);
    for (uint32_t i = 0; i < sessions->n_slots && b->n > 1; i++)
        if (sessions->slots[i] && coordinator_session_may_move(sessions->slots[i]))
            balance_session(b, sessions->slots[i]);
}

// They take the place of an earlier balance's.
static void carry_out(struct balance *b, struct coordinator_sessions *sessions, const char *why)
{
    for (uint32_t i = 0; i < sessions->n_slots; i++)
        if (sessions->slots[i])
            sessions->slots[i]->move_tries.wished = false;
    for (uint32_t i = 0; i < b->n_wishes; i++)
        coordinator_session_any(sessions, b->wishes[i].session)->move_tries.wished = true;
    for (uint32_t i = 0; i < b->n_wishes; i++)
        coordinator_move_queue_wake(coordinator_session_any(sessions, b->wishes[i].session));
    free(sessions->wishes->list);
    sessions->wishes->list = b->wishes;
    sessions->wishes->n = b->n_wishes;
    b->wishes = NULL;
    struct coordinator_events *events = b->n_wishes ? sessions->core->events : NULL; // else nothing begins
    coordinator_events_tell(events, &(struct coordinator_event){.kind = PROTO_EVENT_REBALANCE_BEGUN},
                            "moving chunks %s chunks=%u bytes=%" PRIu64, why, b->n_wishes, b->total);
    sessions->wishes->balancing = sessions->wishes->balancing || b->n_wishes > 0;
}

static void answer(const struct balance *b, const struct coordinator_sessions *sessions,
                   struct proto_request *request)
{
    Banyan__Pb__RebalanceReply m = BANYAN__PB__REBALANCE_REPLY__INIT;
    uint32_t n = b->n_wishes < TOLD_MAX ? b->n_wishes : TOLD_MAX;
    Banyan__Pb__RebalanceMove *moves = coordinator_alloc((n + 1) * sizeof(*moves)),
                              **pointers = coordinator_alloc((n + 1) * sizeof(*pointers));
    for (uint32_t i = 0; i < n; i++) {
        const struct coordinator_wish *wish = &b->wishes[i];
        const struct coordinator_session *s = coordinator_session_any(sessions, wish->session);
        moves[i] = (Banyan__Pb__RebalanceMove)BANYAN__PB__REBALANCE_MOVE__INIT;
        moves[i].session = wish->session;
        moves[i].first = (uint64_t)wish->index * s->layout.chunk_tokens;
        moves[i].from = wish->from->name;
        moves[i].to = wish->to->name;
        moves[i].bytes = b->bytes[i];
        pointers[i] = &moves[i];
    }
    m.moves = pointers;
    m.n_moves = n;
    m.chunks = b->n_wishes;
    m.bytes = b->total;
    proto_request_reply(request, &m.base, NULL, 0, NULL, NULL);
    free(moves);
    free(pointers);
}

void coordinator_handle_rebalance(void *arg, struct proto_request *request)
{
    struct coordinator_sessions *sessions = arg;
    const Banyan__Pb__RebalanceRequest *m = (const void *)proto_request_message(request)->body;
    bool dry_run = m->dry_run;
    struct balance *b = coordinator_alloc(sizeof(*b));
    balance_all(b, sessions);
    answer(b, sessions, request);
    if (!dry_run)
        carry_out(b, sessions, "to balance load");
    balance_free(b);
}

void coordinator_rebalance_ended(struct coordinator_sessions *sessions)
{
    struct coordinator_wishes *wishes = sessions->wishes;
    if (!wishes->balancing || wishes->n || sessions->moves->n)
        return;
    wishes->balancing = false;
    coordinator_tell(sessions->core, REBALANCE_ENDED, INFO, "rebalance finished");
}

// Whether one of them is to be relieved, and long enough slow: other holders serve by now what they can.
static bool any_to_relieve(const struct coordinator_sessions *sessions, uint64_t now_ns)
{
    const struct coordinator_cluster *cluster = sessions->cluster;
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        const struct coordinator_worker *w = cluster->workers[i];
        if (w && coordinator_worker_takes(w) && coordinator_worker_slow(w) &&
            now_ns - w->slow_since_ns >= sessions->core->options.slow_after_ns)
            return true;
    }
    return false;
}

void coordinator_rebalance_slow(struct coordinator_sessions *sessions)
{
    struct coordinator_wishes *wishes = sessions->wishes;
    uint64_t now = common_clock_ns(), after = sessions->core->options.slow_after_ns;
    if (wishes->n || now < wishes->relieve_ns || !any_to_relieve(sessions, now))
        return;
    struct balance *b = coordinator_alloc(sizeof(*b));
    balance_begin(b, sessions->cluster);
    for (uint32_t i = 0; i < b->n; i++) {
        if (!coordinator_worker_slow(b->shares[i].w))
            continue;
        for (uint32_t k = 0; k < sessions->n_slots; k++)
            if (sessions->slots[k] && coordinator_session_may_move(sessions->slots[k]))
                relieve(b, sessions->slots[k], &b->shares[i]);
    }
    wishes->relieve_ns =
        now + (b->n_wishes ? SLOW_PAUSES : SLOW_LOOKS) * after; // what cannot move now may then
    if (b->n_wishes) {
        wishes->relieved++;
        carry_out(b, sessions, "off slow workers");
    }
    balance_free(b);
}
