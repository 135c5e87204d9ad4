// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rows/reading.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "coordinator/cluster/hide.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/rows/attach.h"
#include "coordinator/session/table.h"
#include "coordinator/sync/recovery.h"
#include "coordinator/sync/unavailable.h"
#include "proto/rights/pass.h"
#include "proto/rights/ticket.h"

struct listing { // an answer and what it points to
    Banyan__Pb__AttachOpenReply reply;
    Banyan__Pb__AttachChunk chunks[COORDINATOR_ATTACH_CHUNKS], *chunk_pointers[COORDINATOR_ATTACH_CHUNKS];
    Banyan__Pb__AttachWorker workers[COORDINATOR_ATTACH_CHUNKS], *worker_pointers[COORDINATOR_ATTACH_CHUNKS];
    struct coordinator_worker *named[COORDINATOR_ATTACH_CHUNKS];
    uint32_t holders[COORDINATOR_ATTACH_CHUNKS][COORDINATOR_COPIES_MAX];
    uint8_t ticket[PROTO_TICKET_MAX];
    const struct proto_identity *who; // asks
    char pass[PROTO_PASS_CHARS + 1];
};

static bool is_past(const struct coordinator_session *s, const Banyan__Pb__ReadOpenRequest *m)
{
    uint64_t length = coordinator_session_length(s);
    return m->first >= length || m->count > length - m->first;
}

static enum common_code check_range(struct coordinator_session *s, const Banyan__Pb__ReadOpenRequest *m,
                                    struct proto_status *status)
{
    uint64_t ct = s->layout.chunk_tokens, length = coordinator_session_length(s);
    if (!m->count)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, "", "the range is empty");
    bool past = is_past(s, m);
    if (past && s->sessions->core->stopping) // nobody says any more which rows he has
        return proto_status_set(status, COMMON_UNAVAILABLE, "", "the coordinator is stopping");
    uint64_t end = m->count < UINT64_MAX - m->first ? m->first + m->count : UINT64_MAX;
    if (past && coordinator_session_unsettled_any(s, end, status) != COMMON_OK)
        return status->code; // rows may yet turn up there
    if (past)
        return proto_status_set(status, COMMON_OUT_OF_RANGE, "",
                                "rows from position %" PRIu64
                                " on were requested, but the shortest layer has %" PRIu64 " tokens",
                                m->first, length);
    if ((m->first + m->count - 1) / ct - m->first / ct + 1 > COORDINATOR_ATTACH_CHUNKS)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, "LIMIT",
                                "the range spans more than %d chunks of %" PRIu64 " tokens: split it",
                                COORDINATOR_ATTACH_CHUNKS, ct);
    return coordinator_session_missing(s, m->first, m->count, 0, status);
}

// The worker's index in the answer; COORDINATOR_ATTACH_CHUNKS: there is no room for another.
static uint32_t index_of(struct listing *l, struct coordinator_worker *w)
{
    uint32_t i = 0;
    while (i < l->reply.n_workers && l->named[i] != w)
        i++;
    if (i < l->reply.n_workers || i == COORDINATOR_ATTACH_CHUNKS)
        return i;
    l->named[i] = w;
    l->workers[i] = (Banyan__Pb__AttachWorker)BANYAN__PB__ATTACH_WORKER__INIT;
    if (coordinator_shows_workers(l->who))
        l->workers[i].name = w->name;
    l->workers[i].endpoint = w->endpoint;
    l->worker_pointers[i] = &l->workers[i];
    l->reply.n_workers++;
    return i;
}

// False: more workers than an answer names.
static bool list_chunk(struct listing *l, const struct coordinator_chunk *chunk, uint64_t ct)
{
    size_t nth = l->reply.n_chunks++;
    Banyan__Pb__AttachChunk *to = &l->chunks[nth];
    *to = (Banyan__Pb__AttachChunk)BANYAN__PB__ATTACH_CHUNK__INIT;
    to->chunk = chunk->id;
    to->first = chunk->index * ct;
    to->holders = l->holders[nth];
    to->seal = chunk->seal;
    l->chunk_pointers[nth] = to;
    for (uint32_t copy = 0; copy < coordinator_chunk_copies(chunk); copy++) {
        if (!coordinator_session_copy_usable(chunk, copy))
            continue;
        uint32_t w = index_of(l, coordinator_chunk_holder(chunk, copy));
        if (w == COORDINATOR_ATTACH_CHUNKS)
            return false;
        to->holders[to->n_holders++] = w;
    }
    return true;
}

