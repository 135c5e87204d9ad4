// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "coordinator/membership.h"
#include "coordinator/plans.h"
#include "coordinator/relayout.h"
#include "coordinator/scheduler.h"
#include "coordinator/watch.h"
#include "proto/kv.h"

// ---- state --------------------------------------------------------------------------------------

#define TO(state) (1u << COORDINATOR_SESSION_##state)
static const unsigned transitions[COORDINATOR_SESSION_STATES] = {
    [COORDINATOR_SESSION_CREATING] = TO(ACTIVE) | TO(GONE),
    [COORDINATOR_SESSION_ACTIVE] = TO(RELAYOUT) | TO(TRUNCATING) | TO(FORKING) | TO(DELETING) | TO(GONE),
    [COORDINATOR_SESSION_RELAYOUT] = TO(ACTIVE) | TO(GONE),
    [COORDINATOR_SESSION_TRUNCATING] = TO(ACTIVE) | TO(GONE),
    [COORDINATOR_SESSION_FORKING] = TO(ACTIVE) | TO(GONE),
    [COORDINATOR_SESSION_DELETING] = TO(ACTIVE) | TO(GONE), // ACTIVE: the store refused
    [COORDINATOR_SESSION_GONE] = 0,
};

void coordinator_session_set_state(struct coordinator_session *s, enum coordinator_session_state state)
{
    assert(transitions[s->state] & (1u << state));
    s->state = state;
}

static void start_next(struct coordinator_session *s)
{
    struct coordinator_exclusive *x = s->exclusive;
    s->exclusive = x->next;
    if (!s->exclusive)
        s->exclusive_tail = &s->exclusive;
    s->n_exclusive--;
    coordinator_session_set_state(s, x->state);
    struct coordinator_exclusive mine = *x;
    free(x);
    mine.fn(mine.arg, s);
}

// Lets in whoever may come in now: one exclusive operation, or the waiting steps.
static void settle(struct coordinator_session *s)
{
    if (s->state != COORDINATOR_SESSION_ACTIVE)
        return;
    if (s->exclusive) {
        if (!s->shared)
            start_next(s);
        return;
    }
    s->shared++; // so that nothing takes the session away from under us
    while (s->doors && coordinator_session_open(s)) {
        struct coordinator_door door = *s->doors;
        free(s->doors);
        s->doors = door.next;
        s->doors_tail = s->doors ? s->doors_tail : &s->doors;
        s->n_doors--;
        door.fn(door.arg, s);
    }
    coordinator_relayout_pump(s);
    coordinator_scheduler_pump(s);
    s->shared--;
    if (s->exclusive && !s->shared && s->state == COORDINATOR_SESSION_ACTIVE)
        start_next(s);
}

void coordinator_session_share(struct coordinator_session *s)
{
    assert(s->state == COORDINATOR_SESSION_ACTIVE);
    s->shared++;
}

void coordinator_session_unshare(struct coordinator_session *s)
{
    assert(s->shared > 0);
    s->shared--;
    if (s->exclusive || s->waiting.head || s->placing || s->doors)
        settle(s);
}

enum common_code coordinator_session_exclusive(struct coordinator_session *s,
                                               enum coordinator_session_state state,
                                               coordinator_session_fn fn, void *arg)
{
    if (s->n_exclusive >= COORDINATOR_EXCLUSIVE_MAX)
        return COMMON_RESOURCE_EXHAUSTED;
    struct coordinator_exclusive *x = coordinator_alloc(sizeof(*x));
    *x = (struct coordinator_exclusive){.state = state, .fn = fn, .arg = arg};
    *s->exclusive_tail = x;
    s->exclusive_tail = &x->next;
    s->n_exclusive++;
    if (s->state == COORDINATOR_SESSION_ACTIVE && !s->shared && s->exclusive == x)
        start_next(s);
    return COMMON_OK;
}

enum common_code coordinator_session_when_open(struct coordinator_session *s, coordinator_session_fn fn,
                                               void *arg)
{
    if (coordinator_session_open(s) && !s->doors) {
        fn(arg, s);
        return COMMON_OK;
    }
    if (s->n_doors >= COORDINATOR_DOORS_MAX)
        return COMMON_RESOURCE_EXHAUSTED;
    struct coordinator_door *door = coordinator_alloc(sizeof(*door));
    *door = (struct coordinator_door){.fn = fn, .arg = arg};
    *s->doors_tail = door;
    s->doors_tail = &door->next;
    s->n_doors++;
    return COMMON_OK;
}

void coordinator_session_release(struct coordinator_session *s)
{
    coordinator_session_set_state(s, COORDINATOR_SESSION_ACTIVE);
    settle(s);
}

