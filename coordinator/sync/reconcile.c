// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/reconcile.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/named.h"
#include "coordinator/sync/news.h"
#include "coordinator/sync/quarantine_service.h"
#include "coordinator/sync/repair.h"
#include "coordinator/sync/returned.h"
#include "coordinator/sync/visit.h"
#include "proto/model/spec.h"

// ---- comparing ----------------------------------------------------------------------------------

// Rows that can be seen yet: what all have given back counts as committed, and nobody needs it.
static bool has_rows_to_see(const struct coordinator_session *s, const struct coordinator_chunk *chunk)
{
    uint64_t ct = s->layout.chunk_tokens, first = chunk->index * ct;
    for (uint32_t l = 0; l < s->spec->layers; l++)
        if (!coordinator_session_given_back(s, l, chunk->index) &&
            coordinator_rangeset_intersects(&s->layers[l], first, ct))
            return true;
    return coordinator_session_names_rows(s, first, ct);
}

static bool may_have_rows(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                          bool fresh)
{
    return has_rows_to_see(s, chunk) || (fresh && !chunk->known); // nobody can say what was appended to it
}

// A store that cannot be written stops no reading: the worker is told its layouts all the same, and the store
// again later.
static void news_stored(void *arg, enum common_code code, const char *text)
{
    struct coordinator_visit *v = arg;
    v->in_flight--;
    if (code == COMMON_OK)
        v->w->stored_instance = v->process;
    if (!coordinator_visit_counts(v)) {
        coordinator_visit_note(v, code, text);
        coordinator_visit_fail(v, "");
        return;
    }
    if (code != COMMON_OK && !v->sessions->core->stopping)
        common_log_error("cannot record what a worker lost; its sessions can still be read: %s "
                         "worker=%s",
                         text, v->w->name);
    coordinator_news_answered(v->w, code);
    coordinator_visit_tell(v);
}

// A holder is without its copy: it is struck off when nobody works on the session (failover.h), unless it is the last.
// False: nobody has it any more, and nothing was in it, so that it begins anew at all of them.
static bool copy_gone(struct coordinator_session *s, struct coordinator_chunk *chunk, uint32_t copy,
                      bool written)
{
    coordinator_copy_set_state(&chunk->copies[copy], COORDINATOR_COPY_GONE);
    bool last = coordinator_chunk_all_unfit(chunk);
    chunk->lost = last && written;
    if (!last || written)
        return true;
    coordinator_chunk_set(chunk, coordinator_chunk_where(chunk, COORDINATOR_IN(GONE)), COORDINATOR_COPY_SYNC);
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        if (i != copy) // which is told of it now
            coordinator_session_doubt(s, coordinator_chunk_holder(chunk, i));
    return false;
}

// What it lacks of a session.
static void compare_session(struct coordinator_visit *v, struct coordinator_session *s)
{
    struct coordinator_worker *w = v->w;
    for (uint32_t k = 0; k < s->layout.n; k++) {
        struct coordinator_chunk *chunk = &s->layout.chunks[k];
        uint32_t copy = coordinator_chunk_copy_at(chunk, w);
        bool absent =
            coordinator_chunk_held_by(chunk, w) && chunk->ready && chunk->copies[copy].stamp < v->stamp;
        // What steps, commits or an attach are writing now the others may have already, and so had another process.
        bool being_written = coordinator_chunk_copies(chunk) > 1 && w->fresh &&
                             (s->writing || coordinator_tickets_good(&s->tickets, common_clock_ns())),
             written = absent && may_have_rows(s, chunk, w->fresh);
        if (absent && (being_written || written))
            v->n_lost += copy_gone(s, chunk, copy, written);
        else if (absent && !chunk->known && !coordinator_copy_heard(&chunk->copies[copy]))
            coordinator_copy_set_doubtful(&chunk->copies[copy], true); // gone, if another one has rows of it
    }
    coordinator_session_recount(s);
    if (s->awaited)
        coordinator_session_settle(s);
}

static void take_quarantine(struct coordinator_visit *v)
{
    struct coordinator_worker *w = v->w;
    w->listed = UINT64_MAX;
    coordinator_quarantine_set(v->sessions, w, &w->arriving);
    if (!w->quarantine.n)
        return;
    COMMON_FAILPOINT("quarantine_listed");
    common_log_warn("a worker holds sessions that are not in this store: they are kept, and neither served "
                    "nor dropped. Start the coordinator on the store that has them, or discard them with "
                    "'banyanctl quarantine drop' worker=%s sessions=%u bytes=%" PRIu64,
                    w->name, w->quarantine.n, coordinator_quarantine_bytes(&w->quarantine));
}

