// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sessions/load.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/check/seals.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/prefix/prefix.h"
#include "coordinator/session/keys.h"
#include "coordinator/session/spec.h"
#include "coordinator/session/table.h"
#include "proto/model/spec.h"

#define ATTACH_NS (30 * COMMON_NS_PER_S)

static void load_id_key(void *arg, const uint64_t key[2])
{
    struct coordinator_loader *r = arg;
    r->sessions->ids = (struct coordinator_ids){.keyed = true, .key = {key[0], key[1]}};
}

static bool load_worker(void *arg, const char *name, uint64_t instance)
{
    struct coordinator_loader *r = arg;
    struct coordinator_worker *w = coordinator_worker_named(r->sessions->cluster, name);
    if (w)
        w->instance = w->stored_instance = instance;
    else
        common_error_set(r->err, COMMON_RESOURCE_EXHAUSTED,
                         "the store has more workers than --max-workers allows");
    return w != NULL;
}

static bool damaged(struct coordinator_loader *r, const char *what, uint64_t session)
{
    common_error_set(r->err, COMMON_INVALID_ARGUMENT, "the store is damaged: %s of session %016" PRIx64, what,
                     session);
    return false;
}

static bool load_session(void *arg, uint64_t id, const char *name, const void *bytes, size_t n_bytes,
                         uint64_t incarnation, uint64_t epoch, uint32_t tenant)
{
    struct coordinator_loader *r = arg;
    struct coordinator_sessions *sessions = r->sessions;
    Banyan__Pb__Spec *spec = banyan__pb__spec__unpack(NULL, n_bytes, bytes);
    struct proto_status status;
    if (!spec || coordinator_spec_check(spec, &status) != COMMON_OK ||
        strlen(name) >= COORDINATOR_NAME_BYTES) {
        if (spec)
            banyan__pb__spec__free_unpacked(spec, NULL);
        return damaged(r, "the specification", id);
    }
    struct coordinator_session *s = coordinator_session_restore(sessions, id, name, tenant, spec);
    if (!s) {
        banyan__pb__spec__free_unpacked(spec, NULL);
        common_error_set(r->err, COMMON_RESOURCE_EXHAUSTED,
                         "the store has more sessions than --max-sessions allows");
        return false;
    }
    s->incarnation = incarnation;
    s->tickets.until_ns =
        s->last_used_ns + sessions->core->options.ticket_ns; // tickets of the life before are still good
    // Workers refuse them from now on; of what they have put before, a commit comes soon, or the rows are put again.
    s->tickets.all_ns = s->last_used_ns + ATTACH_NS;
    coordinator_layout_set_epoch(&s->layout, epoch);
    coordinator_session_enter(s);
    return true;
}

static bool load_member(void *arg, uint64_t session, const char *worker)
{
    struct coordinator_loader *r = arg;
    struct coordinator_session *s = coordinator_session_find(r->sessions, session);
    struct coordinator_worker *w = coordinator_worker_named(r->sessions->cluster, worker);
    if (!s || !w)
        return damaged(r, "a member", session);
    coordinator_session_add_member(s, w);
    return true;
}

static bool load_chunk(void *arg, uint64_t session, uint32_t index, uint64_t id, bool lost,
                       const char *holder)
{
    struct coordinator_loader *r = arg;
    struct coordinator_session *s = coordinator_session_find(r->sessions, session);
    struct coordinator_worker *w = coordinator_worker_named(r->sessions->cluster, holder);
    if (!s || !w || !id)
        return damaged(r, "a chunk", session);
    struct coordinator_chunk chunk = {.id = id, .index = index, .ready = true, .lost = lost};
    coordinator_chunk_add(&chunk, w, COORDINATOR_REPORT_SILENT);
    return coordinator_session_put_chunk(s, &chunk) || damaged(r, "a chunk", session);
}

