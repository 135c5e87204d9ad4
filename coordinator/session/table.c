// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/table.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "common/memory/block.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/keys.h"
#include "coordinator/session/move_queue.h"
#include "coordinator/store/store.h"
#include "coordinator/tenants/quota.h"
#include "proto/model/footprint.h"
#include "proto/model/spec.h"

#define NEAR (UINT32_C(1) << 24) // generations: as many as a restored store goes on (store/restore.c)

// ---- finding ------------------------------------------------------------------------------------

static size_t bucket_of(const struct coordinator_sessions *sessions, uint32_t tenant, const char *name)
{
    return common_xxh3(name, strlen(name), tenant) % (sizeof(sessions->names) / sizeof(*sessions->names));
}

static uint32_t slot_of(const struct coordinator_sessions *sessions, uint64_t id)
{
    return coordinator_ids_place(&sessions->ids, id).number - 1; // UINT32_MAX: no session's
}

struct coordinator_session *coordinator_session_any(const struct coordinator_sessions *sessions, uint64_t id)
{
    uint32_t slot = sessions->hints[id % COORDINATOR_HINTS]; // steps come this way: cheap, and right for most
    struct coordinator_session *s = slot < sessions->n_slots ? sessions->slots[slot] : NULL;
    if (s && s->id == id)
        return s;
    slot = slot_of(sessions, id);
    s = slot < sessions->n_slots ? sessions->slots[slot] : NULL;
    return s && s->id == id ? s : NULL;
}

// Whether a place that nobody may have been given is to be believed: sessions were made about that long ago, or soon will
// be. Of places that come from numbers that are no ids of this store, by another key or by guessing, few are.
static bool is_near(const struct coordinator_sessions *sessions, struct coordinator_place place)
{
    uint32_t next = (uint32_t)coordinator_store_upcoming(sessions->store, COORDINATOR_COUNTER_GENERATION);
    return place.number - 1 < sessions->core->options.max_sessions &&
           (!sessions->ids.keyed || next - place.generation + NEAR < 2 * NEAR);
}

uint32_t coordinator_sessions_slot_after(const struct coordinator_sessions *sessions, uint64_t id)
{
    if (!id || coordinator_session_any(sessions, id))
        return id ? slot_of(sessions, id) + 1 : 0;
    struct coordinator_place place = coordinator_ids_place(&sessions->ids, id);
    return is_near(sessions, place) ? place.number : UINT32_MAX;
}

bool coordinator_sessions_chunk_id(struct coordinator_sessions *sessions, uint64_t *out)
{
    uint64_t nth, id;
    do {
        if (!coordinator_store_next(sessions->store, COORDINATOR_COUNTER_CHUNK, &nth))
            return false;
        id = coordinator_ids_of_chunk(&sessions->ids, nth);
    } while (!id);
    *out = id;
    return true;
}

void coordinator_sessions_never_again(struct coordinator_sessions *sessions, uint64_t id)
{
    struct coordinator_place place = coordinator_ids_place(&sessions->ids, id);
    if (!sessions->ids.keyed || is_near(sessions, place))
        coordinator_store_skip(sessions->store, COORDINATOR_COUNTER_GENERATION, place.generation);
}

struct coordinator_session *coordinator_session_find(const struct coordinator_sessions *sessions, uint64_t id)
{
    struct coordinator_session *s = coordinator_session_any(sessions, id);
    return s && s->state != COORDINATOR_SESSION_CREATING ? s : NULL;
}

struct coordinator_session *coordinator_session_asked(const struct coordinator_sessions *sessions,
                                                      const struct proto_request *request, uint64_t id)
{
    struct coordinator_session *s = coordinator_session_find(sessions, id);
    if (!s || coordinator_session_is_for(s, proto_request_identity(request)))
        return s;
    if (sessions->core->strange)
        sessions->core->strange(sessions->core->strange_arg, request, id);
    return NULL;
}

enum common_code coordinator_session_unknown(uint64_t id, struct proto_status *status)
{
    if (!id)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "session 0 is invalid: the handle was not set");
    return proto_status_set(status, COMMON_NOT_FOUND, PROTO_REASON_NO_SESSION,
                            "there is no such session (it may have been deleted)");
}

