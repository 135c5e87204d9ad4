// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/planning.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/tenants/quota.h"
#include "proto/model/spec.h"

struct coordinator_exclusive {
    struct coordinator_exclusive *next;
    enum coordinator_session_state state;
    coordinator_session_fn fn;
    void *arg;
};

struct coordinator_door {
    struct coordinator_door *next;
    coordinator_session_fn fn;
    void *arg;
};

// ---- state --------------------------------------------------------------------------------------

#define TO(state) (1u << COORDINATOR_SESSION_##state)
const struct common_machine coordinator_session_machine = {
    .name = "session",
    .n = COORDINATOR_SESSION_STATES,
    .states = {"creating", "active", "relayout", "truncating", "forking", "deleting", "gone"},
    .next =
        {
            [COORDINATOR_SESSION_CREATING] = TO(ACTIVE) | TO(GONE),
            [COORDINATOR_SESSION_ACTIVE] =
                TO(RELAYOUT) | TO(TRUNCATING) | TO(FORKING) | TO(DELETING) | TO(GONE),
            [COORDINATOR_SESSION_RELAYOUT] = TO(ACTIVE),
            [COORDINATOR_SESSION_TRUNCATING] = TO(ACTIVE),
            [COORDINATOR_SESSION_FORKING] = TO(ACTIVE),
            [COORDINATOR_SESSION_DELETING] = TO(ACTIVE) | TO(GONE), // ACTIVE: the store refused
            [COORDINATOR_SESSION_GONE] = 0,
        },
};

void coordinator_session_set_state(struct coordinator_session *s, enum coordinator_session_state state)
{
    common_machine_move(&coordinator_session_machine, s->state, state);
    s->state = state;
}

// ---- who works on it ----------------------------------------------------------------------------

void coordinator_session_settle(struct coordinator_session *s)
{
    if (!common_list_empty(&s->settled) || s->state == COORDINATOR_SESSION_GONE)
        return;
    common_list_push(&s->sessions->settled, &s->settled);
    coordinator_turn_mark(&s->sessions->core->turn, COORDINATOR_PHASE_SESSIONS);
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
    if (s->exclusive || s->n_waiting || s->placing || s->doors)
        coordinator_session_settle(s);
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
    coordinator_session_settle(s);
    return COMMON_OK;
}

enum common_code coordinator_session_when_open(struct coordinator_session *s, coordinator_session_fn fn,
                                               void *arg)
{
    if (s->n_doors >= COORDINATOR_DOORS_MAX)
        return COMMON_RESOURCE_EXHAUSTED;
    struct coordinator_door *door = coordinator_alloc(sizeof(*door));
    *door = (struct coordinator_door){.fn = fn, .arg = arg};
    *s->doors_tail = door;
    s->doors_tail = &door->next;
    s->n_doors++;
    coordinator_session_settle(s);
    return COMMON_OK;
}

void coordinator_session_release(struct coordinator_session *s)
{
    coordinator_session_set_state(s, COORDINATOR_SESSION_ACTIVE);
    coordinator_session_settle(s);
}

static void pop_exclusive(struct coordinator_session *s, struct coordinator_exclusive *out)
{
    struct coordinator_exclusive *x = s->exclusive;
    *out = *x;
    s->exclusive = x->next;
    if (!s->exclusive)
        s->exclusive_tail = &s->exclusive;
    s->n_exclusive--;
    free(x);
}

static void pop_door(struct coordinator_session *s, struct coordinator_door *out)
{
    struct coordinator_door *door = s->doors;
    *out = *door;
    s->doors = door->next;
    if (!s->doors)
        s->doors_tail = &s->doors;
    s->n_doors--;
    free(door);
}

static void let_one_alone(struct coordinator_session *s)
{
    if (!s->exclusive || s->shared || s->repairing || s->awaited || s->state != COORDINATOR_SESSION_ACTIVE)
        return;
    struct coordinator_exclusive mine;
    pop_exclusive(s, &mine);
    coordinator_session_set_state(s, mine.state);
    mine.fn(mine.arg, s);
}

