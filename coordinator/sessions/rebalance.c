// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sessions/rebalance.h"

#include <inttypes.h>
#include <string.h>

#include "common/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/sessions/move.h"
#include "coordinator/sessions/table.h"
#include "proto/rpc.h"

enum { WISHES_MAX = 4096, TOLD_MAX = 1024 };

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
};

static void take_shares(struct balance *b, const struct coordinator_cluster *cluster)
{
    double load = 0, speed = 0;
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        struct coordinator_worker *w = cluster->workers[i];
        if (!w || !coordinator_worker_active(w) || w->draining)
            continue;
        uint64_t taken = w->used_bytes + w->promised_bytes;
        b->shares[b->n++] =
            (struct share){.w = w,
                           .load = w->load_bytes,
                           .free_bytes = taken < w->capacity_bytes ? w->capacity_bytes - taken : 0};
        load += (double)w->load_bytes;
        speed += (double)w->speed;
    }
    for (uint32_t i = 0; i < b->n; i++)
        b->shares[i].target = load * (double)b->shares[i].w->speed / speed;
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
        if (to->free_bytes < bytes || below <= most || host_is_taken(chunk, from, to->w) ||
            !coordinator_chunk_may_move(s, chunk, to->w, from))
            continue;
        best = to;
        most = below;
    }
    return best;
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
            b->bytes[b->n_wishes] = bytes;
            b->wishes[b->n_wishes++] = (struct coordinator_wish){
                .session = s->id, .id = chunk->id, .index = chunk->index, .from = from->w, .to = to->w};
            from->load -= bytes;
            to->load += bytes;
            to->free_bytes -= bytes;
            b->total += bytes;
            break; // one copy of a chunk at a time
        }
    }
}

static void balance_all(struct balance *b, struct coordinator_sessions *sessions)
{
    take_shares(b, sessions->cluster);
    b->wishes = coordinator_alloc(WISHES_MAX * sizeof(*b->wishes));
    b->bytes = coordinator_alloc(WISHES_MAX * sizeof(*b->bytes));
    for (uint32_t i = 0; i < sessions->n_slots && b->n > 1; i++)
        if (sessions->slots[i] && coordinator_session_may_move(sessions->slots[i]))
            balance_session(b, sessions->slots[i]);
}

// They take the place of an earlier balance's.
static void carry_out(struct balance *b, struct coordinator_sessions *sessions)
{
    for (uint32_t i = 0; i < sessions->n_slots; i++)
        if (sessions->slots[i])
            sessions->slots[i]->wished = false;
    for (uint32_t i = 0; i < b->n_wishes; i++)
        coordinator_session_any(sessions, b->wishes[i].session)->wished = true;
    free(sessions->moves.wishes);
    sessions->moves.wishes = b->wishes;
    sessions->moves.n_wishes = b->n_wishes;
    b->wishes = NULL;
    sessions->moves.due = true;
    coordinator_turn_mark(&sessions->core->turn, COORDINATOR_PHASE_SESSIONS);
    common_log_info("chunks are moved for balance chunks=%u bytes=%" PRIu64, b->n_wishes, b->total);
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
        carry_out(b, sessions);
    free(b->wishes);
    free(b->bytes);
    free(b);
}