static bool load_follower(void *arg, uint64_t session, uint32_t index, const char *holder)
{
    struct coordinator_loader *r = arg;
    struct coordinator_session *s = coordinator_session_find(r->sessions, session);
    struct coordinator_worker *w = coordinator_worker_named(r->sessions->cluster, holder);
    const struct coordinator_chunk *of = s ? coordinator_layout_find(&s->layout, index) : NULL;
    if (!w || !of || coordinator_chunk_copies(of) == COORDINATOR_COPIES_MAX ||
        coordinator_chunk_copy_at(of, w) < COORDINATOR_COPIES_MAX)
        return damaged(r, "a copy of a chunk", session);
    struct coordinator_chunk chunk = *of;
    coordinator_chunk_add(&chunk, w, COORDINATOR_REPORT_SILENT);
    return coordinator_session_put_chunk(s, &chunk) || damaged(r, "a copy of a chunk", session);
}

static bool load_seal(void *arg, uint64_t session, uint32_t index, uint64_t seal)
{
    struct coordinator_loader *r = arg;
    struct coordinator_session *s = coordinator_session_find(r->sessions, session);
    struct coordinator_chunk *chunk = s ? coordinator_layout_find(&s->layout, index) : NULL;
    if (!chunk)
        return damaged(r, "a seal", session);
    coordinator_chunk_sealed(s, chunk, seal);
    return true;
}

static bool load_range(void *arg, uint64_t session, uint32_t layer, uint64_t first, uint64_t count)
{
    struct coordinator_loader *r = arg;
    struct coordinator_session *s = coordinator_session_find(r->sessions, session);
    if (!s || layer >= s->spec->layers || !proto_spec_stores(s->spec, layer) || !count ||
        first + count < first || !coordinator_rangeset_load(&s->layers[layer], first, count))
        return damaged(r, "a range", session);
    return true;
}

static bool load_key(void *arg, uint64_t session, uint64_t key)
{
    struct coordinator_loader *r = arg;
    struct coordinator_session *s = coordinator_session_find(r->sessions, session);
    if (!s || s->key)
        return damaged(r, "a key", session);
    coordinator_key_enter(s, key);
    return true;
}

static bool load_cut(void *arg, uint64_t session, uint64_t cut)
{
    struct coordinator_loader *r = arg;
    struct coordinator_session *s = coordinator_session_find(r->sessions, session);
    if (!s || !cut)
        return damaged(r, "a cut", session);
    s->cut = cut;
    return true;
}

static bool load_floor(void *arg, uint64_t session, uint64_t floor)
{
    struct coordinator_loader *r = arg;
    struct coordinator_session *s = coordinator_session_find(r->sessions, session);
    if (!s)
        return damaged(r, "a floor", session);
    coordinator_session_set_floor(s, floor);
    return true;
}

// One that was changed since by a coordinator that knows of no prefixes is any session again.
static bool load_prefix(void *arg, uint64_t session, uint64_t incarnation, uint64_t ttl_ns, bool pinned,
                        const void *hashes, size_t bytes)
{
    struct coordinator_loader *r = arg;
    struct coordinator_session *s = coordinator_session_find(r->sessions, session);
    if (!s)
        return damaged(r, "a prefix", session);
    (void)coordinator_prefix_load(s, incarnation, ttl_ns, pinned, hashes, bytes);
    return true;
}

static bool load_draining(void *arg, const char *worker, const void *order, size_t bytes)
{
    struct coordinator_loader *r = arg;
    struct coordinator_worker *w = coordinator_worker_named(r->sessions->cluster, worker);
    if (!w)
        return true; // more workers than --max-workers: this one has nothing
    coordinator_order_unpack(order, bytes, &w->order);
    w->cordoned = w->order.cordon;
    w->draining = w->drain_ordered = !w->cordoned;
    return true;
}

void coordinator_sessions_reader(struct coordinator_loader *loader, struct coordinator_store_reader *out)
{
    *out = (struct coordinator_store_reader){.arg = loader,
                                             .worker = load_worker,
                                             .session = load_session,
                                             .member = load_member,
                                             .chunk = load_chunk,
                                             .follower = load_follower,
                                             .seal = load_seal,
                                             .range = load_range,
                                             .key = load_key,
                                             .cut = load_cut,
                                             .floor = load_floor,
                                             .prefix = load_prefix,
                                             .draining = load_draining,
                                             .id_key = load_id_key};
}