void coordinator_session_let_in(struct coordinator_session *s)
{
    const struct coordinator_session_hooks *hooks = s->sessions->hooks;
    hooks->settled(s);
    while (s->doors && coordinator_session_open(s)) {
        struct coordinator_door door;
        pop_door(s, &door);
        door.fn(door.arg, s);
    }
    if (coordinator_session_open(s))
        hooks->opened(s);
    if (coordinator_session_open(s) && s->n_waiting && common_list_empty(&s->opened)) {
        common_list_push(&s->sessions->opened, &s->opened);
        coordinator_turn_mark(&s->sessions->core->turn, COORDINATOR_PHASE_STEPS);
    }
    let_one_alone(s);
    hooks->served(s);
}

void coordinator_session_turn_away(struct coordinator_session *s)
{
    while (s->doors) {
        struct coordinator_door door;
        pop_door(s, &door);
        door.fn(door.arg, NULL);
    }
    while (s->exclusive) {
        struct coordinator_exclusive x;
        pop_exclusive(s, &x);
        x.fn(x.arg, NULL);
    }
}

// ---- what it holds ------------------------------------------------------------------------------

const struct coordinator_rangeset *coordinator_session_rows(const struct coordinator_session *s,
                                                            uint32_t layer)
{
    return &s->layers[proto_spec_source(s->spec, layer)];
}

uint64_t coordinator_session_layer_length(const struct coordinator_session *s, uint32_t layer)
{
    return coordinator_rangeset_length(coordinator_session_rows(s, layer));
}

uint64_t coordinator_session_forgotten(const struct coordinator_session *s, uint32_t layer)
{
    return proto_spec_forgotten(s->spec, layer, s->floor_next ? s->floor_next : s->floor);
}

// Holders give back whole chunks of a layer.
static bool is_given_back(const struct coordinator_session *s, uint32_t layer, uint64_t index, uint64_t floor)
{
    return floor &&
           (index + UINT64_C(1)) * s->layout.chunk_tokens <= proto_spec_forgotten(s->spec, layer, floor);
}

bool coordinator_session_given_back(const struct coordinator_session *s, uint32_t layer, uint32_t index)
{
    return is_given_back(s, layer, index, s->floor);
}

uint64_t coordinator_session_held(const struct coordinator_session *s, uint32_t layer)
{
    uint64_t back = s->floor ? proto_spec_forgotten(s->spec, layer, s->floor) : 0;
    back -= back % s->layout.chunk_tokens;
    return coordinator_rangeset_count(&s->layers[layer]) -
           (back ? coordinator_rangeset_overlap(&s->layers[layer], 0, back) : 0);
}

// What a chunk counts for in its holder's load.
static uint64_t load_of(const struct coordinator_session *s, uint64_t index, uint64_t floor)
{
    uint64_t bytes = coordinator_session_chunk_bytes(s);
    for (uint32_t l = 0; floor && l < s->spec->layers; l++) {
        struct proto_layer layer = proto_spec_layer(s->spec, l);
        if (is_given_back(s, l, index, floor))
            bytes -= s->layout.chunk_tokens * (layer.k_row + layer.v_row);
    }
    return bytes;
}

// A chunk of which all is given back has nothing at its holders.
static uint64_t quota_of(const struct coordinator_session *s, uint64_t bytes)
{
    return bytes ? (bytes + s->table_bytes) * s->spec->replicas : 0;
}

uint64_t coordinator_session_index_quota(const struct coordinator_session *s, uint64_t index)
{
    return quota_of(s, load_of(s, index, s->floor));
}

uint64_t coordinator_session_index_bytes(const struct coordinator_session *s, uint64_t index)
{
    return load_of(s, index, s->floor);
}

