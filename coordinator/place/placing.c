// SPDX-License-Identifier: Apache-2.0
#include "coordinator/place/placing.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/place/candidates.h"
#include "coordinator/place/forget.h"
#include "coordinator/session/placement.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/dropping.h"
#include "coordinator/sync/layout_send.h"
#include "coordinator/sync/moving.h"
#include "coordinator/sync/named.h"
#include "coordinator/sync/repair.h"
#include "coordinator/sync/unavailable.h"
#include "coordinator/tenants/quota.h"
#include "proto/model/spec.h"
#include "reduce/plan.h"

#define TRIES 3

struct coordinator_placing { // a request; the first of a session's list is under way
    struct coordinator_placing *next;
    struct coordinator_session *s;
    uint64_t first, last;
    bool bulk, exclusive, wishing; // exclusive: it has the session alone; wishing: it waits for that
    bool counted;                  // in session->shared
    bool clearing, cleared;        // it waits for room; nothing more can be had so
    uint32_t tries;
    uint64_t reserved;                   // of its tenant's quota, until its chunks count
    struct coordinator_worker **joining; // [n_joining] who becomes a member
    bool *refusing;                      // [n_joining] it has had no memory for that
    uint32_t n_joining;
    struct coordinator_chunk *chosen; // [n]
    uint32_t n;
    coordinator_placed_fn fn;
    void *arg;
    enum common_code code; // why what the store has taken is taken back
    enum proto_reason reason;
    char text[256];
};

// ---- choosing -----------------------------------------------------------------------------------

// A chunk whose holder is away is given to another one only when nothing is in it: not even rows of a commit
// or an append under way, which may be acknowledged yet.
static bool is_empty(const struct coordinator_session *s, const struct coordinator_chunk *chunk)
{
    uint64_t ct = s->layout.chunk_tokens;
    return !chunk->lost && chunk->known && !s->writing &&
           !coordinator_session_has_rows(s, chunk->index * ct, ct);
}

// Likewise one whose holder has no memory for it; here nobody may be putting rows either, which would go with it.
static bool goes_elsewhere(const struct coordinator_session *s, const struct coordinator_chunk *chunk)
{
    return chunk->refused && !chunk->moving && is_empty(s, chunk) && !coordinator_chunk_being_put(s, chunk);
}

static bool to_be_placed(const struct coordinator_session *s, uint64_t index)
{
    const struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, index);
    return !chunk || (!coordinator_session_chunk_usable(chunk) && is_empty(s, chunk)) ||
           goes_elsewhere(s, chunk);
}

// A session that was born with a floor has tokens that nobody attaches: their chunks come with the first ones that are
// placed past them.
static uint64_t with_forgotten(const struct coordinator_session *s, uint64_t first)
{
    if (!s->floor || coordinator_layout_lower(&s->layout, first) == first ||
        first > coordinator_forget_chunks(s))
        return first;
    uint64_t hole = 0;
    while (coordinator_layout_find(&s->layout, hole))
        hole++;
    return hole;
}

bool coordinator_placed(const struct coordinator_session *s, uint64_t first, uint64_t last)
{
    // These may be there without the forgotten ones below, which the coverage of an answer counts, too.
    if (with_forgotten(s, first) < first)
        return false;
    for (uint64_t i = first; i <= last; i++) {
        const struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, i);
        if (!chunk || !chunk->ready || !coordinator_session_chunk_whole(chunk) || goes_elsewhere(s, chunk))
            return false;
    }
    return true;
}

bool coordinator_placing_refused(struct coordinator_session *s, struct coordinator_worker *w, uint64_t first,
                                 uint64_t last)
{
    bool any = false;
    for (uint64_t i = first; i <= last; i++) {
        struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, i);
        if (!chunk || !coordinator_chunk_held_by(chunk, w))
            continue;
        uint64_t ct = s->layout.chunk_tokens, bytes = coordinator_session_index_room(s, i);
        if (bytes)
            coordinator_worker_refused(w, bytes);
        // The append that was refused is being written, maybe beside a commit, which this does not ask for: it does
        // when it goes.
        if (coordinator_session_has_rows(s, i * ct, ct) || chunk->moving ||
            coordinator_chunk_being_put(s, chunk))
            continue; // it stays: nothing comes of asking again
        chunk->refused = any = true;
    }
    return any;
}

