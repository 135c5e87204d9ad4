// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sessions/reconcile.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/sessions/layout_send.h"
#include "coordinator/sessions/quarantine_service.h"
#include "coordinator/sessions/table.h"
#include "coordinator/store/store.h"

#define WINDOW 64 // sessions told at a time

enum visit_state { VISIT_ASKING, VISIT_STORING, VISIT_TELLING, VISIT_SETTLING, VISIT_OVER, VISIT_STATES };

struct visit {
    struct coordinator_sessions *sessions;
    struct coordinator_worker *w; // its record stays while there are visitors
    uint32_t number; // w->visit when it began: another one means that this one has come to nothing
    enum visit_state state;
    uint32_t slot; // next session to be told
    uint32_t in_flight;
    enum common_code code;
    uint64_t *unknown; // sessions that it holds and we have deleted
    uint32_t n_unknown, unknown_cap;
    uint64_t listed_bytes; // of the session that came last, what of it has come
    struct loss {
        uint64_t session, chunk;
        uint32_t index;
    } * lost; // [n_lost] being written to the store
    uint32_t n_lost;
};

#define TO(state) (1u << VISIT_##state)
const struct coordinator_machine coordinator_visit_machine = {
    .name = "visit",
    .n = VISIT_STATES,
    .states = {"asking", "storing", "telling", "settling", "over"},
    .next =
        {
            [VISIT_ASKING] = TO(STORING) | TO(TELLING) | TO(OVER),
            [VISIT_STORING] = TO(TELLING) | TO(OVER),
            [VISIT_TELLING] = TO(SETTLING) | TO(OVER),
            [VISIT_SETTLING] = TO(TELLING) | TO(OVER),
            [VISIT_OVER] = 0,
        },
};

static void visit_set_state(struct visit *v, enum visit_state state)
{
    coordinator_machine_move(&coordinator_visit_machine, v->state, state);
    v->state = state;
}

// Whether the worker waits for this visit; if not, it ends with its last answer.
static bool visit_counts(const struct visit *v)
{
    return v->w->visit == v->number;
}

static void visit_free(struct visit *v)
{
    visit_set_state(v, VISIT_OVER);
    v->w->visitors--;
    free(v->unknown);
    free(v->lost);
    free(v);
}

// It has come to nothing: when the link broke, its return starts anew; else the worker is lost, and registers
// again.
static void visit_fail(struct visit *v, const char *what, enum common_code code, const char *text)
{
    struct coordinator_worker *w = v->w;
    bool counts = visit_counts(v);
    visit_free(v);
    if (!counts || w->cluster->core->stopping || !w->channel || !proto_channel_connected(w->channel))
        return;
    common_log_error("%s: %s code=%s worker=%s", what, text, common_code_name(code), w->name);
    coordinator_worker_lose(w, what);
}

// ---- telling ------------------------------------------------------------------------------------

static void tell_more(struct visit *v);

static void visit_told(void *arg, enum common_code code, const char *text)
{
    struct visit *v = arg;
    v->in_flight--;
    if (code != COMMON_OK && v->code == COMMON_OK) {
        v->code = code;
        if (visit_counts(v) && !v->sessions->core->stopping)
            common_log_warn("a worker was not told a layout: %s worker=%s", text, v->w->name);
    }
    tell_more(v);
}

static void commit_told(void *arg, const struct proto_reply *reply)
{
    if (reply->code == COMMON_FAILED_PRECONDITION)
        common_log_error("a worker lacks rows whose commit is durable: %s",
                         reply->text); // steps over them will say DATA_LOSS
    coordinator_gather_finish(arg, reply->code == COMMON_FAILED_PRECONDITION ? COMMON_OK : reply->code,
                              reply->text);
}

// Rows whose commit is durable and that the worker may not have heard of.
static void tell_commits(struct coordinator_session *s, struct coordinator_worker *w,
                         struct coordinator_gather *gather)
{
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        for (uint32_t i = 0; i < s->layers[l].n; i++) {
            Banyan__Pb__RowsCommitRequest m = BANYAN__PB__ROWS_COMMIT_REQUEST__INIT;
            m.term = w->cluster->core->term;
            m.session = s->id;
            m.incarnation = s->incarnation;
            m.layer = l;
            m.first = s->layers[l].ranges[i].first;
            m.count = s->layers[l].ranges[i].count;
            coordinator_gather_add(gather);
            coordinator_worker_call(w, BANYAN__PB__METHOD__METHOD_ROWS_COMMIT, &m.base, commit_told, gather);
        }
    }
}