static struct coordinator_session *find_name(const struct coordinator_sessions *sessions, uint32_t tenant,
                                             const char *name)
{
    struct coordinator_session *s = sessions->names[bucket_of(sessions, tenant, name)];
    while (s && (s->tenant != tenant || strcmp(s->name, name)))
        s = s->name_next;
    return s;
}

struct coordinator_session *coordinator_session_named(const struct coordinator_sessions *sessions,
                                                      uint32_t tenant, const char *name)
{
    struct coordinator_session *s = find_name(sessions, tenant, name);
    return s && s->state != COORDINATOR_SESSION_CREATING ? s : NULL;
}

struct coordinator_session *coordinator_session_being_made(const struct coordinator_sessions *sessions,
                                                           uint32_t tenant, const char *name)
{
    struct coordinator_session *s = find_name(sessions, tenant, name);
    return s && s->state == COORDINATOR_SESSION_CREATING ? s : NULL;
}

static void name_enter(struct coordinator_session *s)
{
    struct coordinator_session **bucket = &s->sessions->names[bucket_of(s->sessions, s->tenant, s->name)];
    s->name_next = *bucket;
    *bucket = s;
}

static void name_leave(struct coordinator_session *s)
{
    struct coordinator_session **at = &s->sessions->names[bucket_of(s->sessions, s->tenant, s->name)];
    while (*at != s)
        at = &(*at)->name_next;
    *at = s->name_next;
}

// ---- making -------------------------------------------------------------------------------------

static struct coordinator_session *session_make(struct coordinator_sessions *sessions, uint64_t id,
                                                uint32_t slot, const char *name, uint32_t tenant,
                                                Banyan__Pb__Spec *spec)
{
    struct coordinator_session *s = coordinator_alloc(sizeof(*s));
    s->sessions = sessions;
    s->id = id;
    s->tenant = tenant;
    s->use = coordinator_use_of(sessions->quotas, tenant);
    coordinator_quota_add(s->use, COORDINATOR_QUOTA_SESSIONS, 1);
    snprintf(s->name, sizeof(s->name), "%s", name);
    s->spec = spec;
    s->incarnation = 1;
    s->cut = id;
    s->write = sessions->core->term << 40;
    s->exclusive_tail = &s->exclusive;
    s->doors_tail = &s->doors;
    common_list_init(&s->settled);
    common_list_init(&s->opened);
    common_list_init(&s->gone);
    common_list_init(&s->uneven);
    coordinator_move_queue_enter(s);
    s->counted = sessions->cluster->changes;
    s->spread_seen = sessions->cluster->speeds;
    s->layers = coordinator_alloc(spec->layers * sizeof(*s->layers));
    s->newest = spec->forget ? coordinator_alloc(spec->layers * sizeof(*s->newest)) : NULL;
    s->first_layer = proto_spec_first_layer(spec);
    s->token_bytes = proto_spec_token_bytes(spec);
    s->table_bytes = proto_footprint_chunk(spec) - coordinator_session_chunk_bytes(s);
    s->last_used_ns = common_clock_ns();
    coordinator_layout_init(&s->layout, spec->chunk_tokens, 1);
    sessions->slots[slot] = s;
    sessions->hints[id % COORDINATOR_HINTS] = slot;
    sessions->n++;
    if (s->name[0])
        name_enter(s);
    return s;
}

enum common_code coordinator_session_new(struct coordinator_sessions *sessions, const char *name,
                                         uint32_t tenant, Banyan__Pb__Spec *spec,
                                         struct coordinator_session **out, struct proto_status *status)
{
    if (name[0] && find_name(sessions, tenant, name))
        return proto_status_set(status, COMMON_ALREADY_EXISTS, PROTO_REASON_NAME_TAKEN,
                                "a session named %s exists: open it, or choose another name", name);
    uint64_t generation;
    struct coordinator_use *use = coordinator_use_of(sessions->quotas, tenant);
    if (coordinator_quota_take(use, COORDINATOR_QUOTA_SESSIONS, 1, status) != COMMON_OK)
        return status->code;
    coordinator_quota_give(use, COORDINATOR_QUOTA_SESSIONS, 1); // until it is made
    if (!sessions->n_free_slots && sessions->n_slots >= sessions->core->options.max_sessions) {
        sessions->core->reached[COORDINATOR_LIMIT_SESSIONS]++;
        return proto_status_set(status, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_LIMIT,
                                "the limit of %u sessions is reached: delete some, or raise --max-sessions",
                                sessions->core->options.max_sessions);
    }
    uint32_t slot =
        sessions->n_free_slots ? sessions->free_slots[sessions->n_free_slots - 1] : sessions->n_slots;
    uint64_t id = 0;
    while (!id) {
        if (!coordinator_store_next(sessions->store, COORDINATOR_COUNTER_GENERATION, &generation))
            return proto_status_set(status, COMMON_UNAVAILABLE, PROTO_REASON_NONE,
                                    "the store is too slow for the number of new sessions: try again");
        id = coordinator_ids_of(&sessions->ids, (struct coordinator_place){(uint32_t)generation, slot + 1});
    }
    if (sessions->n_free_slots)
        sessions->n_free_slots--;
    else
        sessions->n_slots++;
    *out = session_make(sessions, id, slot, name, tenant, spec);
    return COMMON_OK;
}