// ---- the table ----------------------------------------------------------------------------------

static size_t bucket_of(const struct coordinator *c, const char *name)
{
    return common_xxh3(name, strlen(name), 0) % (sizeof(c->names) / sizeof(*c->names));
}

struct coordinator_session *coordinator_session_any(const struct coordinator *c, uint64_t id)
{
    uint64_t slot = (id & UINT32_MAX) - 1;
    struct coordinator_session *s = slot < c->session_slots ? c->sessions[slot] : NULL;
    return s && s->id == id ? s : NULL;
}

struct coordinator_session *coordinator_session_find(const struct coordinator *c, uint64_t id)
{
    struct coordinator_session *s = coordinator_session_any(c, id);
    return s && s->state != COORDINATOR_SESSION_CREATING ? s : NULL;
}

enum common_code coordinator_session_unknown(uint64_t id, struct proto_status *status)
{
    if (!id)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, "",
                                "session 0 is no session: a handle was not set");
    return proto_status_set(status, COMMON_NOT_FOUND, "",
                            "there is no such session (it may have been deleted)");
}

static struct coordinator_session *find_name(const struct coordinator *c, const char *name)
{
    struct coordinator_session *s = c->names[bucket_of(c, name)];
    while (s && strcmp(s->name, name))
        s = s->name_next;
    return s;
}

struct coordinator_session *coordinator_session_named(const struct coordinator *c, const char *name)
{
    struct coordinator_session *s = find_name(c, name);
    return s && s->state != COORDINATOR_SESSION_CREATING ? s : NULL;
}

static void name_enter(struct coordinator_session *s)
{
    struct coordinator_session **bucket = &s->c->names[bucket_of(s->c, s->name)];
    s->name_next = *bucket;
    *bucket = s;
}

static void name_leave(struct coordinator_session *s)
{
    struct coordinator_session **at = &s->c->names[bucket_of(s->c, s->name)];
    while (*at != s)
        at = &(*at)->name_next;
    *at = s->name_next;
}

static struct coordinator_session *make(struct coordinator *c, uint64_t id, const char *name,
                                        Banyan__Pb__Spec *spec)
{
    struct coordinator_session *s = coordinator_alloc(sizeof(*s));
    s->c = c;
    s->id = id;
    snprintf(s->name, sizeof(s->name), "%s", name);
    s->spec = spec;
    s->incarnation = 1;
    s->write = c->term << 40;
    s->exclusive_tail = &s->exclusive;
    s->doors_tail = &s->doors;
    s->layers = coordinator_alloc(spec->layers * sizeof(*s->layers));
    s->last_used_ns = common_clock_ns();
    coordinator_layout_init(&s->layout, spec->chunk_tokens, 1);
    c->sessions[(id & UINT32_MAX) - 1] = s;
    c->n_sessions++;
    if (s->name[0])
        name_enter(s);
    return s;
}

enum common_code coordinator_session_new(struct coordinator *c, const char *name, Banyan__Pb__Spec *spec,
                                         struct coordinator_session **out, struct proto_status *status)
{
    if (name[0] && find_name(c, name))
        return proto_status_set(status, COMMON_ALREADY_EXISTS, "",
                                "a session with the name %s exists: open it, or choose another name", name);
    uint64_t generation;
    if (!c->n_free_slots && c->session_slots >= c->options.max_sessions)
        return proto_status_set(status, COMMON_RESOURCE_EXHAUSTED, "LIMIT",
                                "there are %u sessions already: delete some, or raise --max-sessions",
                                c->n_sessions);
    if (!coordinator_store_next(c->store, COORDINATOR_COUNTER_GENERATION, &generation))
        return proto_status_set(status, COMMON_UNAVAILABLE, "",
                                "the store does not keep up with the number of new sessions: try again");
    uint32_t slot = c->n_free_slots ? c->free_slots[--c->n_free_slots] : c->session_slots++;
    *out = make(c, (generation & UINT32_MAX) << 32 | (slot + 1), name, spec);
    return COMMON_OK;
}

void coordinator_session_enter(struct coordinator_session *s)
{
    coordinator_session_set_state(s, COORDINATOR_SESSION_ACTIVE);
}

