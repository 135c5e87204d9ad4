// SPDX-License-Identifier: Apache-2.0
// A worker comes (back): it is asked what it holds and told what it should hold, and only then is it ACTIVE.
//
//   Inventory, page by page ──▶ compare with our layouts ──▶ store what is lost ──▶ SessionDrop / LayoutSet /
//   RowsCommit ──▶ ACTIVE
//                                                                                        ▲ again while
//                                                                                        `dirty`
//
// What it holds and we have deleted is dropped; what we do not know is in quarantine (quarantine.h). What we count on and it lacks is lost when rows of it were
// committed: steps over them say DATA_LOSS. After a restart of the coordinator the inventory also says how
// far each layer was appended.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "coordinator/membership.h"
#include "coordinator/relayout.h"
#include "coordinator/session.h"

#define WINDOW 64 // sessions told at a time

struct coordinator_reconcile {
    struct coordinator_worker *w; // NULL: cancelled
    bool dirty;
    uint32_t slot; // next session to be told
    uint32_t in_flight;
    bool telling; // calls are being made: answers that come on that stack are only counted
    enum common_code code;
    uint64_t *unknown; // sessions that it holds and we have deleted
    uint32_t n_unknown;
    struct coordinator_quarantine quarantine; // what we never knew; the worker's own from `compare` on
    uint64_t listed, listed_bytes;            // the session that came last, and what of it has come
    struct loss {
        uint64_t session, chunk;
        uint32_t index;
    } * lost; // [n_lost] being written to the store
    uint32_t n_lost;
};

static void end(struct coordinator_reconcile *r)
{
    if (r->w)
        r->w->reconcile = NULL;
    free(r->unknown);
    free(r->lost);
    coordinator_quarantine_fini(&r->quarantine);
    free(r);
}

void coordinator_reconcile_cancel(struct coordinator_worker *w)
{
    if (w->reconcile)
        w->reconcile->w = NULL; // ends with its next answer
    w->reconcile = NULL;
}

void coordinator_reconcile_dirty(struct coordinator_worker *w)
{
    if (w->reconcile)
        w->reconcile->dirty = true;
}

bool coordinator_reconcile_passed(const struct coordinator_worker *w, uint64_t session)
{
    return w->reconcile && w->reconcile->listed >= session &&
           !coordinator_quarantine_has(&w->reconcile->quarantine, session) &&
           !coordinator_quarantine_has(&w->quarantine, session);
}

// An answer failed: when the link broke, its return starts anew; else the worker does not do as it should.
static void give_up(struct coordinator_reconcile *r, enum common_code code, const char *text)
{
    struct coordinator_worker *w = r->w;
    end(r);
    if (!w->c->stopping && w->channel && proto_channel_connected(w->channel)) {
        common_log_error("a worker cannot be told its layouts: %s code=%s worker=%s", text,
                         common_code_name(code), w->name);
        coordinator_worker_lose(w, "it refused its layouts");
    }
}

// ---- telling ------------------------------------------------------------------------------------

static void tell(struct coordinator_reconcile *r);