struct coordinator_session *coordinator_session_restore(struct coordinator_sessions *sessions, uint64_t id,
                                                        const char *name, uint32_t tenant,
                                                        Banyan__Pb__Spec *spec)
{
    uint32_t slot = slot_of(sessions, id);
    if (slot >= sessions->core->options.max_sessions || sessions->slots[slot])
        return NULL;
    if (slot >= sessions->n_slots)
        sessions->n_slots = slot + 1;
    return session_make(sessions, id, slot, name, tenant, spec);
}

void coordinator_sessions_restored(struct coordinator_sessions *sessions)
{
    for (uint32_t i = sessions->n_slots; i > 0; i--) {
        if (!sessions->slots[i - 1])
            sessions->free_slots[sessions->n_free_slots++] = i - 1;
        else
            sessions->slots[i - 1]->write = sessions->core->term << 40;
        if (sessions->slots[i - 1])
            coordinator_session_count_tokens(sessions->slots[i - 1]);
    }
}

void coordinator_session_enter(struct coordinator_session *s)
{
    coordinator_session_set_state(s, COORDINATOR_SESSION_ACTIVE);
    // A chunk that it shares was lost meanwhile (seals.c), or somebody waits to open it by its name.
    if (s->exclusive || s->doors)
        coordinator_session_settle(s);
}

void coordinator_batch_copies(struct coordinator_batch *batch, uint64_t session,
                              const struct coordinator_chunk *chunk)
{
    coordinator_batch_chunk(batch, session, chunk->index, chunk->id, chunk->lost,
                            coordinator_chunk_serves(chunk)->name);
    for (uint32_t i = 1; i < coordinator_chunk_copies(chunk); i++)
        coordinator_batch_follower(batch, session, chunk->index, coordinator_chunk_holder(chunk, i)->name);
    if (chunk->seal)
        coordinator_batch_seal(batch, session, chunk->index, chunk->id, chunk->seal);
}

void coordinator_batch_joins(struct coordinator_batch *batch, uint64_t session,
                             const struct coordinator_worker *w)
{
    if (!w->stored_instance) // so it has lost nothing that the store has at it
        coordinator_batch_worker(batch, w->name, w->instance);
    coordinator_batch_member(batch, session, w->name);
}

void coordinator_batch_whole_session(struct coordinator_batch *batch, const struct coordinator_session *s)
{
    size_t bytes = banyan__pb__spec__get_packed_size(s->spec);
    uint8_t *packed = coordinator_alloc(bytes + 1);
    banyan__pb__spec__pack(s->spec, packed);
    coordinator_batch_session(batch, s->id, s->name, packed, bytes, s->incarnation, s->layout.epoch,
                              s->tenant);
    if (s->floor)
        coordinator_batch_floor(batch, s->id, s->floor);
    for (uint32_t i = 0; i < s->n_members; i++)
        coordinator_batch_joins(batch, s->id, s->members[i]);
    for (uint32_t i = 0; i < s->layout.n; i++)
        coordinator_batch_copies(batch, s->id, &s->layout.chunks[i]);
    if (s->key)
        coordinator_batch_key(batch, s->id, s->key);
    free(packed);
}

// ---- its end ------------------------------------------------------------------------------------