void coordinator_session_destroy(struct coordinator_session *s)
{
    struct coordinator *c = s->c;
    coordinator_session_set_state(s, COORDINATOR_SESSION_GONE);
    if (s->name[0])
        name_leave(s);
    uint32_t slot = (uint32_t)((s->id & UINT32_MAX) - 1);
    c->sessions[slot] = NULL;
    c->free_slots[c->n_free_slots++] = slot;
    c->n_sessions--;
    coordinator_scheduler_session_gone(s);
    coordinator_watch_session_gone(s);
    while (s->doors) {
        struct coordinator_door *door = s->doors;
        s->doors = door->next;
        door->fn(door->arg, NULL);
        free(door);
    }
    while (s->exclusive) {
        struct coordinator_exclusive *x = s->exclusive;
        s->exclusive = x->next;
        x->fn(x->arg, NULL);
        free(x);
    }
    coordinator_relayout_session_gone(s); // after the wishes: one of them may be a placing's own
    coordinator_session_drop_plan(s);
    while (s->layout.n)
        coordinator_session_remove_chunk(s, s->layout.chunks[s->layout.n - 1].index);
    for (uint32_t i = 0; i < s->n_members; i++)
        s->members[i]->members--;
    for (uint32_t l = 0; l < s->spec->layers; l++)
        coordinator_rangeset_free(&s->layers[l]);
    coordinator_layout_fini(&s->layout);
    banyan__pb__spec__free_unpacked(s->spec, NULL);
    free(s->layers);
    free(s->members);
    free(s);
}

void coordinator_sessions_free(struct coordinator *c)
{
    for (uint32_t i = 0; i < c->session_slots; i++)
        if (c->sessions[i])
            coordinator_session_destroy(c->sessions[i]);
    free(c->sessions);
    free(c->free_slots);
}

// ---- what it holds ------------------------------------------------------------------------------

uint64_t coordinator_session_layer_length(const struct coordinator_session *s, uint32_t layer)
{
    return coordinator_rangeset_length(&s->layers[layer]);
}

uint64_t coordinator_session_length(const struct coordinator_session *s)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        uint64_t length = coordinator_rangeset_length(&s->layers[l]);
        least = length < least ? length : least;
    }
    return least;
}

uint64_t coordinator_session_end(const struct coordinator_session *s)
{
    uint64_t most = 0;
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        uint64_t end = coordinator_rangeset_end(&s->layers[l]);
        most = end > most ? end : most;
    }
    return most;
}

uint64_t coordinator_session_row_bytes(const Banyan__Pb__Spec *spec)
{
    return proto_kv_row_bytes(spec->kv_type, spec->kv_heads, spec->k_dim) +
           proto_kv_row_bytes(spec->kv_type, spec->kv_heads, spec->v_dim);
}

uint64_t coordinator_session_chunk_bytes(const struct coordinator_session *s)
{
    return coordinator_session_row_bytes(s->spec) * s->spec->layers * s->spec->chunk_tokens;
}

const char *coordinator_session_state_text(const struct coordinator_session *s)
{
    return s->missing ? "unavailable" : "active";
}

bool coordinator_session_chunk_usable(const struct coordinator_chunk *chunk)
{
    return !chunk->lost && coordinator_worker_active(chunk->holder);
}

void coordinator_session_recount(struct coordinator_session *s)
{
    s->missing = s->withheld > 0;
    s->unknown = 0;
    for (uint32_t i = 0; i < s->layout.n; i++) {
        s->missing += !coordinator_session_chunk_usable(&s->layout.chunks[i]);
        s->unknown += !s->layout.chunks[i].known;
    }
}

struct coordinator_chunk *coordinator_session_put_chunk(struct coordinator_session *s,
                                                        const struct coordinator_chunk *chunk)
{
    coordinator_session_remove_chunk(s, chunk->index);
    struct coordinator_chunk *put = coordinator_layout_put(&s->layout, chunk);
    if (put) {
        put->holder->chunks++;
        put->holder->load_bytes += coordinator_session_chunk_bytes(s);
        s->missing += !coordinator_session_chunk_usable(put);
        s->unknown += !put->known;
    }
    return put;
}

void coordinator_session_memory_back(const struct coordinator_session *s,
                                     const struct coordinator_chunk *chunk)
{
    struct coordinator_worker *w = chunk->holder;
    uint64_t row = coordinator_session_row_bytes(s->spec), ct = s->layout.chunk_tokens, bytes = 0;
    uint64_t promise = coordinator_session_chunk_bytes(s);
    for (uint32_t l = 0; l < s->spec->layers; l++)
        bytes += coordinator_rangeset_overlap(&s->layers[l], chunk->index * ct, ct) * row;
    promise -= bytes < promise ? bytes : promise; // what was not filled
    if (bytes > w->used_bytes) // filled since the worker last reported: still counted as promised
        promise += bytes - w->used_bytes;
    w->used_bytes -= bytes < w->used_bytes ? bytes : w->used_bytes;
    w->promised_bytes -= promise < w->promised_bytes ? promise : w->promised_bytes;
}