static bool holds_chunk(const struct coordinator_session *s, const struct coordinator_worker *w)
{
    for (uint32_t i = 0; i < s->layout.n; i++)
        if (s->layout.chunks[i].holder == w && !s->layout.chunks[i].lost)
            return true;
    return false;
}

static void settled_told(void *arg, const struct proto_reply *reply)
{
    bool older = reply->code == COMMON_NOT_FOUND; // a build without numbers of commits
    coordinator_gather_finish(arg, older ? COMMON_OK : reply->code, reply->text);
}

// Comes after every RowsCommit has been answered: only then do rows that are still frozen belong to nobody.
static void tell_settled(struct visit *v)
{
    struct coordinator_core *core = v->sessions->core;
    struct coordinator_gather *gather = coordinator_gather_new(&core->turn, visit_told, v);
    Banyan__Pb__RowsAbortRequest m = BANYAN__PB__ROWS_ABORT_REQUEST__INIT;
    m.term = core->term;
    m.before = coordinator_commits_settled(&v->sessions->commits, core->term);
    visit_set_state(v, VISIT_SETTLING);
    v->in_flight++;
    coordinator_gather_add(gather);
    coordinator_worker_call(v->w, BANYAN__PB__METHOD__METHOD_ROWS_ABORT, &m.base, settled_told, gather);
    coordinator_gather_seal(gather);
}

// The next session that it holds and should not.
static void tell_drop(struct visit *v)
{
    Banyan__Pb__SessionDropRequest m = BANYAN__PB__SESSION_DROP_REQUEST__INIT;
    m.term = v->sessions->core->term;
    m.session = v->unknown[--v->n_unknown];
    m.life = coordinator_store_life(v->sessions->store);
    m.claim = true;
    const struct coordinator_session *s = coordinator_session_any(v->sessions, m.session);
    if (s && coordinator_session_has_member(s, v->w))
        return; // it has become a member since
    v->in_flight++;
    struct coordinator_gather *gather = coordinator_gather_new(&v->sessions->core->turn, visit_told, v);
    coordinator_worker_call_gather(v->w, BANYAN__PB__METHOD__METHOD_SESSION_DROP, &m.base, gather);
    coordinator_gather_seal(gather);
}

// The next session that it should hold.
static void tell_session(struct visit *v)
{
    struct coordinator_session *s = v->sessions->slots[v->slot++];
    if (!s || !coordinator_session_has_member(s, v->w) ||
        coordinator_quarantine_has(&v->w->quarantine, s->id))
        return;
    v->in_flight++;
    struct coordinator_gather *gather = coordinator_gather_new(&v->sessions->core->turn, visit_told, v);
    coordinator_layout_claim(s, v->w, gather);
    if (holds_chunk(s, v->w))
        tell_commits(s, v->w, gather);
    coordinator_gather_seal(gather);
}

static void visit_succeed(struct visit *v)
{
    struct coordinator_sessions *sessions = v->sessions;
    struct coordinator_worker *w = v->w;
    visit_free(v);
    w->fresh = false;
    for (uint32_t i = 0; i < sessions->n_slots; i++) {
        struct coordinator_session *s = sessions->slots[i];
        bool known = true;
        for (uint32_t k = 0; s && k < s->layout.n; k++) {
            struct coordinator_chunk *chunk = &s->layout.chunks[k];
            chunk->known = chunk->known || chunk->holder == w;
            chunk->untold = chunk->untold && chunk->holder != w;
            known = known && s->layout.chunks[k].known;
        }
        if (s && known)
            coordinator_session_forget_named(s);
    }
    coordinator_worker_set_state(w, COORDINATOR_WORKER_ACTIVE);
    common_log_info("a worker is active worker=%s chunks=%" PRIu64, w->name, w->chunks);
}

static void tell_more(struct visit *v)
{
    while (v->state == VISIT_TELLING && v->code == COMMON_OK && visit_counts(v) && v->in_flight < WINDOW &&
           (v->n_unknown || v->slot < v->sessions->n_slots)) {
        if (v->n_unknown)
            tell_drop(v);
        else
            tell_session(v);
    }
    if (v->in_flight)
        return;
    if (!visit_counts(v) || v->code != COMMON_OK) {
        visit_fail(v, "a worker cannot be told its layouts", v->code, "see above");
    } else if (v->state == VISIT_TELLING) {
        tell_settled(v);
    } else if (v->w->dirty) { // a layout has changed meanwhile: all of them again
        v->w->dirty = false;
        v->slot = 0;
        visit_set_state(v, VISIT_TELLING);
        tell_more(v);
    } else {
        visit_succeed(v);
    }
}

// ---- comparing ----------------------------------------------------------------------------------

