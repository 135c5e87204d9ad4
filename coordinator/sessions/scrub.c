// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sessions/scrub.h"

#include <inttypes.h>

#include "common/clock.h"
#include "common/failpoint.h"
#include "common/log.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/sessions/seals.h"
#include "coordinator/sessions/session.h"
#include "coordinator/sessions/table.h"
#include "proto/rpc.h"

#define CHECKS_MAX  32    // under way
#define WORKER_SUMS 2     // asked of one worker: the next is there when one is done
#define TICK_MAX    65536 // chunks and sessions that one look passes: about 1 ms
#define DRAIN_MAX   1024
#define JUDGED_COST 64 // of these, for a chunk all of whose layers are looked at

// ---- looking ------------------------------------------------------------------------------------

static bool has_room(const struct coordinator_chunk *chunk)
{
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        if (coordinator_chunk_holder(chunk, i)->sums >= WORKER_SUMS)
            return false;
    return true;
}

static bool is_due(const struct coordinator_chunk *chunk, uint64_t now)
{
    return chunk->check_ns <= now;
}

// Returns what it has cost, in chunks that are passed.
static uint32_t look_at(struct coordinator_session *s, struct coordinator_chunk *chunk, uint64_t now)
{
    if (coordinator_chunk_all_unfit(chunk) && !chunk->lost && !chunk->losing) { // the store has refused it
        coordinator_chunk_lose(s, chunk);
        return JUDGED_COST;
    }
    if (!is_due(chunk, now) || !has_room(chunk))
        return 1;
    if (coordinator_chunk_may_check(s, chunk) && !coordinator_seal_inherit(s, chunk))
        coordinator_check_begin(s, chunk, false, NULL, NULL);
    return JUDGED_COST;
}

// Goes on where the last look has ended; round all of them once, or `most` of them.
static void look(struct coordinator_sessions *sessions, uint32_t most)
{
    struct coordinator_seals *seals = &sessions->seals;
    uint64_t now = common_clock_ns();
    uint32_t passed = 0;
    for (uint32_t n = 0; n < most && passed <= sessions->n_slots && seals->n < CHECKS_MAX;) {
        struct coordinator_session *s = seals->slot < sessions->n_slots ? sessions->slots[seals->slot] : NULL;
        if (s && seals->at < s->layout.n) {
            n += look_at(s, &s->layout.chunks[seals->at++], now);
            continue;
        }
        n++;
        seals->at = 0;
        seals->slot = seals->slot + 1 < sessions->n_slots ? seals->slot + 1 : 0;
        passed++;
    }
}

void coordinator_scrub_tick(struct coordinator_sessions *sessions)
{
    if (!sessions->core->stopping)
        look(sessions, TICK_MAX);
}

void coordinator_scrub_drain(struct coordinator_sessions *sessions)
{
    if (!sessions->seals.due || sessions->core->stopping)
        return;
    sessions->seals.due = false;
    look(sessions, DRAIN_MAX);
}

// ---- asked for ----------------------------------------------------------------------------------

static void count(struct coordinator_session *s, bool ask, Banyan__Pb__ScrubReply *out)
{
    for (uint32_t i = 0; i < s->layout.n; i++) {
        struct coordinator_chunk *chunk = &s->layout.chunks[i];
        bool sealed = chunk->seal && !chunk->lost, differ = chunk->differ && !chunk->lost;
        if (ask && (sealed || differ))
            coordinator_chunk_ask(s, chunk);
        out->lost += chunk->lost;
        out->chunks += sealed;
        out->differ += differ;
        out->left += (sealed || differ) && chunk->asked;
        out->unsealed += !chunk->seal && !chunk->lost && coordinator_chunk_full(s, chunk);
    }
}

void coordinator_handle_scrub(void *arg, struct proto_request *request)
{
    struct coordinator_sessions *sessions = arg;
    const Banyan__Pb__ScrubRequest *m = (const void *)proto_request_message(request)->body;
    Banyan__Pb__ScrubReply reply = BANYAN__PB__SCRUB_REPLY__INIT;
    struct coordinator_session *one =
        m->session ? coordinator_session_asked(sessions, request, m->session) : NULL;
    if (m->session && !one) {
        struct proto_status status;
        coordinator_session_unknown(m->session, &status);
        proto_request_fail_status(request, &status);
        return;
    }
    for (uint32_t i = 0; i < sessions->n_slots; i++)
        if (sessions->slots[i] && sessions->slots[i]->state != COORDINATOR_SESSION_CREATING &&
            (!one || one == sessions->slots[i]))
            count(sessions->slots[i], !m->ask, &reply);
    reply.compared = sessions->seals.compared;
    reply.corrupt = sessions->seals.corrupt;
    reply.healed = sessions->seals.healed;
    reply.disputed = sessions->seals.disputed;
    if (!m->ask) {
        COMMON_FAILPOINT("scrub_asked");
        coordinator_tell(sessions->core, SCRUB_ASKED, INFO,
                         "sealed chunks are compared now, as an operator has asked chunks=%" PRIu64,
                         reply.chunks);
    }
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}