void coordinator_session_remove_chunk(struct coordinator_session *s, uint32_t index)
{
    struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, index);
    if (!chunk)
        return;
    chunk->holder->chunks--;
    chunk->holder->load_bytes -= coordinator_session_chunk_bytes(s);
    s->missing -= !coordinator_session_chunk_usable(chunk);
    s->unknown -= !chunk->known;
    coordinator_layout_remove(&s->layout, index);
}

bool coordinator_session_has_member(const struct coordinator_session *s, const struct coordinator_worker *w)
{
    for (uint32_t i = 0; i < s->n_members; i++)
        if (s->members[i] == w)
            return true;
    return false;
}

void coordinator_session_add_member(struct coordinator_session *s, struct coordinator_worker *w)
{
    if (coordinator_session_has_member(s, w))
        return;
    s->members = realloc(s->members, (s->n_members + 1) * sizeof(*s->members));
    if (!s->members)
        abort();
    s->members[s->n_members++] = w;
    w->members++;
    coordinator_session_drop_plan(s);
}

void coordinator_session_drop_plan(struct coordinator_session *s)
{
    if (s->plan)
        coordinator_plan_release(s->plan);
    s->plan = NULL;
}

enum common_code coordinator_session_missing(const struct coordinator_session *s, uint64_t first,
                                             uint64_t count, uint32_t layer, struct proto_status *status)
{
    uint32_t ct = s->layout.chunk_tokens;
    uint64_t end = first + count, from = 0, to = 0; // the missing range that is being put together
    bool lost = false;
    if (!s->missing)
        return COMMON_OK;
    if (s->withheld) {
        proto_status_set(
            status, COMMON_UNAVAILABLE, "QUARANTINE",
            "workers hold a newer state of this session than the coordinator's store has: start the "
            "coordinator on the store that knows it, or give that state up (banyanctl quarantine)");
        status->session = s->id;
        status->layer = layer;
        return status->code;
    }
    proto_status_set(status, COMMON_UNAVAILABLE, "MISSING_RANGE",
                     "tokens of this session are on workers that are not there now");
    for (uint32_t i = coordinator_layout_lower(&s->layout, first / ct); i < s->layout.n; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        uint64_t start = (uint64_t)chunk->index * ct, stop = start + ct;
        if (start >= end)
            break;
        if (coordinator_session_chunk_usable(chunk))
            continue;
        lost = lost || chunk->lost;
        start = start < first ? first : start;
        stop = stop > end ? end : stop;
        bool named = false;
        for (uint32_t n = 0; n < status->n_workers; n++)
            named = named || !strcmp(status->workers[n], chunk->holder->name);
        if (!named)
            proto_status_add_worker(status, chunk->holder->name);
        if (to && to != start) {
            proto_status_add_range(status, from, to - from);
            from = start;
        } else if (!to) {
            from = start;
        }
        to = stop;
    }
    if (!to) {
        status->code = COMMON_OK;
        return COMMON_OK;
    }
    proto_status_add_range(status, from, to - from);
    status->session = s->id;
    status->layer = layer;
    const struct proto_range *r = &status->ranges[0];
    status->code = lost ? COMMON_DATA_LOSS : COMMON_UNAVAILABLE;
    snprintf(status->message, sizeof(status->message),
             "%s tokens [%" PRIu64 ", %" PRIu64 ")%s, held by %s%s: %s",
             lost ? "no worker holds" : "no worker can answer now for", r->first, r->first + r->count,
             status->n_ranges > 1 ? " and more" : "", status->workers[0],
             status->n_workers > 1 ? " and others" : "",
             lost ? "truncate the session before them, or delete it" : "try again when it is back");
    return status->code;
}

void coordinator_sessions_worker_changed(struct coordinator_worker *w)
{
    struct coordinator *c = w->c;
    for (uint32_t i = 0; i < c->session_slots; i++) {
        struct coordinator_session *s = c->sessions[i];
        if (!s)
            continue;
        coordinator_session_recount(s);
        if (coordinator_session_has_member(s, w))
            coordinator_session_drop_plan(s); // made anew from who is there
    }
}

// Puts go to the workers and are not seen here: while a ticket is good, an attach may be under way.
static bool idle(const struct coordinator_session *s, uint64_t now_ns)
{
    uint64_t used_ns = s->last_used_ns > s->ticket_until_ns ? s->last_used_ns : s->ticket_until_ns;
    return coordinator_session_open(s) && !s->shared && !s->waiting.head && !s->placing && now_ns > used_ns &&
           now_ns - used_ns > s->spec->idle_ttl_ns;
}