// A session that says how many members it wants has as many, and more only for want of memory; else the cost
// model decides, for the layer that has most to read.
static uint32_t width_of(const struct coordinator_session *s, struct coordinator_worker *const *active,
                         uint32_t n, uint64_t tokens)
{
    if (s->spec->members || n < 2)
        return s->spec->members && s->spec->members < n ? s->spec->members : n;
    struct reduce_member *members = coordinator_alloc(n * sizeof(*members));
    for (uint32_t i = 0; i < n; i++)
        coordinator_worker_member(active[i], &members[i]);
    struct reduce_cost cost;
    struct proto_layer heavy = proto_spec_layer(s->spec, proto_spec_heavy_layer(s->spec));
    reduce_cost_default(&cost, heavy.q_heads, heavy.k_dim, heavy.v_dim, 1);
    uint32_t width = reduce_plan_width(members, n, &cost, tokens * (heavy.k_row + heavy.v_row));
    free(members);
    return width;
}

static uint64_t quarantined_bytes(const struct coordinator_cluster *cluster)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < cluster->n_workers; i++)
        if (cluster->workers[i] && coordinator_worker_active(cluster->workers[i]))
            bytes += coordinator_quarantine_bytes(&cluster->workers[i]->quarantine);
    return bytes;
}

// Names the worker that has most left.
static enum common_code no_room(struct coordinator_cluster *cluster, struct coordinator_worker *const *active,
                                uint32_t n, const struct coordinator_candidate *candidates, uint64_t wanted,
                                struct proto_status *status)
{
    uint32_t most = 0;
    uint64_t quarantined = quarantined_bytes(cluster);
    cluster->refused_placements++;
    char instead[96] = "raise its --memory, add a worker, or delete sessions";
    for (uint32_t i = 1; i < n; i++)
        most = candidates[i].free_bytes > candidates[most].free_bytes ? i : most;
    if (quarantined)
        snprintf(instead, sizeof(instead), "%" PRIu64 " bytes are in quarantine (banyanctl quarantine list)",
                 quarantined);
    proto_status_set(status, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_FULL,
                     "no worker has %" PRIu64
                     " bytes left for another chunk; the most that one has is %" PRIu64 " of %" PRIu64
                     "%s: %s",
                     wanted, candidates[most].free_bytes, active[most]->capacity_bytes,
                     active[most]->refused_beats ? ", and it has just refused one" : "", instead);
    proto_status_add_worker(status, active[most]->name);
    return status->code;
}

static void joins(struct coordinator_placing *p, struct coordinator_candidate *candidates,
                  struct coordinator_worker *const *active, uint32_t n, uint32_t nth)
{
    if (candidates[nth].member)
        return;
    coordinator_candidates_join(candidates, active, n, nth);
    p->joining[p->n_joining++] = active[nth];
}

static void takes_copy(struct coordinator_placing *p, struct coordinator_candidate *candidates,
                       struct coordinator_worker *const *active, uint32_t n, uint32_t nth, uint64_t bytes)
{
    joins(p, candidates, active, n, nth);
    candidates[nth].free_bytes -= bytes;
    candidates[nth].load_bytes += bytes;
}

// The other copies of a chunk that candidate `serves` holds: as many as there is room for.
static void choose_followers(struct coordinator_placing *p, struct coordinator_candidate *candidates,
                             struct coordinator_worker *const *active, uint32_t n, uint32_t serves,
                             struct coordinator_chunk *chunk)
{
    const struct coordinator_session *s = p->s;
    uint32_t has[COORDINATOR_COPIES_MAX] = {serves}, ct = s->layout.chunk_tokens;
    uint64_t bytes = coordinator_session_index_room(s, chunk->index);
    while (coordinator_chunk_copies(chunk) < s->spec->replicas) {
        uint32_t copies = coordinator_chunk_copies(chunk),
                 to = coordinator_placement_follow(candidates, n, has, copies, ct, bytes);
        if (to == UINT32_MAX)
            break;
        has[copies] = to;
        takes_copy(p, candidates, active, n, to, bytes);
        candidates[to].follows += ct;
        coordinator_chunk_add(chunk, active[to], COORDINATOR_REPORT_HEARD);
    }
}

// Fills chosen and joining. A failure leaves the session as it was.
static void unreserve(struct coordinator_placing *p)
{
    coordinator_quota_give(p->s->use, COORDINATOR_QUOTA_BYTES, p->reserved);
    p->reserved = 0;
}