// What a worker frees can be promised again at once; the next heartbeat says exactly how much it is. promise: what was
// promised beside it, and was not filled; open: to appends.
static void give_back(struct coordinator_worker *w, uint64_t bytes, uint64_t promise, bool open)
{
    uint64_t *promised = open ? &w->open_bytes : &w->promised_bytes;
    if (bytes > w->used_bytes) // filled since the worker last reported: still counted as promised
        promise += bytes - w->used_bytes;
    w->used_bytes -= bytes < w->used_bytes ? bytes : w->used_bytes;
    *promised -= promise < *promised ? promise : *promised;
    if (bytes)
        w->refused_beats = 0; // what it had no room for may fit now
}

void coordinator_session_set_floor(struct coordinator_session *s, uint64_t floor)
{
    uint64_t from = UINT64_MAX; // chunks that end before it count as they did
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        uint64_t before = proto_spec_forgotten(s->spec, l, s->floor),
                 after = proto_spec_forgotten(s->spec, l, floor);
        uint64_t least = before < after ? before : after;
        from = before != after && least < from ? least : from;
    }
    uint32_t first = coordinator_layout_lower(&s->layout, from / s->layout.chunk_tokens);
    for (uint32_t i = first; i < s->layout.n; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        uint64_t before = load_of(s, chunk->index, s->floor), after = load_of(s, chunk->index, floor);
        coordinator_quota_give(s->use, COORDINATOR_QUOTA_BYTES, quota_of(s, before));
        coordinator_quota_add(s->use, COORDINATOR_QUOTA_BYTES, quota_of(s, after));
        for (uint32_t copy = 0; copy < coordinator_chunk_copies(chunk); copy++) {
            struct coordinator_worker *holder = coordinator_chunk_holder(chunk, copy);
            holder->load_bytes = holder->load_bytes - before + after;
            if (before > after)
                give_back(holder, before - after, 0, false);
        }
    }
    s->floor = floor;
}

uint64_t coordinator_session_length(const struct coordinator_session *s)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t l = s->first_layer; l < s->spec->layers; l++) {
        if (!proto_spec_stores(s->spec, l))
            continue;
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

uint64_t coordinator_session_chunk_bytes(const struct coordinator_session *s)
{
    return s->token_bytes * s->spec->chunk_tokens;
}

uint64_t coordinator_session_chunk_room(const struct coordinator_session *s)
{
    return coordinator_session_chunk_bytes(s) + s->table_bytes;
}

uint64_t coordinator_session_index_room(const struct coordinator_session *s, uint64_t index)
{
    uint64_t bytes = coordinator_session_index_bytes(s, index);
    return bytes ? bytes + s->table_bytes : 0; // a chunk of which all is given back goes anywhere
}

const char *coordinator_session_state_text(struct coordinator_session *s)
{
    if (coordinator_session_has_missing(s))
        return "unavailable";
    return s->awaited || s->thin ? "degraded" : "active";
}

bool coordinator_session_copy_usable(const struct coordinator_chunk *chunk, uint32_t copy)
{
    return !chunk->lost &&
           !((coordinator_chunk_unfit(chunk) | coordinator_chunk_doubted(chunk)) & 1u << copy) &&
           coordinator_worker_active(coordinator_chunk_holder(chunk, copy));
}

static uint32_t usable_copies(const struct coordinator_chunk *chunk)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        n += coordinator_session_copy_usable(chunk, i);
    return n;
}

bool coordinator_session_chunk_usable(const struct coordinator_chunk *chunk)
{
    return usable_copies(chunk) > 0;
}

uint32_t coordinator_session_copies_leaving(const struct coordinator_chunk *chunk)
{
    uint32_t leaving = coordinator_chunk_where(chunk, COORDINATOR_IN(LEAVING));
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk) && leaving; i++)
        if (!(leaving & 1u << i) && coordinator_session_copy_usable(chunk, i))
            return leaving;
    return 0;
}

bool coordinator_session_chunk_whole(const struct coordinator_chunk *chunk)
{
    return usable_copies(chunk) == coordinator_chunk_copies(chunk);
}