void coordinator_sessions_tick(struct coordinator *c, uint64_t now_ns)
{
    for (uint32_t i = 0; i < c->session_slots; i++) {
        struct coordinator_session *s = c->sessions[i];
        if (s && s->spec->idle_ttl_ns && idle(s, now_ns))
            coordinator_session_reclaim(s);
    }
}

// ---- loading ------------------------------------------------------------------------------------

static bool load_worker(void *arg, const char *name, uint64_t instance)
{
    struct coordinator_loader *r = arg;
    struct coordinator_worker *w = coordinator_worker_named(r->c, name);
    if (w)
        w->instance = w->stored_instance = instance;
    else
        common_error_set(r->err, COMMON_RESOURCE_EXHAUSTED,
                         "the store knows more workers than --max-workers allows");
    return w != NULL;
}

static bool damaged(struct coordinator_loader *r, const char *what, uint64_t session)
{
    common_error_set(r->err, COMMON_INVALID_ARGUMENT, "the store is damaged: %s of session %016" PRIx64, what,
                     session);
    return false;
}

static bool load_session(void *arg, uint64_t id, const char *name, const void *bytes, size_t n_bytes,
                         uint64_t incarnation, uint64_t epoch)
{
    struct coordinator_loader *r = arg;
    struct coordinator *c = r->c;
    uint64_t slot = (id & UINT32_MAX) - 1;
    Banyan__Pb__Spec *spec = banyan__pb__spec__unpack(NULL, n_bytes, bytes);
    struct proto_status status;
    if (!spec || coordinator_spec_check(spec, &status) != COMMON_OK ||
        strlen(name) >= COORDINATOR_NAME_BYTES) {
        if (spec)
            banyan__pb__spec__free_unpacked(spec, NULL);
        return damaged(r, "the specification", id);
    }
    if (slot >= c->options.max_sessions || c->sessions[slot]) {
        banyan__pb__spec__free_unpacked(spec, NULL);
        common_error_set(r->err, COMMON_RESOURCE_EXHAUSTED,
                         "the store has more sessions than --max-sessions allows");
        return false;
    }
    struct coordinator_session *s = make(c, id, name, spec);
    s->incarnation = incarnation;
    s->ticket_until_ns = s->last_used_ns + c->options.ticket_ns; // tickets of the life before are still good
    coordinator_layout_set_epoch(&s->layout, epoch);
    coordinator_session_set_state(s, COORDINATOR_SESSION_ACTIVE);
    if (slot >= c->session_slots)
        c->session_slots = (uint32_t)slot + 1;
    return true;
}

static bool load_member(void *arg, uint64_t session, const char *worker)
{
    struct coordinator_loader *r = arg;
    struct coordinator_session *s = coordinator_session_find(r->c, session);
    struct coordinator_worker *w = coordinator_worker_named(r->c, worker);
    if (!s || !w)
        return damaged(r, "a member", session);
    coordinator_session_add_member(s, w);
    return true;
}

static bool load_chunk(void *arg, uint64_t session, uint32_t index, uint64_t id, bool lost,
                       const char *holder)
{
    struct coordinator_loader *r = arg;
    struct coordinator_session *s = coordinator_session_find(r->c, session);
    struct coordinator_worker *w = coordinator_worker_named(r->c, holder);
    if (!s || !w || !id)
        return damaged(r, "a chunk", session);
    struct coordinator_chunk chunk = {.id = id, .index = index, .ready = true, .lost = lost, .holder = w};
    return coordinator_session_put_chunk(s, &chunk) || damaged(r, "a chunk", session);
}

static bool load_range(void *arg, uint64_t session, uint32_t layer, uint64_t first, uint64_t count)
{
    struct coordinator_loader *r = arg;
    struct coordinator_session *s = coordinator_session_find(r->c, session);
    if (!s || layer >= s->spec->layers || !count || first + count < first ||
        !coordinator_rangeset_load(&s->layers[layer], first, count))
        return damaged(r, "a range", session);
    return true;
}

void coordinator_sessions_reader(struct coordinator_loader *loader, struct coordinator_store_reader *out)
{
    *out = (struct coordinator_store_reader){.arg = loader,
                                             .worker = load_worker,
                                             .session = load_session,
                                             .member = load_member,
                                             .chunk = load_chunk,
                                             .range = load_range};
}

void coordinator_sessions_loaded(struct coordinator *c)
{
    for (uint32_t i = c->session_slots; i > 0; i--) {
        if (!c->sessions[i - 1])
            c->free_slots[c->n_free_slots++] = i - 1;
        else
            c->sessions[i - 1]->write = c->term << 40;
    }
}