// New chunks have to fit in what the tenant may have; those that replace others count already.
static enum common_code reserve(struct coordinator_placing *p, struct proto_status *status)
{
    const struct coordinator_session *s = p->s;
    uint64_t bytes = 0;
    for (uint64_t i = p->first; i <= p->last; i++)
        if (!coordinator_layout_find(&s->layout, i))
            bytes += coordinator_session_index_quota(s, i);
    unreserve(p);
    enum common_code code = coordinator_quota_take(s->use, COORDINATOR_QUOTA_BYTES, bytes, status);
    p->reserved = code == COMMON_OK ? bytes : 0;
    return code;
}

static enum common_code choose_holders(struct coordinator_placing *p, struct proto_status *status)
{
    struct coordinator_session *s = p->s;
    struct coordinator_cluster *cluster = s->sessions->cluster;
    struct coordinator_worker *active[COORDINATOR_WORKERS_MAX];
    uint32_t n, ct = s->layout.chunk_tokens;
    enum common_code code = reserve(p, status);
    if (code != COMMON_OK)
        return code;
    struct coordinator_candidate *candidates = coordinator_candidates(s, active, &n);
    if (!n) {
        free(candidates);
        return proto_status_set(status, COMMON_UNAVAILABLE, PROTO_REASON_NO_WORKER,
                                "no worker is active: start one, or wait for one");
    }
    free(p->joining);
    free(p->refusing);
    free(p->chosen);
    p->joining = coordinator_alloc(n * sizeof(*p->joining));
    p->refusing = coordinator_alloc(n * sizeof(*p->refusing));
    p->chosen = coordinator_alloc((p->last - p->first + 1) * sizeof(*p->chosen));
    p->n = p->n_joining = 0;
    uint64_t end = s->layout.n ? s->layout.chunks[s->layout.n - 1].index : 0;
    uint32_t width = width_of(s, active, n, ((p->last > end ? p->last : end) + 1) * ct);
    for (uint64_t i = p->first; i <= p->last && code == COMMON_OK; i++) {
        if (!to_be_placed(s, i))
            continue;
        uint64_t chunk_bytes = coordinator_session_index_room(s, i);
        uint32_t to = coordinator_placement_choose(candidates, n, width, ct, chunk_bytes);
        if (to == UINT32_MAX) {
            code = no_room(cluster, active, n, candidates, chunk_bytes, status);
            break;
        }
        takes_copy(p, candidates, active, n, to, chunk_bytes);
        candidates[to].tokens += ct;
        struct coordinator_chunk *chunk = &p->chosen[p->n++];
        *chunk = (struct coordinator_chunk){.index = (uint32_t)i, .known = true, .open = !p->bulk};
        coordinator_chunk_add(chunk, active[to], COORDINATOR_REPORT_HEARD);
        choose_followers(p, candidates, active, n, to, chunk);
    }
    uint32_t members = 0, asked = s->spec->members < n ? s->spec->members : n;
    for (uint32_t i = 0; i < n; i++)
        members += candidates[i].member;
    while (code == COMMON_OK && p->n && members < asked) { // members that have no chunk yet
        uint32_t to = coordinator_placement_choose(candidates, n, asked, ct, 0);
        joins(p, candidates, active, n, to);
        members++;
    }
    free(candidates);
    return code;
}

// ---- doing --------------------------------------------------------------------------------------

static void placing_free(struct coordinator_placing *p)
{
    free(p->joining);
    free(p->refusing);
    free(p->chosen);
    free(p);
}

static void placing_finish(struct coordinator_placing *p, const struct proto_status *failure)
{
    struct coordinator_session *s = p->s;
    s->placing = p->next;
    unreserve(p);
    if (failure)
        s->place_again_ns = common_clock_after(COMMON_NS_PER_S);
    bool exclusive = p->exclusive, counted = p->counted;
    if (p->fn)
        p->fn(p->arg, s, failure);
    placing_free(p);
    if (exclusive)
        coordinator_session_release(s);
    else if (counted)
        coordinator_session_unshare(s);
    else if (s->placing)
        coordinator_session_settle(s);
}

static uint64_t *promised_at(const struct coordinator_chunk *chunk, uint32_t copy)
{
    struct coordinator_worker *w = coordinator_chunk_holder(chunk, copy);
    return chunk->open ? &w->open_bytes : &w->promised_bytes;
}