static void told(void *arg, enum common_code code, const char *text)
{
    struct coordinator_reconcile *r = arg;
    r->in_flight--;
    if (code != COMMON_OK && r->code == COMMON_OK) {
        r->code = code;
        if (r->w && !r->w->c->stopping)
            common_log_warn("a worker was not told a layout: %s worker=%s", text, r->w->name);
    }
    if (r->telling)
        return;
    if (r->w)
        tell(r);
    else if (!r->in_flight)
        end(r);
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
            m.term = w->c->term;
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

static void tell(struct coordinator_reconcile *r)
{
    struct coordinator_worker *w = r->w;
    struct coordinator *c = w->c;
    r->telling = true;
    while (r->w && r->code == COMMON_OK && r->in_flight < WINDOW) {
        struct coordinator_gather *gather;
        if (r->n_unknown) {
            Banyan__Pb__SessionDropRequest m = BANYAN__PB__SESSION_DROP_REQUEST__INIT;
            m.term = c->term;
            m.session = r->unknown[--r->n_unknown];
            m.life = coordinator_store_life(c->store);
            m.claim = true;
            const struct coordinator_session *s = coordinator_session_any(c, m.session);
            if (s && coordinator_session_has_member(s, w))
                continue; // it has become a member since
            r->in_flight++;
            gather = coordinator_gather_new(told, r);
            coordinator_worker_call_gather(w, BANYAN__PB__METHOD__METHOD_SESSION_DROP, &m.base, gather);
        } else {
            if (r->slot == c->session_slots && r->dirty && !r->in_flight) {
                r->dirty = false;
                r->slot = 0;
            }
            if (r->slot == c->session_slots)
                break;
            struct coordinator_session *s = c->sessions[r->slot++];
            if (!s || !coordinator_session_has_member(s, w) ||
                coordinator_quarantine_has(&w->quarantine, s->id))
                continue;
            r->in_flight++;
            gather = coordinator_gather_new(told, r);
            coordinator_layout_claim(s, w, gather);
            if (holds_chunk(s, w))
                tell_commits(s, w, gather);
        }
        coordinator_gather_seal(gather);
    }
    r->telling = false;
    if (r->in_flight)
        return;
    if (!r->w) { // the link broke under it
        end(r);
        return;
    }
    if (r->code != COMMON_OK) {
        give_up(r, r->code, "see above");
        return;
    }
    end(r);
    w->fresh = false;
    for (uint32_t i = 0; i < c->session_slots; i++) {
        struct coordinator_session *s = c->sessions[i];
        for (uint32_t k = 0; s && k < s->layout.n; k++)
            s->layout.chunks[k].known = s->layout.chunks[k].known || s->layout.chunks[k].holder == w;
    }
    coordinator_worker_set_state(w, COORDINATOR_WORKER_ACTIVE);
    common_log_info("a worker is active worker=%s chunks=%" PRIu64, w->name, w->chunks);
}

// ---- comparing ----------------------------------------------------------------------------------

static bool may_have_rows(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                          bool fresh)
{
    uint32_t ct = s->layout.chunk_tokens;
    for (uint32_t l = 0; l < s->spec->layers; l++)
        if (coordinator_rangeset_intersects(&s->layers[l], (uint64_t)chunk->index * ct, ct))
            return true;
    return fresh && !chunk->known; // nobody can say what was appended to it
}

// The store refused: what it was to keep is not so, and the worker cannot be taken yet. It registers again.
static void store_refused(struct coordinator_reconcile *r, const char *text)
{
    struct coordinator_worker *w = r->w;
    end(r);
    if (!w->c->stopping && w->channel && proto_channel_connected(w->channel)) {
        common_log_error("the store does not take that a worker is a new process, or what a worker lost: %s "
                         "worker=%s",
                         text, w->name);
        coordinator_worker_lose(w, "the store refused what is to be known of it");
    }
}

static void lost_stored(void *arg, enum common_code code, const char *text)
{
    struct coordinator_reconcile *r = arg;
    r->in_flight--;
    if (!r->w) {
        end(r);
        return;
    }
    if (code != COMMON_OK) {
        store_refused(r, text);
        return;
    }
    r->w->stored_instance = r->w->instance;
    for (uint32_t i = 0; i < r->n_lost; i++) {
        struct coordinator_session *s = coordinator_session_any(r->w->c, r->lost[i].session);
        struct coordinator_chunk *chunk = s ? coordinator_layout_find(&s->layout, r->lost[i].index) : NULL;
        if (!chunk || chunk->id != r->lost[i].chunk)
            continue; // truncated meanwhile
        chunk->lost = true;
        coordinator_session_recount(s);
    }
    tell(r);
}

static void add_loss(struct coordinator_reconcile *r, const struct coordinator_session *s,
                     const struct coordinator_chunk *chunk)
{
    if (!(r->n_lost & (r->n_lost + 1))) { // full: as many as a power of two, less one
        r->lost = realloc(r->lost, (r->n_lost + 1) * 2 * sizeof(*r->lost));
        if (!r->lost)
            abort();
    }
    r->lost[r->n_lost++] = (struct loss){.session = s->id, .chunk = chunk->id, .index = chunk->index};
}

static void compare(struct coordinator_reconcile *r)
{
    struct coordinator_worker *w = r->w;
    struct coordinator *c = w->c;
    r->listed = UINT64_MAX;
    coordinator_quarantine_set(w, &r->quarantine);
    if (w->quarantine.n)
        common_log_warn(
            "a worker holds sessions that this store does not know: they are kept, and neither served "
            "nor dropped. Start the coordinator on the store that knows them, or give them up with "
            "'banyanctl quarantine drop' worker=%s sessions=%u bytes=%" PRIu64,
            w->name, w->quarantine.n, coordinator_quarantine_bytes(w));
    for (uint32_t i = 0; i < c->session_slots; i++) {
        struct coordinator_session *s = c->sessions[i];
        if (!s || !coordinator_session_has_member(s, w) || coordinator_quarantine_has(&w->quarantine, s->id))
            continue;
        for (uint32_t k = 0; k < s->layout.n; k++) {
            const struct coordinator_chunk *chunk = &s->layout.chunks[k];
            if (chunk->holder != w || chunk->lost || !chunk->ready)
                continue;
            if (chunk->stamp != w->stamp && may_have_rows(s, chunk, w->fresh))
                add_loss(r, s, chunk);
        }
        coordinator_session_recount(s);
    }
    if (r->n_lost)
        common_log_warn("a worker came back without chunks that have committed rows worker=%s lost=%u",
                        w->name, r->n_lost);
    if (!r->n_lost && w->instance == w->stored_instance) { // no news for the store
        tell(r);
        return;
    }
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_worker(batch, w->name, w->instance);
    for (uint32_t i = 0; i < r->n_lost; i++)
        coordinator_batch_chunk_lost(batch, r->lost[i].session, r->lost[i].index, r->lost[i].chunk);
    r->in_flight++;
    coordinator_store_submit(c->store, batch, lost_stored, r);
}

// Rows that steps have appended, as their holder has them: news only after a restart of the coordinator.
static void learn_rows(struct coordinator_session *s, struct coordinator_chunk *chunk,
                       const Banyan__Pb__InventoryChunk *held)
{
    uint32_t ct = s->layout.chunk_tokens;
    for (uint32_t l = 0; l < held->n_layer_rows && l < s->spec->layers; l++) {
        uint32_t rows = held->layer_rows[l] < ct ? held->layer_rows[l] : ct;
        if (rows && !coordinator_rangeset_add(&s->layers[l], (uint64_t)chunk->index * ct, rows, NULL))
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
static bool is_ours(struct coordinator_reconcile *r, const struct coordinator_session *s, bool member,
                    const Banyan__Pb__InventorySession *held)
{
    struct coordinator_store *store = r->w->c->store;
    bool known_life = coordinator_store_knows_life(store, held->life);
    r->listed_bytes = (held->session == r->listed ? r->listed_bytes : 0) + held->bytes;
    bool again = held->session == r->listed && coordinator_quarantine_has(&r->quarantine, held->session);
    r->listed = held->session;
    bool newer = s && (member ? is_newer(s, r->w, held, known_life) : !known_life);
    if (!again && !newer && (s && member ? true : known_life))
        return true;
    struct coordinator_quarantined entry = {
        .session = held->session,
        .life = held->life,
        .bytes = r->listed_bytes,
        .incarnation = held->incarnation,
        .epoch = held->epoch,
        .newer = s != NULL,
    };
    coordinator_quarantine_add(&r->quarantine, &entry);
    coordinator_store_skip(store, COORDINATOR_COUNTER_GENERATION, held->session >> 32); // not again
    return false;
}

static void take(struct coordinator_reconcile *r, const Banyan__Pb__InventorySession *held)
{
    struct coordinator_worker *w = r->w;
    struct coordinator_session *s = coordinator_session_any(w->c, held->session);
    bool member = s && coordinator_session_has_member(s, w);
    if (!is_ours(r, s, member, held))
        return;
    if (!member) {
        if (r->n_unknown && r->unknown[r->n_unknown - 1] == held->session)
            return; // goes on from the page before
        uint64_t *more = realloc(r->unknown, (r->n_unknown + 1) * sizeof(*more));
        if (!more)
            abort();
        r->unknown = more;
        r->unknown[r->n_unknown++] = held->session;
        return;
    }
    for (size_t i = 0; i < held->n_chunks; i++) {
        const Banyan__Pb__InventoryChunk *h = held->chunks[i];
        struct coordinator_chunk *chunk =
            coordinator_layout_find(&s->layout, h->first / s->layout.chunk_tokens);
        if (!chunk || chunk->id != h->chunk || chunk->holder != w)
            continue;
        chunk->stamp = w->stamp;
        if (!chunk->known && !chunk->lost)
            learn_rows(s, chunk, h);
    }
}

static void ask(struct coordinator_reconcile *r, uint64_t after_session, uint64_t after_chunk);

static void inventory(void *arg, const struct proto_reply *reply)
{
    struct coordinator_reconcile *r = arg;
    r->in_flight--;
    if (!r->w) {
        end(r);
        return;
    }
    if (reply->code != COMMON_OK) {
        give_up(r, reply->code, reply->text);
        return;
    }
    const Banyan__Pb__InventoryReply *m = (const void *)reply->message->body;
    for (size_t i = 0; i < m->n_sessions; i++)
        take(r, m->sessions[i]);
    if (m->next_session)
        ask(r, m->next_session, m->next_chunk);
    else
        compare(r);
}

static void ask(struct coordinator_reconcile *r, uint64_t after_session, uint64_t after_chunk)
{
    Banyan__Pb__InventoryRequest m = BANYAN__PB__INVENTORY_REQUEST__INIT;
    m.term = r->w->c->term;
    m.after_session = after_session;
    m.after_chunk = after_chunk;
    m.life = coordinator_store_life(r->w->c->store);
    r->in_flight++;
    coordinator_worker_call(r->w, BANYAN__PB__METHOD__METHOD_INVENTORY, &m.base, inventory, r);
}

void coordinator_reconcile_start(struct coordinator_worker *w)
{
    coordinator_reconcile_cancel(w);
    struct coordinator_reconcile *r = coordinator_alloc(sizeof(*r));
    r->w = w;
    w->reconcile = r;
    w->stamp++;
    ask(r, 0, 0);
}