static bool may_have_rows(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                          bool fresh)
{
    uint32_t ct = s->layout.chunk_tokens;
    return coordinator_session_has_rows(s, (uint64_t)chunk->index * ct, ct) ||
           (fresh && !chunk->known); // nobody can say what was appended to it
}

static void lost_stored(void *arg, enum common_code code, const char *text)
{
    struct visit *v = arg;
    v->in_flight--;
    if (!visit_counts(v) || code != COMMON_OK) {
        visit_fail(v, "the store does not take that a worker is a new process, or what a worker lost", code,
                   text);
        return;
    }
    v->w->stored_instance = v->w->instance;
    for (uint32_t i = 0; i < v->n_lost; i++) {
        struct coordinator_session *s = coordinator_session_any(v->sessions, v->lost[i].session);
        struct coordinator_chunk *chunk = s ? coordinator_layout_find(&s->layout, v->lost[i].index) : NULL;
        if (!chunk || chunk->id != v->lost[i].chunk)
            continue; // truncated meanwhile
        chunk->lost = true;
        coordinator_session_recount(s);
    }
    visit_set_state(v, VISIT_TELLING);
    tell_more(v);
}

static void add_loss(struct visit *v, const struct coordinator_session *s,
                     const struct coordinator_chunk *chunk)
{
    if (!(v->n_lost & (v->n_lost + 1))) { // full: as many as a power of two, less one
        v->lost = realloc(v->lost, (v->n_lost + 1) * 2 * sizeof(*v->lost));
        if (!v->lost)
            abort();
    }
    v->lost[v->n_lost++] = (struct loss){.session = s->id, .chunk = chunk->id, .index = chunk->index};
}

static void compare_inventory(struct visit *v)
{
    struct coordinator_worker *w = v->w;
    w->listed = UINT64_MAX;
    coordinator_quarantine_set(v->sessions, w, &w->arriving);
    if (w->quarantine.n)
        common_log_warn(
            "a worker holds sessions that this store does not know: they are kept, and neither served "
            "nor dropped. Start the coordinator on the store that knows them, or give them up with "
            "'banyanctl quarantine drop' worker=%s sessions=%u bytes=%" PRIu64,
            w->name, w->quarantine.n, coordinator_quarantine_bytes(&w->quarantine));
    for (uint32_t i = 0; i < v->sessions->n_slots; i++) {
        struct coordinator_session *s = v->sessions->slots[i];
        if (!s || !coordinator_session_has_member(s, w) || coordinator_quarantine_has(&w->quarantine, s->id))
            continue;
        for (uint32_t k = 0; k < s->layout.n; k++) {
            const struct coordinator_chunk *chunk = &s->layout.chunks[k];
            if (chunk->holder != w || chunk->lost || !chunk->ready)
                continue;
            if (chunk->stamp != v->number && may_have_rows(s, chunk, w->fresh))
                add_loss(v, s, chunk);
        }
        coordinator_session_recount(s);
    }
    if (v->n_lost)
        common_log_warn("a worker came back without chunks that have committed rows worker=%s lost=%u",
                        w->name, v->n_lost);
    if (!v->n_lost && w->instance == w->stored_instance) { // no news for the store
        visit_set_state(v, VISIT_TELLING);
        tell_more(v);
        return;
    }
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_worker(batch, w->name, w->instance);
    for (uint32_t i = 0; i < v->n_lost; i++)
        coordinator_batch_chunk_lost(batch, v->lost[i].session, v->lost[i].index, v->lost[i].chunk);
    v->in_flight++;
    visit_set_state(v, VISIT_STORING);
    coordinator_store_submit(v->sessions->store, batch, lost_stored, v);
}

// Rows that steps have appended, as their holder has them: news only after a restart of the coordinator.
static void learn_rows(struct coordinator_session *s, struct coordinator_chunk *chunk,
                       const Banyan__Pb__InventoryChunk *held)
{
    uint32_t ct = s->layout.chunk_tokens;
    for (uint32_t l = 0; l < held->n_layer_rows && l < s->spec->layers; l++) {
        uint32_t rows = held->layer_rows[l] < ct ? held->layer_rows[l] : ct;
        if (rows && !coordinator_session_name_rows(s, l, (uint64_t)chunk->index * ct, rows))
            common_log_error("a layer has too many separate ranges session=%016" PRIx64 " layer=%u", s->id,
                             l);
    }
}