static void promise_back(struct coordinator_placing *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        uint64_t promise = coordinator_session_index_room(p->s, p->chosen[i].index);
        for (uint32_t copy = 0; copy < coordinator_chunk_copies(&p->chosen[i]); copy++) {
            uint64_t *promised = promised_at(&p->chosen[i], copy);
            *promised -= promise < *promised ? promise : *promised;
        }
    }
}

static void placing_fail(struct coordinator_placing *p, enum common_code code, enum proto_reason reason,
                         const char *text)
{
    struct proto_status status;
    // A call that was cut off is not one that the client has cancelled.
    proto_status_set(&status, code == COMMON_CANCELLED ? COMMON_UNAVAILABLE : code, reason,
                     "chunks could not be placed: %s", text);
    placing_finish(p, &status);
}

static void be_ready(const struct coordinator_placing *p, struct coordinator_chunk *chunk)
{
    chunk->ready = true;
    coordinator_chunk_counts(p->s->sessions, chunk, UINT32_MAX);
}

// The store has not taken it: nobody was told, and all is as it was.
static void store_refused(struct coordinator_placing *p, enum common_code code, const char *text)
{
    for (uint32_t i = 0; i < p->n; i++) {
        struct coordinator_chunk *before = coordinator_layout_find(&p->s->layout, p->chosen[i].index);
        if (before)
            be_ready(p, before);
    }
    promise_back(p);
    placing_fail(p, code, coordinator_store_reason(code), text);
}

// Whether the worker wanted to join, and has no memory for so little as that: it cannot be a member.
static bool cannot_join(const struct coordinator_placing *p, const struct coordinator_worker *w)
{
    for (uint32_t i = 0; i < p->n_joining; i++)
        if (p->joining[i] == w)
            return p->refusing[i];
    return false;
}

static bool any_cannot_join(const struct coordinator_placing *p)
{
    for (uint32_t i = 0; i < p->n_joining; i++)
        if (p->refusing[i])
            return true;
    return false;
}

// The store has it: the others are told as they are asked.
static void part_with_refusing(struct coordinator_placing *p)
{
    struct coordinator_session *s = p->s;
    if (!any_cannot_join(p))
        return;
    for (uint32_t i = 0; i < p->n_joining; i++) {
        if (!p->refusing[i])
            continue;
        coordinator_session_leave(s, p->joining[i]);
        coordinator_session_drop_at(s->sessions, s->id, p->joining[i]);
    }
    coordinator_session_raise_epoch(s, "a worker has no memory for it");
    coordinator_session_doubt_all(s);
}

// The chunks are out of the store again. Where it refused that, they stay: their holders are told of them by
// reconciling. Members that have joined remain members either way.
static void taken_back(void *arg, enum common_code code, const char *text)
{
    struct coordinator_placing *p = arg;
    struct coordinator_session *s = p->s;
    (void)text;
    for (uint32_t i = 0; i < p->n; i++) {
        struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, p->chosen[i].index);
        if (!chunk || chunk->id != p->chosen[i].id)
            continue;
        if (code == COMMON_OK)
            coordinator_session_remove_chunk(s, p->chosen[i].index);
        else
            be_ready(p, chunk);
        for (uint32_t copy = 0; copy < coordinator_chunk_copies(&p->chosen[i]); copy++) {
            struct coordinator_worker *w = coordinator_chunk_holder(&p->chosen[i], copy);
            if (code != COMMON_OK || !cannot_join(p, w))
                coordinator_session_doubt(s, w); // it may know the chunk
        }
    }
    if (code == COMMON_OK)
        part_with_refusing(p);
    bool full = p->code == COMMON_RESOURCE_EXHAUSTED;
    uint32_t tries =
        full ? TRIES + s->sessions->cluster->n_workers : TRIES; // who was full is not asked again
    bool again =
        (full || p->code == COMMON_UNAVAILABLE || p->code == COMMON_CANCELLED || p->code == COMMON_ABORTED) &&
        code == COMMON_OK && !s->sessions->core->stopping && ++p->tries < tries;
    if (!again) {
        placing_fail(p, p->code, p->reason, p->text);
        return;
    }
    bool exclusive = p->exclusive,
         counted = p->counted; // its worker went away, or is full: another one may do
    p->exclusive = p->counted = false;
    if (exclusive)
        coordinator_session_release(s);
    else if (counted)
        coordinator_session_unshare(s);
}