// What a chunk adds to the session's counts: by 1, or away by -1.
static void count_chunk(struct coordinator_session *s, const struct coordinator_chunk *chunk, uint32_t by)
{
    uint32_t usable = usable_copies(chunk), copies = coordinator_chunk_copies(chunk);
    s->missing += usable ? 0 : by;
    s->unknown += chunk->known ? 0 : by;
    bool awaited = usable && (usable < copies || coordinator_session_copies_leaving(chunk));
    s->awaited += awaited && !s->withheld ? by : 0;
    s->lost += chunk->lost ? by : 0;
    s->thin += copies < s->spec->replicas ? by : 0;
    s->single += copies < s->spec->replicas && copies == 1 ? by : 0;
    s->thick += copies > s->spec->replicas ? by : 0;
}

void coordinator_session_recount(struct coordinator_session *s)
{
    s->counted = s->sessions->cluster->changes;
    s->missing = (s->withheld > 0) + (s->broken > 0);
    s->unknown = s->awaited = s->lost = s->thin = s->thick = s->single = 0;
    for (uint32_t i = 0; i < s->layout.n; i++)
        count_chunk(s, &s->layout.chunks[i], 1);
    s->sessions->hooks->counted(s);
}

// A worker that becomes ACTIVE or ceases to be makes the count an old one.
static void count_if_old(struct coordinator_session *s)
{
    if (s->counted != s->sessions->cluster->changes)
        coordinator_session_recount(s);
}

static uint64_t tokens_of(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                          uint64_t length)
{
    uint64_t first = (uint64_t)chunk->index * s->layout.chunk_tokens,
             tokens = length > first ? length - first : 0;
    return tokens < s->layout.chunk_tokens ? tokens : s->layout.chunk_tokens;
}

void coordinator_session_count_tokens(struct coordinator_session *s)
{
    uint64_t before = s->counted_length, now = coordinator_session_layer_length(s, s->first_layer),
             ct = s->layout.chunk_tokens;
    uint64_t least = before < now ? before : now, most = before < now ? now : before;
    s->counted_length = now;
    if (least == most)
        return;
    for (uint32_t i = coordinator_layout_lower(&s->layout, least / ct); i < s->layout.n; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        if (chunk->index * ct >= most)
            break;
        coordinator_chunk_serves(chunk)->tokens += tokens_of(s, chunk, now) - tokens_of(s, chunk, before);
    }
}

// All writes of this life are above it, also when its term has been raised meanwhile.
static uint64_t least_write(const struct coordinator_session *s)
{
    uint64_t start = s->sessions->core->term << 40;
    return s->write > start ? s->write : start;
}

uint64_t coordinator_session_settled(struct coordinator_session *s)
{
    count_if_old(s);
    return s->unknown ? 0 : s->open_write ? s->open_write - 1 : least_write(s);
}

uint64_t coordinator_session_next_write(struct coordinator_session *s)
{
    return s->write = least_write(s) + 1;
}

bool coordinator_session_has_missing(struct coordinator_session *s)
{
    count_if_old(s);
    return s->missing > 0;
}

struct coordinator_chunk *coordinator_session_put_chunk(struct coordinator_session *s,
                                                        const struct coordinator_chunk *chunk)
{
    coordinator_session_remove_chunk(s, chunk->index); // counts, too
    struct coordinator_chunk *put = coordinator_layout_put(&s->layout, chunk);
    if (put) {
        for (uint32_t i = 0; i < coordinator_chunk_copies(put); i++) {
            coordinator_chunk_holder(put, i)->chunks++;
            coordinator_chunk_holder(put, i)->load_bytes += load_of(s, put->index, s->floor);
        }
        coordinator_chunk_serves(put)->tokens += tokens_of(s, put, s->counted_length);
        coordinator_quota_add(s->use, COORDINATOR_QUOTA_BYTES,
                              coordinator_session_index_quota(s, put->index));
        count_chunk(s, put, 1);
        if (s->thin || s->thick)
            s->sessions->hooks->counted(s);
    }
    return put;
}

void coordinator_chunk_counts(const struct coordinator_sessions *sessions, struct coordinator_chunk *chunk,
                              uint32_t copies)
{
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        if (copies & 1u << i)
            chunk->copies[i].stamp = sessions->stamps + 1;
}