static void compare_inventory(struct coordinator_visit *v)
{
    struct coordinator_worker *w = v->w;
    if (!v->one)
        take_quarantine(v);
    struct coordinator_session *one = v->one ? coordinator_session_any(v->sessions, v->one) : NULL;
    if (coordinator_visit_tells(v, one))
        compare_session(v, one);
    for (uint32_t i = 0; !v->one && i < v->sessions->n_slots; i++)
        if (coordinator_visit_tells(v, v->sessions->slots[i]))
            compare_session(v, v->sessions->slots[i]);
    if (v->n_lost)
        coordinator_worker_tell(
            w, WORKER_LACKS, WARN,
            "a worker came back without chunks that have committed rows worker=%s lost=%u", w->name,
            v->n_lost);
    if (!v->n_lost && (v->one || w->instance == w->stored_instance)) { // no news for the store
        coordinator_visit_tell(v);
        return;
    }
    v->in_flight++;
    coordinator_visit_set_state(v, COORDINATOR_VISIT_STORING);
    v->process = v->one ? w->instance : w->stored_instance;
    coordinator_news_store(v->sessions, w, v->process, news_stored, v);
}

// Whether the chunk has not all rows there: what comes to a full one is in its file since long.
static bool grows(const struct coordinator_session *s, const Banyan__Pb__InventoryChunk *held)
{
    for (uint32_t l = 0; l < s->spec->layers; l++)
        if (proto_spec_stores(s->spec, l) &&
            (l >= held->n_layer_rows || held->layer_rows[l] < s->layout.chunk_tokens))
            return true;
    return false;
}

// Rows that steps have appended, as their holder has them: news only after a restart of the coordinator. What one
// says that has missed a truncate is no news: the truncate has stored what it left. Where it has forgotten one with its
// machine's power, others have appended since.
static void learn(struct coordinator_visit *v, struct coordinator_session *s,
                  const Banyan__Pb__InventorySession *held)
{
    const Banyan__Pb__InventoryChunk nothing = BANYAN__PB__INVENTORY_CHUNK__INIT;
    bool told = held->incarnation != s->incarnation, ok = true;
    for (size_t i = 0; i < held->n_chunks; i++) {
        const Banyan__Pb__InventoryChunk *h = held->chunks[i];
        struct coordinator_chunk *chunk =
            coordinator_layout_find(&s->layout, h->first / s->layout.chunk_tokens);
        if (!chunk || chunk->id != h->chunk || !coordinator_chunk_held_by(chunk, v->w))
            continue;
        uint32_t copy = coordinator_chunk_copy_at(chunk, v->w);
        chunk->copies[copy].stamp = v->stamp;
        bool missed = held->incarnation != s->incarnation;
        if (chunk->known || (missed && !held->doubtful))
            continue;
        coordinator_copy_set_doubtful(&chunk->copies[copy], held->doubtful && (missed || grows(s, h)));
        if (!told)
            coordinator_session_name_appends(s, held);
        told = true;
        ok = ok && coordinator_session_name_rows(s, chunk, copy, held, missed ? &nothing : h);
        uint32_t other = coordinator_session_named_other(s, chunk);
        coordinator_chunk_set(chunk, other, COORDINATOR_COPY_GONE);
        if (other & 1u << copy) // durable before it hears which rows count, and takes its own for these
            v->n_lost++;
    }
    if (!ok)
        common_log_error("a layer has too many separate ranges session=%016" PRIx64, s->id);
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
        if (!chunk || chunk->id != held->chunks[i]->chunk ||
            coordinator_chunk_copy_at(chunk, w) == COORDINATOR_COPIES_MAX)
            return true;
    }
    return false;
}

// False: it is for another store, or a later state of this one, to say what becomes of it.
static bool is_ours(struct coordinator_visit *v, const struct coordinator_session *s, bool member,
                    const Banyan__Pb__InventorySession *held)
{
    struct coordinator_store *store = v->sessions->store;
    struct coordinator_worker *w = v->w;
    bool known_life = coordinator_store_knows_life(store, held->life);
    if (v->one) { // nobody but this life tells an ACTIVE worker anything
        if (member && is_newer(s, w, held, known_life))
            coordinator_visit_note(v, COMMON_FAILED_PRECONDITION,
                                   "the worker has a newer state of the session");
        return true;
    }
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
    coordinator_sessions_never_again(v->sessions, held->session);
    COMMON_FAILPOINT("quarantine_found");
    return false;
}