// Somebody could not be told of what the store has taken.
static void set_down(struct coordinator_placing *p, enum common_code code, enum proto_reason reason,
                     const char *text)
{
    struct coordinator_session *s = p->s;
    promise_back(p);
    if (s->sessions->core->stopping) {
        placing_fail(p, code, reason, text);
        return;
    }
    p->code = code;
    p->reason = reason;
    snprintf(p->text, sizeof(p->text), "%s", text);
    struct coordinator_batch *batch = coordinator_batch_new();
    for (uint32_t i = 0; i < p->n; i++)
        coordinator_batch_chunk_drop(batch, s->id, p->chosen[i].index);
    for (uint32_t i = 0; i < p->n_joining; i++)
        if (p->refusing[i])
            coordinator_batch_member_drop(batch, s->id, p->joining[i]->name);
    if (any_cannot_join(p))
        coordinator_batch_numbers(batch, s->id, s->incarnation, s->layout.epoch + 1);
    coordinator_store_submit(s->sessions->store, batch, taken_back, p);
}

static void holders_told(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("placing_told");
    struct coordinator_placing *p = arg;
    for (uint32_t i = 0; i < p->n && code == COMMON_OK; i++) {
        struct coordinator_chunk *chunk = coordinator_layout_find(&p->s->layout, p->chosen[i].index);
        if (!chunk || chunk->id != p->chosen[i].id || !coordinator_session_chunk_whole(chunk)) {
            code = COMMON_UNAVAILABLE;
            text = "the worker was lost meanwhile";
        }
    }
    if (code != COMMON_OK) {
        // Of a worker: it has no memory for an empty chunk's tables.
        set_down(p, code, code == COMMON_RESOURCE_EXHAUSTED ? PROTO_REASON_FULL : PROTO_REASON_NONE, text);
        return;
    }
    for (uint32_t i = 0; i < p->n; i++)
        be_ready(p, coordinator_layout_find(&p->s->layout, p->chosen[i].index));
    placing_finish(p, NULL);
}

// A member that holds none of the new chunks must hear of the new epoch before steps go on. One that cannot
// be told is asked and told again: the placing itself does not fail for that.
struct message {
    struct coordinator_gather *gather;
    struct coordinator_placing *p; // stays, as its session does
    struct coordinator_worker *w;
};

static void epoch_told(void *arg, enum common_code code, const char *text)
{
    (void)text;
    struct message told = *(struct message *)arg;
    free(arg);
    if (code != COMMON_OK)
        coordinator_session_doubt(told.p->s, told.w);
    coordinator_gather_finish(told.gather, COMMON_OK, "");
}

static void holder_told(void *arg, enum common_code code, const char *text)
{
    struct message told = *(struct message *)arg;
    free(arg);
    if (code == COMMON_RESOURCE_EXHAUSTED) // it has no memory for an empty chunk's tables
        coordinator_worker_refused(told.w, coordinator_session_chunk_room(told.p->s));
    for (uint32_t i = 0; i < told.p->n_joining; i++)
        if (told.p->joining[i] == told.w)
            told.p->refusing[i] = code == COMMON_RESOURCE_EXHAUSTED;
    coordinator_gather_finish(told.gather, code, text);
}

static void tell_chosen(struct coordinator_placing *p, struct coordinator_worker *w, bool epoch_rose,
                        struct coordinator_gather *gather)
{
    struct coordinator_session *s = p->s;
    const struct coordinator_chunk **mine = coordinator_alloc((p->n + 1) * sizeof(*mine));
    struct coordinator_layout_message m = {.session = s->id,
                                           .incarnation = s->incarnation,
                                           .epoch = s->layout.epoch,
                                           .spec = s->spec,
                                           .chunks = mine,
                                           .forgotten = s->floor};
    for (uint32_t i = 0; i < p->n; i++)
        if (coordinator_chunk_held_by(&p->chosen[i], w))
            mine[m.n++] = &p->chosen[i];
    if (m.n || epoch_rose) {
        struct message *message = coordinator_alloc(sizeof(*message));
        *message = (struct message){.gather = gather, .p = p, .w = w};
        coordinator_gather_add(gather);
        struct coordinator_gather *own =
            coordinator_gather_new(&s->sessions->core->turn, m.n ? holder_told : epoch_told, message);
        coordinator_layout_send(w, &m, own);
        coordinator_gather_seal(own);
    }
    free(mine);
}

