// SPDX-License-Identifier: Apache-2.0
#include "coordinator/check/scrub.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "common/loop/loop.h"
#include "coordinator/check/seals.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "proto/rpc/rpc.h"

#define CHECKS_MAX     32    // under way
#define WORKER_SUMS    2     // asked of one worker: the next is there when one is done
#define TICK_MAX       65536 // chunks and sessions that one look passes: about 1 ms
#define DRAIN_MAX      1024
#define JUDGED_COST    64    // of these, for a chunk all of whose layers are looked at
#define SLICE          65536 // of these in one turn, for all who ask: about 1 ms
#define SLICE_PAUSE_NS COMMON_NS_PER_MS

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
    struct coordinator_seals *seals = sessions->seals;
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
    if (!sessions->seals->due || sessions->core->stopping)
        return;
    sessions->seals->due = false;
    look(sessions, DRAIN_MAX);
}

// ---- asked for ----------------------------------------------------------------------------------

struct coordinator_scrub_ask { // at most as many as the server serves requests
    struct coordinator_scrub_ask *next;
    struct proto_request *request;
    uint64_t session; // 0: all
    bool ask;         // how far it is; else all are to be compared
    uint32_t slot;    // where it goes on: session,
    uint64_t seen;    // its id when it was looked at last,
    uint64_t index;   // chunk of it
    Banyan__Pb__ScrubReply reply;
};

// Returns what it has cost, in chunks that are passed.
static uint32_t count(struct coordinator_scrub_ask *a, struct coordinator_session *s,
                      struct coordinator_chunk *chunk)
{
    bool sealed = chunk->seal && !chunk->lost, differ = chunk->differ && !chunk->lost;
    if (!a->ask && (sealed || differ))
        coordinator_chunk_ask(s, chunk);
    a->reply.lost += chunk->lost;
    a->reply.chunks += sealed;
    a->reply.differ += differ;
    a->reply.left += (sealed || differ) && chunk->asked;
    if (chunk->seal || chunk->lost)
        return 1;
    a->reply.unsealed += coordinator_chunk_full(s, chunk);
    return JUDGED_COST;
}

// Chunks may come and go in between: those that are there all the time are counted once.
static bool count_some(struct coordinator_sessions *sessions, struct coordinator_scrub_ask *a)
{
    struct coordinator_seals *seals = sessions->seals;
    while (seals->passed < seals->slice) {
        if (a->session ? a->slot > 0 : a->slot >= sessions->n_slots)
            return true;
        struct coordinator_session *s =
            a->session ? coordinator_session_any(sessions, a->session) : sessions->slots[a->slot];
        if (s && s->id != a->seen) {
            a->seen = s->id;
            a->index = 0;
        }
        uint32_t at = s ? coordinator_layout_lower(&s->layout, a->index) : 0;
        if (!s || s->state == COORDINATOR_SESSION_CREATING || at == s->layout.n) {
            seals->passed++;
            a->slot++;
            continue;
        }
        a->index = s->layout.chunks[at].index + 1;
        seals->passed += count(a, s, &s->layout.chunks[at]);
    }
    return false;
}

static void answer(struct coordinator_sessions *sessions, struct coordinator_scrub_ask *a)
{
    a->reply.compared = sessions->seals->compared;
    a->reply.corrupt = sessions->seals->corrupt;
    a->reply.healed = sessions->seals->healed;
    a->reply.disputed = sessions->seals->disputed;
    if (!a->ask) {
        COMMON_FAILPOINT("scrub_asked");
        coordinator_tell(sessions->core, SCRUB_ASKED, INFO,
                         "scrub started on an operator's request chunks=%" PRIu64, a->reply.chunks);
    }
    proto_request_reply(a->request, &a->reply.base, NULL, 0, NULL, NULL);
}

static void leave(struct coordinator_seals *seals)
{
    struct coordinator_scrub_ask *a = seals->asked;
    seals->asked = a->next;
    free(a);
}

static void end_all(struct coordinator_seals *seals)
{
    for (; seals->asked; leave(seals))
        proto_request_fail(seals->asked->request, COMMON_UNAVAILABLE, "the coordinator is stopping", NULL, 0);
}

// One slice for all who ask; the timer gives the next one.
static void go_on(struct coordinator_sessions *sessions)
{
    struct coordinator_seals *seals = sessions->seals;
    if (sessions->core->stopping)
        end_all(seals);
    for (; seals->asked; leave(seals)) {
        if (proto_request_over(seals->asked->request))
            proto_request_fail(seals->asked->request, COMMON_DEADLINE_EXCEEDED, "its deadline has passed",
                               NULL, 0);
        else if (count_some(sessions, seals->asked))
            answer(sessions, seals->asked);
        else
            break;
    }
    seals->passed_most = seals->passed > seals->passed_most ? seals->passed : seals->passed_most;
    if (seals->passed)
        common_timer_start(seals->next_slice, SLICE_PAUSE_NS, false);
}

static void next_slice(void *arg)
{
    struct coordinator_sessions *sessions = arg;
    sessions->seals->passed = 0;
    go_on(sessions);
}

void coordinator_scrub_init(struct coordinator_sessions *sessions)
{
    sessions->seals = coordinator_alloc(sizeof(*sessions->seals));
    sessions->seals->slice = SLICE;
}

void coordinator_scrub_fini(struct coordinator_sessions *sessions)
{
    end_all(sessions->seals);
    common_timer_free(sessions->seals->next_slice);
}

void coordinator_handle_scrub(void *arg, struct proto_request *request)
{
    struct coordinator_sessions *sessions = arg;
    struct coordinator_seals *seals = sessions->seals;
    const Banyan__Pb__ScrubRequest *m = (const void *)proto_request_message(request)->body;
    if (m->session && !coordinator_session_asked(sessions, request, m->session)) {
        struct proto_status status;
        coordinator_session_unknown(m->session, &status);
        proto_request_fail_status(request, &status);
        return;
    }
    if (!seals->next_slice &&
        common_timer_new(sessions->core->loop, next_slice, sessions, &seals->next_slice) != COMMON_OK) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "out of memory", NULL, 0);
        return;
    }
    struct coordinator_scrub_ask *a = coordinator_alloc(sizeof *a), **tail = &seals->asked;
    *a = (struct coordinator_scrub_ask){.request = request, .session = m->session, .ask = m->ask};
    a->reply = (Banyan__Pb__ScrubReply)BANYAN__PB__SCRUB_REPLY__INIT;
    while (*tail)
        tail = &(*tail)->next;
    *tail = a;
    if (seals->asked == a)
        go_on(sessions);
}