// COMMON_OK: the listing is an answer.
static enum common_code list_all(struct listing *l, struct coordinator_session *s,
                                 const Banyan__Pb__ReadOpenRequest *m, struct proto_status *status)
{
    const struct coordinator_core *core = s->sessions->core;
    uint64_t ct = s->layout.chunk_tokens, now = common_clock_ns();
    const struct proto_ticket ticket = {.session = s->id,
                                        .incarnation = s->incarnation,
                                        .term = core->term,
                                        .first = m->first,
                                        .count = m->count,
                                        .expires_wall_ns =
                                            coordinator_clock_ns(core) + core->options.ticket_ns,
                                        .permit = PROTO_TICKET_READ};
    l->reply = (Banyan__Pb__AttachOpenReply)BANYAN__PB__ATTACH_OPEN_REPLY__INIT;
    for (uint64_t i = m->first / ct; i <= (m->first + m->count - 1) / ct; i++) {
        const struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, i);
        if (!chunk) // of a session that was born with a floor, and has nothing there yet
            return proto_status_set(status, COMMON_FAILED_PRECONDITION, "HOLE",
                                    "no worker has tokens [%" PRIu64 ", %" PRIu64
                                    "): they are below the floor that the session began with",
                                    i * ct, (i + 1) * ct);
        if (!list_chunk(l, chunk, ct))
            return proto_status_set(status, COMMON_RESOURCE_EXHAUSTED, "",
                                    "the range lies on more workers than one answer can name: split it");
    }
    l->reply.ticket.data = l->ticket;
    l->reply.ticket.len = proto_ticket_make(&core->secret, &ticket, l->ticket);
    if (!l->reply.ticket.len)
        return proto_status_set(status, COMMON_RESOURCE_EXHAUSTED, "", "out of memory for a ticket");
    l->reply.expires_wall_ns = ticket.expires_wall_ns;
    l->reply.life_ns = core->options.ticket_ns;
    if (proto_pass_make(&core->secret, l->who, ticket.expires_wall_ns / COMMON_NS_PER_S + PROTO_PASS_LIFE_S,
                        l->pass))
        l->reply.pass = l->pass;
    l->reply.chunks = l->chunk_pointers;
    l->reply.workers = l->worker_pointers;
    l->reply.incarnation = s->incarnation;
    // Whoever reads does not come here for each row: the session is in use as long as the ticket is good.
    s->last_used_ns = now;
    s->read_until_ns = now + core->options.ticket_ns;
    return COMMON_OK;
}

static void answer(struct proto_request *request, struct coordinator_session *s)
{
    const Banyan__Pb__ReadOpenRequest *m = (const void *)proto_request_message(request)->body;
    struct proto_status status;
    if (s->sessions->core->stopping) { // it was parked: what its workers have nobody knows yet
        proto_request_fail(request, COMMON_UNAVAILABLE, "the coordinator is stopping", NULL, 0);
        return;
    }
    if (check_range(s, m, &status) != COMMON_OK) {
        proto_request_fail_status(request, &status);
        return;
    }
    struct listing *l = coordinator_alloc(sizeof *l);
    l->who = proto_request_identity(request);
    if (list_all(l, s, m, &status) == COMMON_OK)
        proto_request_reply(request, &l->reply.base, NULL, 0, NULL, NULL);
    else
        proto_request_fail_status(request, &status);
    free(l);
}

static void refuse_unknown(struct proto_request *request)
{
    const Banyan__Pb__ReadOpenRequest *m = (const void *)proto_request_message(request)->body;
    struct proto_status status;
    coordinator_session_unknown(m->session, &status);
    proto_request_fail_status(request, &status);
}

struct reading { // waits at its session's door
    const struct coordinator_core *core;
    struct proto_request *request;
};

static void settled(void *arg, struct coordinator_session *s)
{
    struct reading *r = arg;
    const char *text;
    if (s) {
        answer(r->request, s);
    } else {
        enum common_code code = coordinator_gone(r->core, &text);
        proto_request_fail(r->request, code, text, NULL, 0);
    }
    free(r);
}

static void wait_at_door(struct coordinator_session *s, struct proto_request *request)
{
    struct reading *r = coordinator_alloc(sizeof *r);
    *r = (struct reading){.core = s->sessions->core, .request = request};
    if (coordinator_session_when_open(s, settled, r) == COMMON_OK)
        return;
    free(r);
    proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "too many calls are waiting for this session",
                       NULL, 0);
}

void coordinator_handle_read_open(void *arg, struct proto_request *request)
{
    const Banyan__Pb__ReadOpenRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *s = coordinator_session_asked(arg, request, m->session);
    if (!s) {
        refuse_unknown(request);
    } else if (coordinator_park(s, request, coordinator_handle_read_open, arg)) {
        return;
    } else if ((!is_past(s, m) && s->state != COORDINATOR_SESSION_DELETING) || coordinator_session_open(s)) {
        answer(request, s); // what is committed needs no more than a holder
    } else {
        wait_at_door(s, request); // else rows may be about to count
    }
}