// The store has it: now it is so, and only now anybody is told.
static void chosen_stored(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("placing_stored");
    struct coordinator_placing *p = arg;
    struct coordinator_session *s = p->s;
    if (code != COMMON_OK) {
        store_refused(p, code, text);
        return;
    }
    bool put = true;
    unreserve(p); // they count now
    for (uint32_t i = 0; i < p->n && put; i++) {
        const struct coordinator_chunk *there = coordinator_layout_find(&s->layout, p->chosen[i].index);
        struct coordinator_chunk before = there ? *there : (struct coordinator_chunk){.lost = true};
        put = coordinator_session_put_chunk(s, &p->chosen[i]) != NULL;
        if (there && before.refused)
            coordinator_session_memory_back(s, &before);
        for (uint32_t copy = 0; there && copy < coordinator_chunk_copies(&before); copy++) {
            struct coordinator_worker *holder = coordinator_chunk_holder(&before, copy);
            if (before.refused || !coordinator_chunk_held_by(&p->chosen[i], holder))
                coordinator_session_doubt(s, holder); // it has, or may be back with, what this one replaces
        }
    }
    for (uint32_t i = 0; i < p->n_joining; i++)
        coordinator_session_add_member(s, p->joining[i]);
    if (p->n_joining)
        coordinator_session_raise_epoch(s, "workers have joined");
    if (!put) {
        p->tries = UINT32_MAX - 1;
        set_down(p, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE, "the coordinator is out of memory");
        return;
    }
    struct coordinator_gather *gather = coordinator_gather_new(&s->sessions->core->turn, holders_told, p);
    for (uint32_t i = 0; i < s->n_members; i++) {
        struct coordinator_worker *w = s->members[i];
        if (coordinator_worker_active(w))
            tell_chosen(p, w, p->n_joining > 0, gather);
        else
            coordinator_session_dirty(s, w);
    }
    coordinator_gather_seal(gather);
}

static void store_chosen(struct coordinator_placing *p)
{
    COMMON_FAILPOINT("placing_chosen");
    struct coordinator_session *s = p->s;
    struct coordinator_batch *batch = coordinator_batch_new();
    bool ids = true;
    for (uint32_t i = 0; i < p->n; i++) {
        uint64_t promise = coordinator_session_index_room(s, p->chosen[i].index);
        struct coordinator_chunk *before = coordinator_layout_find(&s->layout, p->chosen[i].index);
        ids = ids && coordinator_sessions_chunk_id(s->sessions, &p->chosen[i].id);
        for (uint32_t copy = 0; copy < coordinator_chunk_copies(&p->chosen[i]); copy++)
            *promised_at(&p->chosen[i], copy) += promise;
        if (before)
            before->ready = false; // nobody fills what is being replaced, should its holder come back
        coordinator_batch_copies(batch, s->id, &p->chosen[i]);
    }
    for (uint32_t i = 0; i < p->n_joining; i++)
        coordinator_batch_joins(batch, s->id, p->joining[i]);
    if (p->n_joining)
        coordinator_batch_numbers(batch, s->id, s->incarnation, s->layout.epoch + 1);
    if (ids) {
        coordinator_store_submit(s->sessions->store, batch, chosen_stored, p);
    } else {
        coordinator_batch_free(batch);
        store_refused(p, COMMON_RESOURCE_EXHAUSTED, "the coordinator's disk is too slow");
    }
}

// What was only kept as cache has gone, or could not. So may the session have, and this placing with it.
struct clearing {
    struct coordinator_sessions *sessions;
    uint64_t session;
    const struct coordinator_placing *p;
};

static void placing_has_room(void *arg, bool made)
{
    struct clearing c = *(struct clearing *)arg;
    free(arg);
    struct coordinator_session *s = coordinator_session_find(c.sessions, c.session);
    if (!s || s->placing != c.p)
        return;
    s->placing->clearing = false;
    s->placing->cleared = !made;
    coordinator_session_settle(s);
}

// There is no room for it. True: it is tried again when something has gone that was only kept as cache.
static bool placing_clears(struct coordinator_placing *p, const struct proto_status *failure)
{
    struct coordinator_session *s = p->s;
    if (failure->code != COMMON_RESOURCE_EXHAUSTED || p->cleared)
        return false;
    struct clearing *c = coordinator_alloc(sizeof(*c));
    *c = (struct clearing){.sessions = s->sessions, .session = s->id, .p = p};
    p->clearing = s->sessions->hooks->make_room(s->sessions, failure, s->tenant, s, placing_has_room, c);
    if (!p->clearing)
        free(c);
    return p->clearing;
}