enum common_code coordinator_session_writable(const struct coordinator_session *s,
                                              struct proto_status *status)
{
    return !s->kept ? COMMON_OK
                    : proto_status_set(status, COMMON_FAILED_PRECONDITION, PROTO_REASON_NONE,
                                       "the session has ended and is kept as cache, which takes no writes: "
                                       "create a session with its hashes, or fork it");
}

void coordinator_session_copy_back(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                                   uint32_t copy)
{
    uint64_t ct = s->layout.chunk_tokens, bytes = 0,
             promise = coordinator_session_index_room(s, chunk->index);
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        struct proto_layer layer = proto_spec_layer(s->spec, l);
        if (is_given_back(s, l, chunk->index, s->floor))
            continue;
        bytes +=
            coordinator_rangeset_overlap(&s->layers[l], chunk->index * ct, ct) * (layer.k_row + layer.v_row);
    }
    promise -= bytes < promise ? bytes : promise; // what was not filled
    give_back(coordinator_chunk_holder(chunk, copy), bytes, promise, chunk->open);
}

void coordinator_session_memory_back(const struct coordinator_session *s,
                                     const struct coordinator_chunk *chunk)
{
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        coordinator_session_copy_back(s, chunk, i);
}

void coordinator_session_remove_chunk(struct coordinator_session *s, uint32_t index)
{
    count_if_old(s);
    struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, index);
    if (!chunk)
        return;
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++) {
        coordinator_chunk_holder(chunk, i)->chunks--;
        coordinator_chunk_holder(chunk, i)->load_bytes -= load_of(s, chunk->index, s->floor);
    }
    coordinator_chunk_serves(chunk)->tokens -= tokens_of(s, chunk, s->counted_length);
    coordinator_quota_give(s->use, COORDINATOR_QUOTA_BYTES, coordinator_session_index_quota(s, index));
    count_chunk(s, chunk, UINT32_MAX);
    coordinator_layout_remove(&s->layout, index);
}

void coordinator_session_dirty(struct coordinator_session *s, struct coordinator_worker *w)
{
    s->dirtied = ++s->sessions->dirties;
    coordinator_worker_dirty(w);
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

void coordinator_session_leave(struct coordinator_session *s, struct coordinator_worker *w)
{
    uint32_t kept = 0, n = s->n_members;
    for (uint32_t i = 0; i < n; i++)
        if (s->members[i] != w)
            s->members[kept++] = s->members[i];
    w->members -= n - kept;
    s->n_members = kept;
    coordinator_session_drop_plan(s);
}

void coordinator_session_drop_members(struct coordinator_session *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        s->members[--s->n_members]->members--;
    coordinator_session_drop_plan(s);
}

void coordinator_session_drop_plan(struct coordinator_session *s)
{
    if (s->plan)
        coordinator_plan_release(s->plan);
    s->plan = NULL;
}

struct coordinator_plan *coordinator_session_plan(struct coordinator_session *s, struct proto_status *status)
{
    if (s->plan && s->plan->state != COORDINATOR_PLAN_RETIRED)
        return s->plan;
    coordinator_session_drop_plan(s);
    struct coordinator_worker **active = coordinator_alloc((s->n_members + 1) * sizeof(*active));
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_members; i++)
        if (coordinator_worker_active(s->members[i]))
            active[n++] = s->members[i];
    if (n)
        s->plan = coordinator_plan_get(s->sessions->cluster, active, n, status);
    else
        proto_status_set(status, COMMON_UNAVAILABLE, PROTO_REASON_WORKER_LOST,
                         "no worker that holds this session is reachable");
    free(active);
    return s->plan;
}

void coordinator_session_raise_epoch(struct coordinator_session *s, const char *why)
{
    coordinator_layout_set_epoch(&s->layout, s->layout.epoch + 1);
    coordinator_session_note(s, SESSION_EPOCH, INFO,
                             "the layout has changed: %s session=%016" PRIx64 " epoch=%" PRIu64, why, s->id,
                             s->layout.epoch);
}