// Whether the worker was told of the session by a later history than the store's.
static bool is_newer(const struct coordinator_session *s, const struct coordinator_worker *w,
                     const Banyan__Pb__InventorySession *held, bool known_life)
{
    if (held->incarnation > s->incarnation || held->epoch > s->layout.epoch)
        return true;
    for (size_t i = 0; i < held->n_chunks && !known_life; i++) {
        const struct coordinator_chunk *chunk =
            coordinator_layout_find(&s->layout, held->chunks[i]->first / s->layout.chunk_tokens);
        if (!chunk || chunk->id != held->chunks[i]->chunk || chunk->holder != w)
            return true;
    }
    return false;
}

// False: it is for another store, or a later state of this one, to say what becomes of it.
static bool is_ours(struct visit *v, const struct coordinator_session *s, bool member,
                    const Banyan__Pb__InventorySession *held)
{
    struct coordinator_store *store = v->sessions->store;
    struct coordinator_worker *w = v->w;
    bool known_life = coordinator_store_knows_life(store, held->life);
    v->listed_bytes = (held->session == w->listed ? v->listed_bytes : 0) + held->bytes;
    bool again = held->session == w->listed && coordinator_quarantine_has(&w->arriving, held->session);
    w->listed = held->session;
    bool newer = s && (member ? is_newer(s, w, held, known_life) : !known_life);
    if (!again && !newer && (s && member ? true : known_life))
        return true;
    struct coordinator_quarantined entry = {
        .session = held->session,
        .life = held->life,
        .bytes = v->listed_bytes,
        .incarnation = held->incarnation,
        .epoch = held->epoch,
        .newer = s != NULL,
    };
    coordinator_quarantine_add(&w->arriving, &entry);
    coordinator_store_skip(store, COORDINATOR_COUNTER_GENERATION, held->session >> 32); // not again
    return false;
}

static void take_session(struct visit *v, const Banyan__Pb__InventorySession *held)
{
    struct coordinator_worker *w = v->w;
    struct coordinator_session *s = coordinator_session_any(v->sessions, held->session);
    bool member = s && coordinator_session_has_member(s, w);
    if (!is_ours(v, s, member, held))
        return;
    if (!member) {
        if (v->n_unknown && v->unknown[v->n_unknown - 1] == held->session)
            return; // goes on from the page before
        if (v->n_unknown == v->unknown_cap) {
            uint32_t cap = v->unknown_cap ? v->unknown_cap * 2 : 64;
            uint64_t *more = realloc(v->unknown, cap * sizeof(*more));
            if (!more)
                abort();
            v->unknown = more;
            v->unknown_cap = cap;
        }
        v->unknown[v->n_unknown++] = held->session;
        return;
    }
    for (size_t i = 0; i < held->n_chunks; i++) {
        const Banyan__Pb__InventoryChunk *h = held->chunks[i];
        struct coordinator_chunk *chunk =
            coordinator_layout_find(&s->layout, h->first / s->layout.chunk_tokens);
        if (!chunk || chunk->id != h->chunk || chunk->holder != w)
            continue;
        chunk->stamp = v->number;
        if (!chunk->known && !chunk->lost)
            learn_rows(s, chunk, h);
    }
}

static void ask_page(struct visit *v, uint64_t after_session, uint64_t after_chunk);

static void page_came(void *arg, const struct proto_reply *reply)
{
    struct visit *v = arg;
    v->in_flight--;
    if (!visit_counts(v) || reply->code != COMMON_OK) {
        visit_fail(v, "a worker does not say what it holds", reply->code, reply->text);
        return;
    }
    const Banyan__Pb__InventoryReply *m = (const void *)reply->message->body;
    for (size_t i = 0; i < m->n_sessions; i++)
        take_session(v, m->sessions[i]);
    if (m->next_session)
        ask_page(v, m->next_session, m->next_chunk);
    else
        compare_inventory(v);
}

static void ask_page(struct visit *v, uint64_t after_session, uint64_t after_chunk)
{
    Banyan__Pb__InventoryRequest m = BANYAN__PB__INVENTORY_REQUEST__INIT;
    m.term = v->sessions->core->term;
    m.after_session = after_session;
    m.after_chunk = after_chunk;
    m.life = coordinator_store_life(v->sessions->store);
    v->in_flight++;
    coordinator_worker_call(v->w, BANYAN__PB__METHOD__METHOD_INVENTORY, &m.base, page_came, v);
}

void coordinator_reconciles_drain(struct coordinator_sessions *sessions)
{
    struct coordinator_worker *w;
    while ((w = coordinator_workers_take_joining(sessions->cluster))) {
        struct visit *v = coordinator_alloc(sizeof(*v));
        *v = (struct visit){.sessions = sessions, .w = w, .number = w->visit};
        w->visitors++;
        ask_page(v, 0, 0);
    }
}