static void placing_alone(void *arg, struct coordinator_session *s)
{
    struct coordinator_placing *p = arg;
    p->wishing = false;
    if (!s)
        return; // coordinator_placing_session_gone ends the list
    p->exclusive = true;
    struct proto_status status;
    if (choose_holders(p, &status) == COMMON_OK) {
        store_chosen(p);
    } else if (placing_clears(p, &status)) {
        p->exclusive = false;
        coordinator_session_release(s);
    } else {
        placing_finish(p, &status);
    }
}

static void placing_start(struct coordinator_placing *p)
{
    struct coordinator_session *s = p->s;
    struct proto_status status;
    if (p->wishing || p->counted || p->exclusive || p->clearing || !coordinator_session_open(s))
        return; // under way, or pumped later
    if (s->withheld || s->broken) {
        coordinator_session_missing(s, 0, 1, 0, &status);
        placing_finish(p, &status);
        return;
    }
    p->first = with_forgotten(s, p->first); // those that came with the one before it may have been taken back
    bool needed = false;
    for (uint64_t i = p->first; i <= p->last && !needed; i++)
        needed = to_be_placed(s, i);
    if (!needed) {
        uint32_t ct = s->layout.chunk_tokens;
        enum common_code code =
            coordinator_session_missing(s, p->first * ct, (p->last - p->first + 1) * ct, 0, &status);
        placing_finish(p, code == COMMON_OK ? NULL : &status);
        return;
    }
    if (choose_holders(p, &status) != COMMON_OK) {
        if (!placing_clears(p, &status))
            placing_finish(p, &status);
        return;
    }
    if (p->n_joining) {
        p->wishing = true;
        if (coordinator_session_exclusive(s, COORDINATOR_SESSION_RELAYOUT, placing_alone, p) != COMMON_OK) {
            p->wishing = false;
            proto_status_set(&status, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_LIMIT,
                             "too many operations are waiting for this session");
            placing_finish(p, &status);
        }
        return;
    }
    coordinator_session_share(s);
    p->counted = true;
    store_chosen(p);
}

void coordinator_place(struct coordinator_session *s, uint64_t first, uint64_t last, bool bulk,
                       coordinator_placed_fn fn, void *arg)
{
    struct coordinator_placing *p = coordinator_alloc(sizeof(*p)), **at = &s->placing;
    *p = (struct coordinator_placing){
        .s = s, .first = first, .last = last, .bulk = bulk, .fn = fn, .arg = arg};
    while (*at)
        at = &(*at)->next;
    *at = p;
    if (s->placing == p)
        coordinator_session_settle(s);
}

void coordinator_place_ahead(struct coordinator_session *s, uint64_t past)
{
    uint64_t ct = s->layout.chunk_tokens, open = past % ct;
    if ((open && open * 2 < ct) || coordinator_layout_find(&s->layout, (past + ct - 1) / ct))
        return; // almost always, and without a look at every layer
    uint64_t end = coordinator_session_end(s), next = (end + ct - 1) / ct;
    open = end % ct;
    if (!end || (open && open * 2 < ct) || s->placing || coordinator_layout_find(&s->layout, next) ||
        next * ct >= s->sessions->core->options.max_session_tokens || common_clock_ns() < s->place_again_ns ||
        !coordinator_quota_fits(s->use, COORDINATOR_QUOTA_BYTES, coordinator_session_index_quota(s, next)))
        return; // what does not fit is refused when somebody wants it
    coordinator_place(s, next, next, false, NULL, NULL);
}

void coordinator_placing_pump(struct coordinator_session *s)
{
    if (s->placing)
        placing_start(s->placing);
}

void coordinator_placing_session_gone(struct coordinator_session *s)
{
    struct proto_status status;
    const char *text;
    enum common_code code = coordinator_gone(s->sessions->core, &text);
    proto_status_set(&status, code, PROTO_REASON_NONE, "%s", text);
    while (s->placing) {
        struct coordinator_placing *p = s->placing;
        s->placing = p->next;
        unreserve(p);
        if (p->fn)
            p->fn(p->arg, NULL, &status);
        placing_free(p);
    }
}

uint64_t coordinator_placing_reserved(const struct coordinator_session *s)
{
    uint64_t bytes = 0;
    for (const struct coordinator_placing *p = s->placing; p; p = p->next)
        bytes += p->reserved;
    return bytes;
}