// The copy that a truncate under way has it make: it may be in the layout before this visit is over.
static void learn_copy(struct coordinator_visit *v, struct coordinator_session *s,
                       const Banyan__Pb__InventorySession *held)
{
    uint32_t copy = s->copy ? coordinator_chunk_copy_at(s->copy, v->w) : COORDINATOR_COPIES_MAX;
    for (size_t i = 0; i < held->n_chunks && copy < COORDINATOR_COPIES_MAX; i++)
        if (held->chunks[i]->chunk == s->copy->id)
            s->copy->copies[copy].stamp = v->stamp;
}

static void take_session(struct coordinator_visit *v, const Banyan__Pb__InventorySession *held)
{
    struct coordinator_worker *w = v->w;
    struct coordinator_session *s = coordinator_session_any(v->sessions, held->session);
    bool member = s && coordinator_session_has_member(s, w);
    if (!is_ours(v, s, member, held))
        return;
    if (!member && v->one)
        return; // deleted meanwhile: it is told so by whoever deletes
    bool kept = s && !v->one && coordinator_returned_note(s, w, held);
    if (!member && !kept) {
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
    if (member) {
        learn(v, s, held);
        learn_copy(v, s, held);
    }
}

static void ask_page(struct coordinator_visit *v, const Banyan__Pb__InventoryReply *before);

static void page_came(void *arg, const struct proto_reply *reply)
{
    COMMON_FAILPOINT("visit_page");
    struct coordinator_visit *v = arg;
    v->in_flight--;
    coordinator_visit_note(v, reply->code, reply->text);
    if (coordinator_visit_counts(v) && reply->code == COMMON_OK) {
        const Banyan__Pb__InventoryReply *m = (const void *)reply->message->body;
        if (m->instance != v->w->instance) { // it was started anew, and has yet to be let in
            coordinator_worker_lose(v->w, "another process answers at its edge endpoint");
            coordinator_visit_fail(v, "");
            return;
        }
        for (size_t i = 0; i < m->n_sessions; i++)
            take_session(v, m->sessions[i]);
        if (v->code == COMMON_OK && m->next_session) {
            ask_page(v, m);
            return;
        }
    }
    if (!coordinator_visit_counts(v) || v->code != COMMON_OK)
        coordinator_visit_fail(v, "a worker did not report what it holds");
    else
        compare_inventory(v);
}

// before: the page before this one; NULL: the first.
static void ask_page(struct coordinator_visit *v, const Banyan__Pb__InventoryReply *before)
{
    Banyan__Pb__InventoryRequest m = BANYAN__PB__INVENTORY_REQUEST__INIT;
    m.term = v->sessions->core->term;
    m.session = v->one;
    m.after_session = before ? before->next_session : 0;
    m.after_chunk = before ? before->next_chunk : 0;
    m.after_first = before ? before->next_first : 0;
    m.life = coordinator_store_life(v->sessions->store);
    m.visit = v->w->visit_number;
    v->in_flight++;
    coordinator_worker_call(v->w, BANYAN__PB__METHOD__METHOD_INVENTORY, &m.base, page_came, v);
}

static struct coordinator_visit *visit_new(struct coordinator_sessions *sessions,
                                           struct coordinator_worker *w)
{
    struct coordinator_visit *v = coordinator_alloc(sizeof(*v));
    sessions->stamps += 2;
    *v = (struct coordinator_visit){
        .sessions = sessions, .w = w, .number = w->visit, .stamp = sessions->stamps};
    w->visitors++;
    return v;
}

// Sessions of which workers have found that their files do not have all chunks any more: asked for what they have.
static void doubt_lacking(struct coordinator_sessions *sessions)
{
    for (uint32_t i = 0; i < sessions->cluster->n_workers; i++) {
        struct coordinator_worker *w = sessions->cluster->workers[i];
        for (; w && w->n_lacking > 0; w->n_lacking--) {
            struct coordinator_session *s = coordinator_session_any(sessions, w->lacking[w->n_lacking - 1]);
            if (s && coordinator_session_has_member(s, w) && !coordinator_session_in_doubt(s, w))
                coordinator_session_doubt(s, w);
        }
    }
}

void coordinator_reconciles_drain(struct coordinator_sessions *sessions)
{
    struct coordinator_worker *w;
    doubt_lacking(sessions);
    while ((w = coordinator_workers_take_joining(sessions->cluster))) {
        w->visit_number = ++sessions->visits;
        ask_page(visit_new(sessions, w), NULL);
    }
}

void coordinator_visit_session(struct coordinator_sessions *sessions, struct coordinator_worker *w,
                               uint64_t session, coordinator_visited_fn done, void *arg)
{
    struct coordinator_visit *v = visit_new(sessions, w);
    v->one = session;
    v->done = done;
    v->arg = arg;
    ask_page(v, NULL);
}