void coordinator_session_destroy(struct coordinator_session *s)
{
    struct coordinator_sessions *sessions = s->sessions;
    coordinator_session_set_state(s, COORDINATOR_SESSION_GONE);
    common_block_hand_over(); // appended rows and answers went through here
    sessions->hooks->ending(s);
    if (s->name[0])
        name_leave(s);
    coordinator_key_leave(s);
    uint32_t slot = slot_of(sessions, s->id);
    sessions->slots[slot] = NULL;
    sessions->free_slots[sessions->n_free_slots++] = slot;
    sessions->n--;
    coordinator_quota_give(s->use, COORDINATOR_QUOTA_SESSIONS, 1);
    coordinator_session_drop_plan(s);
    while (s->layout.n)
        coordinator_session_remove_chunk(s, s->layout.chunks[s->layout.n - 1].index);
    coordinator_session_drop_members(s, s->n_members);
    common_list_remove(&s->settled);
    common_list_remove(&s->opened);
    common_list_remove(&s->uneven);
    coordinator_move_queue_leave(s);
    common_list_push(&sessions->gone, &s->gone);
    coordinator_turn_mark(&sessions->core->turn, COORDINATOR_PHASE_STEPS);
}

static void session_free(struct coordinator_session *s)
{
    coordinator_session_turn_away(s);
    common_list_remove(&s->gone);
    s->sessions->hooks->ended(s); // after those at its doors: one of them may be a placing's own
    for (uint32_t l = 0; l < s->spec->layers; l++)
        coordinator_rangeset_free(&s->layers[l]);
    coordinator_tickets_free(&s->tickets);
    coordinator_layout_fini(&s->layout);
    banyan__pb__spec__free_unpacked(s->spec, NULL);
    free(s->layers);
    free(s->newest);
    free(s->members);
    free(s);
}

static struct coordinator_session *first_of(struct common_list *list, size_t offset)
{
    return common_list_empty(list) ? NULL
                                   : (struct coordinator_session *)(void *)((char *)list->next - offset);
}

struct coordinator_session *coordinator_sessions_take_gone(struct coordinator_sessions *sessions)
{
    struct coordinator_session *s = first_of(&sessions->gone, offsetof(struct coordinator_session, gone));
    if (!s)
        return NULL;
    common_list_remove(&s->gone);
    common_list_push(&sessions->reaped, &s->gone);
    coordinator_turn_mark(&sessions->core->turn, COORDINATOR_PHASE_SESSIONS);
    return s;
}

struct coordinator_session *coordinator_sessions_take_opened(struct coordinator_sessions *sessions)
{
    struct coordinator_session *s = first_of(&sessions->opened, offsetof(struct coordinator_session, opened));
    if (s)
        common_list_remove(&s->opened);
    return s;
}

struct coordinator_session *coordinator_sessions_take_settled(struct coordinator_sessions *sessions)
{
    struct coordinator_session *s =
        first_of(&sessions->settled, offsetof(struct coordinator_session, settled));
    if (s)
        common_list_remove(&s->settled);
    return s;
}

void coordinator_sessions_reap(struct coordinator_sessions *sessions)
{
    struct coordinator_session *s;
    while ((s = first_of(&sessions->reaped, offsetof(struct coordinator_session, gone))))
        session_free(s);
}

// ---- counts -------------------------------------------------------------------------------------

uint64_t coordinator_sessions_thin(const struct coordinator_sessions *sessions)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < sessions->n_slots; i++)
        n += sessions->slots[i] ? sessions->slots[i]->thin : 0;
    return n;
}

static enum coordinator_condition condition_of(const struct coordinator_session *s)
{
    return s->lost                                  ? COORDINATOR_CONDITION_LOST
           : s->missing                             ? COORDINATOR_CONDITION_MISSING
           : s->thin || s->awaited                  ? COORDINATOR_CONDITION_DEGRADED
           : s->state != COORDINATOR_SESSION_ACTIVE ? COORDINATOR_CONDITION_CHANGING
                                                    : COORDINATOR_CONDITION_ACTIVE;
}

void coordinator_sessions_census(const struct coordinator_sessions *sessions, struct coordinator_census *out)
{
    *out = (struct coordinator_census){0};
    for (uint32_t i = 0; i < sessions->n_slots; i++) {
        const struct coordinator_session *s = sessions->slots[i];
        if (!s)
            continue;
        out->sessions[condition_of(s)]++;
        out->lost_chunks += s->lost;
    }
}
